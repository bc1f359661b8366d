"""Pages of runs and contracts: what moves, what is refused, and what a person can do next."""

from __future__ import annotations

import re

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from portal.models import AuditEntry
from runs.contract import EXAMPLE
from runs.models import ContractVersion, Run
from runs.states import RunStatus
from tests.cast import contract_text, make_version
from tests.visits import Visitor, text_of
from tests.walk import Walk, parked_call


def page_of(run: Run, what: str = "detail") -> str:
    return reverse(f"runs:{what}", args=["acme", run.public_id])


def rows_of(text: str) -> list[int]:
    """The numbers of the events on a page, in their order."""
    return [int(seq) for seq in re.findall(r'<li id="event-(\d+)"', text)]


# --- the timeline ------------------------------------------------------------------------------


def test_a_tab_asks_for_what_comes_after_its_first_row(walk: Walk) -> None:
    run = walk.to_review().run
    visitor = Visitor(walk.cast.vic)
    all_of_them = list(range(1, walk.fresh(run).event_seq + 1))
    address = page_of(run, "events")
    assert rows_of(text_of(visitor.get(address))) == all_of_them[::-1]
    newer = text_of(visitor.get(f"{address}?after=5", htmx=True))
    assert rows_of(newer) == all_of_them[:4:-1]
    assert "<!doctype" not in newer
    assert rows_of(text_of(visitor.get(f"{address}?after={all_of_them[-1]}", htmx=True))) == []
    assert rows_of(text_of(visitor.get(f"{address}?before=4"))) == [3, 2, 1]
    assert visitor.get(f"{address}?after=-1").status_code == 400


def test_a_page_and_its_later_rows_have_no_gap_and_no_double(walk: Walk) -> None:
    run = walk.run()
    visitor = Visitor(walk.cast.vic)
    seen = rows_of(text_of(visitor.get(page_of(run))))
    walk.drain()
    seen = (
        rows_of(text_of(visitor.get(f"{page_of(run, 'events')}?after={seen[0]}", htmx=True))) + seen
    )
    assert seen == list(range(walk.fresh(run).event_seq, 0, -1))


def test_the_state_of_a_run_is_the_same_on_page_and_fragment(walk: Walk) -> None:
    run = walk.to_call().run
    visitor = Visitor(walk.cast.vic)
    page, fragment = text_of(visitor.get(page_of(run))), text_of(visitor.get(page_of(run, "state")))
    for part in ("run-head", "run-steps", "run-notices", "run-output", "run-cost", "run-place"):
        assert f'id="{part}"' in page, part
        assert re.search(rf'id="{part}"[^>]* hx-swap-oob="true"', fragment), part
    assert "It waits for a person" in page
    assert "It waits for a person" in fragment
    assert "<!doctype" not in fragment


def test_an_event_shows_its_facts_and_its_payload(walk: Walk) -> None:
    run = walk.to_review().run
    visitor = Visitor(walk.cast.vic)
    seq = next(e.seq for e in run.events.all() if e.kind == "call.finished" and e.payload)
    page = text_of(visitor.get(reverse("runs:event", args=["acme", run.public_id, seq])))
    assert "def add(a: int, b: int)" in page
    assert run.events.get(seq=seq).hash[:4] in page
    missing = reverse("runs:event", args=["acme", run.public_id, 9999])
    assert visitor.get(missing).status_code == 404


# --- asking, stopping, failing -----------------------------------------------------------------


def test_a_run_is_asked_for_with_a_version_in_force(walk: Walk) -> None:
    version = make_version(walk.cast)
    olu = Visitor(walk.cast.olu)
    form = text_of(olu.get(reverse("runs:new", args=["acme"])))
    assert f'value="{version.pk}" checked' in form
    sent = olu.post(reverse("runs:new", args=["acme"]), version=version.pk)
    run = Run.objects.get()
    assert (sent.status_code, sent["Location"]) == (302, page_of(run))

    ContractVersion.objects.update(state=ContractVersion.State.SUPERSEDED)
    page = olu.post(reverse("runs:new", args=["acme"]), version=version.pk)
    assert page.status_code == 422
    assert "No contract is in force" in text_of(page)
    assert Run.objects.count() == 1


def test_stopping_is_asked_for_and_then_confirmed(walk: Walk) -> None:
    packet = parked_call(walk)
    olu = Visitor(walk.cast.olu)
    assert "Stop the run" in text_of(olu.get(page_of(packet.run)))
    assert "Stop the run" not in text_of(Visitor(walk.cast.vic).get(page_of(packet.run)))
    assert olu.post(page_of(packet.run, "cancel")).status_code == 302
    assert walk.status(packet.run) == RunStatus.CANCELLED
    again = olu.post(page_of(packet.run, "cancel"))
    assert again.status_code == 409
    assert "has already ended" in text_of(again)


def test_a_failure_names_its_boundary_and_the_way_on(walk: Walk) -> None:
    run = walk.run(target='kind = "git"\npath = "adder.git"\nbase = "main"', source="gone.git")
    walk.drain()
    assert walk.status(run) == RunStatus.FAILED
    page = text_of(Visitor(walk.cast.olu).get(page_of(run)))
    assert "Boundary: <b>control</b>" in page
    assert run.failure_code in page
    assert "Trying again is" in page
    assert 'name="way" value="restart"' in page
    # A viewer is told, and is not offered what they may not do.
    told = text_of(Visitor(walk.cast.vic).get(page_of(run)))
    assert "An operator can restart clean" in told
    assert 'name="way"' not in told


def test_a_recorded_transcript_is_called_one(walk: Walk) -> None:
    run = walk.to_call().run
    for address in (page_of(run), reverse("runs:list", args=["acme"])):
        assert "recorded transcript" in text_of(Visitor(walk.cast.vic).get(address))


# --- contracts ---------------------------------------------------------------------------------


def test_a_wrong_contract_is_shown_again_with_every_place_and_remedy(walk: Walk) -> None:
    olu = Visitor(walk.cast.olu)
    text = contract_text(name="Not A Name").replace('ref = "main"', 'ref = "main"\ncolour = "red"')
    page = olu.post(reverse("runs:contract_new", args=["acme"]), text=text, format="toml")
    assert page.status_code == 422
    shown = text_of(page)
    assert "<b>Line 1</b>, <code>name</code>" in shown
    assert "source.colour" in shown
    assert "colour = &quot;red&quot;" in shown  # the text is kept
    assert not ContractVersion.objects.exists()


def test_a_contract_comes_from_a_file_as_well(walk: Walk) -> None:
    olu = Visitor(walk.cast.olu)
    address = reverse("runs:contract_new", args=["acme"])
    upload = SimpleUploadedFile("job.toml", contract_text().encode())
    assert olu.post(address, file=upload).status_code == 302
    version = ContractVersion.objects.get()
    assert (version.text, version.format, version.state) == (contract_text(), "toml", "proposed")
    latin = SimpleUploadedFile("job.toml", "name = “x”".encode("utf-16"))
    page = olu.post(address, file=latin)
    assert page.status_code == 422
    assert "not UTF-8" in text_of(page)
    assert "Write the contract here, or choose a file." in text_of(olu.post(address))


def test_the_example_on_the_page_is_a_contract(walk: Walk) -> None:
    olu = Visitor(walk.cast.olu)
    address = reverse("runs:contract_new", args=["acme"])
    assert olu.post(address, text=EXAMPLE.replace("\n", "\r\n"), format="toml").status_code == 302
    assert ContractVersion.objects.get().text == EXAMPLE


def test_a_version_is_put_in_force_by_somebody_else(walk: Walk) -> None:
    cast = walk.cast
    first = make_version(cast)
    olu = Visitor(cast.olu)
    changed = contract_text(gate="approvals = 2")
    new = reverse("runs:version_new", args=["acme", first.contract.public_id])
    assert olu.post(new, text=changed, format="toml").status_code == 302
    version = ContractVersion.objects.get(number=2)
    page_address = reverse("runs:version", args=["acme", first.contract.public_id, 2])
    decide = reverse("runs:version_decide", args=["acme", first.contract.public_id, 2])

    page = text_of(Visitor(cast.max).get(page_address))
    assert "<code>gate.approvals</code>" in page
    assert "Approve and put in force" in page
    assert "Approve and put in force" not in text_of(olu.get(page_address))

    # Neither without the permission, nor the author, nor on another text.
    assert olu.post(decide, answer="approve", seen=version.digest).status_code == 403
    version.author = cast.max.user
    version.save(update_fields=["author"])
    own = Visitor(cast.max).post(decide, answer="approve", seen=version.digest)
    assert (own.status_code, "You wrote version 2" in text_of(own)) == (403, True)
    version.author = cast.olu.user
    version.save(update_fields=["author"])
    assert Visitor(cast.max).post(decide, answer="approve", seen="0" * 64).status_code == 409
    assert walk.fresh(version).state == "proposed"

    assert Visitor(cast.max).post(decide, answer="approve", seen=version.digest).status_code == 302
    assert (walk.fresh(version).state, walk.fresh(first).state) == ("in_force", "superseded")
    entry = AuditEntry.objects.filter(action="contract.in_force").get()
    assert (entry.actor, entry.facts["contract_digest"]) == (cast.max.user, version.digest)


def test_one_person_decides_alone_only_where_that_is_declared(walk: Walk) -> None:
    cast = walk.cast
    version = make_version(cast, in_force=False)
    version.author = cast.max.user
    version.save(update_fields=["author"])
    cast.acme.one_person = True
    cast.acme.save(update_fields=["one_person"])
    decide = reverse("runs:version_decide", args=["acme", version.contract.public_id, 1])
    assert Visitor(cast.max).post(decide, answer="approve", seen=version.digest).status_code == 302
    assert walk.fresh(version).self_approved
    address = reverse("runs:version", args=["acme", version.contract.public_id, 1])
    assert "self-approved" in text_of(Visitor(cast.vic).get(address))


def test_the_same_contract_is_no_new_version(walk: Walk) -> None:
    first = make_version(walk.cast)
    new = reverse("runs:version_new", args=["acme", first.contract.public_id])
    olu = Visitor(walk.cast.olu)
    same = olu.post(new, text=f"# A comment.\n{contract_text()}", format="toml")
    assert (same.status_code, "says the same as version 1" in text_of(same)) == (409, True)
    other = olu.post(new, text=contract_text(name="another"), format="toml")
    assert (other.status_code, "names the contract “another”" in text_of(other)) == (409, True)
    taken = reverse("runs:contract_new", args=["acme"])
    assert olu.post(taken, text=contract_text(), format="toml").status_code == 409
    assert ContractVersion.objects.count() == 1
