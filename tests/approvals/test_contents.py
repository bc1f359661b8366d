"""Both sides of every changed file stay with the candidate, and pages show what stands around."""

from __future__ import annotations

import shutil
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.urls import reverse

from approvals import contents
from approvals.changes import Change
from approvals.contents import ContentMissing, Contents
from approvals.models import Candidate, ContentPack
from portal import blobs
from portal.handoff import Job
from tests.cast import call, git, say
from tests.visits import Visitor, text_of
from tests.walk import Walk

LONG = "".join(f"line {number}\n" for number in range(1, 101))
MORE = "mv README.md moved.md; printf '\\0' > picture"


def edited(*lines: int) -> list[str]:
    """A patch that adds a word to these lines of the long file."""
    hunks = [["@@", f" line {n - 1}", f"-line {n}", f"+line {n} more"] for n in lines]
    return [
        *("*** Begin Patch", "*** Update File: repo/long.txt"),
        *(each for hunk in hunks for each in hunk),
        "*** End Patch",
    ]


def candidate_of_long(walk: Walk, *lines: int) -> Candidate:
    """A candidate that changes the middle of a file of a hundred lines, and more."""
    work = walk.root / ".adder-work"
    (work / "long.txt").write_text(LONG)
    git("add", "-A", cwd=work)
    git("commit", "-q", "-m", "A long file", cwd=work)
    git("push", "-q", str(walk.root / "adder.git"), "main", cwd=work)
    walk.lose_hops()
    change = call("change", "apply_patch", patch=edited(*lines or (50,)))
    run = walk.run([[change], [call("more", "exec_command", cmd=MORE)], [say("Done.")]])
    walk.drain(until=Job.RUN_CHECKS)
    return Candidate.objects.get(run=run)


def address(candidate: Candidate, name: str, *parts: int, **query: object) -> str:
    known = [candidate.tenant.slug, candidate.public_id, *parts]
    return f"{reverse(f'approvals:{name}', args=known)}?{urlencode(query)}"


def index_of(candidate: Candidate, path: str) -> int:
    return next(i for i, each in enumerate(candidate.changes) if each["path"] == path)


def test_every_side_of_every_change_is_kept_by_gits_own_name(walk: Walk) -> None:
    candidate = candidate_of_long(walk)
    changes = [Change.from_data(each) for each in candidate.changes]
    kept = Contents(candidate)

    assert set(kept) == set(contents.sides(changes))
    by_path = {change.name: change for change in changes}
    assert kept[by_path["long.txt"].old_blob] == LONG.encode()
    assert (
        kept[by_path["long.txt"].new_blob] == LONG.replace("line 50\n", "line 50 more\n").encode()
    )
    assert kept[by_path["moved.md"].new_blob] == b"# Adder\n"
    assert kept[by_path["picture"].new_blob] == b"\0"


def test_contents_that_do_not_fit_one_pack_lie_in_several(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "PACK_BYTES", 500)
    candidate = candidate_of_long(walk)
    assert candidate.content_packs.count() == 3
    kept = Contents(candidate)
    assert sorted(len(data) for data in kept.values())[-2:] == [len(LONG), len(LONG) + 5]


def test_bytes_that_are_not_those_git_named_are_not_shown(walk: Walk) -> None:
    candidate = candidate_of_long(walk)
    row = ContentPack.objects.get(candidate=candidate)
    name = next(name for name, (_, length) in row.places.items() if length)
    ContentPack.objects.update(places={name: [0, 1]})
    with pytest.raises(ContentMissing, match="its bytes are others"):
        Contents(candidate)[name]


def test_no_page_needs_the_source_to_show_what_stands_around(walk: Walk) -> None:
    candidate = candidate_of_long(walk)
    shutil.rmtree(walk.root / "adder.git")
    shutil.rmtree(settings.SOURCE_CACHE_DIR, ignore_errors=True)
    ada, at = Visitor(walk.cast.ada), index_of(candidate, "long.txt")

    def around(number: int, **query: object) -> str:
        asked = address(candidate, "candidate_around", at, number, **query)
        return text_of(ada.get(asked, htmx=True))

    page = ada.get(address(candidate, "candidate_file", at)).content.decode()
    assert "46 unchanged lines not shown" in " ".join(page.split())
    assert f'id="f{at}n50"' in page
    near = around(0)
    assert "line 27" in near
    assert "line 46" in near
    assert "line 26" not in near
    assert "26 unchanged lines not shown" in near
    assert "line 26" in around(0, shown=20, all="")
    assert "line 1<" in around(0, shown=20, all="")
    assert "27 more to the end of the file" in around(1)
    assert ada.get(address(candidate, "candidate_around", at, 7), htmx=True).status_code == 404

    # Without script the same link leads to the file with all of its lines.
    whole = ada.get(address(candidate, "candidate_around", at, 0))
    assert whole.status_code == 302
    everything = ada.get(whole["Location"]).content.decode()
    assert f'id="f{at}n1"' in everything
    assert f'id="f{at}n100"' in everything


def test_a_link_to_a_line_leads_to_the_rows_that_show_it(walk: Walk) -> None:
    candidate = candidate_of_long(walk, 50, 77)
    ada, at = Visitor(walk.cast.ada), index_of(candidate, "long.txt")

    def page(line: str) -> str:
        shown = ada.get(address(candidate, "candidate_file", at, line=line))
        return str(shown.content.decode())

    assert f'id="f{at}n77"' in page("new-77")
    assert f'id="f{at}o77"' in page("old-77")
    assert f'id="f{at}n3"' not in page("new-77")
    assert f'id="f{at}n3"' in page("new-3"), "an unchanged line is shown among all lines"
    assert ada.get(address(candidate, "candidate_file", at, line="new-777")).status_code == 404


def test_contents_that_retention_removed_are_said_to_be_gone(walk: Walk) -> None:
    candidate = candidate_of_long(walk)
    for blob in ContentPack.objects.values_list("blob", flat=True):
        blobs.remove(candidate.tenant_id, blob)
    ada, at = Visitor(walk.cast.ada), index_of(candidate, "long.txt")
    answer = ada.get(address(candidate, "candidate_around", at, 0), htmx=True)
    assert answer.status_code == 409
    assert "is not kept with the candidate any more" in text_of(answer)


def test_a_candidate_from_before_contents_were_kept_offers_none(walk: Walk) -> None:
    candidate = candidate_of_long(walk)
    ContentPack.objects.all().delete()
    ada, at = Visitor(walk.cast.ada), index_of(candidate, "long.txt")
    page = ada.get(address(candidate, "candidate_file", at)).content.decode()
    assert "46 unchanged lines not shown" in " ".join(page.split())
    assert "/around/" not in page
    assert ada.get(address(candidate, "candidate_file", at, whole=1)).status_code == 409
