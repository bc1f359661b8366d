"""The name in a TLS ClientHello: read with bounds, so that a tunnel goes where it says it goes.

`NameGate` stands between the sandbox and the outside while a tunnel begins. Nothing passes before
the first ClientHello was read whole and named the right host. A server may ask for a second one
(TLS 1.3), and not every server compares the two, so later ClientHellos are read as well, until the
first application data: from there on everything is encrypted and passes as it is.

Refused outright: what is no TLS, a hello without a name, with another name, or with two; and the
extensions that put the true name into an encrypted part, because then the name that can be read
need not be the one that is meant; and early data, which a server may pass over to ask for a second
hello: what comes behind such data would be taken for encrypted, and could name another host.

Layout of records, handshake messages and extensions: RFC 8446 section 4 and 5, RFC 6066 section 3;
early data that is passed over: RFC 8446 section 4.2.10.
"""

from __future__ import annotations

from runs.egress.rules import Why, host_of, is_address

CHANGE_CIPHER, ALERT, HANDSHAKE, APPLICATION = 20, 21, 22, 23
CLIENT_HELLO = 1
SERVER_NAME = 0
HIDING = frozenset({0xFE0D, 0xFFCE})
"""Encrypted ClientHello, and the draft that came before it."""

EARLY_DATA = 42

LONGEST_RECORD = (1 << 14) + 256
LONGEST_HELLO = 32 << 10
LONGEST_BEGINNING = 256 << 10
"""Of all a client says before the first application data; certificates of its own included."""

REFUSAL = bytes((ALERT, 3, 3, 0, 2, 2, 112))
"""The alert `unrecognized_name`, which tells a client more than a closed connection."""


class NameRefused(Exception):
    """The tunnel must be cut. `shown` is the name that was read, if one was."""

    def __init__(self, why: Why, shown: str = "") -> None:
        super().__init__(why.value)
        self.why = why
        self.shown = shown


class NameGate:
    """What a client says at the beginning of one tunnel to `host`."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._nameless = is_address(host)
        self._seen = 0
        self._waiting = bytearray()  # of a record that is not whole yet
        self._held = bytearray()  # whole records that must not pass before their hello is read
        self._hello = bytearray()
        self._changed = False
        self.named = False
        """Whether the first ClientHello has passed."""
        self.open = False
        """Whether nothing more is looked at."""

    def feed(self, data: bytes) -> bytes:
        """Take what the client said; what of it may pass now. Raises `NameRefused`."""
        if self.open:
            return data
        self._seen += len(data)
        if self._seen > LONGEST_BEGINNING:
            raise NameRefused(Why.NOT_TLS)
        self._waiting += data
        released = bytearray()
        while self._one_record():
            if not self._hello:
                released += self._held
                self._held.clear()
        if self.open:
            released += self._waiting
            self._waiting.clear()
        return bytes(released)

    def _one_record(self) -> bool:
        """Judge the next record if it is whole, and put it with what is held."""
        start = self._waiting[:5]
        if not start or self.open:
            return False
        kind = start[0]
        if kind == APPLICATION and self.named and not self._hello:
            self.open = True
            return False
        if kind not in (CHANGE_CIPHER, ALERT, HANDSHAKE):
            raise NameRefused(Why.NOT_TLS)
        # Before the first hello nothing else may come, and nothing in the middle of one.
        if kind != HANDSHAKE and (not self.named or self._hello):
            raise NameRefused(Why.NOT_TLS)
        if len(start) > 1 and start[1] != 3:
            raise NameRefused(Why.NOT_TLS)
        if len(start) < 5:
            return False
        length = int.from_bytes(start[3:5], "big")
        if not 0 < length <= LONGEST_RECORD:
            raise NameRefused(Why.NOT_TLS)
        if len(self._waiting) < 5 + length:
            return False
        record = bytes(self._waiting[: 5 + length])
        del self._waiting[: 5 + length]
        if kind == HANDSHAKE:
            self._handshake(record[5:])
        elif kind == CHANGE_CIPHER:
            self._changed = True
        self._held += record
        return True

    def _handshake(self, payload: bytes) -> None:
        if not self._hello and self.named and not self._may_be_hello(payload):
            return
        self._hello += payload
        if self._hello[0] != CLIENT_HELLO:
            raise NameRefused(Why.NOT_TLS)
        if len(self._hello) < 4:
            return
        length = int.from_bytes(self._hello[1:4], "big")
        if length > LONGEST_HELLO or len(self._hello) > 4 + length:
            raise NameRefused(Why.NOT_TLS)
        if len(self._hello) == 4 + length:
            self._compare(name_of(bytes(self._hello[4:])))
            self._hello.clear()
            self.named = True

    def _may_be_hello(self, payload: bytes) -> bool:
        """Whether a later handshake record begins a ClientHello.

        After the change of cipher it may as well be encrypted, and then begin with any bytes at
        all; one that is too short to tell is refused, since no encrypted one is.
        """
        if not self._changed:
            return payload[0] == CLIENT_HELLO
        if len(payload) < 6:
            raise NameRefused(Why.NOT_TLS)
        return payload[:2] == b"\x01\x00" and payload[4:6] == b"\x03\x03"

    def _compare(self, name: str) -> None:
        if not name and self._nameless:
            return
        if not name:
            raise NameRefused(Why.NO_NAME)
        if host_of(name) != self._host:
            raise NameRefused(Why.OTHER_NAME, name)


class _Reader:
    """Numbers and vectors of a message; reading past its end refuses it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise NameRefused(Why.NOT_TLS)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Bytes whose count stands before them, in `size` bytes."""
        return self.take(self.number(size))

    @property
    def more(self) -> bool:
        return self._at < len(self._data)


def name_of(hello: bytes) -> str:
    """The host that the body of a ClientHello names, or an empty word. Raises `NameRefused`."""
    body = _Reader(hello)
    body.take(2 + 32)
    body.vector(1)
    body.vector(2)
    body.vector(1)
    if not body.more:
        return ""
    extensions = _Reader(body.vector(2))
    if body.more:
        raise NameRefused(Why.NOT_TLS)
    found: dict[int, bytes] = {}
    while extensions.more:
        kind = extensions.number(2)
        if kind in found:
            raise NameRefused(Why.NOT_TLS)
        found[kind] = extensions.vector(2)
    if HIDING & found.keys():
        raise NameRefused(Why.HIDDEN_NAME)
    if EARLY_DATA in found:
        raise NameRefused(Why.EARLY_DATA)
    return _server_name(found[SERVER_NAME]) if SERVER_NAME in found else ""


def _server_name(extension: bytes) -> str:
    outer = _Reader(extension)
    names = _Reader(outer.vector(2))
    if outer.more:
        raise NameRefused(Why.NOT_TLS)
    hosts = []
    while names.more:
        kind, name = names.number(1), names.vector(2)
        if kind != 0:
            # No other kind was ever defined, and a server might read it its own way.
            raise NameRefused(Why.NOT_TLS)
        hosts.append(name)
    if len(hosts) != 1 or not hosts[0]:
        raise NameRefused(Why.NO_NAME if not hosts else Why.NOT_TLS)
    try:
        return hosts[0].decode("ascii")
    except UnicodeDecodeError:
        raise NameRefused(Why.OTHER_NAME) from None
