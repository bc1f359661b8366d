"""The network of a run, from its contract to the last event, with people in between."""

from __future__ import annotations

import hashlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone

from approvals import errors
from approvals.deciding import whole
from approvals.models import Packet, PolicyVersion
from approvals.policy_text import DEFAULT_POLICY
from approvals.states import PacketKind, PacketState, Verdict
from portal.errors import NotAllowed, NotFound
from portal.handoff import Job
from portal.models import Membership
from portal.roles import Role
from runs import grants
from runs.egress.asking import read_ask
from runs.lifecycle import ask_cancel, contract_of, event_chain_broken_at
from runs.models import Charge, EgressGrant, EgressRefusal, Event, Run, ToolCall
from runs.opened import OpenRules
from runs.states import GrantState, RunStatus
from tests.cast import REPAIR, Cast, call, contract_text
from tests.walk import MEANWHILE, Walk

pytestmark = pytest.mark.django_db(transaction=True)

SECONDS = 30.0


# --- What the stories are told with -----------------------------------------------------------


class Service:
    """A service of this machine that counts who came."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.paths: list[str] = []


@pytest.fixture
def service() -> Iterator[Service]:
    """Answers every GET."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Service(server.server_port)
    made.paths = paths
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def _this_machine_may_be_reached(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.EGRESS_PRIVATE_HOSTS = ["127.0.0.1"]
    monkeypatch.setattr("runs.network.PACKET_SECONDS", 0.1)


def text(mode: str, *allow: str, gate: str = "", **contract: Any) -> str:
    """A contract whose network is in this mode, with these rules as TOML."""
    network = "\n".join(["[network]", f'mode = "{mode}"', *allow])
    whole_text = contract_text(verification=False, gate=gate, **contract)
    return whole_text.replace("[tools]\n", f"{network}\n[tools]\n", 1)


def rule(port: int, *, minutes: int = 10, host: str = "127.0.0.1", more: str = "") -> str:
    lines = ["[[network.allow]]", f'host = "{host}"', f"port = {port}", 'purpose = "a test"']
    return "\n".join([*lines, f"minutes = {minutes}", more])


def wants(port: int, call_id: str = "ask", **more: Any) -> dict[str, Any]:
    """A call of request_network for plain GETs."""
    arguments = {
        "host": "127.0.0.1",
        "port": port,
        "purpose": "to read the index",
        "expected_response": "one word",
        "minutes": 5,
        "methods": ["GET"],
        **more,
    }
    return call(call_id, "request_network", **arguments)


def door() -> Path:
    """The socket of the one run that works now."""
    (found,) = Path(settings.DATA_DIR, "work").glob("run-*/egress/proxy.sock")
    return found


def get(port: int, path: str = "/", host: str = "127.0.0.1") -> int:
    """The status of one plain request through the run's proxy; 0 if it was cut meanwhile."""
    connection = http.client.HTTPConnection("proxy", timeout=SECONDS)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(SECONDS)
    connection.sock.connect(str(door()))
    try:
        connection.request("GET", f"http://{host}:{port}{path}")
        return connection.getresponse().status
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return 0
    finally:
        connection.close()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"it never came: {what}"
        time.sleep(0.02)


def asked(walk: Walk) -> Packet:
    """The packet of the request that waits."""
    grant = EgressGrant.objects.get(state=GrantState.REQUESTED)
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    return Packet.objects.get(egress=grant)


def told(walk: Walk, call_id: str = "ask") -> str:
    """What the agent heard from a call."""
    return ToolCall.objects.get(call_id=call_id).result


def happening(walk: Walk, run: Run, story: Callable[[], None]) -> None:
    """Let the story happen while a command of the run works; its failures are the test's."""
    failures: list[BaseException] = []

    def happens() -> None:
        try:
            story()
        except BaseException as error:
            failures.append(error)

    walk.meanwhile(happens)
    walk.drain(until=Job.COLLECT_CANDIDATE)
    if failures:
        raise failures[0]
    assert walk.status(run) == RunStatus.COLLECTING, run.failure_text


# --- Modes ------------------------------------------------------------------------------------


def test_without_a_network_there_is_no_socket_no_folder_and_no_row(walk: Walk) -> None:
    run = walk.run([[MEANWHILE], *REPAIR])
    work = Path(settings.DATA_DIR, "work")
    seen: list[list[str]] = []
    happening(walk, run, lambda: seen.append([str(each) for each in work.glob("run-*/egress")]))
    assert seen == [[]]
    assert not EgressGrant.objects.exists()
    assert not [kind for kind in walk.kinds(run) if kind.startswith("egress.")]


def test_the_tool_is_there_in_one_mode_alone(walk: Walk, service: Service) -> None:
    steps = [[wants(service.port)], *REPAIR]
    for mode, rules in (("off", ()), ("allowlist", (rule(service.port),))):
        run = walk.run(steps, text=text(mode, *rules, name=f"job-{mode}"))
        walk.drain(until=Job.COLLECT_CANDIDATE)
        assert walk.status(run) == RunStatus.COLLECTING
        walk.lose_hops()
        assert not ToolCall.objects.filter(run=run, tool="request_network").exists()
        assert not EgressGrant.objects.filter(run=run).exclude(origin="contract").exists()


@pytest.mark.both_databases
def test_a_listed_place_is_reached_and_another_is_counted(
    walk: Walk, service: Service, database: str
) -> None:
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port)))

    def story() -> None:
        assert get(service.port) == 200
        for _ in range(12):
            assert get(service.port + 1) == 403
        assert get(80, host="evil.test") == 403
        until(lambda: EgressRefusal.objects.count() == 2, "the counters")

    happening(walk, run, story)
    grant = EgressGrant.objects.get(run=run)
    assert (grant.origin, grant.state, grant.connections) == ("contract", "active", 1)
    assert grant.bytes_sent > 0
    assert grant.bytes_received > 0
    assert EgressRefusal.objects.get(port=service.port + 1).times == 12
    assert EgressRefusal.objects.get(host="evil.test").why == "not_listed"
    kinds = walk.kinds(run)
    assert kinds.count("egress.opened") == 1
    # The first, and at the latest with the end the rest: not thirteen.
    assert 2 <= kinds.count("egress.refused") <= 4
    charge = Charge.objects.get(run=run, kind="egress")
    assert charge.quantity == grant.bytes_sent + grant.bytes_received
    assert charge.unit == "bytes"


def test_traffic_has_a_price_where_one_is_set(walk: Walk, service: Service, settings: Any) -> None:
    settings.UNIT_PRICES = {"egress": 2}
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port)))
    happening(walk, run, lambda: None if get(service.port) == 200 else pytest.fail("refused"))
    charge = Charge.objects.get(run=run, kind="egress")
    assert charge.micros == 2 * charge.quantity > 0


def test_the_rule_of_a_contract_is_for_minutes_of_work(walk: Walk, service: Service) -> None:
    """While a run waits for a person its rules stand still, and go on when it does."""
    steps = [[MEANWHILE], [call("file", "create_issue", title="x")], [{**MEANWHILE, "id": "more"}]]
    run = walk.run([*steps, *REPAIR], text=text("allowlist", rule(service.port), http=True))
    ends: list[Any] = []

    def story() -> None:
        assert get(service.port) == 200
        ends.append(EgressGrant.objects.get(run=run).expires_at)

    walk.meanwhile(story)
    walk.drain()
    # A day passes while the packet waits; 9 minutes were worked before.
    Run.objects.filter(pk=run.pk).update(seconds_used=540)
    EgressGrant.objects.update(expires_at=timezone.now() - timedelta(days=1))
    walk.sweep()
    assert EgressGrant.objects.get(run=run).state == GrantState.ACTIVE
    walk.decide(walk.open_packet(run))
    happening(walk, run, story)
    assert timedelta(0) < ends[1] - timezone.now() < timedelta(seconds=60)


def test_a_contract_s_rule_whose_minutes_are_used_up_is_over(walk: Walk, service: Service) -> None:
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port, minutes=1)))
    Run.objects.filter(pk=run.pk).update(seconds_used=61)
    happening(walk, run, lambda: None if get(service.port) == 403 else pytest.fail("let through"))
    assert EgressGrant.objects.get(run=run).state == GrantState.EXPIRED
    assert not service.paths


# --- Asking -----------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_what_a_person_approves_works_in_the_living_run(
    walk: Walk, service: Service, database: str
) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        assert get(service.port) == 403
        run.refresh_from_db()
        held, sandbox = run.lease_token, run.sandbox_ref
        packet = asked(walk)
        assert packet.kind == PacketKind.EGRESS
        assert get(service.port) == 403
        walk.decide(packet)
        until(lambda: get(service.port) == 200, "the rule works")
        run.refresh_from_db()
        # The same worker, the same sandbox: nothing was started anew.
        assert (run.lease_token, run.sandbox_ref) == (held, sandbox)
        assert run.status == RunStatus.RUNNING
        packet.refresh_from_db()
        assert packet.used_at is not None

    happening(walk, run, story)
    assert told(walk).startswith(f"Asked: a person is asked about 127.0.0.1:{service.port}.")
    kinds = walk.kinds(run)
    assert kinds.index("egress.asked") < kinds.index("packet.opened")
    assert kinds.index("packet.approved") < kinds.index("egress.granted")
    assert kinds.index("egress.granted") < kinds.index("egress.opened")
    assert kinds.count("run.claimed") == 1
    assert "run.waiting" not in kinds


def test_the_packet_shows_the_narrowest_rule_and_what_is_open_already(
    walk: Walk, service: Service
) -> None:
    steps = [[wants(service.port, path="/simple", minutes=7)], [MEANWHILE], *REPAIR]
    run = walk.run(steps, text=text("request", rule(443, host="pypi.example")))
    seen: list[Packet] = []
    happening(walk, run, lambda: seen.append(asked(walk)))
    (packet,) = seen
    page = packet.page
    assert page["arguments"] == {
        "host": "127.0.0.1",
        "port": service.port,
        "tls": False,
        "methods": ["GET"],
        "path": "/simple",
        "minutes": 7,
        "max_bytes": 50_000_000,
        "max_connections": 8,
        "purpose": "to read the index",
        "expected_response": "one word",
    }
    assert packet.effect == (
        f"Let the sandbox of run {run.number} reach 127.0.0.1:{service.port} for 7 minutes: "
        "plain HTTP (GET) below /simple."
    )
    added, held = page["egress"]["rules"]
    assert (added["change"], added["ends"]) == ("added", "7 minutes after approval")
    assert (held["change"], held["where"]) == ("held", "pypi.example:443")
    assert held["ends"] == "after 10 minutes of work"
    assert page["policy"]["rules"] == ["outward-needs-a-person"]
    assert packet.valid_seconds == 420
    # The agent has finished: nobody is asked for it any more.
    walk.drain()
    packet.refresh_from_db()
    assert packet.state == PacketState.WITHDRAWN
    assert EgressGrant.objects.get(origin="agent").state == GrantState.WITHDRAWN


def test_the_agent_may_wait_for_the_answer(walk: Walk, service: Service) -> None:
    waiting = wants(service.port, "wait", wait_seconds=60)
    run = walk.run([[wants(service.port)], [waiting], [MEANWHILE], *REPAIR], text=text("request"))
    failures: list[BaseException] = []

    def answer() -> None:
        try:
            until(lambda: ToolCall.objects.filter(call_id="wait", state="acting").exists(), "wait")
            walk.decide(asked(walk), comment="For the index only.")
        except BaseException as error:
            failures.append(error)
        finally:
            connection.close()

    person = threading.Thread(target=answer)
    person.start()
    happening(walk, run, lambda: None if get(service.port) == 200 else pytest.fail("refused"))
    person.join()
    assert not failures
    heard = told(walk, "wait")
    assert heard.startswith(f"Granted: 127.0.0.1:{service.port} is open until ")
    assert "plain HTTP (GET), at most 50 MB and 8 connections at once" in heard
    assert heard.endswith("They said: For the index only.")
    assert EgressGrant.objects.count() == 1


def test_a_denied_place_stays_shut_and_is_not_asked_for_again(walk: Walk, service: Service) -> None:
    again = wants(service.port, "again", purpose="please")
    run = walk.run([[wants(service.port)], [MEANWHILE], [again], *REPAIR], text=text("request"))

    def story() -> None:
        walk.decide(asked(walk), verdict=Verdict.DENY, comment="Use what is in the repository.")
        assert get(service.port) == 403

    happening(walk, run, story)
    denied, refused = EgressGrant.objects.order_by("pk")
    assert denied.state == GrantState.DENIED
    assert "Use what is in the repository." in denied.answer
    # The second time policy answers, and nobody is bothered.
    assert refused.state == GrantState.REFUSED
    assert refused.rules == ["denied-before"]
    assert Packet.objects.filter(kind=PacketKind.EGRESS).count() == 1


def test_what_policy_allows_is_open_at_once_and_what_it_denies_is_not_asked(
    walk: Walk, service: Service
) -> None:
    set_policy(
        walk.cast,
        f"""
@id("this-machine")
@why("The index of this machine.")
permit (principal, action == Action::"do", resource)
when {{ context.kind == "network" && context.host == "127.0.0.1"
        && context.port == {service.port} && context.minutes <= 5 }};

@id("no-mail")
@why("Mail does not leave here.")
forbid (principal, action in Action::"call", resource)
when {{ context.kind == "network" && context.port == 25 }};
""",
    )
    mail = wants(25, "mail")
    run = walk.run([[wants(service.port), mail], [MEANWHILE], *REPAIR], text=text("request"))
    happening(walk, run, lambda: None if get(service.port) == 200 else pytest.fail("refused"))
    assert told(walk).startswith("Granted:")
    allowed = EgressGrant.objects.get(port=service.port)
    assert (allowed.state, allowed.rules) == (GrantState.ACTIVE, ["this-machine"])
    refused = EgressGrant.objects.get(port=25)
    assert (refused.state, refused.rules) == (GrantState.REFUSED, ["no-mail"])
    assert not Packet.objects.filter(kind=PacketKind.EGRESS).exists()
    assert "egress.refused_by_policy" in walk.kinds(run)


def set_policy(cast: Cast, more: str) -> None:
    """Acme's policy: the default and more."""
    newest = PolicyVersion.objects.filter(tenant=cast.acme).order_by("-number").first()
    assert newest is not None
    PolicyVersion.objects.filter(tenant=cast.acme).update(state="superseded")
    PolicyVersion.objects.create(
        tenant=cast.acme,
        number=newest.number + 1,
        text=DEFAULT_POLICY + more,
        digest=hashlib.sha256((DEFAULT_POLICY + more).encode()).hexdigest(),
        state="in_force",
        author=cast.max.user,
    )


def test_policy_is_asked_again_when_a_person_approves(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        packet = asked(walk)
        set_policy(
            walk.cast,
            '@id("no-network")\nforbid (principal, action in Action::"call", resource)\n'
            'when { context.kind == "network" };\n',
        )
        with pytest.raises(errors.PolicyNowDenies):
            walk.decide(packet)
        assert get(service.port) == 403

    happening(walk, run, story)


def test_an_approval_covers_the_row_that_was_read(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        packet = asked(walk)
        assert whole(packet)
        EgressGrant.objects.update(minutes=240)
        packet.refresh_from_db()
        with pytest.raises(errors.PacketDamaged):
            walk.decide(packet)
        assert get(service.port) == 403

    happening(walk, run, story)


OPENED = {
    "that waits for people": {"state": "active", "packet": False},
    "whose packet was denied": {"state": "active", "verdict": Verdict.DENY},
    "for more methods": {"methods": ["GET", "POST"]},
    "for another path": {"path": ""},
    "for more bytes": {"max_bytes": 10**12},
}


@pytest.mark.both_databases
@pytest.mark.parametrize("row", OPENED.values(), ids=OPENED)
def test_no_row_opens_more_than_was_approved(
    walk: Walk, service: Service, row: dict[str, Any]
) -> None:
    step = [wants(service.port, path="/simple")]
    run = walk.run([step, [MEANWHILE], *REPAIR], text=text("request"))
    columns = dict(row)

    def story() -> None:
        packet = asked(walk)
        if columns.pop("packet", True):
            verdict = columns.pop("verdict", Verdict.APPROVE)
            walk.decide(packet, verdict=verdict)
            if verdict is Verdict.APPROVE:
                until(lambda: get(service.port, "/simple/x") == 200, "the rule works")
        now = timezone.now()
        times = {"granted_at": now, "expires_at": now + timedelta(hours=1), "ended_at": None}
        EgressGrant.objects.update(**(times | columns if "state" in columns else columns))
        until(lambda: "egress.held_back" in walk.kinds(run), "the worker says so")
        assert get(service.port, "/simple/x") == 403
        assert EgressGrant.objects.get().state == GrantState.ENDED

    happening(walk, run, story)


def test_no_row_keeps_a_rule_open_for_longer(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        walk.decide(asked(walk))
        until(lambda: get(service.port) == 200, "the rule works")
        grant = EgressGrant.objects.get()
        opened = OpenRules(run, contract_of(run))
        ((rule,), _) = opened.now()
        EgressGrant.objects.update(expires_at=timezone.now() + timedelta(days=30))
        assert opened.now() == ([rule], [])
        assert OpenRules(run, contract_of(run)).now() == ([rule], [])
        assert grant.expires_at is not None
        assert rule.expires_at == grant.expires_at.timestamp()

    happening(walk, run, story)


def test_a_row_that_calls_itself_the_contract_s_is_compared_with_it(
    walk: Walk, service: Service
) -> None:
    allow = rule(service.port)
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", allow))

    def story() -> None:
        assert get(service.port) == 200
        EgressGrant.objects.update(port=service.port + 1, methods=[])
        until(lambda: "egress.held_back" in walk.kinds(run), "the worker says so")
        assert get(service.port + 1) == 403

    happening(walk, run, story)
    why = Event.objects.get(run=run, kind="egress.held_back").facts["why"]
    assert why == "not_in_contract"


def test_requests_of_one_run_do_not_fill_the_queue(walk: Walk) -> None:
    many = [wants(1000 + number, f"ask-{number}") for number in range(grants.MOST_WAITING + 2)]
    run = walk.run([many, *REPAIR], text=text("request"))
    walk.drain(until=Job.COLLECT_CANDIDATE)
    assert walk.status(run) == RunStatus.COLLECTING
    assert EgressGrant.objects.count() == grants.MOST_WAITING
    assert "wait for people already" in told(walk, f"ask-{grants.MOST_WAITING}")


def test_nobody_approves_what_they_asked_for(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))
    both = walk.cast.member("Rita Both", [Role.OPERATOR, Role.REVIEWER])

    def story() -> None:
        packet = asked(walk)
        with pytest.raises(NotAllowed):
            walk.decide(packet, walk.cast.vic)
        with pytest.raises(NotFound):
            walk.decide(packet, walk.cast.eve)
        # On behalf of the run, somebody else asks for another place: that one is theirs.
        grants.ask_as_person(run, someone_s(service.port + 1), member=both)
        other = asked_by_person(walk)
        assert other.requested_by == both.user
        with pytest.raises(errors.OwnRequest):
            walk.decide(other, both)
        walk.decide(other)
        walk.decide(packet, both)

    happening(walk, run, story)
    assert EgressGrant.objects.filter(state=GrantState.ACTIVE).count() == 2


def someone_s(port: int) -> Any:
    return read_ask(
        {
            "host": "127.0.0.1",
            "port": port,
            "purpose": "it was refused",
            "expected_response": "a page",
            "minutes": 5,
            "methods": ["GET"],
        }
    )


def asked_by_person(walk: Walk) -> Packet:
    grant = EgressGrant.objects.get(origin="person")
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    return Packet.objects.get(egress=grant)


def test_a_person_turns_a_refused_attempt_into_a_request(walk: Walk, service: Service) -> None:
    run = walk.run([[MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        assert get(service.port) == 403
        until(lambda: EgressRefusal.objects.exists(), "the counter")
        grants.ask_as_person(run, someone_s(service.port), member=walk.cast.olu)
        walk.decide(asked_by_person(walk))
        until(lambda: get(service.port) == 200, "the rule works")

    happening(walk, run, story)


def test_a_person_asks_only_where_it_can_be_of_use(walk: Walk, service: Service) -> None:
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port)))
    with pytest.raises(grants.NotAsking, match="allowlist"):
        grants.ask_as_person(run, someone_s(1000), member=walk.cast.olu)
    with pytest.raises(NotAllowed):
        grants.ask_as_person(run, someone_s(1000), member=walk.cast.vic)
    with pytest.raises(NotFound):
        grants.ask_as_person(run, someone_s(1000), member=walk.cast.eve)
    walk.lose_hops()
    over = walk.run(REPAIR, text=text("request", name="other"))
    walk.drain()
    with pytest.raises(grants.NotAsking, match="does not work any more"):
        grants.ask_as_person(over, someone_s(1000), member=walk.cast.olu)


# --- Taking back, and ends --------------------------------------------------------------------


@pytest.mark.parametrize("origin", ["contract", "agent"])
def test_taking_back_works_at_once_whoever_gave_it(
    walk: Walk, service: Service, origin: str
) -> None:
    if origin == "contract":
        run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port)))
    else:
        run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        if origin == "agent":
            walk.decide(asked(walk))
        until(lambda: get(service.port) == 200, "the rule works")
        grant = EgressGrant.objects.get()
        for member, refusal in ((walk.cast.vic, NotAllowed), (walk.cast.eve, NotFound)):
            with pytest.raises(refusal):
                grants.revoke(run, grant.public_id, member=member)
        grants.revoke(run, grant.public_id, member=taker(walk.cast, origin))
        until(lambda: get(service.port) == 403, "the rule is gone")
        with pytest.raises(grants.GrantOver):
            grants.revoke(run, grant.public_id, member=walk.cast.max)
        until(lambda: "egress.cut" in walk.kinds(run), "the worker says so")

    happening(walk, run, story)
    grant = EgressGrant.objects.get()
    assert grant.state == GrantState.REVOKED
    assert grant.ended_by is not None
    assert walk.kinds(run).index("egress.revoked") < walk.kinds(run).index("egress.cut")


def taker(cast: Cast, origin: str) -> Membership:
    return cast.olu if origin == "contract" else cast.ada


def test_a_granted_rule_ends_by_the_clock(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        walk.decide(asked(walk))
        until(lambda: get(service.port) == 200, "the rule works")
        soon = timezone.now() + timedelta(seconds=1)
        EgressGrant.objects.update(expires_at=soon)
        until(lambda: get(service.port) == 403, "its time is over")
        assert timezone.now() >= soon
        until(lambda: EgressGrant.objects.get().state == GrantState.EXPIRED, "the row")

    happening(walk, run, story)
    assert walk.kinds(run).count("egress.expired") == 1
    assert "egress.cut" not in walk.kinds(run)


def test_a_packet_nobody_answers_opens_nothing(walk: Walk, service: Service) -> None:
    again = wants(service.port, "again", wait_seconds=1)
    run = walk.run([[wants(service.port)], [MEANWHILE], [again], *REPAIR], text=text("request"))

    def story() -> None:
        packet = walk.run_out(asked(walk))
        with pytest.raises(errors.PacketExpired):
            walk.decide(packet)
        walk.deliver(Job.SWEEP_APPROVALS)
        assert EgressGrant.objects.get().state == GrantState.UNANSWERED
        assert get(service.port) == 403

    happening(walk, run, story)
    # Asked again, it is a new request: expiry is no denial.
    states = list(EgressGrant.objects.order_by("pk").values_list("state", flat=True))
    assert states == [GrantState.UNANSWERED, GrantState.WITHDRAWN]


def test_a_lost_hop_is_found_by_the_sweep(walk: Walk, service: Service) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        walk.deliver(Job.SWEEP_APPROVALS)
        assert (Job.OPEN_EGRESS_PACKET, EgressGrant.objects.get().pk) in walk.hops
        walk.deliver(Job.OPEN_EGRESS_PACKET, EgressGrant.objects.get().pk)
        walk.deliver(Job.OPEN_EGRESS_PACKET, EgressGrant.objects.get().pk)
        assert Packet.objects.filter(kind=PacketKind.EGRESS).count() == 1

    happening(walk, run, story)


@pytest.mark.parametrize("end", ["cancelled", "failed"])
def test_no_rule_outlives_its_run(walk: Walk, service: Service, end: str) -> None:
    steps = [[wants(service.port), wants(1000, "other")], [MEANWHILE], *REPAIR]
    run = walk.run(steps, text=text("request"))

    def story() -> None:
        for grant in EgressGrant.objects.all():
            walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
        walk.decide(Packet.objects.get(egress__port=service.port))
        until(lambda: get(service.port) == 200, "the rule works")
        if end == "cancelled":
            ask_cancel(run, member=walk.cast.olu)
        else:
            walk.lose_sandboxes()

    walk.meanwhile(story)
    walk.drain()
    assert walk.status(run) == end
    states = dict(EgressGrant.objects.values_list("port", "state"))
    assert states == {service.port: GrantState.ENDED, 1000: GrantState.WITHDRAWN}
    assert not Packet.objects.filter(state=PacketState.OPEN).exists()
    assert walk.leftovers() == []
    with pytest.raises(ValueError, match="not enough values"):
        door()


def test_a_worker_that_lost_its_run_carries_nothing_more(walk: Walk, service: Service) -> None:
    run = walk.run([[MEANWHILE], *REPAIR], text=text("allowlist", rule(service.port)))
    seen: list[bool] = []

    def story() -> None:
        assert get(service.port) == 200
        # Another worker takes the run over.
        Run.objects.filter(pk=run.pk).update(lease_token="0" * 32)

        def shut() -> bool:
            try:
                return get(service.port) != 200
            except (OSError, ValueError, http.client.HTTPException):
                return True

        until(shut, "the door is shut")
        seen.append(True)

    walk.meanwhile(story)
    walk.drain()
    assert seen == [True]


def test_events_of_the_network_keep_the_chain_and_hold_no_payload(
    walk: Walk, service: Service
) -> None:
    run = walk.run([[wants(service.port)], [MEANWHILE], *REPAIR], text=text("request"))

    def story() -> None:
        walk.decide(asked(walk))
        until(lambda: get(service.port, "/?q=private") == 200, "the rule works")

    happening(walk, run, story)
    assert event_chain_broken_at(run) is None
    facts = [str(each.facts) for each in Event.objects.filter(kind__startswith="egress.")]
    assert facts
    assert not any("private" in each for each in facts)
