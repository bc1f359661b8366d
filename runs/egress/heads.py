"""One plain HTTP request, and the head of its answer, read so that nobody can read them otherwise.

A request is taken apart and written anew; what two servers might understand in two ways is
refused. The body passes only as far as its own framing says, so nothing can ride behind it: one
connection carries one request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from runs.egress.rules import CONNECT, Wanted, host_of, place

LONGEST_HEAD = 32 << 10
LONGEST_ANSWER_HEAD = 64 << 10
MOST_HEADERS = 100
LONGEST_CHUNK_LINE = 16

Header: TypeAlias = tuple[str, str]
Framing: TypeAlias = int | Literal["chunked"]
"""How many bytes of body follow, or that they come in chunks."""

_METHOD = re.compile(r"[A-Z]{1,20}")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET = re.compile(r"[!-~]+")
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?")
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,8}")
_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    }
)
_OWN = frozenset({"host", "content-length", "transfer-encoding"})
"""What is written anew from what was understood."""


class HeadRefused(Exception):
    """It is no request that may be passed on. The text says why, in words for its sender."""


@dataclass(frozen=True)
class Request:
    """A request as it was understood. `wanted.path` is empty for a tunnel."""

    wanted: Wanted
    headers: tuple[Header, ...] = ()
    body: Framing = 0

    def written(self) -> bytes:
        """The head for the server: its own host, its own framing, one request per connection."""
        wanted = self.wanted
        default = wanted.port == 80
        host = place(wanted.host, wanted.port)
        lines = [
            f"{wanted.method} {wanted.path} HTTP/1.1",
            f"Host: {host.rpartition(':')[0] if default else host}",
            *(f"{name}: {value}" for name, value in self.headers),
        ]
        if self.body == "chunked":
            lines.append("Transfer-Encoding: chunked")
        elif self.body or wanted.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {self.body}")
        lines += ["Connection: close", "", ""]
        return "\r\n".join(lines).encode("latin-1")


def read_request(head: bytes) -> Request:
    """The request of a head that ends with an empty line. Raises `HeadRefused`."""
    lines = _lines(head)
    parts = lines[0].split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.1", "HTTP/1.0"):
        raise HeadRefused("The first line is not METHOD TARGET HTTP/1.1.")
    method, target, version = parts
    if not _METHOD.fullmatch(method) or not _TARGET.fullmatch(target):
        raise HeadRefused("The method or the target has characters that neither may have.")
    headers = _headers(lines[1:])
    if method == CONNECT:
        host, port = _authority(target, None)
        return Request(Wanted(host, port, CONNECT))
    host, port, path = _absolute(target)
    body = _framing(headers, version)
    dropped = _HOP | _OWN | _named_by_connection(headers)
    kept = tuple(each for each in headers if each[0].lower() not in dropped)
    return Request(Wanted(host, port, method, path), kept, body)


def _lines(head: bytes) -> list[str]:
    if not head.endswith(b"\r\n\r\n"):
        raise HeadRefused("The head has no end.")
    lines = head[:-4].split(b"\r\n")
    # A bare line break is the end of a line to some servers and a part of it to others.
    if any(b"\r" in line or b"\n" in line or b"\0" in line for line in lines):
        raise HeadRefused("The head has a bare line break or a zero byte.")
    if len(lines) > MOST_HEADERS + 1:
        raise HeadRefused(f"The head has more than {MOST_HEADERS} headers.")
    return [line.decode("latin-1") for line in lines]


def _headers(lines: Sequence[str]) -> list[Header]:
    headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        # A blank before the colon, or at the start, is how one header is folded into another.
        if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HeadRefused("A header is not written as Name: value.")
        headers.append((name, value.strip(" \t")))
    return headers


def _authority(text: str, default: int | None) -> tuple[str, int]:
    name, colon, digits = text.rpartition(":")
    if not colon or "]" in digits:
        name, digits = text, "" if default is None else str(default)
    host = host_of(name)
    if host is None:
        raise HeadRefused("The target names no host.")
    if not re.fullmatch(r"[0-9]{1,5}", digits) or not 0 < int(digits) < 65536:
        raise HeadRefused("The target names no port.")
    return host, int(digits)


def _absolute(target: str) -> tuple[str, int, str]:
    if not target.lower().startswith("http://"):
        raise HeadRefused("The target must be a whole http:// address, or be opened by CONNECT.")
    rest = target[len("http://") :]
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    if "@" in authority or "#" in target:
        raise HeadRefused("The target holds a name to sign in with, or a fragment.")
    # A second reader has to come to the same host, or it is not clear which one is meant.
    try:
        understood = urlsplit(target).hostname or ""
    except ValueError:
        raise HeadRefused("The target cannot be read.") from None
    host, port = _authority(authority, 80)
    if host_of(f"[{understood}]" if ":" in understood else understood) != host:
        raise HeadRefused("The target can be read in two ways.")
    path = rest[len(authority) :]
    return host, port, path if path.startswith("/") else f"/{path}"


def _framing(headers: Sequence[Header], version: str) -> Framing:
    lengths = [value for name, value in headers if name.lower() == "content-length"]
    codings = [value for name, value in headers if name.lower() == "transfer-encoding"]
    if codings:
        if lengths or version == "HTTP/1.0" or [each.lower() for each in codings] != ["chunked"]:
            raise HeadRefused("The body can be measured in two ways.")
        return "chunked"
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
        raise HeadRefused("The body can be measured in two ways.")
    return int(lengths[0])


def _named_by_connection(headers: Sequence[Header]) -> frozenset[str]:
    return frozenset(
        word.strip().lower()
        for name, value in headers
        if name.lower() == "connection"
        for word in value.split(",")
    )


class Body:
    """The body of one request: what of the bytes that come belongs to it, written anew."""

    def __init__(self, framing: Framing) -> None:
        self._left = 0 if framing == "chunked" else framing
        self._chunked = framing == "chunked"
        self._line = bytearray()
        self._last = False
        self._state: Literal["size", "data", "after", "end"] = "size"

    @property
    def over(self) -> bool:
        """Whether all of it has passed; whatever follows is nobody's."""
        return self._state == "end" if self._chunked else self._left == 0

    def feed(self, data: bytes) -> bytes:
        """What of these bytes may pass. Raises `HeadRefused` for chunks that are none."""
        if not self._chunked:
            passed = data[: self._left]
            self._left -= len(passed)
            return passed
        out = bytearray()
        view = memoryview(data)
        while view and self._state != "end":
            if self._state == "data":
                taken = view[: self._left]
                out += taken
                view = view[len(taken) :]
                self._left -= len(taken)
                if not self._left:
                    self._state = "after"
            else:
                view = self._line_of(view, out)
        return bytes(out)

    def _line_of(self, view: memoryview, out: bytearray) -> memoryview:
        """One byte of a line between chunks, which are short."""
        self._line.append(view[0])
        if len(self._line) > LONGEST_CHUNK_LINE:
            raise HeadRefused("A chunk has a name, a note or a trailer.")
        if self._line.endswith(b"\r\n"):
            line = bytes(self._line[:-2])
            self._line.clear()
            self._after_line(line, out)
        return view[1:]

    def _after_line(self, line: bytes, out: bytearray) -> None:
        if self._state == "after":
            if line:
                raise HeadRefused("A chunk is longer than it says.")
            out += b"\r\n"
            self._state = "end" if self._last else "size"
            return
        if not _CHUNK.fullmatch(line):
            raise HeadRefused("A chunk has no size.")
        self._left = int(line, 16)
        self._last = self._left == 0
        out += b"%x\r\n" % self._left
        self._state = "after" if self._last else "data"


def read_answer(head: bytes) -> tuple[int, bytes]:
    """Status and rewritten head of an answer. Raises `HeadRefused` if it is no HTTP."""
    lines = _lines(head)
    status = _STATUS.fullmatch(lines[0])
    if status is None:
        raise HeadRefused("The server did not answer with HTTP/1.")
    headers = _headers(lines[1:])
    dropped = _HOP | _named_by_connection(headers)
    kept = [f"{name}: {value}" for name, value in headers if name.lower() not in dropped]
    code = int(status.group(1))
    if code >= 200:
        kept.append("Connection: close")
    return code, "\r\n".join([lines[0], *kept, "", ""]).encode("latin-1")
