"""Every address of the portal, who may go there, and what they get."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from approvals import delegation, groups
from approvals.capability import Capability
from approvals.models import Delegation, Publication
from approvals.policy import PublishFacts, recalled
from portal.models import AuditEntry, Membership
from portal.roles import Role
from runs.models import Event, ToolCall
from tests.cast import Cast, make_drill
from tests.credentials.sources import lost_use, retired_source
from tests.walk import Walk

EVERYBODY = frozenset({"olu", "ada", "bo", "vic", "max", "aud", "mona"})
OPERATORS = frozenset({"olu"})
PUBLISHERS = frozenset({"ada", "bo"})
ADMINS = frozenset({"max"})
AUDITORS = frozenset({"aud"})
STRANGERS = frozenset({"eve"})
SIGNED_IN = EVERYBODY | STRANGERS
NOBODY = "nobody"  # nobody is signed in


@dataclass(frozen=True)
class Entry:
    """Who may go there, and the statuses they get: for a page, and for an empty form."""

    who: frozenset[str]
    get: int
    post: int
    # What those get who are not signed in; without it they are sent to the sign-in page.
    nobody: tuple[int, int] | None = None


PAGE = Entry(EVERYBODY, 200, 405)
ADDRESSES: Mapping[str, Entry] = {
    # Of the portal itself: no tenant is involved.
    "portal:livez": Entry(SIGNED_IN, 200, 405, nobody=(200, 405)),
    "portal:readyz": Entry(SIGNED_IN, 200, 405, nobody=(200, 405)),
    "portal:home": Entry(SIGNED_IN, 302, 405, nobody=(302, 302)),
    "portal:sign_in": Entry(SIGNED_IN, 302, 422, nobody=(200, 422)),
    "portal:sign_in_by_link": Entry(SIGNED_IN, 410, 410, nobody=(410, 410)),
    "portal:sign_out": Entry(SIGNED_IN, 405, 302),
    "portal:tenants": Entry(SIGNED_IN, 200, 405, nobody=(302, 302)),
    "portal:settings": Entry(SIGNED_IN, 200, 302),
    "portal:passkeys": Entry(SIGNED_IN, 200, 405, nobody=(302, 302)),
    # Nobody here has signed in within ten minutes, or has a passkey.
    "portal:passkey_begin": Entry(SIGNED_IN, 405, 409),
    "portal:passkey_add": Entry(SIGNED_IN, 405, 409),
    "portal:passkey_remove": Entry(SIGNED_IN, 405, 409),
    "portal:passkey_codes": Entry(SIGNED_IN, 405, 409),
    "portal:passkey_ask": Entry(SIGNED_IN, 405, 409),
    "portal:passkey_prove": Entry(SIGNED_IN, 405, 400),
    # People and evidence.
    "portal:members": PAGE,
    "portal:member_add": Entry(ADMINS, 405, 422),
    "portal:member_roles": Entry(ADMINS, 200, 422),
    "portal:member_remove": Entry(ADMINS, 405, 302),
    "portal:evidence": Entry(AUDITORS, 200, 405),
    # Runs and contracts.
    "runs:list": PAGE,
    "runs:rows": PAGE,
    "runs:new": Entry(OPERATORS, 200, 422),
    "runs:detail": PAGE,
    "runs:state": PAGE,
    "runs:events": PAGE,
    "runs:event": PAGE,
    "runs:output": PAGE,
    "runs:cancel": Entry(OPERATORS, 405, 409),  # that run is published
    "runs:recover": Entry(OPERATORS, 405, 400),
    "runs:hand": Entry(OPERATORS, 200, 422),
    "runs:handled": Entry(EVERYBODY, 405, 409),  # who may is asked with the row locked
    "runs:checkpoint": PAGE,
    "runs:network": PAGE,
    "runs:network_ask": Entry(OPERATORS, 200, 422),
    # Who may is asked with the row locked; that run has no such rule.
    "runs:grant_revoke": Entry(OPERATORS | PUBLISHERS | ADMINS, 405, 404),
    "runs:credential_revoke": Entry(OPERATORS | PUBLISHERS | ADMINS, 405, 404),
    "runs:credentials": PAGE,
    "runs:credential_new": Entry(ADMINS, 200, 422),
    "runs:credential": PAGE,
    "runs:credential_edit": Entry(ADMINS, 200, 422),
    "runs:credential_retire": Entry(ADMINS, 405, 409),  # it is retired already
    "runs:credential_request": PAGE,
    "runs:credential_decide": Entry(ADMINS, 405, 400),
    "runs:sandboxes": PAGE,
    "runs:drill": PAGE,
    "runs:contracts": PAGE,
    "runs:contract_new": Entry(OPERATORS, 200, 422),
    "runs:contract": PAGE,
    "runs:version_new": Entry(OPERATORS, 200, 422),
    "runs:version": PAGE,
    "runs:version_decide": Entry(ADMINS, 405, 400),
    # Evidence to take home.
    "approvals:bundle": Entry(AUDITORS, 200, 405),
    "approvals:bundle_check": Entry(AUDITORS, 200, 405),
    # Packets and candidates.
    "approvals:queue": PAGE,
    "approvals:mine": PAGE,
    "approvals:queue_news": Entry(EVERYBODY, 400, 405),  # it wants to know since when
    "approvals:packet": PAGE,
    "approvals:packet_state": PAGE,
    "approvals:packet_decide": Entry(EVERYBODY, 405, 400),  # who may is asked with the row locked
    # Who may is asked with the row locked; this one is over.
    "approvals:packet_undo": Entry(EVERYBODY, 405, 409),
    "approvals:packet_withdraw": Entry(EVERYBODY, 405, 409),
    "approvals:packet_passkey": Entry(EVERYBODY, 405, 400),  # it wants to know which digest
    "approvals:queue_bulk": Entry(EVERYBODY, 200, 400),  # no answer was meant
    "approvals:packet_edit": Entry(PUBLISHERS, 400, 400),  # that one is a publication
    "approvals:packet_print": PAGE,
    "approvals:packet_page": PAGE,
    "approvals:packet_tab": PAGE,
    "approvals:candidate": PAGE,
    "approvals:candidate_files": Entry(EVERYBODY, 302, 405),
    "approvals:candidate_file": PAGE,
    "approvals:candidate_line": PAGE,
    "approvals:candidate_seen": Entry(EVERYBODY, 405, 302),
    "approvals:candidate_around": Entry(EVERYBODY, 302, 405),
    "approvals:candidate_patch": PAGE,
    "approvals:candidate_tray": PAGE,
    "approvals:candidate_receipt": PAGE,
    # Publications, unknown outcomes, policies.
    "approvals:publications": PAGE,
    "approvals:publication": PAGE,
    "approvals:publication_receipt": PAGE,
    "approvals:publication_settle": Entry(PUBLISHERS, 405, 400),
    "approvals:unknown": PAGE,
    "approvals:call_settle": Entry(PUBLISHERS, 405, 400),
    # Who may is asked with the row locked.
    "approvals:secret_settle": Entry(EVERYBODY, 405, 400),
    "approvals:delegations": PAGE,
    "approvals:delegation_new": Entry(EVERYBODY, 405, 422),  # one's own right alone
    # Whoever gave it, whoever has it, and admins.
    "approvals:delegation_end": Entry(PUBLISHERS | ADMINS, 405, 302),
    "approvals:groups": PAGE,
    "approvals:group_new": Entry(ADMINS, 405, 422),
    "approvals:group_edit": Entry(ADMINS, 200, 422),
    "approvals:group_delete": Entry(ADMINS, 405, 302),
    "approvals:delete": Entry(ADMINS, 200, 422),
    "approvals:retention": PAGE,
    "approvals:retention_times": Entry(ADMINS, 405, 422),
    "approvals:hold": Entry(EVERYBODY, 405, 422),  # who may is asked inside
    "approvals:hold_lift": Entry(ADMINS | AUDITORS, 405, 404),  # there is no such hold
    "approvals:policies": PAGE,
    "approvals:policy_new": Entry(ADMINS, 200, 422),
    "approvals:policy_try": Entry(ADMINS, 405, 422),
    "approvals:canaries": PAGE,
    "approvals:canaries_choose": Entry(ADMINS, 405, 422),
    "approvals:policy_evidence": Entry(ADMINS, 200, 405),
    "approvals:policy_evidence_packets": Entry(ADMINS, 200, 405),
    "approvals:policy": PAGE,
    "approvals:policy_trial": Entry(ADMINS, 200, 405),
    # That version is in force.
    "approvals:policy_back": Entry(ADMINS, 405, 409),
    "approvals:policy_decide": Entry(ADMINS, 405, 400),
}


def routes() -> dict[str, tuple[str, ...]]:
    """Every name of the resolver, with the parts its address takes."""

    def below(patterns: list[Any], space: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        for each in patterns:
            if isinstance(each, URLResolver):
                inner = f"{space}{each.namespace}:" if each.namespace else space
                yield from below(each.url_patterns, inner)
            elif isinstance(each, URLPattern):
                yield f"{space}{each.name}", tuple(each.pattern.converters)

    return dict(below(get_resolver().url_patterns, ""))


def handed_over(cast: Cast) -> Delegation:
    """Ada's right to decide, in Bo's hands for an hour."""
    now = timezone.now()
    wanted = delegation.Wanted(cast.bo.pk, now, now + timedelta(hours=1))
    return delegation.hand_over(wanted, member=cast.ada)


@dataclass(frozen=True)
class Things:
    """What the parts of addresses name: one of each kind, all of them Acme's."""

    cast: Cast
    parts: Mapping[str, Mapping[str, object]]
    marks: tuple[int, int]

    @classmethod
    def made_by(cls, walk: Walk) -> Things:
        """A published run, its packet, candidate, contract, calls, and one more member."""
        publication = walk.to_publish()
        walk.drain()
        return cls.around(walk, publication)

    @classmethod
    def around(cls, walk: Walk, publication: Publication) -> Things:
        """What led to a publication, and one more member."""
        run = publication.run
        more = walk.cast.member("Zoe Zander", [Role.VIEWER])
        call = ToolCall.objects.filter(run=run).first()
        assert call is not None
        change = retired_source(walk)
        for handle in ("security", "crowd"):
            groups.make_group(handle, handle.title(), [more.pk], member=walk.cast.max)
        number = {"number": run.version.number}
        facts = recalled(PublishFacts, publication.packet.facts)
        assert facts is not None
        parts: dict[str, Mapping[str, object]] = {
            "portal:member": {"pk": more.pk},
            "portal:sign_in": {"token": "not-a-token"},
            "portal:passkey": {"pk": 10**9},
            "runs:contract": {"public_id": run.version.contract.public_id},
            "runs:version": {"public_id": run.version.contract.public_id, **number},
            "runs:": {"public_id": run.public_id, "seq": 1},
            "runs:drill": {"public_id": make_drill().public_id},
            "runs:grant": {"public_id": run.public_id, "grant_id": run.public_id},
            "runs:credential": {"name": "forge", "kind": "oauth", "public_id": change.public_id},
            "runs:credential_revoke": {"public_id": run.public_id, "grant_id": run.public_id},
            "approvals:packet": {"public_id": publication.packet.public_id, "tab": "provenance"},
            "approvals:candidate": {
                "public_id": publication.candidate.public_id,
                **{"index": 0, "number": 0, "side": "new-1", "name": "paths"},
            },
            "approvals:publication": {"public_id": publication.public_id},
            "approvals:call": {"pk": call.pk},
            "approvals:secret": {"public_id": lost_use(run).public_id},
            "approvals:delegation": {"pk": handed_over(walk.cast).pk},
            "approvals:group_edit": {"handle": "security"},
            "approvals:group_delete": {"handle": "crowd"},
            "approvals:hold": {"pk": 10**9},
            "approvals:polic": {"number": 1},
            "approvals:policy_evidence": {
                "key": Capability.of(facts).key,
                "column": "asked",
            },
        }
        return cls(walk.cast, parts, cls._count())

    def nowhere(self) -> Things:
        """The same kinds of things, none of which exists."""
        changed = {
            prefix: {
                name: "00000000-0000-4000-8000-000000000000" if name == "public_id" else value
                for name, value in {**parts, **({"pk": 10**9} if "pk" in parts else {})}.items()
            }
            for prefix, parts in self.parts.items()
        }
        changed["approvals:polic"] = {"number": 10**9}
        changed["approvals:policy_evidence"] = {"key": "0" * 20, "column": "asked"}
        changed |= {name: {"handle": "none"} for name in changed if ":group_" in name}
        return Things(self.cast, changed, self.marks)

    @staticmethod
    def _count() -> tuple[int, int]:
        return AuditEntry.objects.count(), Event.objects.count()

    def changed(self) -> bool:
        """Whether anything was written down since these things were made."""
        return self._count() != self.marks

    def address(self, name: str, tenant: str = "acme") -> str:
        """The address of one of these things."""
        wanted = routes()[name]
        known = max((each for each in self.parts if name.startswith(each)), key=len, default="")
        given = {"tenant": tenant, **self.parts.get(known, {})}
        return reverse(name, kwargs={part: given[part] for part in wanted})


def members_of(things: Things) -> dict[str, Membership | None]:
    """Everybody of the cast by name, and nobody."""
    return {**things.cast.everyone, NOBODY: None}
