"""Both sides of every changed file, kept with the candidate.

A page then needs neither git nor the source's host to show what stands around a change, to compare
two candidates or to preview a picture. Contents lie one after the other in packs of a few megabytes
in the blob store; a row for each pack says where in it a content begins. Who reads one compares it
with git's own name for it, so a page shows exactly the bytes that the candidate's tree names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from approvals.changes import GITLINK, NO_MODE, Change
from approvals.models import Candidate, ContentPack
from portal import blobs
from portal.errors import Refusal

PACK_BYTES = 4 << 20


class ContentMissing(Refusal):
    """A content that was not kept with the candidate, or whose bytes are others."""

    code = "approvals.content_missing"
    status = 409
    text = (
        "The whole content of this file is not kept with the candidate{reason}, so only the lines "
        "of the patch can be shown. Save the patch, or ask for changes to get a new candidate."
    )


@dataclass
class Packed:
    """A pack in the blob store: start and length in bytes of each content, by git's name."""

    blob: str
    places: dict[str, tuple[int, int]] = field(default_factory=dict)


def sides(changes: Iterable[Change]) -> Iterator[str]:
    """Git's name of each content before and after, once each, in the order of the changes."""
    seen: set[str] = set()
    for change in changes:
        for mode, name in ((change.old_mode, change.old_blob), (change.new_mode, change.new_blob)):
            if mode not in (NO_MODE, GITLINK) and name not in seen:
                seen.add(name)
                yield name


def pack(tenant_id: int, changes: Iterable[Change], read: Callable[[str], bytes]) -> list[Packed]:
    """Store both sides of `changes`, at most a few megabytes of them in memory at once."""
    packs: list[Packed] = []
    body, places = bytearray(), dict[str, tuple[int, int]]()

    def close() -> None:
        if places:
            packs.append(Packed(blobs.put(tenant_id, bytes(body)), dict(places)))
            body.clear()
            places.clear()

    for name in sides(changes):
        data = read(name)
        if len(body) + len(data) > PACK_BYTES:
            close()
        places[name] = (len(body), len(data))
        body += data
    close()
    return packs


def rows_of(candidate: Candidate, packs: Iterable[Packed]) -> list[ContentPack]:
    """The rows that name the packs of a candidate, not saved yet."""
    return [
        ContentPack(
            tenant_id=candidate.tenant_id,
            candidate=candidate,
            blob=each.blob,
            places={name: list(place) for name, place in each.places.items()},
        )
        for each in packs
    ]


class Contents(Mapping[str, bytes]):
    """What was kept of one candidate, by git's name; read when asked for.

    Asking for a name that is not there is a `KeyError`; for one whose bytes are damaged or were
    removed, it raises what `portal.blobs.get` raises, or `ContentMissing`.
    """

    def __init__(self, candidate: Candidate) -> None:
        self._tenant = candidate.tenant_id
        kept = ContentPack.objects.filter(candidate=candidate).values_list("blob", "places")
        self._places = {
            name: (blob, start, length)
            for blob, places in kept
            for name, (start, length) in places.items()
        }

    def __getitem__(self, name: str) -> bytes:
        blob, start, length = self._places[name]
        data = blobs.get(self._tenant, blob)[start : start + length]
        if _git_name(data, len(name)) != name:
            raise ContentMissing(reason=", or its bytes are others")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def demand(self, name: str) -> bytes:
        """The content of that name. Raises `ContentMissing`."""
        try:
            return self[name]
        except (KeyError, blobs.BlobRemoved) as error:
            why = " any more" if isinstance(error, blobs.BlobRemoved) else ""
            raise ContentMissing(reason=why) from None


def _git_name(data: bytes, length: int) -> str:
    """What git calls a file of these bytes; `length` is that of its names: SHA-1's or SHA-256's."""
    made = hashlib.sha1(usedforsecurity=False) if length == 40 else hashlib.sha256()
    made.update(b"blob %d\0" % len(data))
    made.update(data)
    return made.hexdigest()
