"""Contracts, runs, checkpoints, tool calls, events and charges."""

from __future__ import annotations

import uuid
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models import Q

from portal.models import Tenant
from runs.egress.rules import place
from runs.states import ENDED, CallState, CredentialState, GrantState, ResumeState, RunStatus


def _choices(values: Any) -> list[str]:
    return [value.value for value in values]


class JobContract(models.Model):
    """One named job of a tenant; its text lives in immutable versions."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="contracts")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="contract_name_once", fields=["tenant", "name"]),
        ]

    def __str__(self) -> str:
        return self.name


class ContractVersion(models.Model):
    """One immutable text of a contract. At most one version is in force."""

    class State(models.TextChoices):
        PROPOSED = "proposed", "proposed"
        IN_FORCE = "in_force", "in force"
        SUPERSEDED = "superseded", "superseded"
        DENIED = "denied", "denied"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(JobContract, models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    text = models.TextField()
    format = models.CharField(max_length=4)
    data = models.JSONField()
    digest = models.CharField(max_length=64)
    manifest_digest = models.CharField(max_length=64)
    state = models.CharField(max_length=12, choices=State.choices, default=State.PROPOSED)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    self_approved = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="version_number_once", fields=["contract", "number"]),
            models.UniqueConstraint(
                name="one_version_in_force", fields=["contract"], condition=Q(state="in_force")
            ),
        ]


class Run(models.Model):
    """One execution of one contract version, with its own workspace.

    The lease says which worker may write: `lease_token` changes at every claim
    (the fencing token), so a slow worker that lost its lease changes nothing.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="runs")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    number = models.PositiveIntegerField()
    version = models.ForeignKey(ContractVersion, models.PROTECT, related_name="runs")
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    status = models.CharField(max_length=12, default=RunStatus.QUEUED.value)
    status_at = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    lease_token = models.UUIDField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    cancel_asked_at = models.DateTimeField(null=True, blank=True)
    cancel_asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    # Seconds of wall time used by earlier segments; waiting for a person does not count.
    seconds_used = models.FloatField(default=0)

    source_commit = models.CharField(max_length=64, blank=True)
    source_tree = models.CharField(max_length=64, blank=True)
    provider = models.CharField(max_length=20, blank=True)
    image_digest = models.CharField(max_length=80, blank=True)
    sandbox_ref = models.CharField(max_length=120, blank=True)
    # What the agent gets as its next input after changes were requested.
    next_input = models.TextField(blank=True)
    output = models.TextField(blank=True)
    transcript_label = models.CharField(max_length=200, blank=True)

    failure_boundary = models.CharField(max_length=10, blank=True)
    failure_code = models.CharField(max_length=60, blank=True)
    failure_operation = models.CharField(max_length=60, blank=True)
    failure_text = models.TextField(blank=True)
    retry_safe = models.BooleanField(null=True, blank=True)
    # The step it failed at: where a person may take it up again.
    failed_from = models.CharField(max_length=12, blank=True)
    # Without a sandbox: only the tools that the contract's fallback leaves it.
    narrowed = models.BooleanField(default=False)
    # Behind a test packet (`approvals.canaries`): it waits, and no worker can ever take it.
    canary = models.BooleanField(default=False)
    # The run whose approved inputs this one began with anew.
    restart_of = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="restarts"
    )
    # Whom a failure was handed to, and when they were done with it.
    handed_to = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    handed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    handed_at = models.DateTimeField(null=True, blank=True)
    handed_note = models.TextField(blank=True)
    handled_at = models.DateTimeField(null=True, blank=True)

    event_seq = models.PositiveIntegerField(default=0)
    event_head = models.CharField(max_length=64, default="0" * 64)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="run_number_once", fields=["tenant", "number"]),
            models.CheckConstraint(
                name="run_status_known", condition=Q(status__in=_choices(RunStatus))
            ),
            models.CheckConstraint(
                name="run_ended_has_no_lease",
                condition=~Q(status__in=_choices(sorted(ENDED))) | Q(lease_token=None),
            ),
            models.CheckConstraint(
                name="run_canary_never_works",
                condition=Q(canary=False)
                | Q(
                    status__in=["waiting", "cancelled", "expired"],
                    lease_token=None,
                    started_at=None,
                ),
            ),
            models.CheckConstraint(
                name="run_failure_names_boundary",
                condition=~Q(status="failed")
                | Q(failure_boundary__in=["control", "execution", "recovery"]),
            ),
        ]
        indexes = [
            # The sweep: how long runs have stood where they are.
            models.Index(name="run_status_idx", fields=["status", "status_at"]),
            # Live runs of one tenant. A query must say `ended_at=None` for SQLite to see that
            # it may use this.
            models.Index(
                name="run_live_idx", fields=["tenant", "status"], condition=Q(ended_at=None)
            ),
            # The list of runs, newest first.
            models.Index(name="run_list_idx", fields=["tenant", "-number"]),
            # The queue: failures that were handed to a person.
            models.Index(
                name="run_handed_idx",
                fields=["tenant", "handed_to"],
                condition=Q(handed_to__isnull=False, handled_at=None),
            ),
        ]

    def __str__(self) -> str:
        return f"run {self.number}"

    @property
    def is_live(self) -> bool:
        """Whether the walk goes on."""
        return RunStatus(self.status) not in ENDED


class Checkpoint(models.Model):
    """What a run needs to go on elsewhere: encrypted run state and a verified snapshot.

    Never overwritten: a later stop makes a row of its own, and bytes lie under their digest.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="checkpoints")
    seq = models.PositiveIntegerField()
    # "waiting": calls are pending; "between": a turn was over when the run failed; "finished":
    # the agent ended.
    purpose = models.CharField(max_length=10)
    sealed_state = models.BinaryField()
    state_digest = models.CharField(max_length=64)
    snapshot_blob = models.CharField(max_length=64)
    snapshot_size = models.PositiveBigIntegerField()
    # What could not be saved, such as links that leave and unreadable files: one line each.
    left_out = models.JSONField(default=list)
    # What is never saved, such as caches: path, kind, files.
    excluded = models.JSONField(default=list)
    # Files of the output tray by content: path, sha256, size.
    artifacts = models.JSONField(default=list)
    source_commit = models.CharField(max_length=64, blank=True)
    # What the run stood on when this was saved; compared when it goes on (`runs.footing`).
    footing = models.JSONField(default=dict)
    # The code of the failure that showed that nothing can go on from here.
    unusable = models.CharField(max_length=60, blank=True)
    sdk_version = models.CharField(max_length=20)
    agent_name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="checkpoint_seq_once", fields=["run", "seq"]),
        ]


class Resumption(models.Model):
    """A run would go on, and something it stands on changed since its checkpoint.

    A person decides about exactly these differences; an approval is used once.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="resumptions")
    checkpoint = models.ForeignKey(Checkpoint, models.PROTECT, related_name="+")
    # What, before, now, and what follows from it; `digest` covers them and the checkpoint.
    differences = models.JSONField()
    digest = models.CharField(max_length=64)
    state = models.CharField(max_length=10, default=ResumeState.WAITING.value)
    policy_version = models.PositiveIntegerField(default=0)
    policy_digest = models.CharField(max_length=64, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    settled_at = models.DateTimeField(null=True, blank=True)
    usable_until = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="resumption_state_known", condition=Q(state__in=_choices(ResumeState))
            ),
            models.UniqueConstraint(
                name="one_open_resumption_per_run",
                fields=["run"],
                condition=Q(state__in=["waiting", "approved"]),
            ),
        ]
        indexes = [
            # The sweep: questions that have no packet yet.
            models.Index(
                name="resumption_waiting_idx",
                fields=["created_at"],
                condition=Q(state="waiting"),
            ),
        ]

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint.seq} of {self.run}"


class ToolCall(models.Model):
    """One thing the agent asked for, what policy said, and what became of it.

    `(run, call_id)` is unique, so a call that is replayed after a crash meets
    its own earlier result instead of acting twice.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="calls")
    checkpoint = models.ForeignKey(
        Checkpoint, models.PROTECT, null=True, blank=True, related_name="calls"
    )
    call_id = models.CharField(max_length=120)
    tool = models.CharField(max_length=120)
    kind = models.CharField(max_length=10)
    outward = models.BooleanField(default=False)
    arguments = models.JSONField()
    arguments_digest = models.CharField(max_length=64)
    target = models.TextField(blank=True)
    # What the agent wrote, where a person changed the arguments: `arguments` are then that
    # person's, and they alone are judged, approved and executed.
    proposed = models.JSONField(null=True, blank=True)
    edited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    state = models.CharField(max_length=18)
    rules = models.JSONField(default=list)
    policy_version = models.PositiveIntegerField()
    policy_digest = models.CharField(max_length=64)
    # The facts policy was asked about, as it was told them; empty where none were kept.
    facts = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)
    answer = models.TextField(blank=True)
    # An approval may be used until then, and once.
    usable_until = models.DateTimeField(null=True, blank=True)
    result = models.TextField(blank=True)
    result_blob = models.CharField(max_length=64, blank=True)
    # Of a brokered call: digests of what was asked and of what came back, without payload.
    receipt = models.JSONField(default=dict, blank=True)
    exit_code = models.IntegerField(null=True, blank=True)
    duration_ms = models.PositiveIntegerField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    acted_at = models.DateTimeField(null=True, blank=True)
    # The lease under which it was begun: within one lease a call begins once.
    acted_lease = models.UUIDField(null=True, blank=True)
    settled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(name="call_once_per_run", fields=["run", "call_id"]),
            models.CheckConstraint(
                name="call_state_known", condition=Q(state__in=_choices(CallState))
            ),
        ]
        indexes = [
            # The sweep: calls that wait for a person.
            models.Index(
                name="call_waiting_idx", fields=["created_at"], condition=Q(state="waiting")
            ),
            # What policy judged in some days (`approvals.history`).
            models.Index(name="call_history_idx", fields=["tenant", "created_at"]),
            # The desk: calls nobody knows the outcome of.
            models.Index(
                name="call_unknown_idx",
                # With the state, or SQLite takes the index before for as good.
                fields=["tenant", "state", "created_at"],
                condition=Q(state="unknown"),
            ),
        ]


class Event(models.Model):
    """One line of a run's evidence, without payload, chained to the line before.

    The database refuses UPDATE and DELETE on this table (see the migration).
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="events")
    seq = models.PositiveIntegerField()
    at = models.DateTimeField()
    kind = models.CharField(max_length=60)
    # Run, agent and prompt version, provider, image, manifest, operation, approval,
    # artifacts, credential scope, result, duration: the event contract, README.
    facts = models.JSONField(default=dict)
    # SHA-256 of the payload in the blob store, or empty.
    payload = models.CharField(max_length=64, blank=True)
    previous = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="event_seq_once", fields=["run", "seq"]),
        ]


class Charge(models.Model):
    """Something that cost money, on one run of one tenant. Amounts are millionths."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="charges")
    run = models.ForeignKey(Run, models.PROTECT, related_name="charges")
    # model, compute, tool, storage, egress
    kind = models.CharField(max_length=10)
    what = models.CharField(max_length=120)
    quantity = models.BigIntegerField()
    unit = models.CharField(max_length=12)
    micros = models.BigIntegerField(default=0)
    currency = models.CharField(max_length=3)
    created_at = models.DateTimeField(auto_now_add=True)


class Recording(models.Model):
    """A recorded transcript that a contract may name instead of a model; the pages say so."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="recordings")
    name = models.CharField(max_length=120)
    label = models.CharField(max_length=200)
    blob = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="recording_name_once", fields=["tenant", "name"]),
        ]


class TenantValue(models.Model):
    """A plain value that contracts refer to by name, such as an address. Never a secret."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="values")
    name = models.CharField(max_length=120)
    value = models.TextField()

    class Meta:
        constraints = [
            models.UniqueConstraint(name="value_name_once", fields=["tenant", "name"]),
        ]


def every_contract() -> list[str]:
    """The consumers of a credential that any contract of its tenant may name."""
    return ["*"]


class Credential(models.Model):
    """A source of secrets that only the outer runtime uses.

    `sealed` is the secret itself, or the key that others are made with elsewhere. What stands here
    is in force; every change of it was one `CredentialChange`.
    """

    class Kind(models.TextChoices):
        STATIC = "static", "a secret kept here"
        GITHUB_APP = "github_app", "GitHub App"
        OAUTH = "oauth", "OAuth client"
        VAULT_KV = "vault_kv", "Vault or OpenBao, stored secret"
        VAULT_DYNAMIC = "vault_dynamic", "Vault or OpenBao, made for each use"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="credentials")
    name = models.CharField(max_length=120)
    kind = models.CharField(max_length=14, choices=Kind.choices, default=Kind.STATIC)
    # Where and how it is made: addresses, names, numbers. Never a secret.
    config = models.JSONField(default=dict)
    sealed = models.BinaryField()
    # Where it may be sent, as host or host:port.
    audience = models.JSONField(default=list)
    # What it may do there: permissions, scopes, or words; shown on packets.
    actions = models.JSONField(default=list)
    # Names of the contracts that may use it; "*" is every one.
    consumers = models.JSONField(default=every_contract)
    owner = models.CharField(max_length=200, blank=True)
    # How long one secret is used at most.
    minutes = models.PositiveIntegerField(default=15)
    expires_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(null=True, blank=True)
    retired_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(name="credential_name_once", fields=["tenant", "name"]),
        ]

    def __str__(self) -> str:
        return self.name


class CredentialChange(models.Model):
    """A source, or a change of one, as it is proposed, and what a person said to it."""

    class State(models.TextChoices):
        PROPOSED = "proposed", "proposed"
        IN_FORCE = "in_force", "in force"
        DENIED = "denied", "denied"
        WITHDRAWN = "withdrawn", "withdrawn"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=120)
    number = models.PositiveIntegerField()
    # The terms before and after; `before` is empty for a new source.
    before = models.JSONField(default=dict)
    after = models.JSONField()
    # A new secret, or empty where the one in force stays.
    sealed = models.BinaryField(null=True, blank=True)
    # What it has beyond the terms before, in words; empty for a change that only takes.
    wider = models.JSONField(default=list)
    reason = models.TextField()
    digest = models.CharField(max_length=64)
    state = models.CharField(max_length=10, choices=State.choices, default=State.PROPOSED)
    author = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    comment = models.TextField(blank=True)
    self_approved = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="credential_change_number_once", fields=["tenant", "name", "number"]
            ),
            models.UniqueConstraint(
                name="one_open_change_per_credential",
                fields=["tenant", "name"],
                condition=Q(state="proposed"),
            ),
        ]


class CredentialGrant(models.Model):
    """One use of a credential by one run: asked for, approved, made, used, taken back.

    A secret that was made for it is sealed here for as long as it must be taken back or
    recognised, and is wiped when the run is over.
    """

    class Origin(models.TextChoices):
        PACKET = "packet", "a person"
        POLICY = "policy", "the policy"
        CONTRACT = "contract", "the contract"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="credential_grants")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    credential = models.ForeignKey(Credential, models.PROTECT, related_name="grants")
    origin = models.CharField(max_length=8, choices=Origin.choices)
    # Who uses it, such as `tool create_issue`, `source` or `publication`.
    consumer = models.CharField(max_length=140)
    call = models.ForeignKey(
        ToolCall, models.PROTECT, null=True, blank=True, related_name="credential_grants"
    )
    # What was approved, and what the secret that was made may really do.
    scope = models.JSONField()
    minted_scope = models.JSONField(null=True, blank=True)
    state = models.CharField(max_length=18)
    # Why it was refused, or what of it is not known.
    why = models.TextField(blank=True)
    # None: as often as needed while one stretch of work lasts.
    max_uses = models.PositiveIntegerField(null=True, blank=True)
    uses = models.PositiveIntegerField(default=0)
    # The stretch of work the secret was made in.
    lease = models.UUIDField(null=True, blank=True)
    sealed = models.BinaryField(null=True, blank=True)
    takes_back = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)
    approved_at = models.DateTimeField(null=True, blank=True)
    minted_at = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    # Its own end, shorter than the run's limit, and the one the source gave it.
    expires_at = models.DateTimeField(null=True, blank=True)
    source_ends_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    revoke_attempts = models.PositiveIntegerField(default=0)
    revoke_at = models.DateTimeField(null=True, blank=True)
    revoke_error = models.TextField(blank=True)
    # What a person found out about a secret of which nobody knew whether it was made.
    settled_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    settled_at = models.DateTimeField(null=True, blank=True)
    settled_note = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="credential_state_known", condition=Q(state__in=_choices(CredentialState))
            ),
            # No secret is alive without an end.
            models.CheckConstraint(
                name="credential_live_has_an_end",
                condition=~Q(state__in=["minting", "live"]) | Q(expires_at__isnull=False),
            ),
            models.CheckConstraint(
                name="credential_revoke_is_planned",
                condition=~Q(state="revoking") | Q(revoke_at__isnull=False),
            ),
        ]
        indexes = [
            # The sweep: secrets that are alive, those to be taken back, and those to be wiped.
            models.Index(
                name="credential_alive_idx",
                fields=["expires_at"],
                condition=Q(state__in=["minting", "live"]),
            ),
            models.Index(
                name="credential_revoke_idx",
                fields=["revoke_at"],
                condition=Q(state="revoking"),
            ),
            # The desk: secrets of which nobody knows whether they were made.
            models.Index(
                name="credential_lost_idx",
                fields=["tenant", "ended_at"],
                condition=Q(state="lost", settled_at=None),
            ),
            models.Index(
                name="credential_sealed_idx",
                fields=["tenant"],
                condition=Q(sealed__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.credential.name} for {self.consumer}"


class EgressGrant(models.Model):
    """One destination that one run may reach, or asked to reach, and what came of it.

    The contract's own rules have a row as well, from the first time the network is opened: so
    each can be counted and taken back in the same way.
    """

    class Origin(models.TextChoices):
        CONTRACT = "contract", "the contract"
        AGENT = "agent", "the agent"
        PERSON = "person", "a person"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="grants")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    origin = models.CharField(max_length=8, choices=Origin.choices)
    # Which of the contract's rules it is, counted from 0.
    place = models.PositiveSmallIntegerField(null=True, blank=True)
    host = models.CharField(max_length=253)
    port = models.PositiveIntegerField()
    tls = models.BooleanField()
    plain = models.BooleanField()
    methods = models.JSONField(default=list)
    path = models.CharField(max_length=500, blank=True)
    purpose = models.TextField()
    expected = models.TextField(blank=True)
    minutes = models.PositiveIntegerField()
    max_bytes = models.PositiveBigIntegerField()
    max_connections = models.PositiveIntegerField()

    state = models.CharField(max_length=10, default=GrantState.REQUESTED.value)
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    rules = models.JSONField(default=list)
    policy_version = models.PositiveIntegerField(default=0)
    policy_digest = models.CharField(max_length=64, blank=True)
    # The facts policy was asked about; empty where none were kept.
    facts = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)
    # The words of the person who decided, or who took it back.
    answer = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    granted_at = models.DateTimeField(null=True, blank=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )

    connections = models.PositiveIntegerField(default=0)
    bytes_sent = models.PositiveBigIntegerField(default=0)
    bytes_received = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="grant_state_known", condition=Q(state__in=_choices(GrantState))
            ),
            models.UniqueConstraint(
                name="contract_rule_once_per_run",
                fields=["run", "place"],
                condition=Q(origin="contract"),
            ),
            models.UniqueConstraint(
                name="one_open_request_per_destination",
                fields=["run", "host", "port"],
                condition=Q(state="requested"),
            ),
            # Nothing is open without an end.
            models.CheckConstraint(
                name="grant_active_has_an_end",
                condition=~Q(state="active")
                | Q(granted_at__isnull=False, expires_at__isnull=False, ended_at=None),
            ),
        ]
        indexes = [
            # The sweep: requests that wait, rules whose time is over, and what ended of late.
            models.Index(
                name="grant_asked_idx", fields=["created_at"], condition=Q(state="requested")
            ),
            models.Index(
                name="grant_active_idx", fields=["expires_at"], condition=Q(state="active")
            ),
            models.Index(name="grant_ended_idx", fields=["ended_at"]),
            # The tenant's page: what is asked for most.
            models.Index(name="grant_tenant_idx", fields=["tenant", "host", "port"]),
        ]

    def __str__(self) -> str:
        return place(self.host, self.port)

    @property
    def through(self) -> str:
        """What passes by it, in words."""
        plain = "plain HTTP"
        if self.methods:
            plain += f" ({', '.join(self.methods)})"
        if self.path:
            plain += f" below {self.path}"
        if self.tls and self.plain:
            return "TLS that names this host, or plain HTTP"
        return "TLS that names this host" if self.tls else plain


class EgressRefusal(models.Model):
    """How often a run was refused at one destination. Counted, so that a flood is one row.

    An empty host stands for what was no request, `*` for all destinations beyond the first
    hundred of a stretch of work.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="refusals")
    host = models.CharField(max_length=253, blank=True)
    port = models.PositiveIntegerField()
    why = models.CharField(max_length=16)
    times = models.PositiveBigIntegerField(default=0)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="refusal_once_per_destination", fields=["run", "host", "port"]
            ),
        ]
        indexes = [
            models.Index(name="refusal_tenant_idx", fields=["tenant", "host", "port"]),
        ]


class Drill(models.Model):
    """One drill of one sandbox provider of this installation (`runs.drill.Report` as data).

    Belongs to no tenant: it says what this machine keeps apart, and names nobody. Every tenant's
    work stands on it, so every tenant may read it.
    """

    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    provider = models.CharField(max_length=60)
    passed = models.BooleanField()
    report = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [
            # The newest of each provider.
            models.Index(name="drill_newest_idx", fields=["provider", "-id"]),
        ]

    def __str__(self) -> str:
        return f"drill of {self.provider}"
