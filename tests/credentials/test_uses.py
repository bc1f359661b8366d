"""A use of a credential from its request to its end, whatever happens between."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from approvals.editing import edit_packet
from approvals.models import Packet
from approvals.scopes import differences
from approvals.states import Verdict
from portal import vault
from portal.handoff import Job
from portal.models import AuditEntry
from runs import lifecycle
from runs.credentials import CredentialRefused, grants, known, use
from runs.models import Credential, CredentialGrant, Event, Run
from runs.states import CredentialState, RunStatus
from tests.acceptance.kit import contract_with, give_credential
from tests.cast import REPAIR, call
from tests.credentials.services import Authorization, serving
from tests.invariants.test_boundaries import everything_stored
from tests.visits import Visitor, text_of
from tests.walk import Walk, call_of, parked_call

SCOPES = ["issues.read", "issues.write"]


@pytest.fixture
def server(settings: Any) -> Iterator[Authorization]:
    settings.BROKER_PRIVATE_HOSTS = frozenset({"127.0.0.1"})
    with serving(Authorization()) as service:
        assert isinstance(service, Authorization)
        yield service


def give_client(walk: Walk, server: Authorization, *actions: str, **changes: Any) -> Credential:
    """The tenant's OAuth client “token”, for the tracker."""
    terms = {
        "kind": "oauth",
        "config": {
            "token_url": f"{server.url}/token",
            "revocation_url": f"{server.url}/revoke",
            "client": server.client,
        },
        "sealed": vault.seal(server.secret.encode()),
        "audience": [walk.tracker.url.removeprefix("http://")],
        "actions": list(actions or SCOPES),
        **changes,
    }
    return Credential.objects.update_or_create(tenant=walk.cast.acme, name="token", defaults=terms)[
        0
    ]


def to_call(walk: Walk, **contract: Any) -> Packet:
    """The open packet of a call that needs the credential “token”."""
    return walk.to_call(text=contract_with(credential="token", **contract))


def parked(walk: Walk, **contract: Any) -> Packet:
    """The same packet, in milliseconds: its run has no agent to go on with."""
    return parked_call(walk, text=contract_with(credential="token", **contract))


def send(walk: Walk, packet: Packet) -> str:
    """What a worker does with an approved call, without the agent around it."""
    walk.lose_hops()
    lease = lifecycle.claim_run(packet.run_id)
    assert lease is not None
    call_id, read = call_of(packet).call_id, call_of(packet).arguments_digest
    lifecycle.begin_call(lease, call_id, read)
    run = Run.objects.select_related("version", "version__contract").get(pk=packet.run_id)
    with use(
        run,
        "token",
        address=f"{walk.tracker.url}/issues",
        consumer="tool create_issue",
        call_id=call_id,
    ) as secret:
        return secret.value


def the_use(run: Run) -> CredentialGrant:
    """The run's one use of a credential."""
    return CredentialGrant.objects.select_related("credential").get(run=run)


# --- From request to end ------------------------------------------------------------------------


def test_a_secret_is_made_for_an_approved_call_and_taken_back_after_it(
    walk: Walk, server: Authorization, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    give_client(walk, server)
    walk.tracker.answer = {"number": 7}
    packet = to_call(walk)
    use_of = the_use(packet.run)
    assert (use_of.state, server.asked) == (CredentialState.REQUESTED, [])
    assert packet.credential == use_of

    walk.decide(packet)
    assert walk.fresh(use_of).state == CredentialState.APPROVED
    assert server.asked == []  # nothing is made before it is used
    walk.drain()

    (request,) = walk.tracker.requests
    (secret,) = server.given
    assert request.headers["Authorization"] == f"Bearer {secret}"
    assert server.alive == set()
    use_of.refresh_from_db()
    assert (use_of.state, use_of.uses) == (CredentialState.REVOKED, 1)
    words = [each for each in walk.kinds(packet.run) if each.startswith("credential.")]
    assert words == [
        f"credential.{each}" for each in ("requested", "approved", "minted", "used", "revoked")
    ]
    assert AuditEntry.objects.filter(action="credential.minted").exists()
    # Whatever was written down or logged, the secret is not in it.
    for place, content in everything_stored():
        assert secret.encode() not in content, place
    assert secret not in caplog.text
    assert secret not in walk.heard(packet.run)


def test_an_edited_call_asks_for_the_use_anew_and_the_first_one_gives_nothing(
    walk: Walk, server: Authorization
) -> None:
    give_client(walk, server)
    packet = to_call(walk)
    first = the_use(packet.run)
    text = '{"title": "Said by a person"}'
    second = edit_packet(packet.public_id, member=walk.cast.bo, seen=packet.digest, text=text)
    assert walk.fresh(first).state == CredentialState.WITHDRAWN
    assert second.credential is not None
    assert second.credential != first
    assert second.credential.state == CredentialState.REQUESTED
    assert second.page["credential"] == packet.page["credential"]
    walk.decide(second)
    walk.drain()
    (request,) = walk.tracker.requests
    assert request.body == b'{"title": "Said by a person"}'
    assert request.headers["Authorization"] == f"Bearer {server.given[0]}"
    assert (len(server.given), server.alive) == (1, set())
    assert walk.fresh(second.credential).state == CredentialState.REVOKED
    assert walk.fresh(first).state == CredentialState.WITHDRAWN


def test_a_service_that_answers_with_the_secret_it_was_sent(
    walk: Walk, server: Authorization
) -> None:
    give_client(walk, server)
    packet = to_call(walk)
    walk.decide(packet)
    walk.tracker.answer = {"number": "you sent made-0-" + "k" * 24}
    walk.drain()

    assert server.given == ["made-0-" + "k" * 24]
    assert "you sent [redacted]" in walk.heard(packet.run)
    # The check for secrets knows it while the run goes on, and it is wiped after that.
    assert server.given[0] in known(walk.cast.acme.pk).values()
    lifecycle.ask_cancel(packet.run, member=walk.cast.olu)
    walk.sweep()
    assert the_use(packet.run).sealed is None


def test_a_lifetime_is_shorter_than_the_runs_limit(walk: Walk, server: Authorization) -> None:
    server.lives = 100_000
    give_client(walk, server, minutes=600)
    packet = parked(walk, limits="wall_minutes = 5")
    walk.decide(packet)
    send(walk, packet)

    made = the_use(packet.run)
    assert made.expires_at is not None
    assert made.minted_at is not None
    assert timedelta(0) < made.expires_at - made.minted_at < timedelta(minutes=5)


def test_a_secret_that_outlives_the_run_and_cannot_be_taken_back_is_not_used(
    walk: Walk, server: Authorization
) -> None:
    server.lives = 100_000
    row = give_client(walk, server)
    Credential.objects.filter(pk=row.pk).update(config={**row.config, "revocation_url": ""})
    packet = parked(walk)
    walk.decide(packet)
    with pytest.raises(CredentialRefused, match="outlives the run"):
        send(walk, packet)

    assert the_use(packet.run).state == CredentialState.REFUSED


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        (Verdict.DENY, CredentialState.DENIED),
        (Verdict.REQUEST_CHANGES, CredentialState.CHANGES_REQUESTED),
        (None, CredentialState.UNANSWERED),
    ],
)
def test_without_an_approval_nothing_is_made(
    walk: Walk, server: Authorization, verdict: Verdict | None, state: CredentialState
) -> None:
    give_client(walk, server)
    packet = parked(walk)
    if verdict is None:
        walk.run_out(packet)
        walk.deliver(Job.SWEEP_APPROVALS)
    else:
        walk.decide(packet, verdict=verdict)

    assert the_use(packet.run).state == state
    with pytest.raises(CredentialRefused):
        send(walk, packet)
    assert server.asked == []


# --- The scope ------------------------------------------------------------------------------------


def test_A08_credential_scope_widened_after_approval(walk: Walk, server: Authorization) -> None:
    """The server gives more than the packet showed: it is refused before use, and taken back."""
    give_client(walk, server, "issues.read")
    packet = to_call(walk)
    assert packet.page["credential"]["scope"]["actions"] == ["issues.read"]
    walk.decide(packet)
    server.gives = "issues.read issues.write"
    walk.drain()

    assert walk.tracker.requests == []
    assert server.alive == set()
    assert the_use(packet.run).state == CredentialState.REFUSED
    entry = AuditEntry.objects.get(action="credential.refused")
    assert "issues.write" in entry.facts["why"]
    assert "Nothing was sent" in walk.heard(packet.run)


def test_A08_a_source_widened_after_approval_makes_no_more_than_was_approved(
    walk: Walk, server: Authorization
) -> None:
    give_client(walk, server, "issues.read")
    packet = parked(walk)
    walk.decide(packet)
    give_client(walk, server, "issues.read", "issues.write")
    send(walk, packet)

    assert [each.form["scope"] for each in server.asked if each.path == "/token"] == ["issues.read"]


def test_A08_a_kept_secret_that_may_do_more_than_was_approved_is_not_sent(walk: Walk) -> None:
    give_credential(walk, "s" * 30)
    Credential.objects.update(actions=["open issues"])
    packet = parked(walk)
    walk.decide(packet)
    Credential.objects.update(actions=["open issues", "delete issues"])
    with pytest.raises(CredentialRefused, match="delete issues"):
        send(walk, packet)
    assert "delete issues" in AuditEntry.objects.get(action="credential.refused").facts["why"]


def test_a_packet_shows_what_is_added_to_what_the_run_holds(
    walk: Walk, server: Authorization
) -> None:
    give_client(walk, server)
    packet = parked(walk)
    rows = packet.page["scope"]
    assert [(row["change"], row["may"]) for row in rows] == [
        ("added", "issues.read"),
        ("added", "issues.write"),
    ]
    assert packet.heading["scopes_added"] == 2

    # The same run asks again while its first use is approved and not over.
    first = the_use(packet.run)
    CredentialGrant.objects.filter(pk=first.pk).update(state="approved", approved_at=timezone.now())
    second = CredentialGrant.objects.create(
        tenant=first.tenant,
        run=first.run,
        credential=first.credential,
        origin="packet",
        consumer="tool another",
        scope={**first.scope, "actions": ["issues.read", "issues.close"]},
        state="requested",
        max_uses=1,
    )
    assert [(row["change"], row["may"]) for row in differences(first.run, second)] == [
        ("added", "issues.close"),
        ("held", "issues.read"),
        ("held", "issues.write"),
    ]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"consumers": ["another-contract"]}, "is no consumer"),
        ({"retired_at": timezone.now()}, "is not in use any more"),
        ({"expires_at": timezone.now() - timedelta(days=1)}, "is over"),
        ({"audience": ["elsewhere.example"]}, "may not be sent to"),
    ],
)
def test_who_may_use_it_is_asked_at_the_moment_of_use(
    walk: Walk, server: Authorization, terms: dict[str, Any], words: str
) -> None:
    row = give_client(walk, server)
    packet = parked(walk)
    walk.decide(packet)
    Credential.objects.filter(pk=row.pk).update(**terms)
    with pytest.raises(CredentialRefused, match=words):
        send(walk, packet)

    assert server.asked == []
    assert words in AuditEntry.objects.get(action="credential.refused").facts["why"]


# --- Every end ------------------------------------------------------------------------------------


def alive_in(walk: Walk, server: Authorization, run: Run) -> CredentialGrant:
    """A secret of a run that a worker holds, as policy lets one be made for several calls."""
    row = give_client(walk, server)
    run = Run.objects.select_related("version", "version__contract").get(pk=run.pk)
    made = CredentialGrant.objects.create(
        tenant=run.tenant,
        run=run,
        credential=row,
        origin="policy",
        consumer="tool create_issue",
        scope=grants.source_of(row).scope().to_data(),
        state="minting",
        lease=run.lease_token,
        expires_at=timezone.now() + timedelta(minutes=10),
    )
    source, minted = grants.mint(made, walk.tracker.url)
    assert grants.made(made.pk, source, minted) == ""
    assert len(server.alive) == 1
    return walk.fresh(made)


def _failed(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    lifecycle.fail_run(
        lease, boundary="control", code="x", operation="x", text="x", retry_safe=True
    )


def _cancelled(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    lifecycle.ask_cancel(run, member=walk.cast.olu)
    lifecycle.confirm_cancel(lease)


def _given_back(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    lifecycle.release_run(lease, "no sandbox")


def _killed(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    walk.lose_worker(run)
    walk.deliver(Job.SWEEP_RUNS)


def _taken_over(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    walk.lose_worker(run)
    assert lifecycle.claim_run(run.pk) is not None
    walk.deliver(Job.SWEEP_RUNS)


def _out_of_time(walk: Walk, run: Run, lease: lifecycle.Lease) -> None:
    CredentialGrant.objects.update(expires_at=timezone.now())
    walk.deliver(Job.SWEEP_RUNS)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "end", [_failed, _cancelled, _given_back, _killed, _taken_over, _out_of_time]
)
def test_inv08_a_secret_ends_with_the_work_however_that_ends(
    walk: Walk, server: Authorization, end: Callable[[Walk, Run, lifecycle.Lease], None]
) -> None:
    run = walk.run(http=True)
    walk.lose_hops()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    made = alive_in(walk, server, run)

    end(walk, run, lease)
    revokes = [each for each in walk.hops if each[0] is Job.REVOKE_CREDENTIAL]
    assert revokes == [(Job.REVOKE_CREDENTIAL, made.pk)]
    walk.deliver(*revokes[0])

    assert server.alive == set()
    assert walk.fresh(made).state == CredentialState.REVOKED


def test_inv08_what_could_not_be_taken_back_is_tried_again_and_seen(
    walk: Walk, server: Authorization
) -> None:
    server.away = 2
    give_client(walk, server)
    packet = parked(walk)
    walk.decide(packet)
    send(walk, packet)

    made = the_use(packet.run)
    assert (made.state, len(server.alive)) == (CredentialState.REVOKING, 1)
    assert "503" in made.revoke_error
    assert walk.kinds(packet.run).count("credential.revoke_failed") == 1
    page = Visitor(walk.cast.ada).get(f"/t/acme/packets/{packet.public_id}/").content.decode()
    assert "could not be taken back" in page
    assert "Try again now" in page

    CredentialGrant.objects.update(revoke_at=timezone.now())
    walk.sweep()
    assert (walk.fresh(made).revoke_attempts, len(server.alive)) == (2, 1)
    CredentialGrant.objects.update(revoke_at=timezone.now())
    walk.sweep()
    assert (walk.fresh(made).state, server.alive) == (CredentialState.REVOKED, set())
    assert made.revoke_error == ""


def test_a_source_that_never_answers_may_have_made_one(walk: Walk, server: Authorization) -> None:
    server.drops = True
    give_client(walk, server)
    packet = parked(walk)
    walk.decide(packet)
    with pytest.raises(CredentialRefused, match="not known whether"):
        send(walk, packet)

    assert the_use(packet.run).state == CredentialState.LOST
    assert AuditEntry.objects.filter(action="credential.lost").exists()


def test_inv04_a_secret_that_may_have_been_made_waits_on_the_desk(
    walk: Walk, server: Authorization
) -> None:
    """Nobody else can end it, so a person looks at the source and says what they found."""
    server.drops = True
    give_client(walk, server)
    packet = parked(walk)
    walk.decide(packet)
    with pytest.raises(CredentialRefused):
        send(walk, packet)
    lost = the_use(packet.run)
    place = f"/t/acme/unknown/secrets/{lost.public_id}/settle/"

    vic, ada = Visitor(walk.cast.vic), Visitor(walk.cast.ada)
    desk = text_of(vic.get("/t/acme/unknown/"))
    assert "Look at the authorization server for a token of this client" in desk
    assert "Settling it needs the role publisher or tenant admin." in desk
    assert vic.post(place, found="no", note="x").status_code == 403
    assert ada.post(place, found="no").status_code == 400
    assert ada.post(place, note="x").status_code == 400
    assert Visitor(walk.cast.eve).post(place, found="no", note="x").status_code == 404

    assert ada.post(place, found="yes", note="Token 4 of 12:03, ended.").status_code == 302

    assert ada.post(place, found="no", note="x").status_code == 409
    assert "Every outcome is known" in text_of(ada.get("/t/acme/unknown/"))
    run_page = text_of(ada.get(f"/t/acme/runs/{packet.run.public_id}/"))
    assert "Ada Obi settled it" in run_page
    assert "Token 4 of 12:03, ended." in run_page
    line = AuditEntry.objects.get(action="credential.settled")
    assert line.facts["result"] == "made, and ended at the source"
    event = Event.objects.get(run=packet.run, kind="credential.settled")
    assert event.facts["by"] == "Ada Obi"


def test_a_worker_killed_while_the_source_was_asked(walk: Walk, server: Authorization) -> None:
    run = walk.run(http=True)
    walk.lose_hops()
    assert lifecycle.claim_run(run.pk) is not None
    made = alive_in(walk, server, run)
    CredentialGrant.objects.update(state="minting")
    walk.lose_worker(run)
    walk.deliver(Job.SWEEP_RUNS)

    assert walk.fresh(made).state == CredentialState.LOST
    assert "stopped while the source was asked" in made.why


def test_a_run_that_ends_while_a_secret_is_made_gets_none(
    walk: Walk, server: Authorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made too late is taken back, and is sent to nobody."""
    give_client(walk, server)
    packet = to_call(walk)
    walk.decide(packet)
    mint = grants.mint

    def slowly(*arguments: Any) -> Any:
        made = mint(*arguments)
        walk.lose_worker(packet.run)
        assert lifecycle.claim_run(packet.run.pk) is not None
        return made

    monkeypatch.setattr(grants, "mint", slowly)
    walk.step()
    walk.drain(until=Job.EXECUTE_RUN)

    assert walk.tracker.requests == []
    assert (len(server.given), server.alive) == (1, set())


# --- People ---------------------------------------------------------------------------------------


def test_a_person_takes_an_approved_use_back_before_it_is_used(
    walk: Walk, server: Authorization
) -> None:
    give_client(walk, server)
    packet = parked(walk)
    walk.decide(packet)
    made = the_use(packet.run)
    address = f"/t/acme/runs/{packet.run.public_id}/credentials/{made.public_id}/revoke/"
    assert Visitor(walk.cast.vic).post(address).status_code == 403
    assert Visitor(walk.cast.eve).post(address).status_code == 404
    assert Visitor(walk.cast.max).post(address).status_code == 302
    with pytest.raises(CredentialRefused, match="was taken back by Max Weber"):
        send(walk, packet)

    assert walk.fresh(made).state == CredentialState.REVOKED
    assert server.asked == []
    assert Visitor(walk.cast.max).post(address).status_code == 409


def test_the_panel_says_what_became_of_it(walk: Walk, server: Authorization) -> None:
    give_client(walk, server)
    packet = parked(walk)
    visitor = Visitor(walk.cast.ada)
    page = f"/t/acme/packets/{packet.public_id}/"
    assert "What became of it, now" not in visitor.get(page).content.decode()
    walk.decide(packet)
    assert "Not used yet" in visitor.get(f"{page}state/").content.decode()
    send(walk, packet)
    now = visitor.get(page).content.decode()
    assert "Taken back" in now
    assert "1 time of 1" in now
    run = visitor.get(f"/t/acme/runs/{packet.run.public_id}/").content.decode()
    assert "only the outer runtime uses them" in run
    assert f"Packet {packet.number}" in run


def test_A12_a_denied_intent_comes_back_through_the_shell(walk: Walk) -> None:
    """The shell has no credential: what was denied as a call cannot be sent from there."""
    secret = "s" + "q" * 30
    give_credential(walk, secret)
    packet = walk.to_call(
        [
            [call("issue-1", "create_issue", title="The adder subtracts")],
            [call("env", "exec_command", cmd="env")],
            *REPAIR,
        ],
        text=contract_with(credential="token"),
    )
    walk.decide(packet, verdict=Verdict.DENY, comment="Not now.")
    walk.drain()

    assert walk.tracker.requests == []
    assert the_use(packet.run).state == CredentialState.DENIED
    assert secret not in walk.heard(packet.run)
    assert walk.status(packet.run) == RunStatus.IN_REVIEW


@pytest.mark.both_databases
def test_two_workers_take_a_secret_back_once(walk: Walk, server: Authorization) -> None:
    """The same hop delivered twice at one time asks the source once."""
    run = walk.run(http=True)
    walk.lose_hops()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    made = alive_in(walk, server, run)
    _failed(walk, run, lease)

    def deliver(_: int) -> str:
        try:
            return walk.deliver(Job.REVOKE_CREDENTIAL, made.pk)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        words = sorted(pool.map(deliver, range(4)))
    assert words == ["revoked", "skipped", "skipped", "skipped"]
    assert [each.path for each in server.asked].count("/revoke") == 1
