"""What somebody asks the network to be opened for, read into the narrowest rule that is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runs.egress.rules import METHODS, READING, Limits, below, host_of, place

MOST_MINUTES = 240
MOST_WAIT_SECONDS = 600
LONGEST_WORDS = 1000
LONGEST_PATH = 500

GRANTED = Limits(bytes=50_000_000, connections=8)
"""What a rule that was asked for may use; a contract may write other numbers for its own."""

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "host": {
            "type": "string",
            "minLength": 1,
            "maxLength": 253,
            "description": "The exact host name, without scheme, port or path.",
        },
        "port": {"type": "integer", "minimum": 1, "maximum": 65535},
        "purpose": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST_WORDS,
            "description": "What it is needed for, for the person who decides.",
        },
        "expected_response": {
            "type": "string",
            "minLength": 1,
            "maxLength": LONGEST_WORDS,
            "description": "What the host is expected to answer.",
        },
        "minutes": {"type": "integer", "minimum": 1, "maximum": MOST_MINUTES},
        "methods": {
            "type": "array",
            "items": {"type": "string", "enum": list(METHODS)},
            "maxItems": len(METHODS),
            "description": "For plain HTTP only: the methods needed. TLS does not pass then.",
        },
        "path": {
            "type": "string",
            "maxLength": LONGEST_PATH,
            "description": "For plain HTTP only: the folder or file needed.",
        },
        "wait_seconds": {
            "type": "integer",
            "minimum": 0,
            "maximum": MOST_WAIT_SECONDS,
            "description": "How long to wait here for a person's answer; 0 returns at once.",
        },
    },
    "required": ["host", "port", "purpose", "expected_response", "minutes"],
    "additionalProperties": False,
}
DESCRIPTION = (
    "Ask for one host and port to be opened for this run. It returns at once: granted, refused, "
    "or asked, which means that a person is asked while you go on working. Call it again with the "
    "same host and port, and wait_seconds, to wait for the answer. What is granted works at once, "
    "through the proxy that http_proxy and https_proxy name. Ask for as little as is enough."
)


class AskRefused(Exception):
    """It cannot be asked for. The text is for whoever asks; `field` is what to mend."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(text)
        self.field = field


@dataclass(frozen=True)
class Ask:
    """One destination, for one time. Without methods and path it is for TLS alone."""

    host: str
    port: int
    purpose: str
    expected: str
    minutes: int
    methods: tuple[str, ...] = ()
    path: str = ""

    @property
    def place(self) -> str:
        """`host:port`."""
        return place(self.host, self.port)

    @property
    def plain(self) -> bool:
        """Whether it is for plain HTTP, and then not for TLS."""
        return bool(self.methods or self.path)

    def arguments(self) -> dict[str, Any]:
        """As the arguments that policy judges and a packet shows."""
        data = asdict(self) | {"methods": list(self.methods)}
        return {("expected_response" if k == "expected" else k): v for k, v in data.items()}


def read_ask(given: Mapping[str, Any]) -> Ask:
    """The ask in these arguments, which fit `SCHEMA`. Raises `AskRefused`.

    Port 80 speaks plain HTTP: where nothing else is said the rule is for reading there. Everywhere
    else it is for TLS that names the host, unless methods or a path say that it is plain.
    """
    host = host_of(given["host"])
    if host is None:
        raise AskRefused(
            "host",
            "The host must be a name alone, such as files.example.com: no scheme, port, path or *.",
        )
    methods, path = tuple(dict.fromkeys(given.get("methods") or ())), given.get("path") or ""
    if path and not (path.startswith("/") and below(path, path) and "?" not in path):
        raise AskRefused(
            "path", "The path must begin with / and have no .., //, ;, ? or encoded part."
        )
    if not path.isascii() or not path.isprintable() or " " in path:
        raise AskRefused(
            "path", "The path has characters that must be encoded. Ask for its folder."
        )
    if (methods or path) and given["port"] == 443:
        raise AskRefused(
            "path",
            "Port 443 speaks TLS, and inside TLS neither method nor path can be seen. "
            "Leave them out.",
        )
    if given["port"] == 80 or path:
        methods = methods or READING
    return Ask(
        host=host,
        port=given["port"],
        purpose=given["purpose"].strip(),
        expected=given["expected_response"].strip(),
        minutes=given["minutes"],
        methods=methods,
        path=path if path != "/" else "",
    )
