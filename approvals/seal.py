"""Freeze what a person will see, and give it a digest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from portal.canonical import digest

# The version of the page's shape; a digest is only comparable within one shape.
SHAPE = 1


def sealed(page: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The page with its shape written in, and its digest (RFC 8785, SHA-256)."""
    whole = {"shape": SHAPE, **page}
    return whole, digest(whole)


def heading(page: Mapping[str, Any]) -> dict[str, Any]:
    """What lists show of a page."""
    agent = page["agent"]
    return {
        "tool": page["tool"],
        "agent": f"{agent['name'] or 'agent'} {agent['version'] or ''}".strip(),
        "target": page["target"],
        "checks": {name: each["outcome"] for name, each in page.get("receipts", {}).items()},
        "scopes_added": sum(each["change"] == "added" for each in page.get("scope", ())),
        "egress": page["egress"]["change"],
        **({"risk": page["gate"]["risk"]} if "risk" in page["gate"] else {}),
        # Who must approve, where that is more than one person of any kind.
        **({"gate": gate} if (gate := _gate_in_short(page["gate"])) else {}),
        # How soon it must be carried out, where a rule says so.
        **{name: page["gate"][name] for name in ("execute_seconds",) if name in page["gate"]},
    }


def _gate_in_short(gate: Mapping[str, Any]) -> dict[str, Any]:
    named = {name: gate[name] for name in ("stages", "roles") if gate.get(name)}
    return {"needed": gate["needed"], **named} if named else {}


class Fault(StrEnum):
    """Why a stored page is not the one that was sealed, or cannot be told to be."""

    SHAPE_MISSING = "shape_missing"
    SHAPE_UNKNOWN = "shape_unknown"
    PAGE_CHANGED = "page_changed"


def fault(page: Mapping[str, Any], stored: str) -> Fault | None:
    """What is wrong with a stored page, or None.

    A page of another shape may have a right digest and still say something else than it seems to.
    """
    if "shape" not in page:
        return Fault.SHAPE_MISSING
    if page["shape"] != SHAPE:
        return Fault.SHAPE_UNKNOWN
    try:
        return None if digest(page) == stored else Fault.PAGE_CHANGED
    except ValueError:
        return Fault.PAGE_CHANGED


def intact(page: Mapping[str, Any], stored: str) -> bool:
    """Whether a stored page is of our shape and still has its digest."""
    return fault(page, stored) is None


def count(number: int, one: str, many: str | None = None) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def call_effect(kind: str, tool: str, arguments: Mapping[str, Any], target: str, run: int) -> str:
    """One sentence, in the portal's words, for what a call will do."""
    if kind == "http":
        return f"Send one request, {_short(target, 160)}, through the tool {tool}."
    if kind == "sql":
        return f"Read a database through the tool {tool}: {_short(target, 160)}."
    if kind == "python":
        return f"Call the function {_short(target, 160)} through the tool {tool}."
    if kind == "question":
        return f"Answer one question of the agent of run {run}."
    if kind == "patch":
        files = arguments.get("files", ())
        return f"Change {count(len(files), 'file')} in the workspace of run {run}."
    if kind == "stdin":
        return f"Type into a running command in the sandbox of run {run}."
    if kind == "view":
        return f"Show the agent one image of the workspace of run {run}."
    return (
        f"Run one command in the sandbox of run {run}: {_short(str(arguments.get('cmd', '')), 120)}"
    )


def egress_effect(place: str, through: str, minutes: int, run: int) -> str:
    """One sentence for what one network rule will do."""
    span = count(minutes, "minute")
    return f"Let the sandbox of run {run} reach {place} for {span}: {_short(through, 160)}."


def resume_effect(run: int, checkpoint: int, changed: Sequence[str]) -> str:
    """One sentence for what letting a run go on will do."""
    names = list(dict.fromkeys(changed))
    what = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Let run {run} go on from checkpoint {checkpoint}, although its {what} changed."


def publication_effect(
    *, target_kind: str, target: str, base: str, branch: str, files: int, added: int, removed: int
) -> str:
    """One sentence for what publishing a candidate will do."""
    what = (
        "Open one draft pull request"
        if target_kind == "github"
        else "Push one branch and file one draft"
    )
    return (
        f"{what} on {target}: {count(files, 'file')} changed, +{added:,} −{removed:,}, "
        f"from {branch} against {base}."
    )


def _short(text: str, limit: int) -> str:
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters in all)"


def scope_difference(
    held: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rows of the scope table: what this approval adds to what the run already holds."""
    rows = [{"change": "added", **each} for each in added]
    return rows + [{"change": "held", **each} for each in held]
