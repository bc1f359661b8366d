"""What somebody ticked as seen: bound to the content they saw, theirs alone."""

from __future__ import annotations

import pytest
from django.urls import reverse

from approvals import seen
from approvals.changes import Change
from approvals.models import Candidate, SeenFile
from approvals.states import Verdict
from portal.models import Membership
from tests.cast import PATCH, call, say
from tests.visits import Page, Visitor, text_of
from tests.walk import Walk, candidate_of

FIX = [call("fix", "apply_patch", patch=PATCH)]


def shell(command: str, call_id: str) -> list[dict[str, object]]:
    return [call(call_id, "exec_command", cmd=command)]


def tick(
    candidate: Candidate, index: int, member: Membership, on: bool = True, htmx: bool = False
) -> Page:
    parts = [candidate.tenant.slug, candidate.public_id, index]
    address = reverse("approvals:candidate_seen", args=parts)
    return Visitor(member).post(address, htmx=htmx, seen="1" if on else "")


def seen_by(candidate: Candidate, member: Membership) -> set[str]:
    changes = [Change.from_data(each) for each in candidate.changes]
    return {changes[i].name for i in seen.seen_of(candidate, changes, member).files}


@pytest.mark.both_databases
def test_a_tick_is_for_one_person_and_can_be_taken_back(walk: Walk, database: str) -> None:
    candidate = candidate_of(walk.to_review([FIX, shell("echo x > x.txt", "x"), [say("Done.")]]))
    ada, bo = walk.cast.ada, walk.cast.bo

    assert tick(candidate, 0, ada).status_code == 302
    assert tick(candidate, 0, ada).status_code == 302, "twice is once"
    assert (seen_by(candidate, ada), seen_by(candidate, bo)) == ({"adder.py"}, set())
    meter = text_of(tick(candidate, 1, ada, htmx=True))
    assert "2 of 2 files seen" in meter
    tick(candidate, 0, ada, on=False)
    assert seen_by(candidate, ada) == {"x.txt"}
    assert tick(candidate, 7, ada).status_code == 404
    assert SeenFile.objects.count() == 1


def test_a_file_that_changed_is_unseen_again_and_what_stayed_is_not(walk: Walk) -> None:
    first = walk.to_review(
        [FIX, shell("echo x > x.txt", "x"), [say("Done.")]],
        [shell("echo y > x.txt", "y"), [say("Changed.")]],
    )
    ada = walk.cast.ada
    for index in (0, 1):
        tick(candidate_of(first), index, ada)
    walk.decide(first, verdict=Verdict.REQUEST_CHANGES, comment="Another x.")
    walk.drain()
    second = candidate_of(walk.open_packet(first.run))

    assert seen_by(second, ada) == {"adder.py"}
    page = Visitor(ada).get(reverse("approvals:candidate", args=["acme", second.public_id]))
    assert "1 of 2 files seen" in text_of(page)
    assert page.content.decode().count("data-seen-file") == 2
    assert page.content.decode().count(" checked> Seen") == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "b"}, {"old_path": "c"}, {"old_mode": "100755"}, {"new_mode": "100755"},
        {"old_blob": "2" * 40}, {"new_blob": "3" * 40},
    ],
)  # fmt: skip
def test_whatever_a_reader_sees_of_a_change_belongs_to_its_content(changed: dict[str, str]) -> None:
    facts = {
        **{"path": "a", "old_path": None, "status": "M", "old_mode": "100644"},
        **{"new_mode": "100644", "old_blob": "0" * 40, "new_blob": "1" * 40, "similarity": None},
        **{"binary": False, "added": 1, "removed": 1, "old_size": 1, "new_size": 1},
    }
    one, other = Change.from_data(facts), Change.from_data({**facts, **changed})
    assert seen.content_of(one) != seen.content_of(other)
    assert seen.content_of(one) == seen.content_of(Change.from_data({**facts, "added": 9}))
