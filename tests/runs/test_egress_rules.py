"""What a rule permits, which addresses are refused, and how a flood is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.egress import addresses
from runs.egress.rules import (
    CONNECT,
    WORDS,
    Decision,
    Rule,
    Wanted,
    Why,
    below,
    decide,
    host_of,
    is_address,
    place,
)
from runs.egress.tally import MOST_PLACES, Tally

NOW = 1_000_000.0


def rule(**changes: object) -> Rule:
    whole: dict[str, object] = {
        "key": "one",
        "host": "pypi.example",
        "port": 443,
        "purpose": "install the test runner",
        "expires_at": NOW + 60,
    }
    return Rule(**(whole | changes))  # type: ignore[arg-type]


def tunnel(host: str = "pypi.example", port: int = 443) -> Wanted:
    return Wanted(host, port, CONNECT)


def plain(
    method: str = "GET", path: str = "/", host: str = "pypi.example", port: int = 80
) -> Wanted:
    return Wanted(host, port, method, path)


# --- Rules ------------------------------------------------------------------------------------


def test_nothing_passes_without_a_rule() -> None:
    assert decide([], tunnel(), NOW) == Decision(None, Why.NOT_LISTED)


@pytest.mark.parametrize(
    "wanted",
    [
        tunnel("pypi.example", 8443),
        tunnel("www.pypi.example"),
        tunnel("example"),
        tunnel("pypi.example.evil.test"),
        tunnel("xpypi.example"),
    ],
)
def test_a_rule_is_for_one_host_and_one_port(wanted: Wanted) -> None:
    assert decide([rule()], wanted, NOW).why is Why.NOT_LISTED


def test_a_rule_ends_with_its_time_and_not_a_moment_later() -> None:
    one = rule()
    assert decide([one], tunnel(), NOW + 59.999).rule is one
    assert decide([one], tunnel(), NOW + 60) == Decision(None, Why.OVER)


def test_a_rule_for_tls_lets_no_plain_request_through() -> None:
    assert decide([rule(plain=False)], plain(port=443), NOW).why is Why.NOT_PLAIN


@pytest.mark.parametrize("narrow", [{"tls": False}, {"methods": ("GET",)}, {"path": "/simple"}])
def test_what_cannot_be_seen_in_a_tunnel_cannot_be_permitted_there(
    narrow: dict[str, object],
) -> None:
    assert decide([rule(**narrow)], tunnel(), NOW).why is Why.NOT_TUNNEL


def test_methods_and_paths_of_plain_requests_are_held_to_the_rule() -> None:
    one = rule(port=80, methods=("GET", "HEAD"), path="/simple")
    assert decide([one], plain(path="/simple/pytest/?page=2"), NOW).rule is one
    assert decide([one], plain("POST", "/simple/pytest/"), NOW).why is Why.METHOD
    assert decide([one], plain(path="/upload"), NOW).why is Why.PATH


def test_one_of_several_rules_is_enough() -> None:
    rules = [rule(port=80, path="/a"), rule(key="two", port=80, path="/b")]
    assert decide(rules, plain(path="/b/c"), NOW).rule is rules[1]
    assert decide(rules, plain(path="/c"), NOW).why is Why.PATH


@pytest.mark.parametrize("path", ["/simple", "/simple/", "/simple/x", "/simple/x?y=../z"])
def test_below_a_prefix(path: str) -> None:
    assert below("/simple", path)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/simpler",
        "/Simple",
        "/simple/../admin",
        "/simple/..",
        "/simple/./x",
        "/simple/%2e%2e/admin",
        "/simple/%2E./admin",
        "/simple/..%2fadmin",
        "/simple/..;/admin",
        "/simple/x;y/../admin",
        "/simple\\..\\admin",
        "/simple/%5c..",
        "/simple/%252e%252e/admin",
        "/simple//admin",
        "//simple/x",
        "/x/simple/",
        "/simple/%00",
        "/%73imple/x",
    ],
)
def test_a_path_with_a_detour_is_not_below_a_prefix(path: str) -> None:
    assert not below("/simple", path)


def test_without_a_prefix_every_path_passes() -> None:
    assert below("", "/a/../b")
    assert below("/", "/a/%2e")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("PyPI.Example", "pypi.example"),
        ("pypi.example.", "pypi.example"),
        ("[::1]", "::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("10.0.0.1", "10.0.0.1"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("pypi.example..", None),
        ("", None),
        (".", None),
        ("a..b", None),
        ("-a.example", None),
        ("a b", None),
        ("a/b", None),
        ("bücher.example", None),
        ("a" * 64 + ".example", None),
        (".".join(["a" * 60] * 5), None),
        ("::1", None),
        ("[fe80::1%25eth0]", None),
        ("host:80", None),
    ],
)
def test_hosts_have_one_spelling(written: str, host: str | None) -> None:
    assert host_of(written) == host


def test_every_reason_has_words() -> None:
    assert set(WORDS) == set(Why)


def test_places_and_addresses_are_told_apart() -> None:
    assert place("::1", 80) == "[::1]:80"
    assert place("a.example", 80) == "a.example:80"
    assert is_address("10.0.0.1")
    assert is_address("::1")
    assert not is_address("a.example")


@given(st.text(max_size=80))
def test_whatever_a_host_is_written_like_it_is_read_or_refused(text: str) -> None:
    host = host_of(text)
    assert host is None or host_of(f"[{host}]" if ":" in host else host) == host


# --- Addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("100.100.100.200", "private"),
        ("169.254.169.254", "link-local"),
        ("168.63.129.16", "host's own"),
        ("192.0.0.1", "reserved"),
        ("192.0.2.1", "documentation"),
        ("198.18.0.1", "reserved"),
        ("198.51.100.1", "documentation"),
        ("203.0.113.1", "documentation"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.250", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:10.1.2.3", "private"),
        ("::ffff:8.8.8.8", "IPv4-mapped"),
        ("::127.0.0.1", "reserved"),
        ("::10.0.0.1", "reserved"),
        ("64:ff9b::7f00:1", "loopback"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("64:ff9b:1::1", "reserved"),
        ("100::1", "reserved"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "link-local"),
        ("fc00::1", "private"),
        ("fd00:ec2::254", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "documentation"),
        ("3fff::1", "documentation"),
        ("2001::1", "tunnel"),
        ("2002:7f00:1::1", "tunnel"),
        ("2a00:1450::5efe:7f00:1", "tunnel"),
        ("2a00:1450::200:5efe:7f00:1", "tunnel"),
        ("4000::1", "reserved"),
        ("not an address", "unreadable"),
    ],
)
def test_addresses_that_no_sandbox_reaches(address: str, word: str) -> None:
    assert addresses.why_refused(address) == word


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "172.15.255.255",
        "172.32.0.1",
        "100.63.255.255",
        "100.128.0.1",
        "169.253.1.1",
        "2606:4700::1111",
        "2a00:1450:4001:81b::200e",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_not_refused(address: str) -> None:
    assert addresses.why_refused(address) == ""


@given(st.ip_addresses())
def test_no_address_is_public_that_python_calls_private(address: object) -> None:
    """Python's own list is another one; where it refuses, ours must not let through."""
    text = str(address)
    if getattr(address, "is_private", False) and not text.startswith("64:ff9b::"):
        assert addresses.why_refused(text), text


# --- Counting ---------------------------------------------------------------------------------


def test_attempts_are_handed_out_once() -> None:
    tally = Tally()
    for _ in range(3):
        tally.add("evil.test", 443, Why.NOT_LISTED)
    tally.add("evil.test", 80, Why.METHOD)
    taken = tally.take()
    assert [(each.host, each.port, each.times) for each in taken] == [
        ("evil.test", 443, 3),
        ("evil.test", 80, 1),
    ]
    assert tally.take() == []
    tally.put_back(taken)
    tally.add("evil.test", 443, Why.NOT_LISTED)
    assert {(each.port, each.times) for each in tally.take()} == {(443, 4), (80, 1)}


def test_a_flood_at_one_place_leaves_a_handful_of_lines() -> None:
    tally = Tally()
    lines = []
    for _ in range(5000):
        tally.add("evil.test", 443, Why.NOT_LISTED)
        lines += [total for _, total in tally.lines(tally.take())]
    assert lines == [1, 10, 100, 1000]
    tally.add("evil.test", 443, Why.NOT_LISTED)
    assert [total for _, total in tally.lines(tally.take(), final=True)] == [5001]


def test_a_flood_of_names_is_counted_together() -> None:
    """Names are the attacker's own words: only so many of them reach the database."""
    tally = Tally()
    for number in range(10 * MOST_PLACES):
        tally.add(f"leak-{number}.evil.test", 443, Why.NOT_LISTED)
    taken = tally.take()
    assert len(taken) == MOST_PLACES + 1
    assert taken[-1].host == "*"
    assert taken[-1].times == 9 * MOST_PLACES
    assert sum(1 for _ in tally.lines(taken)) == MOST_PLACES + 1
