"""Plain requests and the heads of answers, read so that nobody can read them otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.egress.heads import Body, HeadRefused, read_answer, read_request
from runs.egress.rules import CONNECT, Wanted


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


GET = "GET http://a.example/x HTTP/1.1"
POST = "POST http://a.example/x HTTP/1.1"


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("CONNECT a.example:443 HTTP/1.1", Wanted("a.example", 443, CONNECT)),
        ("CONNECT [::1]:443 HTTP/1.1", Wanted("::1", 443, CONNECT)),
        ("CONNECT A.Example.:443 HTTP/1.0", Wanted("a.example", 443, CONNECT)),
        ("GET http://a.example HTTP/1.1", Wanted("a.example", 80, "GET", "/")),
        ("GET http://a.example/ HTTP/1.0", Wanted("a.example", 80, "GET", "/")),
        ("GET HTTP://A.EXAMPLE:8080/X?y=1 HTTP/1.1", Wanted("a.example", 8080, "GET", "/X?y=1")),
        ("GET http://a.example?y=1 HTTP/1.1", Wanted("a.example", 80, "GET", "/?y=1")),
        ("DELETE http://[::1]:81/x HTTP/1.1", Wanted("::1", 81, "DELETE", "/x")),
    ],
)
def test_what_is_wanted(line: str, wanted: Wanted) -> None:
    assert read_request(head(line)).wanted == wanted


@pytest.mark.parametrize(
    "lines",
    [
        # The first line.
        ["GET /x HTTP/1.1", "Host: a.example"],
        ["GET https://a.example/x HTTP/1.1"],
        ["GET ftp://a.example/x HTTP/1.1"],
        ["GET http://a.example/x HTTP/2"],
        ["GET http://a.example/x"],
        ["GET  http://a.example/x HTTP/1.1"],
        ["get http://a.example/x HTTP/1.1"],
        ["GET http://a.example/a b HTTP/1.1"],
        ["GET http://a.example/\u00e9 HTTP/1.1"],
        ["GET http:///x HTTP/1.1"],
        ["GET http://a.example:/x HTTP/1.1"],
        ["GET http://a.example:0/x HTTP/1.1"],
        ["GET http://a.example:65536/x HTTP/1.1"],
        ["GET http://a.example:+80/x HTTP/1.1"],
        ["GET http://a.example#b.example/x HTTP/1.1"],
        ["GET http://a.example/x#y HTTP/1.1"],
        ["GET http://a.example@b.example/x HTTP/1.1"],
        ["GET http://u:p@a.example/x HTTP/1.1"],
        ["GET http://a.example\\@b.example/x HTTP/1.1"],
        ["GET http://a.example\\.b.example/x HTTP/1.1"],
        ["CONNECT a.example HTTP/1.1"],
        ["CONNECT a.example:https HTTP/1.1"],
        ["CONNECT a.example:443/x HTTP/1.1"],
        ["CONNECT http://a.example:443 HTTP/1.1"],
        ["CONNECT ::1:443 HTTP/1.1"],
        ["", GET],
        # Headers.
        [GET, "Host : a.example"],
        [GET, " Host: a.example"],
        [GET, "X: y", "\tfolded"],
        [GET, "no colon"],
        [GET, ": empty name"],
        [GET, "X: a\x01b"],
        [GET, "X: a\x7fb"],
        [GET, "X\x00: a"],
        [GET, "X: a\nY: b"],
        [GET, "X: a\rY: b"],
        [GET, *[f"X-{number}: y" for number in range(101)]],
        # Two ways to measure the body.
        [POST, "Content-Length: 5", "Content-Length: 6"],
        [POST, "Content-Length: 5", "Content-Length: 5"],
        [POST, "Content-Length: 5, 5"],
        [POST, "Content-Length: -5"],
        [POST, "Content-Length: +5"],
        [POST, "Content-Length: 0x5"],
        [POST, "Content-Length: 5 5"],
        [POST, "Content-Length:"],
        [POST, "Content-Length: 5", "Transfer-Encoding: chunked"],
        [POST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        [POST, "Transfer-Encoding: gzip, chunked"],
        [POST, "Transfer-Encoding: identity"],
        [POST, "Transfer-Encoding: xchunked"],
        [POST.replace("1.1", "1.0"), "Transfer-Encoding: chunked"],
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(lines: list[str]) -> None:
    with pytest.raises(HeadRefused):
        read_request(head(*lines))


def test_bare_line_breaks_and_unended_heads_are_refused() -> None:
    for raw in (b"GET http://a.example/ HTTP/1.1\n\n", b"GET http://a.example/ HTTP/1.1\r\n", b""):
        with pytest.raises(HeadRefused):
            read_request(raw)


def test_the_host_header_is_ours_whatever_was_written() -> None:
    request = read_request(head(GET, "Host: evil.test", "host: b.example", "Accept: */*"))
    assert request.written() == head(
        "GET /x HTTP/1.1", "Host: a.example", "Accept: */*", "Connection: close"
    )
    other = read_request(head("GET http://a.example:8080/ HTTP/1.1", "Host: evil.test"))
    assert b"Host: a.example:8080\r\n" in other.written()


def test_what_concerns_this_connection_alone_is_left_out() -> None:
    request = read_request(
        head(
            GET,
            "Connection: keep-alive, X-Secret, Host, Content-Length",
            "Keep-Alive: 5",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic eA==",
            "Upgrade: websocket",
            "TE: trailers",
            "Trailer: X",
            "X-Secret: 1",
            "Accept: a",
        )
    )
    assert request.written() == head(
        "GET /x HTTP/1.1", "Host: a.example", "Accept: a", "Connection: close"
    )


def test_the_measure_of_the_body_is_written_anew() -> None:
    assert b"\r\nContent-Length: 5\r\n" in read_request(head(POST, "content-length: 5")).written()
    chunked = read_request(head(POST, "Transfer-Encoding: Chunked")).written()
    assert b"\r\nTransfer-Encoding: chunked\r\n" in chunked
    assert b"\r\nContent-Length: 0\r\n" in read_request(head(POST)).written()
    assert b"Content-Length" not in read_request(head(GET)).written()


def fed(body: Body, data: bytes, step: int) -> bytes:
    return b"".join(body.feed(data[at : at + step]) for at in range(0, len(data), step))


@pytest.mark.parametrize("step", [1, 2, 5, 100])
def test_nothing_rides_behind_a_body(step: int) -> None:
    body = Body(5)
    assert fed(body, b"helloGET /admin HTTP/1.1\r\n\r\n", step) == b"hello"
    assert body.over
    chunks = Body("chunked")
    written = b"5\r\nhello\r\nB\r\n, and more.\r\n0\r\n\r\n"
    assert fed(chunks, written + b"GET /admin HTTP/1.1\r\n\r\n", step) == written.replace(
        b"B\r", b"b\r"
    )
    assert chunks.over


def test_no_body_is_over_at_once() -> None:
    assert Body(0).over
    assert not Body("chunked").over
    assert not Body(1).over


@pytest.mark.parametrize(
    "chunks",
    [
        b"5;note=x\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-5\r\nhello\r\n",
        b"\r\nhello\r\n",
        b"5\nhello\n" + b"x" * 20,
        b"123456789\r\nhello",
        b"5\r\nhelloX\r\n",
        b"5\r\nhello world, this is more than it says\r\n",
        b"0\r\nTrailer: x\r\n\r\n",
        b"x" * 20,
    ],
)
def test_chunks_that_are_none_are_refused(chunks: bytes) -> None:
    with pytest.raises(HeadRefused):
        fed(Body("chunked"), chunks, 3)


def test_answers_lose_what_concerned_the_other_connection() -> None:
    status, written = read_answer(
        head("HTTP/1.1 200 OK", "Connection: keep-alive", "Keep-Alive: 5", "Content-Length: 2")
    )
    assert status == 200
    assert written == head("HTTP/1.1 200 OK", "Content-Length: 2", "Connection: close")
    assert read_answer(head("HTTP/1.1 100 Continue")) == (100, head("HTTP/1.1 100 Continue"))
    assert read_answer(head("HTTP/1.0 204"))[0] == 204


@pytest.mark.parametrize("line", ["HTTP/2 200 OK", "SSH-2.0-x", "HTTP/1.1 20 OK", "200 OK", ""])
def test_what_is_no_answer_is_refused(line: str) -> None:
    with pytest.raises(HeadRefused):
        read_answer(head(line))


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for raw in (data, b"GET http://a.example/ HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            request = read_request(raw)
        except HeadRefused:
            continue
        written = request.written()
        assert written.count(b"\r\n\r\n") == 1
        assert written.endswith(b"\r\n\r\n")
        assert written.lower().count(b"\r\nhost:") == 1
