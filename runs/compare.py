"""What changed between two versions of a contract, field by field, and what of it matters most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# A change here changes what a run can reach, hold, run or publish.
SENSITIVE = (
    "source",
    "inputs",
    "files",
    "environment",
    "capabilities",
    "tools",
    "network",
    "output",
    "target",
    "gate",
    "verification",
    "limits",
)


@dataclass(frozen=True)
class FieldChange:
    """One field with its value before and after; None where there was or is none."""

    field: str
    before: str | None
    after: str | None

    @property
    def sensitive(self) -> bool:
        return self.field.partition(".")[0].partition("[")[0] in SENSITIVE

    @property
    def kind(self) -> str:
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"


def flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every leaf of nested data under its dotted name."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from flatten(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            name = item.get("name") if isinstance(item, Mapping) else None
            yield from flatten(item, f"{prefix}[{name or at}]")
    else:
        yield prefix, "" if value is None else str(value)


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldChange]:
    """Fields that differ, the sensitive ones first, otherwise in the order of the contract."""
    old, new = dict(flatten(before)), dict(flatten(after))
    changes = [
        FieldChange(name, old.get(name), new.get(name))
        for name in dict.fromkeys([*new, *old])
        if old.get(name) != new.get(name)
    ]
    return sorted(changes, key=lambda change: not change.sensitive)
