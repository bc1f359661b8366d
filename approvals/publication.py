"""What a publication will be: planned before anyone is asked, shown, and done unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from approvals import checks, policy
from approvals.facts import cents, touches_pipeline
from approvals.models import Candidate, Packet, PolicyVersion, Publication, Receipt
from approvals.publishers import PublicationIntent, Target, commit_id
from approvals.publishers.text import compose_body, compose_message, safe_line, safe_markdown
from portal.canonical import digest
from runs.contract import Contract
from runs.fetching import repositories_of
from runs.lifecycle import contract_of, spent
from runs.models import Run

AUTHOR_NAME = "Imprimatur"

# Checks that must pass: approving is not offered while one of them failed or is missing. Each says
# itself what blocks and what a person may decide on.
MUST_PASS = frozenset({*checks.ALL, "verification"})


@dataclass(frozen=True)
class Plan:
    """The publication in the words of the packet; the intent follows from it and nothing else."""

    target_name: str
    marker: str
    branch: str
    title: str
    body: str
    commit_message: str
    committed_at: datetime
    base_branch: str
    base_commit: str
    tree: str
    target: Target

    def as_page(self) -> dict[str, Any]:
        """What the packet shows and its digest covers."""
        return {
            "title": self.title,
            "branch": self.branch,
            "base": self.base_branch,
            "base_commit": self.base_commit,
            "tree": self.tree,
            "commit": commit_id(self.intent()),
            "commit_message": self.commit_message,
            "body": self.body,
            "draft": True,
        }

    def intent(self) -> PublicationIntent:
        """What the publisher is given."""
        return PublicationIntent(
            marker=self.marker,
            target=self.target,
            branch=self.branch,
            base_branch=self.base_branch,
            base_commit=self.base_commit,
            tree_sha=self.tree,
            commit_message=self.commit_message,
            title=self.title,
            body=self.body,
            author_name=AUTHOR_NAME,
            author_email=settings.PUBLISH_EMAIL,
            committed_at=self.committed_at,
        )


def plan(run: Run, contract: Contract, candidate: Candidate) -> Plan:
    """The publication of this candidate. The same rows always give the same plan."""
    marker = f"{run.tenant.slug}.run-{run.number}.{candidate.digest[:24]}"
    title = safe_line(
        contract.target.title.replace("{name}", contract.name)
        .replace("{outcome}", contract.outcome)
        .replace("{run}", str(run.number))
    )[:200]
    verified = "\n".join(
        [
            f"**{safe_markdown(contract.outcome)}**",
            "",
            f"- Contract: {safe_markdown(contract.name)}, version {run.version.number}",
            f"- Run: {run.number}, asked for by {safe_markdown(run.requested_by.name)}",
            f"- Source: `{candidate.base_commit}`",
            f"- Candidate: `{candidate.digest}`",
            f"- Tree: `{candidate.tree}`",
        ]
    )
    return Plan(
        target_name=target_name(contract),
        marker=marker,
        branch=f"{contract.target.branch_prefix}run-{run.number}-{candidate.digest[:8]}",
        title=title,
        body=compose_body(verified=verified, agent_text=candidate.agent_words, marker=marker),
        commit_message=compose_message(
            subject=title, marker=marker, agent_text=candidate.agent_words
        ),
        committed_at=candidate.created_at,
        base_branch=contract.target.base,
        base_commit=candidate.base_commit,
        tree=candidate.tree,
        target=target_of(run, contract),
    )


def target_of(run: Run, contract: Contract) -> Target:
    """The publisher's target. A path is below the tenant's repositories, as contracts write it."""
    target = contract.target
    if target.kind == "github":
        return Target("github", target.repository)
    if target.path:
        return Target("git", str(repositories_of(run.tenant) / target.path))
    return Target("git", target.url)


def target_name(contract: Contract) -> str:
    """The target as people read it."""
    target = contract.target
    return target.repository if target.kind == "github" else target.url or target.path


def candidate_digest(candidate: Candidate) -> str:
    """What identifies a candidate: its base, its tree, every change and every tray file."""
    return digest(
        {
            "base_commit": candidate.base_commit,
            "base_tree": candidate.base_tree,
            "tree": candidate.tree,
            "changes": candidate.changes,
            "tray": candidate.tray,
        }
    )


def judge(version: PolicyVersion | None, facts: policy.PublishFacts) -> policy.PolicyResult:
    """Policy on letting a candidate out. A person decides every publication: never `allow`."""
    if version is None:
        reason = "The tenant has no policy in force, so nothing leaves."
        return policy.PolicyResult("deny", (), reason)
    return policy.decide_publication(version.text, facts)


def publish_facts(run: Run, contract: Contract, candidate: Candidate) -> policy.PublishFacts:
    """What policy may know about a candidate, from its rows and receipts."""
    receipts = {each.check_name: each for each in Receipt.objects.filter(candidate=candidate)}
    paths = [each["path"] for each in candidate.changes]
    outside = receipts.get("paths")
    micros, _ = spent(run.pk)
    verification = receipts.get("verification")
    return policy.PublishFacts(
        agent=contract.agent.name,
        target=target_name(contract),
        tenant=run.tenant.slug,
        contract=contract.name,
        target_kind=contract.target.kind,
        host=urlsplit(contract.target.url or contract.target.api).hostname or "",
        branch=contract.target.base,
        files=len(paths),
        bytes=sum(each["new_size"] or 0 for each in candidate.changes),
        paths_outside=len(outside.findings) if outside and outside.outcome == "failed" else 0,
        touches_pipeline=touches_pipeline(paths),
        secrets=_findings(receipts.get("secrets")),
        hidden_characters=_findings(receipts.get("hidden_characters")),
        checks_failed=sum(each.outcome in ("failed", "error") for each in receipts.values()),
        checks_missing=len(required(contract) - set(receipts)),
        verification=verification.outcome if verification else "none",
        cost_cents=cents(Decimal(micros) / 1_000_000),
        approvals=contract.gate.approvals,
    )


def _findings(receipt: Receipt | None) -> int:
    return len(receipt.findings) if receipt else 0


def required(contract: Contract) -> frozenset[str]:
    """Checks without whose passing nothing can be approved."""
    return MUST_PASS if contract.verification else MUST_PASS - {"verification"}


def why_blocked(
    contract: Contract,
    candidate: Candidate,
    receipts: Sequence[Receipt],
    verdict: policy.PolicyResult,
) -> str:
    """Why this candidate cannot be approved at all, or an empty text."""
    reasons: list[str] = []
    if verdict.effect == "deny":
        reasons.append(f"policy denies it ({verdict.reason})")
    by_name = {each.check_name: each for each in receipts}
    for name in sorted(required(contract)):
        receipt = by_name.get(name)
        if receipt is None:
            reasons.append(f"the check {name} left no receipt")
        elif receipt.input_digest != candidate.digest:
            reasons.append(f"the check {name} judged other bytes")
        elif receipt.outcome in ("failed", "error"):
            reasons.append(f"the check {name} did not pass")
    blocking = [each for each in candidate.left_out if each.get("blocking")]
    if blocking:
        reasons.append(f"{len(blocking)} thing(s) in the workspace cannot be reviewed")
    if not candidate.changes and not candidate.tray:
        reasons.append("it changes nothing")
    return "; ".join(reasons)


def intend(packet: Packet, candidate: Candidate, run: Run) -> Publication:
    """Write the intent down, in the transaction that approves it."""
    arguments = packet.page["arguments"]
    return Publication.objects.create(
        tenant_id=packet.tenant_id,
        run=run,
        packet=packet,
        candidate=candidate,
        target={
            "name": packet.page["target"],
            "kind": packet.page["tool"].removeprefix("publish."),
        },
        branch=arguments["branch"],
        marker=plan(run, contract_of(run), candidate).marker,
        title=arguments["title"],
        body=arguments["body"],
        commit=arguments["commit"],
        tree=arguments["tree"],
    )
