"""The name in a ClientHello, whoever wrote it."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.egress.rules import Why
from runs.egress.sni import LONGEST_BEGINNING, NameGate, NameRefused
from tests.runs.egress_parts import certificate
from tests.runs.hellos import (
    CHANGE,
    DATA,
    EARLY_DATA,
    hello,
    message,
    modern_hello,
    real_hello,
    record,
    records,
    server_name,
    vector,
)

HOST = "pypi.example"


def why(data: bytes, host: str = HOST) -> Why:
    """Why a gate refuses what a client begins with."""
    gate = NameGate(host)
    with pytest.raises(NameRefused) as refused:
        gate.feed(data)
    return refused.value.why


def test_a_real_hello_passes_whole() -> None:
    gate = NameGate(HOST)
    said = real_hello(HOST)
    assert gate.feed(said) == said
    assert gate.named


def test_upper_case_and_a_final_dot_are_the_same_name() -> None:
    assert NameGate(HOST).feed(hello("PyPI.Example."))


def test_another_name_is_refused() -> None:
    assert why(real_hello("evil.test")) is Why.OTHER_NAME
    assert why(hello("pypi.example.evil.test")) is Why.OTHER_NAME
    assert why(hello("example")) is Why.OTHER_NAME


def test_no_name_is_refused() -> None:
    assert why(real_hello(None)) is Why.NO_NAME
    assert why(record(message(None))) is Why.NO_NAME
    assert why(record(message([]))) is Why.NO_NAME
    assert why(record(message([server_name()]))) is Why.NO_NAME


def test_a_literal_address_is_never_named_and_nothing_else_may_be() -> None:
    assert NameGate("93.184.216.34").feed(real_hello(None))
    assert why(hello("evil.test"), "93.184.216.34") is Why.OTHER_NAME


def test_a_hidden_name_is_refused_whatever_is_said_in_clear() -> None:
    assert why(hello(HOST, more=[(0xFE0D, b"\0" * 40)])) is Why.HIDDEN_NAME
    assert why(hello(HOST, more=[(0xFFCE, b"")])) is Why.HIDDEN_NAME


def test_two_names_or_an_odd_kind_of_name_are_refused() -> None:
    assert why(hello(HOST, "evil.test")) is Why.NOT_TLS
    twice = [server_name(HOST.encode()), server_name(b"evil.test")]
    assert why(record(message(twice))) is Why.NOT_TLS
    assert why(record(message([server_name(HOST.encode(), kind=1)]))) is Why.NOT_TLS
    assert why(record(message([server_name(b"")]))) is Why.NOT_TLS
    assert why(record(message([server_name(b"pypi.exampl\xc3\xa9")]))) is Why.OTHER_NAME
    assert why(record(message([server_name(b"pypi.example\0.evil.test")]))) is Why.OTHER_NAME


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-client\r\n",
        b"\x16",  # only the beginning of a record is not refused, see below
        b"\x16\x02",
        b"\x16\x03\x01\x00\x00",
        b"\x16\x03\x01\xff\xff",
        b"\x17\x03\x03\x00\x01x",
        b"\x15\x03\x03\x00\x02\x01\x00",
        b"\x14\x03\x03\x00\x01\x01",
        b"\x80\x2e\x01\x00\x02",
        record(message([server_name(HOST.encode())], kind=2)),
        record(message([server_name(HOST.encode())], tail=b"x")),
        record(message([server_name(HOST.encode())]) + b"x"),
        record(b"\x01\xff\xff\xff"),
        record(b"\x01\x00\x00\x00"),
    ],
)
def test_what_is_no_hello_is_refused_as_early_as_it_can_be_told(words: bytes) -> None:
    if words == b"\x16":
        assert NameGate(HOST).feed(words) == b""
    else:
        assert why(words) is Why.NOT_TLS


def test_lengths_that_lead_out_of_the_hello_are_refused() -> None:
    whole = message([server_name(HOST.encode())])
    for at in range(4, len(whole)):
        for value in (0, 1, 0x7F, 0xFF):
            changed = whole[:at] + bytes([value]) + whole[at + 1 :]
            gate = NameGate(HOST)
            try:
                gate.feed(record(changed))
            except NameRefused:
                continue
            assert gate.named


@given(st.binary(max_size=400))
def test_any_bytes_are_passed_or_refused_and_nothing_else_happens(data: bytes) -> None:
    gate = NameGate(HOST)
    try:
        passed = gate.feed(data)
    except NameRefused:
        return
    assert passed == b"" or gate.named


@given(st.binary(max_size=300), st.integers(1, 40))
def test_a_hello_with_any_bytes_in_it_is_named_or_refused(noise: bytes, at: int) -> None:
    gate = NameGate(HOST)
    try:
        gate.feed(record(b"\x01" + vector(noise, 3)))
    except NameRefused:
        return
    assert not gate.named or HOST.encode() in noise


@pytest.mark.parametrize("step", [1, 3, 7, 100])
def test_nothing_passes_before_the_name_was_read_however_it_is_cut(step: int) -> None:
    gate = NameGate(HOST)
    said = real_hello(HOST)
    passed = b""
    for at in range(0, len(said), step):
        assert passed == b""
        passed += gate.feed(said[at : at + step])
    assert passed == said


@pytest.mark.parametrize("size", [1, 2, 5, 50])
def test_a_hello_in_many_records_is_held_until_it_is_whole(size: int) -> None:
    whole = records(message([server_name(HOST.encode())]), size)
    gate = NameGate(HOST)
    assert gate.feed(whole[:-1]) == b""
    assert gate.feed(whole[-1:]) == whole
    assert why(records(message([server_name(b"evil.test")]), size)) is Why.OTHER_NAME


def test_an_endless_hello_is_refused() -> None:
    endless = records(b"\x01\x00\x7f\xff" + bytes(0x7FFF - 1), 1000)
    assert NameGate(HOST).feed(endless) == b""
    assert why(records(b"\x01\x00\x80\x01" + bytes(100), 50)) is Why.NOT_TLS


def test_after_application_data_nothing_is_looked_at() -> None:
    gate = NameGate(HOST)
    gate.feed(hello(HOST))
    assert gate.feed(CHANGE + DATA) == CHANGE + DATA
    assert gate.open
    assert gate.feed(b"anything at all") == b"anything at all"


def test_a_second_hello_is_held_to_the_same_name() -> None:
    """A server of TLS 1.3 may ask again, and some go by the name of the second hello."""
    for between in (b"", CHANGE):
        gate = NameGate(HOST)
        gate.feed(hello(HOST) + between)
        assert gate.feed(hello(HOST)) == hello(HOST)
        with pytest.raises(NameRefused) as refused:
            gate.feed(hello("evil.test"))
        assert refused.value.why is Why.OTHER_NAME


def test_a_second_hello_does_not_slip_through_in_pieces() -> None:
    second = message([server_name(b"evil.test")])
    for size in (1, 3, 6, 40):
        gate = NameGate(HOST)
        gate.feed(hello(HOST) + CHANGE)
        with pytest.raises(NameRefused):
            gate.feed(records(second, size))


def test_early_data_is_refused_because_another_name_can_follow_it() -> None:
    assert why(hello(HOST, more=[EARLY_DATA])) is Why.EARLY_DATA
    gate = NameGate(HOST)
    gate.feed(hello(HOST))
    with pytest.raises(NameRefused):
        gate.feed(hello(HOST, more=[EARLY_DATA]))


def test_a_real_server_hears_of_no_other_name_behind_early_data() -> None:
    """It asks for a second hello, passes over the early data, and goes by the second name."""
    flights = (
        modern_hello(HOST, early=True) + DATA,
        modern_hello("evil.test", share=bytes(range(32))),
    )
    told = list[str | None]()
    with certificate(HOST) as file:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    context.sni_callback = lambda _, name, __: told.append(name)
    heard, said = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(heard, said, server_side=True)
    gate = NameGate(HOST)
    with contextlib.suppress(NameRefused):
        for flight in flights:
            heard.write(gate.feed(flight))
            with contextlib.suppress(ssl.SSLWantReadError):
                server.do_handshake()
    assert "evil.test" not in told


def test_encrypted_handshake_records_pass() -> None:
    """In TLS 1.2 the client's last word before its data is one, with any bytes in it."""
    gate = NameGate(HOST)
    gate.feed(hello(HOST))
    exchange = record(b"\x10" + vector(b"k" * 64, 3))
    finished = record(b"\x01\x77" + bytes(38))
    assert gate.feed(exchange + CHANGE + finished) == exchange + CHANGE + finished
    assert gate.feed(DATA) == DATA


def test_a_beginning_without_an_end_is_refused() -> None:
    gate = NameGate(HOST)
    gate.feed(hello(HOST))
    noise = record(b"\x0b" + vector(bytes(16_000), 3))
    with pytest.raises(NameRefused):
        gate.feed(noise * (1 + LONGEST_BEGINNING // len(noise)))
