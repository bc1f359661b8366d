"""The pages of the network: a run's part, asking, taking back, the packet, the tenant's page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from approvals.models import Packet
from portal.handoff import Job
from portal.models import Membership
from runs import grants, lifecycle
from runs.contract import with_rule
from runs.egress.asking import read_ask
from runs.egress.tally import Refused
from runs.grants import Report
from runs.lifecycle import Judged
from runs.models import EgressGrant, EgressRefusal, Run
from runs.reach import tenant_reach
from runs.states import CallState, GrantState
from tests.cast import Cast, contract_text
from tests.walk import Walk

pytestmark = pytest.mark.django_db(transaction=True)

ASK = {
    "host": "files.example.com",
    "port": 443,
    "purpose": "to read <b>the</b> index",
    "expected_response": "a list\u202e of files",
    "minutes": 15,
}


def text(mode: str, name: str = "repair-adder") -> str:
    allow = '\n[[network.allow]]\nhost = "pypi.example"\nport = 443\npurpose = "install"\n'
    network = f'[network]\nmode = "{mode}"{allow if mode != "off" else ""}\n'
    return contract_text(verification=False, name=name).replace("[tools]\n", f"{network}[tools]\n")


def browser(member: Membership) -> Client:
    client = Client()
    client.force_login(member.user)
    return client


def at_work(walk: Walk, mode: str = "request") -> tuple[Run, lifecycle.Lease]:
    """A run that a worker holds, with its contract's rules open."""
    run = walk.run(text=text(mode))
    walk.lose_hops()
    lease = lifecycle.claim_run(run.pk)
    assert lease is not None
    run.refresh_from_db()
    grants.open_rules(lease, lifecycle.contract_of(run))
    return run, lease


def asked(walk: Walk, lease: lifecycle.Lease, **changes: Any) -> EgressGrant:
    """A request of the agent that waits for a person."""
    judged = Judged(CallState.WAITING, ("outward-needs-a-person",), 1, "0" * 64, "It is outside.")
    return grants.ask(lease, read_ask({**ASK, **changes}), judged)


def blocked(lease: lifecycle.Lease, host: str, times: int = 3) -> None:
    refused = Refused(host, 443, "not_listed", times)
    grants.note(lease, Report(traffic={}, refused=[refused], lines=[(refused, times)]))


def page(member: Membership, run: Run) -> str:
    answer = browser(member).get(reverse("runs:detail", args=[run.tenant.slug, run.public_id]))
    assert answer.status_code == 200
    return answer.content.decode()


# --- The run's page ---------------------------------------------------------------------------


def test_a_run_without_network_says_so_and_shows_no_button(walk: Walk) -> None:
    run = walk.run(text=text("off"))
    html = page(walk.cast.olu, run)
    assert "The network is off: the sandbox has no way out." in html
    assert "Take back" not in html


@pytest.mark.both_databases
def test_what_is_open_can_be_taken_back_by_those_who_may(walk: Walk, database: str) -> None:
    run, _ = at_work(walk)
    cast = walk.cast
    grant = EgressGrant.objects.get(run=run)
    for member, may in ((cast.olu, True), (cast.ada, True), (cast.max, True), (cast.vic, False)):
        html = page(member, run)
        assert "pypi.example:443" in html
        assert ("Take back" in html) is may
    address = reverse("runs:grant_revoke", args=["acme", run.public_id, grant.public_id])
    assert browser(cast.olu).get(address).status_code == 405
    assert browser(cast.vic).post(address).status_code == 403
    assert browser(cast.eve).post(address).status_code == 404
    assert EgressGrant.objects.get(pk=grant.pk).state == GrantState.ACTIVE
    answer = browser(cast.olu).post(address)
    assert answer.status_code == 302
    assert answer["Location"].endswith("#run-network")
    html = page(cast.olu, run)
    assert "Taken back" in html
    assert "Olu Adeyemi" in html
    assert "Take back<" not in html
    assert browser(cast.olu).post(address).status_code == 409


def test_a_rule_of_another_run_cannot_be_taken_back_by_this_one_s_address(walk: Walk) -> None:
    run, _ = at_work(walk)
    other, _ = at_work(walk)
    grant = EgressGrant.objects.get(run=other)
    address = reverse("runs:grant_revoke", args=["acme", run.public_id, grant.public_id])
    assert browser(walk.cast.olu).post(address).status_code == 404
    assert EgressGrant.objects.get(pk=grant.pk).state == GrantState.ACTIVE


def test_blocked_attempts_are_counted_and_offered_as_requests(walk: Walk) -> None:
    run, lease = at_work(walk)
    blocked(lease, "evil.example.com", 1234)
    blocked(lease, "*", 5)
    html = page(walk.cast.olu, run)
    assert "evil.example.com:443" in html
    assert "1,234 times" in html
    assert "other places" in html
    assert html.count("Turn into a request") == 1
    assert "Turn into a request" not in page(walk.cast.vic, run)
    state = browser(walk.cast.olu).get(reverse("runs:state", args=["acme", run.public_id]))
    assert 'id="run-network"' in state.content.decode()
    timeline = browser(walk.cast.olu).get(reverse("runs:events", args=["acme", run.public_id]))
    assert "1,234 times so far" in timeline.content.decode()


def test_where_no_rule_can_be_added_the_contract_is_offered(walk: Walk) -> None:
    run, lease = at_work(walk, "allowlist")
    blocked(lease, "evil.example.com")
    html = page(walk.cast.olu, run)
    assert "Turn into a request" not in html
    assert "Propose it for the contract" in html
    contract = run.version.contract
    address = reverse("runs:version_new", args=["acme", contract.public_id])
    proposed = browser(walk.cast.olu).get(f"{address}?allow=evil.example.com:443")
    assert "host = &quot;evil.example.com&quot;" in proposed.content.decode()


def test_a_request_that_waits_is_a_notice_of_the_run_that_goes_on(walk: Walk) -> None:
    run, lease = at_work(walk)
    grant = asked(walk, lease)
    assert "its packet is being made" in page(walk.cast.vic, run)
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    html = page(walk.cast.vic, run)
    assert "Network is asked for:" in html
    assert f"Read packet {Packet.objects.get(egress=grant).number}" in html


# --- Asking -----------------------------------------------------------------------------------


@pytest.mark.both_databases
def test_a_refused_attempt_becomes_a_request(walk: Walk, database: str) -> None:
    run, _ = at_work(walk)
    address = reverse("runs:network_ask", args=["acme", run.public_id])
    olu = browser(walk.cast.olu)
    shown = olu.get(f"{address}?host=evil.example.com&port=80").content.decode()
    assert 'value="evil.example.com"' in shown
    assert 'value="read" ' in shown
    form = {**ASK, "speaks": "tls", "path": ""}
    answer = olu.post(address, form)
    assert answer.status_code == 302
    grant = EgressGrant.objects.get(origin="person")
    assert (grant.state, grant.asked_by) == (GrantState.REQUESTED, walk.cast.olu.user)
    assert (Job.OPEN_EGRESS_PACKET, grant.pk) in walk.hops
    # The same again is the same request.
    assert olu.post(address, form).status_code == 302
    assert EgressGrant.objects.filter(origin="person").count() == 1
    assert browser(walk.cast.ada).get(address).status_code == 403
    assert browser(walk.cast.eve).post(address, form).status_code == 404


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"host": "https://evil.example.com/"}, "host", "must be a name alone"),
        ({"host": "*.example.com"}, "host", "must be a name alone"),
        ({"host": ""}, "host", "required"),
        ({"port": "0"}, "port", "greater than or equal to 1"),
        ({"port": "99999"}, "port", "less than or equal to 65535"),
        ({"minutes": "9999"}, "minutes", "less than or equal to 240"),
        ({"path": "/simple"}, "path", "Inside TLS nobody sees it"),
        ({"speaks": "read", "port": "8080", "path": "/a/../b"}, "path", "must begin with /"),
        ({"speaks": "read", "port": "443"}, "path", "Port 443 speaks TLS"),
        ({"purpose": ""}, "purpose", "required"),
    ],
)
def test_a_wrong_request_is_shown_again_with_its_fault(
    walk: Walk, changes: dict[str, str], field: str, words: str
) -> None:
    run, _ = at_work(walk)
    address = reverse("runs:network_ask", args=["acme", run.public_id])
    form = {**ASK, "speaks": "tls", "path": "", **changes}
    answer = browser(walk.cast.olu).post(address, form)
    assert answer.status_code == 422
    html = answer.content.decode()
    assert words in html
    assert f'id="id_{field}_error"' in html
    assert not EgressGrant.objects.filter(origin="person").exists()


def test_a_run_that_cannot_be_given_more_says_so_instead_of_a_form(walk: Walk) -> None:
    run, _ = at_work(walk, "allowlist")
    address = reverse("runs:network_ask", args=["acme", run.public_id])
    shown = browser(walk.cast.olu).get(f"{address}?host=a.example&port=443").content.decode()
    assert "This run cannot be given more" in shown
    assert "?allow=a.example%3A443" in shown
    assert browser(walk.cast.olu).post(address, {**ASK, "speaks": "tls"}).status_code == 409


# --- The packet -------------------------------------------------------------------------------


def packet_of(walk: Walk, lease: lifecycle.Lease) -> Packet:
    grant = asked(walk, lease)
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    return Packet.objects.get(egress=grant)


def test_the_packet_shows_rule_difference_and_words_made_harmless(walk: Walk) -> None:
    _, lease = at_work(walk)
    packet = packet_of(walk, lease)
    address = reverse("approvals:packet", args=["acme", packet.public_id])
    html = browser(walk.cast.ada).get(address).content.decode()
    assert "1 open already; approving opens one more." in html
    assert "files.example.com:443" in html
    assert "15 minutes after approval" in html
    assert "TLS that names this host" in html
    assert "pypi.example:443" in html
    assert "Approve and open files.example.com:443" in html
    assert "goes on meanwhile" in html
    assert "parked, no worker held" not in html
    # What the agent wrote is escaped, and what hides in it is made visible.
    assert "<b>the</b>" not in html
    assert "\u202e" not in html
    queue = browser(walk.cast.ada).get(reverse("approvals:queue", args=["acme"]))
    assert "asks for a network rule" in queue.content.decode()


@pytest.mark.both_databases
def test_approving_on_the_page_opens_the_rule_and_says_until_when(
    walk: Walk, database: str
) -> None:
    run, lease = at_work(walk)
    packet = packet_of(walk, lease)
    address = reverse("approvals:packet_decide", args=["acme", packet.public_id])
    form = {"answer": "approve", "seen": packet.digest, "comment": "", "token": "t"}
    assert browser(walk.cast.olu).post(address, form).status_code == 403
    assert browser(walk.cast.ada).post(address, form).status_code == 302
    grant = EgressGrant.objects.get(origin="agent")
    assert grant.state == GrantState.ACTIVE
    assert grant.expires_at is not None
    seconds = (grant.expires_at - timezone.now()).total_seconds()
    assert 800 < seconds <= 900
    html = (
        browser(walk.cast.ada)
        .get(reverse("approvals:packet", args=["acme", packet.public_id]))
        .content.decode()
    )
    assert "open until" in html
    assert "files.example.com:443" in page(walk.cast.ada, run)


def test_the_packet_of_a_person_s_request_names_the_person(walk: Walk) -> None:
    run, _ = at_work(walk)
    form = {**ASK, "speaks": "tls", "path": ""}
    browser(walk.cast.olu).post(reverse("runs:network_ask", args=["acme", run.public_id]), form)
    grant = EgressGrant.objects.get(origin="person")
    walk.deliver(Job.OPEN_EGRESS_PACKET, grant.pk)
    packet = Packet.objects.get(egress=grant)
    html = (
        browser(walk.cast.ada)
        .get(reverse("approvals:packet", args=["acme", packet.public_id]))
        .content.decode()
    )
    assert "<b>Olu Adeyemi</b> for the agent of run" in html
    assert walk.cast.olu.user.person_id in packet.excluded


# --- The tenant's page ------------------------------------------------------------------------


@pytest.mark.both_databases
def test_the_tenant_sees_what_is_asked_for_most_and_what_became_of_it(
    walk: Walk, database: str
) -> None:
    _, lease = at_work(walk)
    first = asked(walk, lease)
    walk.deliver(Job.OPEN_EGRESS_PACKET, first.pk)
    walk.decide(Packet.objects.get(egress=first))
    _, other = at_work(walk)
    asked(walk, other, purpose="to run: pip install requests numpy")
    third = at_work(walk)[1]
    asked(walk, third, purpose="pip install <i>requests</i>", host="mirror.example.com")
    refused = Judged(CallState.REFUSED, ("no",), 1, "0" * 64, "No.")
    grants.ask(other, read_ask({**ASK, "host": "mail.example.com", "port": 25}), refused)
    blocked(other, "evil.example.com", 70)
    blocked(other, "", 5)
    reach = tenant_reach(walk.cast.acme)
    assert [
        (each.place, each.asked, each.given, each.denied, each.waiting, each.refused)
        for each in reach.places
    ] == [
        ("files.example.com:443", 2, 1, 0, 1, 0),
        ("mail.example.com:25", 1, 0, 1, 0, 0),
        ("mirror.example.com:443", 1, 0, 0, 1, 0),
        ("evil.example.com:443", 0, 0, 0, 0, 70),
    ]
    html = browser(walk.cast.vic).get(reverse("runs:network", args=["acme"])).content.decode()
    assert html.index("files.example.com:443") < html.index("evil.example.com:443")
    assert html.count(">repair-adder</a>") == 4
    # And for which packages, where a request names one.
    assert dict(reach.places[0].packages) == {"pip requests": 1, "pip numpy": 1}
    assert "<code>pip requests</code>" in html
    assert html.count("none named") == 3
    # What is listed in a contract was not asked for.
    assert "pypi.example" not in html


def test_a_tenant_sees_nothing_of_another(walk: Walk, cast: Cast) -> None:
    _, lease = at_work(walk)
    asked(walk, lease)
    blocked(lease, "evil.example.com")
    assert browser(cast.eve).get(reverse("runs:network", args=["acme"])).status_code == 404
    html = browser(cast.eve).get(reverse("runs:network", args=["globex"])).content.decode()
    assert "Nothing was asked for and nothing was blocked" in html
    assert EgressRefusal.objects.filter(tenant=cast.globex).count() == 0


def test_the_tenant_s_page_costs_the_same_however_many_runs_there_are(
    walk: Walk, django_assert_max_num_queries: Any
) -> None:
    _, lease = at_work(walk)
    for number in range(30):
        blocked(lease, f"host-{number}.example.com")
    with django_assert_max_num_queries(5):
        assert len(tenant_reach(walk.cast.acme).places) == 30


# --- A rule for the next version --------------------------------------------------------------


def test_a_proposed_rule_stands_at_the_end_of_the_text() -> None:
    without = with_rule('name = "x"\n', "toml", "a.example:8443")
    assert (
        '[network]\nmode = "allowlist"\n[[network.allow]]\nhost = "a.example"\nport = 8443'
        in without
    )
    beside = with_rule(text("allowlist"), "toml", "a.example:8443")
    assert beside.count("[network]\n") == 1
    assert beside.endswith('host = "a.example"\nport = 8443\npurpose = ""\nminutes = 10\n')
    for odd in ("a.example", ":443", "a.example:x", "a.example:999999"):
        assert with_rule("x", "toml", odd) == "x"
    assert with_rule("name: x", "yaml", "a.example:443") == "name: x"
