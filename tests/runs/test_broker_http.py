"""HTTP tools: what is sent, what comes back, how often, how long."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from portal.models import Membership, User
from portal.redact import redact
from runs import broker
from runs.broker import addresses, http
from runs.contract import ContractRefused
from runs.models import TenantValue
from tests.cast import Cast, set_value
from tests.runs.broker_parts import Answer, Service, carried_out, contract_of_tool, run_of, service

BODY = {
    "number": 7,
    "private": "kept back",
    "owner": {"name": "Ada", "email": "ada@example.com"},
    "items": [{"id": 1, "note": "x"}, {"id": 2}],
}


@pytest.fixture(autouse=True)
def _reachable(settings: Any) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["127.0.0.1"]


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_REST", 0.01)


def tool(made: Service, **more: Any) -> dict[str, Any]:
    """A GET of `made`."""
    TenantValue.objects.update_or_create(
        tenant__slug="acme",
        name="service",
        defaults={"value": made.url},
        create_defaults={"tenant": Membership.objects.filter(tenant__slug="acme")[0].tenant}
        | {"value": made.url},
    )
    return {"method": "GET", "base": "service", "url": "{base}/x", "response": ["number"], **more}


def test_only_listed_fields_come_back_and_masked_ones_are_masked(cast: Cast) -> None:
    with service(Answer(body=BODY)) as made:
        wanted = {"response": ["number", "owner", "items.id", "absent"], "redact": ["owner.email"]}
        done = carried_out(run_of(cast), "http", tool(made, **wanted))

    assert done.ok
    assert json.loads(done.words) == {
        "status": 200,
        "number": 7,
        "owner": {"name": "Ada", "email": "[redacted]"},
        "items.id": [1, 2],
    }
    assert (done.receipt["status"], done.receipt["attempts"]) == (200, 1)


def test_an_answer_that_does_not_fit_the_schema_is_not_passed_on(cast: Cast) -> None:
    schema = {
        "type": "object",
        "required": ["number"],
        "properties": {"number": {"type": "string"}},
    }
    with service(Answer(body=BODY)) as made:
        got = carried_out(run_of(cast), "http", tool(made, response_schema=schema))
        post = {"method": "POST", "response_schema": schema}
        posted = carried_out(run_of(cast), "http", tool(made, **post))

    assert not got.ok
    assert "properties/number/type" in got.words
    assert "7" not in got.words.replace("200", "")
    # What was asked for has happened all the same, and is not told as a failure.
    assert posted.ok
    assert "was carried out" in posted.words


def test_an_answer_that_fits_is_passed_on(cast: Cast) -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    with service(Answer(body=BODY)) as made:
        done = carried_out(run_of(cast), "http", tool(made, response_schema=schema))
    assert json.loads(done.words) == {"status": 200, "number": 7}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(body={"number": 7, "more": "x" * 3_000}), "longer than 1 kilobytes"),
        (
            Answer(body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"}),
            "packed, although that was not asked for",
        ),
    ],
)
def test_an_answer_beyond_its_size_is_not_passed_on(cast: Cast, answer: Answer, words: str) -> None:
    with service(answer) as made:
        done = carried_out(run_of(cast), "http", tool(made, max_kilobytes=1))
    assert not done.ok
    assert words in done.words
    assert "xxx" not in done.words


@pytest.mark.parametrize("answer", [Answer(hang=True), Answer(body=BODY, drip=0.05)])
def test_one_deadline_holds_for_all_of_an_attempt(cast: Cast, answer: Answer) -> None:
    """A service that sends one byte after the other is as late as one that sends none."""
    with service(answer) as made, pytest.raises(broker.BrokerFailed, match="in 1 seconds"):
        carried_out(run_of(cast), "http", tool(made, timeout_seconds=1))


def test_a_safe_request_is_sent_again_with_the_same_key(cast: Cast) -> None:
    with service(Answer(503), Answer(429), Answer(body=BODY)) as made:
        done = carried_out(run_of(cast), "http", tool(made, retries=2))

    assert (done.ok, done.receipt["attempts"], len(made.requests)) == (True, 3, 3)
    assert len({headers["idempotency-key"] for _, _, headers, _ in made.requests}) == 1


def test_a_safe_request_without_an_answer_fails_and_is_not_unknown(cast: Cast) -> None:
    with (
        service(Answer(500)) as made,
        pytest.raises(broker.BrokerFailed, match=r"answered 500\. It was asked 2 times"),
    ):
        carried_out(run_of(cast), "http", tool(made, retries=1))
    assert len(made.requests) == 2


@pytest.mark.parametrize("answer", [Answer(500), Answer(hang=True)])
def test_any_other_request_is_sent_once_and_its_outcome_unknown(cast: Cast, answer: Answer) -> None:
    with service(answer) as made, pytest.raises(broker.BrokerUnknown):
        carried_out(run_of(cast), "http", tool(made, method="POST", timeout_seconds=1))
    assert len(made.requests) == 1


ONCE = {"method": "POST", "idempotent": True, "retries": 2, "timeout_seconds": 1}
"""A tool whose service does a request with the same key once."""


@pytest.mark.parametrize("first", [Answer(503), Answer(429), Answer(hang=True)])
def test_an_idempotent_request_is_sent_again_with_the_same_key(cast: Cast, first: Answer) -> None:
    with service(first, Answer(201, body=BODY)) as made:
        done = carried_out(run_of(cast), "http", tool(made, **ONCE))

    assert (done.ok, done.receipt["attempts"], len(made.requests)) == (True, 2, 2)
    assert len({headers["idempotency-key"] for _, _, headers, _ in made.requests}) == 1


@pytest.mark.parametrize("later", [Answer(500), Answer(409), Answer(422), Answer(429)])
def test_inv04_a_repetition_that_is_refused_does_not_say_what_became_of_the_first(
    cast: Cast, later: Answer
) -> None:
    with (
        service(Answer(hang=True), later) as made,
        pytest.raises(broker.BrokerUnknown, match=r"It was asked 3 times"),
    ):
        carried_out(run_of(cast), "http", tool(made, **ONCE))
    assert len(made.requests) == 3


def test_inv04_a_repetition_that_finds_nobody_does_not_say_so_either(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the address is none any more that may be reached."""
    asked: list[str] = []

    def first_only(host: str, port: int) -> str:
        asked.append(host)
        if len(asked) > 1:
            raise broker.BrokerRefused("That is not a public address.")
        return addresses.checked_address(host, port)

    monkeypatch.setattr(http, "checked_address", first_only)
    with (
        service(Answer(hang=True)) as made,
        pytest.raises(broker.BrokerUnknown, match="not a public address"),
    ):
        carried_out(run_of(cast), "http", tool(made, **ONCE))
    assert len(made.requests) == 1


def test_a_clear_no_is_an_answer_and_nothing_is_sent_again(cast: Cast) -> None:
    with service(Answer(422)) as made:
        done = carried_out(run_of(cast), "http", tool(made, **ONCE))
    assert (done.ok, len(made.requests)) == (False, 1)


@pytest.mark.parametrize("declared", [{"method": "POST"}, {"method": "PUT", "idempotent": False}])
def test_a_contract_may_repeat_nothing_that_could_happen_twice(declared: dict[str, Any]) -> None:
    place = {"url": "https://host.example/x", "retries": 1}
    with pytest.raises(ContractRefused, match=r"sent once.*idempotent = true"):
        contract_of_tool("http", {**declared, **place})
    assert contract_of_tool("http", {**declared, **place, "idempotent": True})


def test_nothing_was_sent_where_nothing_listens(cast: Cast) -> None:
    """Also for a POST: without a connection there is no effect to ask a person about."""
    with service() as made:
        pass
    with pytest.raises(broker.BrokerRefused, match="No connection was made"):
        carried_out(run_of(cast), "http", tool(made, method="POST"))


@pytest.mark.parametrize(
    "url", ["http://127.0.0.2:9/", "http://169.254.169.254/", "http://[::1]:9"]
)
def test_private_addresses_are_reached_only_where_they_are_listed(cast: Cast, url: str) -> None:
    with pytest.raises(broker.BrokerRefused, match="not a public address"):
        carried_out(run_of(cast), "http", tool(Service(url, [])))


@pytest.mark.parametrize("more", [{}, {"response_schema": {"type": "object"}}])
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"number": "\\ud800 and \\u0000"}', "\N{REPLACEMENT CHARACTER} and"),
        (b'{"number": ' + b"[" * 45 + b"]" * 45 + b"}", "[[[["),
        (b'{"number": ' + b"[" * 900 + b"]" * 900 + b"}", "nested too deeply"),
        (b'{"number": ' + b"[" * 9000 + b"]" * 9000 + b"}", "nested too deeply"),
    ],
)
def test_inv04_an_answer_that_nothing_can_store_is_an_answer(
    cast: Cast, body: bytes, words: str, more: dict[str, Any]
) -> None:
    with service(Answer(body=body)) as made:
        done = carried_out(run_of(cast), "http", tool(made, method="POST", **more))

    # What was asked for has happened, whatever the service said of it.
    assert done.ok
    assert words in redact(done.words)
    redact(done.words).encode()


@pytest.mark.parametrize(
    "address",
    [
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:port",
        "http://somebody:plum@127.0.0.1",
        "http://127.0.0.1\\@other.invalid",
        "http://127.0.0.1/\r\nX-Other: 1",
        "http://127.0.0.1/#",
        "http://\u0430.invalid",
        "http:///path",
        "ftp://127.0.0.1",
    ],
)
def test_an_address_that_can_be_read_in_two_ways_is_refused(cast: Cast, address: str) -> None:
    with service() as made:
        declared = tool(made)
        set_value(cast, "service", address)
        with pytest.raises(broker.BrokerRefused, match="has no http address"):
            carried_out(run_of(cast), "http", declared)


def test_arguments_make_no_address_without_end(cast: Cast) -> None:
    parameters = {"properties": {"q": {"type": "string"}}}
    with service() as made:
        declared = tool(made, parameters=parameters)
        with pytest.raises(broker.BrokerRefused, match="Keep it to 8000"):
            carried_out(run_of(cast), "http", declared, {"q": "x" * 70_000})


def test_a_host_whose_name_is_part_of_the_scheme(
    cast: Cast, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BROKER_PRIVATE_HOSTS = ["p"]
    monkeypatch.setattr(http, "checked_address", lambda host, port: "127.0.0.1")
    with service(Answer(body=BODY)) as made:
        declared = tool(made)
        set_value(cast, "service", made.url.replace("127.0.0.1", "p"))
        assert carried_out(run_of(cast), "http", declared).ok
    assert made.requests[0][2]["host"].startswith("p:")


def test_a_redirect_is_told_and_not_followed(cast: Cast) -> None:
    with service(Answer(302, headers={"Location": "http://127.0.0.1:1/"})) as made:
        done = carried_out(run_of(cast), "http", tool(made))
    assert (done.ok, json.loads(done.words), len(made.requests)) == (False, {"status": 302}, 1)


def test_the_service_is_told_whom_it_acts_for_if_the_contract_says_so(cast: Cast) -> None:
    with service() as made:
        run = run_of(cast)
        carried_out(run, "http", tool(made))
        carried_out(run, "http", tool(made, acting_for=True))

    told = [headers.get("x-acting-for") for _, _, headers, _ in made.requests]
    assert told == [None, "olu@example.com"]


def test_nobody_acts_for_somebody_who_has_left(cast: Cast) -> None:
    with service() as made:
        run, declared = run_of(cast), tool(made)
        Membership.objects.filter(pk=cast.olu.pk).update(roles=["viewer"])
        with pytest.raises(broker.BrokerRefused, match="may not operate runs here any more"):
            carried_out(run, "http", declared)
        Membership.objects.filter(pk=cast.olu.pk).update(roles=["operator"])
        User.objects.filter(pk=cast.olu.user_id).update(is_active=False)
        with pytest.raises(broker.BrokerRefused, match="may not operate runs here any more"):
            carried_out(run, "http", declared)
    assert made.requests == []
