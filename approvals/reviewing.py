"""What a reviewer's pages show of a packet and of a candidate, worked out from stored rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from approvals.changes import Change
from approvals.checks import secrets
from approvals.checks.secrets import masks_from
from approvals.confirm import typed_word
from approvals.diff import PAGE_ROWS, Diff, FileHead, FileView, NoSuchLines, Options
from approvals.models import Candidate, Packet, Receipt
from approvals.states import PacketKind
from portal import blobs, visible
from portal.canonical import canonical
from runs.compare import FieldChange, compare
from runs.editing import Changed, changed

# Rows that a page of the diff draws at once; later files load when they are reached.
FIRST_ROWS = 1200
FILES_AT_ONCE = 60


# --- the diff --------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _diff(tenant_id: int, patch_blob: str, changes: str, masks: str) -> Diff:
    """A candidate never changes, so its parsed diff may be kept between requests."""
    return Diff(
        [Change.from_data(each) for each in json.loads(changes)],
        blobs.get(tenant_id, patch_blob),
        masks=masks_from({"masks": json.loads(masks)}),
    )


def diff_of(candidate: Candidate) -> Diff:
    """The diff of a candidate, without the values that the check for secrets found.

    Raises `DiffBroken` where patch and list disagree.
    """
    receipts = Receipt.objects.filter(candidate=candidate, check_name=secrets.NAME)
    evidence = receipts.values_list("evidence", flat=True).first() or {}
    return _diff(
        candidate.tenant_id,
        candidate.patch_blob,
        json.dumps(candidate.changes, sort_keys=True),
        json.dumps(evidence.get("masks", {}), sort_keys=True),
    )


@dataclass(frozen=True)
class FilePart:
    """One file of the diff page: its head, and its rows if they are drawn at once."""

    head: FileHead
    view: FileView | None


@dataclass(frozen=True)
class Review:
    """The files of a candidate from one place on."""

    diff: Diff
    options: Options
    parts: tuple[FilePart, ...]
    start: int
    next_file: int | None

    @property
    def waiting(self) -> int:
        """Files of this page that load when they are reached."""
        return sum(part.view is None for part in self.parts)


def review_of(candidate: Candidate, options: Options, start: int = 0) -> Review:
    """Heads of the files from `start`, with rows as far as one page should hold."""
    diff = diff_of(candidate)
    heads = diff.heads(start, FILES_AT_ONCE)
    room = FIRST_ROWS
    parts: list[FilePart] = []
    for head in heads:
        view = None
        if head.empty or room > 0:
            view = diff.view(head.index, options)
            room -= len(view.rows)
        parts.append(FilePart(head, view))
    end = start + len(heads)
    return Review(diff, options, tuple(parts), start, end if end < len(diff) else None)


def page_with(
    diff: Diff, index: int, line: str, options: Options, contents: Mapping[str, bytes]
) -> tuple[int, Options]:
    """Where the rows begin among which a line is, whole if the patch has nothing of it.

    `line` is a side and a number (`new-12`). Raises `NoSuchLines`.
    """
    try:
        at = diff.row_of(index, line, options)
    except NoSuchLines:
        if options.whole or diff.head(index).change.new_blob not in contents:
            raise
        options = replace(options, whole=True)
        at = diff.row_of(index, line, options, contents)
    return at // PAGE_ROWS * PAGE_ROWS, options


def read_options(asked: Mapping[str, str]) -> Options:
    """How the diff is wanted, from an address."""
    return Options(
        mode="split" if asked.get("view") == "split" else "unified",
        blanks=asked.get("blanks") != "hide",
        whole=asked.get("whole") == "1",
    )


@dataclass
class Folder:
    """One directory of the file tree."""

    name: str
    folders: dict[str, Folder]
    files: list[FileHead]


def tree_of(heads: Iterable[FileHead]) -> Folder:
    """The changed files as a tree, every directory a step of its own."""
    root = Folder("", {}, [])
    for head in heads:
        at = root
        *folders, _ = head.name.split("/")
        for name in folders:
            at = at.folders.setdefault(name, Folder(name, {}, []))
        at.files.append(head)
    return root


# --- arguments and scope ---------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """One normalised argument as it is shown: text as text, everything else as JSON."""

    name: str
    text: str
    lines: bool


def arguments_of(arguments: Mapping[str, Any]) -> list[Argument]:
    """Every argument in full, in the order of its name, as the digest sorts them."""
    rows: list[Argument] = []
    for name in sorted(arguments):
        text = json.dumps(arguments[name], ensure_ascii=False)
        if len(text) > 100 and _nested(arguments[name]):
            text = json.dumps(arguments[name], ensure_ascii=False, indent=1)
        if isinstance(arguments[name], str):
            # Quotes stay, so that blanks at the ends can be seen; line breaks are drawn as breaks.
            text = f'"{arguments[name]}"'
        rows.append(Argument(name, text, "\n" in text or len(text) > 120))
    return rows


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list) and bool(value)


def edits_of(page: Mapping[str, Any]) -> list[Changed]:
    """What people changed of the arguments that the agent wrote."""
    edited = page.get("edited")
    return changed(edited["proposed"], page["arguments"]) if edited else []


def arguments_size(arguments: Mapping[str, Any]) -> int:
    return len(canonical(arguments))


def arguments_hidden(arguments: Mapping[str, Any]) -> int:
    return sum(visible.count_hidden(text) for text in _texts(arguments))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def scope_sentence(scope: list[dict[str, Any]], kind: PacketKind) -> str:
    """The difference, counted, in one sentence."""
    if kind == PacketKind.RESUME and not scope:
        return "This adds none. What was approved before is taken anew, with the scope of now."
    added = sum(each["change"] == "added" for each in scope)
    held = sum(each["change"] == "held" for each in scope)
    back = len(scope) - added - held
    if not scope:
        return "No credential is used, before or after."
    parts = [f"adds {added}" if added else "", f"gives back {back}" if back else ""]
    change = " and ".join(part for part in parts if part) or "changes nothing"
    before = f"{held} held already" if held else "Nothing is held now"
    return f"{before}; approving {change}. Only the outer runtime uses it, never the sandbox."


# --- receipts --------------------------------------------------------------------------------

CHECK_WORDS = {
    "paths": "Paths the contract allows",
    "size_and_type": "Sizes and types",
    "hidden_characters": "Hidden characters",
    "secrets": "Secrets",
    "view": "Bytes against view",
    "archives": "Archives, looked into",
    "control_files": "Files that steer tools",
    "documents": "Documents and pictures",
    "packages": "Dependencies",
    "weakened": "Tests made weaker",
    "verification": "Verification in a fresh sandbox",
}


def check_words(name: str) -> str:
    return CHECK_WORDS.get(name, name.replace("_", " ").capitalize())


@dataclass(frozen=True)
class ReceiptRow:
    """A receipt with the words of its check and what it saw."""

    receipt: Receipt
    title: str
    saw: str


def receipt_rows(receipts: Iterable[Receipt]) -> list[ReceiptRow]:
    return [ReceiptRow(each, check_words(each.check_name), _saw(each)) for each in receipts]


def _saw(receipt: Receipt) -> str:
    findings = len(receipt.findings)
    if receipt.check_name == "verification" and "exit_code" in receipt.evidence:
        if receipt.evidence.get("timed_out"):
            return "The command did not end in its time."
        command = " ".join(receipt.evidence.get("command", []))
        return f"{command} ended with exit {receipt.evidence['exit_code']}."
    if findings == 0:
        return "Nothing was found."
    return f"{findings:,} finding{'s' if findings > 1 else ''}."


def passed_of(receipts: Mapping[str, Mapping[str, Any]]) -> tuple[int, int]:
    """Checks that passed, and all checks, from a packet's page."""
    outcomes = [each.get("outcome") for each in receipts.values()]
    return outcomes.count("passed"), len(outcomes)


# --- what approving would do -----------------------------------------------------------------


def approve_words(packet: Packet) -> str:
    """The words on the button: the effect, not "OK"."""
    if packet.kind == PacketKind.PUBLICATION:
        github = packet.page.get("tool") == "publish.github"
        return "Approve and open draft PR" if github else "Approve and push the draft branch"
    if packet.kind == PacketKind.QUESTION:
        return "Send this answer"
    if packet.kind == PacketKind.EGRESS:
        return f"Approve and open {packet.page['target']}"
    if packet.kind == PacketKind.RESUME:
        return "Approve and go on"
    words = {
        "http": "Approve and send the request",
        "sql": "Approve and read",
        "python": "Approve and call the function",
    }
    if packet.page.get("tool_kind") in words:
        return words[packet.page["tool_kind"]]
    return "Approve and let it run"


def asks_first(packet: Packet) -> bool:
    """Whether approving opens a question of its own: new reach, or a warning that stands."""
    added = any(each.get("change") == "added" for each in packet.page.get("scope", []))
    wider = packet.kind == PacketKind.EGRESS
    return added or wider or bool(typed_word(packet))


def successor_of(packet: Packet) -> Packet | None:
    """The packet that took the place of this one."""
    if (following := packet.successors.order_by("-number").first()) is not None:
        return following
    if packet.candidate_id is None:
        return None
    return (
        Packet.objects.filter(run_id=packet.run_id, kind=packet.kind, number__gt=packet.number)
        .order_by("-number")
        .first()
    )


def changes_between(old: Packet, new: Packet, limit: int = 40) -> list[FieldChange]:
    """What of the verified page is different in the newer packet."""
    return compare(old.page, new.page)[:limit]
