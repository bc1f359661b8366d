"""What of a packet a vote is about, and whether two packets are the same in that.

The *canonical content* of a page is everything it seals, but what says which packet it is:

- `edited`: who put these arguments here, and on which packet;
- `time`: since when it asks, and until when;
- `candidate.seq`: the how manyeth candidate of its run this is. What it holds is its digest;
- `gate.excluded`: who may not approve. That is asked of each vote itself, and a page that excludes
  fewer people than the other one is never the same.

All else counts, the cost so far and the receipts of checks too: a vote was given knowing them.
It knows no framework, so that a verifier asks the same question offline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from portal.canonical import canonical, digest

# Parts of a publication's arguments that follow from its candidate.
_FOLLOWS = frozenset({"commit", "tree", "branch", "marker"})
_NAMES = {
    "effect": "what it does",
    "target": "the target",
    "scope": "the credential scope",
    "credential": "the credential",
    "egress": "the network",
    "gate": "who must decide",
    "cost": "the cost so far",
    "call": "how the call is carried out",
    "brokered": "what the run had done outside",
    "agent": "the agent",
    "source_commit": "the source",
    "image_digest": "the image",
    "denied_before": "what was denied before",
    "differences": "what changed since the checkpoint",
}
# Told by others: the digest by the arguments, the effect by whatever it is made of.
_TOLD = frozenset({"arguments_digest", "effect", "run_number"})


def content(page: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical content of a page."""
    kept = {name: value for name, value in page.items() if name not in ("edited", "time")}
    if isinstance(candidate := kept.get("candidate"), Mapping):
        kept["candidate"] = {key: each for key, each in candidate.items() if key != "seq"}
    if isinstance(gate := kept.get("gate"), Mapping):
        kept["gate"] = {key: each for key, each in gate.items() if key != "excluded"}
    return kept


def content_digest(page: Mapping[str, Any]) -> str:
    """What two pages of the same content have in common."""
    return digest(content(page))


def same(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a vote on the one page says as much about the other."""
    earlier, later = _excluded(before), _excluded(after)
    if earlier is None or later is None or not earlier <= later:
        return False
    return content_digest(before) == content_digest(after)


def _excluded(page: Mapping[str, Any]) -> frozenset[int] | None:
    gate = page.get("gate")
    listed = gate.get("excluded") if isinstance(gate, Mapping) else None
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        return None
    return frozenset(listed)


# --- In words -------------------------------------------------------------------------------------


def differences(before: Mapping[str, Any], after: Mapping[str, Any], hunks: str = "") -> list[str]:
    """What is different in the content of the later page, each as the beginning of a sentence.

    `hunks` tells of the diff, which a page seals by its candidate's digest alone.
    """
    earlier, later = content(before), content(after)
    found = list(_of_policy(earlier, later))
    found += _of_candidate(before, after, hunks)
    found += _of_arguments(earlier, later)
    found += _of_receipts(earlier, later)
    found += _of_contract(earlier, later)
    told = _TOLD | {"policy", "candidate", "arguments", "receipts", "contract"}
    for name in sorted({*earlier, *later} - told):
        if _differs(earlier, later, name):
            found.append(f"{_NAMES.get(name, f'“{name}”')} changed")
    return found


def in_one(parts: list[str], limit: int = 6) -> str:
    """`3 of 41 hunks changed; policy 7 became 8`."""
    more = len(parts) - limit
    shown = parts if more <= 0 else [*parts[:limit], f"{more} more"]
    return "; ".join(shown)


def changed_hunks(
    before: Mapping[tuple[str, bytes], int], after: Mapping[tuple[str, bytes], int]
) -> str:
    """`3 of 41 hunks changed`, from how often each hunk of a path is in either diff."""
    old, new = Counter(before), Counter(after)
    fresh, gone, total = (new - old).total(), (old - new).total(), new.total()
    if fresh:
        return f"{fresh:,} of {total:,} hunk{'' if total == 1 else 's'} changed"
    return f"{gone:,} hunk{'' if gone == 1 else 's'} left out" if gone else ""


def _differs(before: Mapping[str, Any], after: Mapping[str, Any], name: str) -> bool:
    if (name in before) != (name in after):
        return True
    return name in before and canonical(before[name]) != canonical(after[name])


def _part(page: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = page.get(name)
    return value if isinstance(value, Mapping) else {}


def _of_policy(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _part(before, "policy"), _part(after, "policy")
    if old.get("version") != new.get("version"):
        yield f"policy {old.get('version')} became {new.get('version')}"
    elif _differs(before, after, "policy"):
        yield "other rules of the policy spoke"


def _of_candidate(before: Mapping[str, Any], after: Mapping[str, Any], hunks: str) -> Iterator[str]:
    old, new = _part(before, "candidate"), _part(after, "candidate")
    if old.get("digest") != new.get("digest"):
        yield hunks or f"candidate {old.get('seq')} became {new.get('seq')}"


def _of_arguments(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _part(before, "arguments"), _part(after, "arguments")
    skipped = _FOLLOWS if "candidate" in after else frozenset()
    for name in sorted({*old, *new} - skipped):
        if name not in new:
            yield f"argument `{name}` left out"
        elif name not in old:
            yield f"argument `{name}` added"
        elif _differs(old, new, name):
            yield f"argument `{name}` changed"


def _of_receipts(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _part(before, "receipts"), _part(after, "receipts")
    for name in sorted({*old, *new}):
        was, now = _part(old, name).get("outcome"), _part(new, name).get("outcome")
        if was != now:
            yield f"check `{name}` {was or 'missing'} became {now or 'missing'}"
    if _differs(before, after, "receipts") and all(
        _part(old, name).get("outcome") == _part(new, name).get("outcome") for name in {*old, *new}
    ):
        yield "checks ran anew"


def _of_contract(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _part(before, "contract"), _part(after, "contract")
    if old.get("version") != new.get("version"):
        yield f"contract version {old.get('version')} became {new.get('version')}"
    elif _differs(before, after, "contract"):
        yield "the contract changed"
