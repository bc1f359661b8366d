"""A source, more scope, a new consumer: none is in force before a second person said so."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import call_command
from django.core.management.base import CommandError

from portal.errors import NotAllowed
from portal.models import AuditEntry, Tenant
from runs.credentials import changes, known
from runs.credentials.changes import State
from runs.credentials.sources import ConfigWrong
from runs.models import Credential, CredentialChange
from tests.acceptance.kit import contract_with
from tests.credentials.services import private_key
from tests.credentials.sources import SECRET, approve, propose, second_admin, terms
from tests.invariants.test_boundaries import everything_stored
from tests.visits import Visitor
from tests.walk import Walk


def test_a_new_source_waits_for_a_second_person(walk: Walk) -> None:
    change = propose(walk)
    assert (change.state, change.wider) == (State.PROPOSED, ["it is a new source"])
    assert not Credential.objects.exists()

    with pytest.raises(changes.OwnChange):
        changes.decide(change, approve=True, seen=change.digest, comment="", member=walk.cast.max)
    with pytest.raises(NotAllowed):
        changes.decide(change, approve=True, seen=change.digest, comment="", member=walk.cast.ada)
    with pytest.raises(changes.ChangeStale):
        changes.decide(change, approve=True, seen="0" * 64, comment="", member=second_admin(walk))
    assert not Credential.objects.exists()

    approve(walk, change)
    row = Credential.objects.get()
    assert (row.name, row.owner, row.actions) == ("forge", "Team Tracker", ["open issues"])
    assert known(walk.cast.acme.pk) == {"forge": SECRET}
    change.refresh_from_db()
    assert (change.state, change.sealed) == (State.IN_FORCE, None)
    words = AuditEntry.objects.filter(action__startswith="credential.change_")
    assert [each.action for each in words.order_by("seq")] == [
        "credential.change_proposed",
        "credential.change_in_force",
    ]
    for place, content in everything_stored():
        assert SECRET.encode() not in content, place


def test_what_is_denied_or_withdrawn_changes_nothing(walk: Walk) -> None:
    denied = propose(walk)
    changes.decide(
        denied, approve=False, seen=denied.digest, comment="No.", member=second_admin(walk)
    )
    withdrawn = propose(walk)
    with pytest.raises(NotAllowed):
        changes.withdraw(withdrawn, member=second_admin(walk))
    changes.withdraw(withdrawn, member=walk.cast.max)
    with pytest.raises(changes.ChangeDecided):
        approve(walk, withdrawn)

    assert not Credential.objects.exists()
    assert not CredentialChange.objects.filter(sealed__isnull=False).exists()
    assert propose(walk).number == 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"actions": ("open issues", "close issues")}, "it may do “close issues”"),
        ({"audience": ("tracker.example.com", "other.example")}, "it goes to “other.example”"),
        ({"minutes": 16}, "a secret lives longer"),
        ({"owner": "Somebody else"}, "it has another owner"),
        ({"config": {"username": "root"}}, "“username” is another one"),
    ],
)
def test_a_wider_scope_waits(walk: Walk, changed: dict[str, Any], words: str) -> None:
    approve(walk, propose(walk))
    change = propose(walk, secret="", **changed)
    assert (change.state, change.wider) == (State.PROPOSED, [words])
    with pytest.raises(changes.ChangeWaits):
        propose(walk, secret="", minutes=30)

    approve(walk, change)
    row = Credential.objects.get()
    assert changes.terms_of(row) == change.after
    assert known(walk.cast.acme.pk) == {"forge": SECRET}  # it stayed


def test_a_new_consumer_and_a_later_end_wait(walk: Walk) -> None:
    walk.run(text=contract_with())
    approve(walk, propose(walk, consumers=("repair-adder",)))
    later = (datetime.now(UTC).replace(microsecond=0) + timedelta(days=200)).isoformat()
    change = propose(walk, secret="", expires_at=later)
    assert change.wider == ["every contract may use it", "it ends later"]


def test_another_secret_waits(walk: Walk) -> None:
    approve(walk, propose(walk))
    change = propose(walk, secret="another-" + "a" * 20)
    assert change.wider == ["its secret is another one"]
    assert known(walk.cast.acme.pk) == {"forge": SECRET}
    approve(walk, change)
    assert known(walk.cast.acme.pk) == {"forge": "another-" + "a" * 20}


def test_what_only_takes_is_in_force_at_once(walk: Walk) -> None:
    approve(walk, propose(walk, actions=("open issues", "close issues"), minutes=30))
    change = propose(walk, secret="", actions=("open issues",), minutes=5)
    assert (change.state, change.wider, change.self_approved) == (State.IN_FORCE, [], False)
    assert Credential.objects.get().actions == ["open issues"]
    with pytest.raises(changes.SameTerms):
        propose(walk, secret="", actions=("open issues",), minutes=5)


def test_what_was_read_must_be_what_comes_of_it(walk: Walk) -> None:
    approve(walk, propose(walk))
    change = propose(walk, secret="", minutes=30)
    Credential.objects.update(minutes=20)
    with pytest.raises(changes.ChangeStale):
        approve(walk, change)


def test_a_declared_one_person_tenant_is_labelled(walk: Walk) -> None:
    Tenant.objects.filter(pk=walk.cast.acme.pk).update(one_person=True)
    walk.cast.max.tenant.refresh_from_db()
    change = propose(walk)
    decided = changes.decide(
        change, approve=True, seen=change.digest, comment="", member=walk.cast.max
    )
    assert decided.self_approved


def test_a_source_that_was_ended_is_proposed_anew(walk: Walk) -> None:
    approve(walk, propose(walk))
    row = changes.retire(Credential.objects.get(), member=walk.cast.max)
    with pytest.raises(changes.AlreadyRetired):
        changes.retire(row, member=walk.cast.max)
    with pytest.raises(ConfigWrong, match="needs its secret"):
        propose(walk, secret="")
    change = propose(walk)
    assert change.wider == ["it is a new source"]
    approve(walk, change)
    assert Credential.objects.get().retired_at is None


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("name", {"name": "Not a name"}),
        ("secret", {"secret": "short"}),
        ("secret", {"kind": "github_app", "secret": "no key at all"}),
        ("audience", {"audience": ("https://tracker.example.com/",)}),
        ("audience", {"audience": ()}),
        ("consumers", {"consumers": ("no-such-contract",)}),
        ("consumers", {"consumers": ()}),
        ("expires_at", {"expires_at": "2020-01-01T00:00:00+00:00"}),
        ("token_url", {"kind": "oauth", "config": {"token_url": "ftp://x"}}),
    ],
)
def test_what_cannot_work_is_refused_with_its_field(
    walk: Walk, field: str, changed: dict[str, Any]
) -> None:
    with pytest.raises(ConfigWrong) as wrong:
        propose(walk, **changed)
    assert wrong.value.name == field
    assert not CredentialChange.objects.exists()


# --- Pages ---------------------------------------------------------------------------------------


def page(visitor: Visitor, address: str) -> str:
    got = visitor.get(address)
    assert got.status_code == 200
    return str(got.content.decode())


def test_the_pages_from_proposal_to_approval(walk: Walk) -> None:
    walk.run(text=contract_with())
    max_, una = Visitor(walk.cast.max), Visitor(second_admin(walk))
    key = private_key()
    given: dict[str, Any] = {
        "name": "github-publisher",
        "app": "4711",
        "installation": "99",
        "repositories": "acme/adder",
        "api": "https://api.github.com",
        "secret": key.replace("\n", "\r\n"),
        "actions": "contents:write\npull_requests:write",
        "audience": "github.com\napi.github.com",
        "consumers": ["repair-adder"],
        "minutes": "10",
        "expires_on": f"{datetime.now(UTC) + timedelta(days=30):%Y-%m-%d}",
        "owner": "Team Forge",
        "reason": "Draft pull requests of the adder.",
    }
    new = "/t/acme/credentials/new/github_app/"
    assert "Private key" in page(max_, new)
    wrong = max_.post(new, **{**given, "repositories": "adder"})
    assert wrong.status_code == 422
    assert "write owner/name" in wrong.content.decode()
    assert key.splitlines()[1] not in wrong.content.decode()  # not even to who typed it

    sent = max_.post(new, **given)
    assert sent.status_code == 302
    request = sent["Location"]
    mine = page(max_, request)
    assert "Draft pull requests of the adder." in mine
    assert "Approve and put in force" not in mine
    assert "Withdraw it" in mine
    assert "github-publisher" in page(una, "/t/acme/credentials/")
    theirs = page(una, request)
    assert "contents:write" in theirs
    assert "Approve and put in force" in theirs
    digest = CredentialChange.objects.get().digest
    answer: dict[str, Any] = {"answer": "approve", "seen": digest, "comment": ""}
    assert max_.post(f"{request}decide/", **answer).status_code == 403
    assert una.post(f"{request}decide/", **answer).status_code == 302

    row = Credential.objects.get()
    assert row.kind == "github_app"
    assert known(walk.cast.acme.pk)[row.name] == key
    for address in (
        request,
        "/t/acme/credentials/",
        f"/t/acme/credentials/of/{row.name}/",
        f"/t/acme/credentials/of/{row.name}/change/",
    ):
        shown = page(max_, address)
        assert key.splitlines()[1] not in shown
        assert "PRIVATE" not in shown
    assert "Team Forge" in page(max_, f"/t/acme/credentials/of/{row.name}/change/")
    assert max_.post(f"/t/acme/credentials/of/{row.name}/retire/").status_code == 302
    assert "Not in use any more" in page(una, "/t/acme/credentials/")


def test_the_terms_of_a_form_are_the_terms_that_were_read(walk: Walk) -> None:
    """A change without a change is none, whatever the form does to lists and days."""
    approve(walk, propose(walk, expires_at="2099-12-31T23:59:59+00:00"))
    row = Credential.objects.get()
    sent = Visitor(walk.cast.max).post(
        "/t/acme/credentials/of/forge/change/",
        actions="open issues",
        audience="tracker.example.com",
        consumers=["*"],
        minutes="15",
        expires_on="2099-12-31",
        owner="Team Tracker",
        reason="None.",
    )
    assert sent.status_code == 409
    assert changes.terms_of(row) == terms(expires_at="2099-12-31T23:59:59+00:00").to_data()


def test_what_is_known_is_chosen(walk: Walk) -> None:
    """And a source that leaves a choice out is not changed by being looked at."""
    max_, new = Visitor(walk.cast.max), "/t/acme/credentials/new/oauth/"
    form = page(max_, new)
    assert '<option value="basic" selected>In a header (basic)</option>' in form
    assert '<option value="Max Weber">' in form  # who may own it
    assert "Mona Machine" not in form
    given: dict[str, Any] = {
        "token_url": "https://auth.example.com/token",
        "client": "portal",
        "actions": "issues",
        "audience": "tracker.example.com",
        "consumers": ["*"],
        "minutes": "15",
        "expires_on": "2099-12-31",
        "owner": "A team of its own",
        "reason": "None.",
    }
    wrong = max_.post(new, **given, name="token", secret="s" * 20, client_auth="cookie")
    assert wrong.status_code == 422
    assert "Select a valid choice" in wrong.content.decode()
    assert max_.post(new, **given, name="token", secret="s" * 20).status_code == 302
    approve(walk, CredentialChange.objects.get())
    assert "client_auth" not in Credential.objects.get().config
    change = "/t/acme/credentials/of/token/change/"
    assert '<option value="" selected>Not said, so: in a header (basic)</option>' in page(
        max_, change
    )
    assert max_.post(change, **given, client_auth="").status_code == 409  # the same terms
    assert max_.post(change, **given, client_auth="post").status_code == 302
    assert CredentialChange.objects.latest("pk").wider == ["“client_auth” is another one"]


# --- Keys ----------------------------------------------------------------------------------------


def test_a_new_key_replaces_the_old_one_without_a_secret_lost(walk: Walk, settings: Any) -> None:
    approve(walk, propose(walk))
    old, new = settings.FIELD_KEYS[0], Fernet.generate_key().decode()
    settings.FIELD_KEYS = [new, old]
    call_command("reseal")
    settings.FIELD_KEYS = [new]
    assert known(walk.cast.acme.pk) == {"forge": SECRET}
    settings.FIELD_KEYS = [old]
    with pytest.raises(CommandError, match="cannot be opened"):
        call_command("reseal")
