"""Automated checks of a candidate: what each one is, and what it is given.

A check is a pure function of its `Subject`: the same candidate always gives the same findings. It
decides nothing about who may approve; it says what it saw. `ALL` names them in the order in which
people read them. The verification command is no check of this kind: it needs a sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from approvals.checks import (
    archives,
    control_files,
    documents,
    hidden_characters,
    paths,
    secrets,
    size_and_type,
    view,
)
from approvals.checks.base import CheckResult, Finding, Outcome, Severity, Subject

__all__ = ["ALL", "CheckResult", "Finding", "Outcome", "Severity", "Subject"]

_IN_ORDER = (
    paths, size_and_type, archives, documents, hidden_characters, secrets, control_files, view,
)  # fmt: skip
ALL: Mapping[str, Callable[[Subject], CheckResult]] = {
    module.NAME: module.check for module in _IN_ORDER
}
