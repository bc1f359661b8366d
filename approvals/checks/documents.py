"""Data files and documents: one reading, bounded, and nothing active in them.

JSON with two values for one key, numbers that readers round, nesting that makes readers fail; YAML
and XML that expand without end, or reach outside; documents with scripts or actions. In the output
tray these block, because programs and people take what lies there for data. In the source tree
they are warnings to be acknowledged: a parser's own test data may need them. Nothing is loaded,
expanded, rendered or fetched here.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable
from typing import Any

import yaml

from approvals.checks.base import CheckResult, Content, Notebook, Subject
from approvals.checks.size_and_type import ending, sniff

NAME, VERSION = "documents", "portal 1"

_LARGEST = 8 << 20
_LARGEST_YAML = 1 << 20
_DEEPEST = 200
_SAFE_INTEGER = 2**53
_MOST_NODES = 200_000  # of a YAML document with its aliases written out
_PDF_INFLATED = 16 << 20
_PDF_STREAMS = 20_000


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    for content in subject.contents():
        if content.is_link or content.data == content.before:
            continue
        judge = _JUDGES.get(_kind(content))
        if judge is None:
            continue
        if len(content.data) > _LARGEST:
            notes.add("note", "not looked into", content.shown,
                      f"larger than {_LARGEST:,} bytes")  # fmt: skip
            continue
        judge(content, notes)
    return notes.result()


def _kind(content: Content) -> str:
    if sniff(content.data) == "PDF document" or content.data[:1024].find(b"%PDF-") >= 0:
        return "pdf"
    name = ending(content.path)
    if name in _ENDINGS:
        return _ENDINGS[name]
    return "xml" if _text(content.data[:200]).lstrip("\ufeff \r\n\t").startswith("<?xml") else ""


def _refuse(
    content: Content, notes: Notebook, rule: str, text: str, line: int | None = None
) -> None:
    """Blocking in the tray, a warning in the tree."""
    if content.change is None:
        notes.add("blocking", rule, content.shown, text, line=line)
    else:
        notes.warn(rule, content.shown, text, line)


def _text(data: bytes) -> str:
    """The text as a reader of its encoding sees it; marks at the start decide."""
    for mark, encoding in ((b"\xff\xfe\0\0", "utf-32"), (b"\0\0\xfe\xff", "utf-32"),
                           (b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):  # fmt: skip
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    if data[1:2] == b"\0" and data[:1] != b"\0":
        return data.decode("utf-16-le", "replace")
    if data[:1] == b"\0" and data[1:2] != b"\0":
        return data.decode("utf-16-be", "replace")
    return data.decode("utf-8", "replace")


# --- JSON ------------------------------------------------------------------------------------


class _TwoReadings(ValueError):
    """A value that readers of JSON take for different things."""


def _json(content: Content, notes: Notebook) -> None:
    text = _text(content.data)
    depth = _depth(text)
    if depth > _DEEPEST:
        _refuse(content, notes, "too deep", f"values are nested {depth:,} deep")
        return
    if content.data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content.data[:4]:
        _refuse(content, notes, "two readings", "JSON in another encoding than UTF-8")
    lines = text.splitlines() if ending(content.path) in ("jsonl", "ndjson") else [text]
    for number, part in enumerate(lines, 1):
        try:
            json.loads(
                part.removeprefix("\ufeff"), object_pairs_hook=_once, parse_int=_integer,
                parse_float=_float, parse_constant=_constant,
            )  # fmt: skip
        except _TwoReadings as reason:
            line = number if len(lines) > 1 else None
            _refuse(content, notes, "two readings", str(reason), line)
            return
        except (ValueError, RecursionError):
            # Comments and the like: not JSON in the strict sense, and no reader takes it for data.
            if part.strip():
                notes.add("note", "not JSON", content.shown, "is not JSON in the strict sense")
            return


def _depth(text: str) -> int:
    """How deep brackets are nested outside strings, without parsing."""
    deepest = depth = 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]+|[\]}]+', text):
        token = match.group()
        if token[0] in "[{":
            depth += len(token)
            deepest = max(deepest, depth)
        elif token[0] in "]}":
            depth -= len(token)
    return deepest


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise _TwoReadings(f"the key “{key[:60]!a}” comes twice in one object")
        table[key] = value
    return table


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > _SAFE_INTEGER:
        raise _TwoReadings(
            f"a number of {len(digits):,} digits is larger than readers keep exactly"
        )
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise _TwoReadings("a number is larger than readers can hold")
    if len(re.sub(r"[eE].*|[-.]", "", digits).strip("0")) > 17:
        raise _TwoReadings("a number has more digits than readers keep exactly")
    return value


def _constant(name: str) -> float:
    raise _TwoReadings(f"{name} is no JSON, and some readers take it")


# --- YAML ------------------------------------------------------------------------------------

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_AMBIGUOUS = re.compile(
    r"(?m)^[ \t]*(?:- )?[\"']?[\w.-]+[\"']?:[ \t]+"
    r"(y|n|yes|no|on|off|0\d+|\d+(?::[0-5]\d)+|0o\d+)[ \t]*$"
    r"|^[ \t]*(on|off|yes|no|y|n):(?:[ \t]|$)",
    re.IGNORECASE,
)


def _yaml(content: Content, notes: Notebook) -> None:
    text = _text(content.data)
    if re.search(r"!!?(?:python|ruby|java|php|js|perl|net)[/:]|tag:yaml\.org,2002:python", text):
        _refuse(content, notes, "active", "asks the reader to make objects of a program")
    if len(re.findall(r"[\[{]", text)) > _DEEPEST and _depth(text) > _DEEPEST:
        _refuse(content, notes, "too deep", f"values are nested more than {_DEEPEST} deep")
        return
    if re.search(r"(?:^|[\s\[{,:-])&\S", text) and re.search(r"(?:^|[\s\[{,:-])\*\S", text):
        if len(content.data) > _LARGEST_YAML:
            _refuse(content, notes, "expands", "has aliases and is too large to count them")
            return
        nodes = _nodes(text)
        if nodes > _MOST_NODES:
            _refuse(content, notes, "expands", f"its aliases stand for at least {nodes:,} values")
    if found := sorted({next(filter(None, match)) for match in _AMBIGUOUS.findall(text)}):
        notes.add(
            "note", "two readings", content.shown,
            f"YAML 1.1 and 1.2 read {', '.join(found[:8])} differently; quote them to be sure",
        )  # fmt: skip


def _nodes(text: str) -> int:
    """How many values the document has once every alias is written out; stops when it is plain."""
    sizes: dict[str, int] = {}
    open_nodes: list[tuple[str | None, int]] = []
    total = 0
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            anchor = getattr(event, "anchor", None)
            if isinstance(event, yaml.AliasEvent):
                total += sizes.get(anchor or "", 1)
            elif isinstance(event, yaml.ScalarEvent):
                total += 1
                if anchor:
                    sizes[anchor] = 1
            elif isinstance(event, yaml.CollectionStartEvent):
                open_nodes.append((anchor, total))
                total += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                name, before = open_nodes.pop()
                if name:
                    sizes[name] = total - before
            if total > _MOST_NODES:
                break
    except (yaml.YAMLError, RecursionError):
        return total
    return total


# --- XML and its kin ---------------------------------------------------------------------------

_ENTITY = re.compile(r"<!ENTITY\b", re.IGNORECASE)
_DOCTYPE = re.compile(r"<!DOCTYPE\s+(?!html\s*>)[^>\[]{0,200}(?:\[|SYSTEM|PUBLIC)", re.IGNORECASE)
_XINCLUDE = re.compile(r"<(?:\w+:)?include\b[^>]{0,200}\bhref|<\?xml-stylesheet\b", re.IGNORECASE)
_ENCODING = re.compile(r"<\?xml[^>]*encoding\s*=\s*[\"']([\w.-]+)", re.IGNORECASE)
_PLAIN = {"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "utf-16", "utf-16le", "utf-16be"}


def _xml(content: Content, notes: Notebook) -> None:
    text = _text(content.data)
    if _ENTITY.search(text):
        _refuse(content, notes, "expands", "declares entities, which can expand or reach outside")
    elif _DOCTYPE.search(text) and ending(content.path) not in ("svg", "html", "htm", "xhtml"):
        _refuse(content, notes, "reaches outside", "has a document type that readers may fetch")
    if _XINCLUDE.search(text):
        notes.warn("reaches outside", content.shown, "includes or is styled by another document")
    declared = _ENCODING.search(text[:300])
    if declared and declared[1].casefold() not in _PLAIN:
        notes.warn("two readings", content.shown, f"declares the encoding {declared[1][:40]}")
    elements = re.findall(r"<(/?)[A-Za-z_][^<>]*?(/?)>", text)
    depth = deepest = 0
    for closing, empty in elements:
        depth += -1 if closing else 0 if empty else 1
        deepest = max(deepest, depth)
    if deepest > 2_000 and ending(content.path) not in ("html", "htm"):
        _refuse(content, notes, "too deep", f"elements are nested {deepest:,} deep")


# --- PDF -------------------------------------------------------------------------------------

_PDF_ACTIVE = {
    b"JavaScript": "scripts", b"JS": "scripts", b"OpenAction": "an action when it is opened",
    b"AA": "actions on events", b"Launch": "an action that starts a program",
    b"EmbeddedFile": "files inside it", b"RichMedia": "rich media", b"XFA": "an XFA form",
    b"SubmitForm": "a form that is sent somewhere", b"ImportData": "data from outside",
    b"GoToR": "links to other documents", b"Encrypt": "encryption",
}  # fmt: skip
_PDF_NAME = re.compile(rb"/([A-Za-z0-9#]{2,40})")
_PDF_STREAM = re.compile(rb"stream\r?\n")


def _pdf(content: Content, notes: Notebook) -> None:
    found = {_PDF_ACTIVE[name] for name in _pdf_names(content.data) if name in _PDF_ACTIVE}
    if found:
        notes.warn("active", content.shown, f"the document has {', '.join(sorted(found))}")


def _pdf_names(data: bytes) -> set[bytes]:
    """Names in the document, those in compressed streams and those in disguise included."""
    parts, spent, whole = [data], 0, memoryview(data)
    for count, match in enumerate(_PDF_STREAM.finditer(data)):
        if spent > _PDF_INFLATED or count > _PDF_STREAMS:
            break
        try:
            part = zlib.decompressobj().decompress(whole[match.end() :], 1 << 20)
        except zlib.error:
            continue
        spent += len(part)
        parts.append(part)
    return {
        re.sub(rb"#([0-9A-Fa-f]{2})", lambda m: bytes([int(m[1], 16)]), name)
        for part in parts
        for name in _PDF_NAME.findall(part)
    }


_ENDINGS = {
    "json": "json", "jsonl": "json", "ndjson": "json", "webmanifest": "json", "geojson": "json",
    "ipynb": "json", "sarif": "json", "yaml": "yaml", "yml": "yaml", "xml": "xml", "xsl": "xml",
    "xslt": "xml", "xsd": "xml", "svg": "xml", "wsdl": "xml", "xhtml": "xml", "rss": "xml",
    "atom": "xml", "plist": "xml", "junit": "xml", "drawio": "xml", "pdf": "pdf",
}  # fmt: skip
_JUDGES: dict[str, Callable[[Content, Notebook], None]] = {
    "json": _json,
    "yaml": _yaml,
    "xml": _xml,
    "pdf": _pdf,
}
