"""Which files of a run's candidates a person ticked as seen, by content.

A tick is for what stood on the page: path, modes and both contents. The next candidate keeps the
ticks of files that it changes in the same way, and of no others. A help for reading; it decides
nothing, and nobody else is shown it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction

from approvals.changes import Change
from approvals.models import Candidate, SeenFile
from portal.canonical import canonical
from portal.errors import NotFound
from portal.models import Membership

_COUNTED = ("path", "old_path", "old_mode", "new_mode", "old_blob", "new_blob")


def content_of(change: Change) -> str:
    """SHA-256 of what a reader of this change has before them, in hexadecimal."""
    facts = change.to_data()
    return hashlib.sha256(canonical({name: facts[name] for name in _COUNTED})).hexdigest()


@dataclass(frozen=True)
class Seen:
    """The files of one candidate that one person saw, by their number in the list of changes."""

    files: frozenset[int]
    of: int

    @property
    def count(self) -> int:
        return len(self.files)


def seen_of(candidate: Candidate, changes: Sequence[Change], member: Membership) -> Seen:
    """What this person has seen of these changes of the candidate."""
    ticked = set(
        SeenFile.objects.filter(run_id=candidate.run_id, person=member.user).values_list(
            "content", flat=True
        )
    )
    if not ticked:
        return Seen(frozenset(), len(changes))
    found = (i for i, change in enumerate(changes) if content_of(change) in ticked)
    return Seen(frozenset(found), len(changes))


@transaction.atomic
def tick(candidate: Candidate, index: int, member: Membership, *, seen: bool) -> None:
    """Remember, or forget, that this person saw one file. Raises `NotFound`. Safe to repeat."""
    if index >= len(candidate.changes):
        raise NotFound
    known: dict[str, Any] = {
        "tenant": candidate.tenant,
        "run_id": candidate.run_id,
        "person": member.user,
        "content": content_of(Change.from_data(candidate.changes[index])),
    }
    if seen:
        SeenFile.objects.get_or_create(**known)
    else:
        SeenFile.objects.filter(**known).delete()
