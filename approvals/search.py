"""Packets by the words somebody typed: few are read, however many the tenant has.

PostgreSQL compares what a person typed with the rows of a tenant only by what gives nothing away
of the rows of others, and `LIKE` is not among that: under row-level security it reads every row of
the tenant first, whatever index there is. `PacketWord` lists packets by word, as bytes, which may
be compared first. A word that few packets have leads to them. One that many have is looked for in
the queue's own order, packet by packet, and so far only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from django.db.models import Q

from approvals.models import Packet, PacketWord
from approvals.words import LONGEST, asked_for, leads_nowhere
from runs.models import Run

# A word that more packets have is common, and leads to none.
FEW = 2_000
# Where every word is common: so many packets of the list are looked at for a page, and at first
# only the nearest, among which most of such words are found.
NEAR, FAR = 1_000, 2_000
# So many words are followed to their packets. The longest of them have the fewest.
_FOLLOWED = 4
# Follows every byte that a word begins with: none of UTF-8 is as high.
_END = b"\xff"

_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Sought:
    """What somebody looks for.

    `condition` says of a packet whether it is meant. All that are meant are among `keys`; None
    where these would be too many. Those `named` by number or digest are known in any case.
    """

    condition: Q
    keys: frozenset[int] | None
    named: frozenset[int]


def sought(text: str, tenant_id: int) -> Sought:
    """Packets that have all the words of the text, each as the beginning of one of theirs; and the
    ones that the text names: by number, by number of the run, or by the digest's beginning."""
    words = asked_for(text)
    condition, keys = _with_all(words, tenant_id)
    named: frozenset[int] = frozenset()
    for meant, few in _named(text, tenant_id):
        condition |= meant
        if few is None:
            keys = None
        else:
            named |= few
    return Sought(condition, None if keys is None else keys | named, named)


def _with_all(words: tuple[str, ...], tenant_id: int) -> tuple[Q, frozenset[int] | None]:
    if not words:
        return Q(pk__in=()), frozenset()
    condition = Q()
    for word in words:
        condition &= Q(words__contains=f" {word}")
    keys: frozenset[int] | None = None
    for word in islice((each for each in words if not leads_nowhere(each)), _FOLLOWED):
        found = _listed(word, tenant_id)
        if found is not None:
            keys = found if keys is None else keys & found
            if not keys:
                break
    return condition, keys


def _named(text: str, tenant_id: int) -> Iterable[tuple[Q, frozenset[int] | None]]:
    """What the whole text names, with or without blanks, and which packets that are."""
    whole = "".join(text.lower().split())
    packets = Packet.objects.filter(tenant=tenant_id).order_by()
    if whole.isdecimal() and whole.isascii() and len(whole) < 10:
        meant = Q(number=int(whole))
        yield meant, _few(packets.filter(meant).values_list("pk", flat=True))
        runs = Run.objects.filter(tenant=tenant_id, number=int(whole))
        for run in runs.values_list("pk", flat=True):
            meant = Q(run=run)
            yield meant, _few(packets.filter(meant).values_list("pk", flat=True)[: FEW + 1])
    if 4 <= len(whole) <= 64 and _HEX.issuperset(whole):
        yield Q(digest__startswith=whole), _listed(whole[:LONGEST], tenant_id)


def _listed(beginning: str, tenant_id: int) -> frozenset[int] | None:
    """Packets that are listed under a word which begins so; None if these are many."""
    first = beginning.encode()
    rows = PacketWord.objects.filter(tenant=tenant_id, word__gte=first, word__lt=first + _END)
    return _few(rows.order_by().values_list("packet_id", flat=True)[: FEW + 1])


def _few(keys: Iterable[int]) -> frozenset[int] | None:
    found = list(keys)
    return frozenset(found) if len(found) <= FEW else None
