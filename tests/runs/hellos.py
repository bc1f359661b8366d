"""ClientHellos for tests: those of a real TLS library, and those that none would write."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Sequence

Extension = tuple[int, bytes]


def real_hello(host: str | None) -> bytes:
    """The first flight of OpenSSL, with its record header."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    said, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(heard, said, server_hostname=host)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def vector(data: bytes, size: int = 2) -> bytes:
    """Bytes with their count before them."""
    return len(data).to_bytes(size, "big") + data


def server_name(*names: bytes, kind: int = 0) -> Extension:
    """The extension that names hosts."""
    return 0, vector(b"".join(bytes([kind]) + vector(name) for name in names))


def message(extensions: Sequence[Extension] | None, *, kind: int = 1, tail: bytes = b"") -> bytes:
    """A handshake message: a ClientHello with these extensions, or with none at all."""
    body = b"\x03\x03" + bytes(32) + vector(b"", 1) + vector(b"\x13\x01") + vector(b"\0", 1)
    if extensions is not None:
        body += vector(
            b"".join(number.to_bytes(2, "big") + vector(data) for number, data in extensions)
        )
    body += tail
    return bytes([kind]) + len(body).to_bytes(3, "big") + body


def record(payload: bytes, kind: int = 22) -> bytes:
    """One TLS record."""
    return bytes([kind, 3, 1]) + vector(payload)


def records(payload: bytes, size: int) -> bytes:
    """The same in records of at most that many bytes."""
    return b"".join(record(payload[at : at + size]) for at in range(0, len(payload), size))


def hello(*names: str, more: Sequence[Extension] = ()) -> bytes:
    """A whole ClientHello that names these hosts."""
    return record(message([server_name(*(name.encode() for name in names)), *more]))


EARLY_DATA: Extension = (42, b"")


def modern_hello(name: str, *, share: bytes = b"", early: bool = False) -> bytes:
    """A ClientHello of TLS 1.3. A server asks for a second one if it has no share of a key.

    With `early` it says that data follow at once, under a secret the server does not know.
    """
    shares = b"\x00\x1d" + vector(share) if share else b""
    extensions = [
        server_name(name.encode()),
        (10, vector(b"\x00\x1d")),
        (13, vector(b"\x04\x03\x08\x04")),
        (43, vector(b"\x03\x04", 1)),
        (51, vector(shares)),
    ]
    if early:
        ticket = vector(vector(bytes(100)) + bytes(4)) + vector(vector(bytes(32), 1))
        extensions += [(45, vector(b"\x01", 1)), EARLY_DATA, (41, ticket)]
    return record(message(extensions))


CHANGE = record(b"\x01", 20)
DATA = record(b"secret application data", 23)
