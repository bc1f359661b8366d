"""What happened to a file, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from approvals.changes import EXECUTABLE, GITLINK, MODE_WORDS, Change, Status
from approvals.diff.rows import MINUS, SPACE
from approvals.patch import FilePatch


def change_words(change: Change) -> tuple[str, ...]:
    """What happened to a file, in plain words. The two paths of a rename stand elsewhere."""
    words = []
    kind_before = MODE_WORDS.get(change.old_mode, f"mode {change.old_mode}")
    kind_now = MODE_WORDS.get(change.new_mode, f"mode {change.new_mode}")
    match change.status:
        case Status.ADDED:
            words.append(f"new {kind_now}")
        case Status.DELETED:
            words.append(f"{kind_before} deleted")
        case Status.TYPE_CHANGED:
            words.append(f"was a {kind_before}, is now a {kind_now}")
        case Status.RENAMED:
            alike = change.similarity if change.similarity is not None else 0
            words.append(
                "renamed, content unchanged" if alike == 100 else f"renamed, {alike} % alike"
            )
        case Status.MODIFIED:
            pass
    if change.mode_changed and change.status is not Status.TYPE_CHANGED:
        effect = "can now be executed" if change.new_mode == EXECUTABLE else "no longer executable"
        words.append(f"mode {change.old_mode} → {change.new_mode}, {effect}")
    if GITLINK in (change.old_mode, change.new_mode):
        moved = " → ".join(
            blob[:12]
            for mode, blob in (
                (change.old_mode, change.old_blob), (change.new_mode, change.new_blob)
            )
            if mode == GITLINK
        )  # fmt: skip
        words.append(f"submodule at {moved}; its content is not part of the candidate")
    if change.binary:
        words.append(f"binary, {_sizes(change)}")
    return tuple(words)


def _sizes(change: Change) -> str:
    sizes = [f"{size:,}" for size in (change.old_size, change.new_size) if size is not None]
    return " → ".join(sizes) + " bytes"


def line_ending_words(files: Sequence[FilePatch]) -> list[str]:
    """Name a change of line ends, and how much else changed with it."""
    words = []
    for file in files:
        if not any(b"\r" in line for hunk in file.hunks for line in hunk.lines):
            continue
        removed: Counter[bytes] = Counter()
        added: Counter[bytes] = Counter()
        for hunk in file.hunks:
            for line in hunk.lines:
                if line[0] != SPACE:
                    (removed if line[0] == MINUS else added)[line[1:]] += 1
        same = removed & added  # moved lines are no change of their ends
        removed, added = removed - same, added - same
        bare_removed, bare_added = _bare(removed), _bare(added)
        ends_only = (bare_removed & bare_added).total()
        if ends_only:
            to_crlf = sum(n for line, n in added.items() if line.endswith(b"\r"))
            from_crlf = sum(n for line, n in removed.items() if line.endswith(b"\r"))
            turn = "LF → CRLF" if to_crlf >= from_crlf else "CRLF → LF"
            rest = max(removed.total(), added.total()) - ends_only
            words.append(
                f"line ends {turn} on {ends_only:,} {_plural('line', ends_only)} "
                f"with no other change; {rest:,} {_plural('line', rest)} changed otherwise"
            )
    return words


def _bare(lines: Counter[bytes]) -> Counter[bytes]:
    out: Counter[bytes] = Counter()
    for line, count in lines.items():
        out[line.rstrip(b"\r")] += count
    return out


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"
