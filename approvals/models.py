"""Policies, packets, decisions, candidates, receipts and publications."""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models
from django.db.models import Q, QuerySet

from approvals.states import PacketKind, PacketState, PublicationState, Verdict
from portal import statements
from portal.models import Membership, Tenant
from portal.statements import given
from runs.models import CredentialGrant, EgressGrant, Resumption, Run, ToolCall


class PolicyVersion(models.Model):
    """One immutable text of a tenant's Cedar policies. At most one is in force."""

    class State(models.TextChoices):
        PROPOSED = "proposed", "proposed"
        IN_FORCE = "in_force", "in force"
        SUPERSEDED = "superseded", "superseded"
        DENIED = "denied", "denied"

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="policies")
    number = models.PositiveIntegerField()
    text = models.TextField()
    digest = models.CharField(max_length=64)
    # The author's words to whoever decides.
    comment = models.TextField(blank=True)
    state = models.CharField(max_length=12, choices=State.choices, default=State.PROPOSED)
    # Empty for the shipped default, which nobody in the tenant wrote.
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    self_approved = models.BooleanField(default=False)
    # Rules in force that the tenant's people of now cannot satisfy, as the last sweep found them:
    # name and reason of each.
    unreachable = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="policy_number_once", fields=["tenant", "number"]),
            models.UniqueConstraint(
                name="one_policy_in_force", fields=["tenant"], condition=Q(state="in_force")
            ),
        ]


class Group(models.Model):
    """Members of a tenant under a name that rules use: `1 of group:security`.

    It gives nobody a permission: it says whose approval counts for a stage, of those who may give
    one. A packet seals the key, so that a later group of the same name is not this one.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    # As rules write it; never changed.
    handle = models.CharField(max_length=40)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="group_handle_once", fields=["tenant", "handle"]),
        ]

    def __str__(self) -> str:
        return self.name


class GroupMember(models.Model):
    """One member in one group. It ends with the membership: whoever left counts for nothing."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    group = models.ForeignKey(Group, models.CASCADE, related_name="members")
    membership = models.ForeignKey(Membership, models.CASCADE, related_name="groups")

    class Meta:
        constraints = [
            models.UniqueConstraint(name="group_member_once", fields=["group", "membership"]),
        ]


class Candidate(models.Model):
    """What a run offers: a tree against the source commit and the files of its tray.

    `digest` covers the tree, every change and every tray file by content.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="candidates")
    run = models.ForeignKey(Run, models.PROTECT, related_name="candidates")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    seq = models.PositiveIntegerField()
    base_commit = models.CharField(max_length=64)
    base_tree = models.CharField(max_length=64)
    tree = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    # Changes as git's raw diff lists them, with modes and blob ids.
    changes = models.JSONField()
    # Tray files: path, sha256, size.
    tray = models.JSONField()
    left_out = models.JSONField(default=list)
    patch_blob = models.CharField(max_length=64)
    # A git pack of the objects that the base lacks, so that publishing needs no other copy.
    pack_blob = models.CharField(max_length=64, blank=True)
    agent_words = models.TextField(blank=True)
    superseded = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="candidate_seq_once", fields=["run", "seq"]),
        ]


class ContentPack(models.Model):
    """Contents of a candidate's changed files, both sides; see `approvals.contents`.

    `places` are start and length in bytes by git's name for the content.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    candidate = models.ForeignKey(Candidate, models.PROTECT, related_name="content_packs")
    blob = models.CharField(max_length=64)
    places = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)


class SeenFile(models.Model):
    """One person ticked one file of a run's candidates as seen; see `approvals.seen`."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="+")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    content = models.CharField(max_length=64)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="seen_file_once", fields=["run", "person", "content"]),
        ]


class Receipt(models.Model):
    """The record of one check of one candidate; its input digest names what it judged."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    candidate = models.ForeignKey(Candidate, models.PROTECT, related_name="receipts")
    check_name = models.CharField(max_length=40)
    version = models.CharField(max_length=80)
    input_digest = models.CharField(max_length=64)
    outcome = models.CharField(max_length=10)
    findings = models.JSONField(default=list)
    evidence = models.JSONField(default=dict)
    evidence_blob = models.CharField(max_length=64, blank=True)
    duration_ms = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="receipt_once", fields=["candidate", "check_name"]),
        ]


class Packet(models.Model):
    """What people are asked to decide, frozen at the moment of asking.

    `page` is everything under "verified by the portal" and `digest` its SHA-256
    (RFC 8785). A decision names the digest it was made on, so an approval never
    covers anything nobody read.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="packets")
    run = models.ForeignKey(Run, models.PROTECT, related_name="packets")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    number = models.PositiveIntegerField()
    kind = models.CharField(max_length=12)
    call = models.OneToOneField(
        ToolCall, models.PROTECT, null=True, blank=True, related_name="packet"
    )
    candidate = models.ForeignKey(
        Candidate, models.PROTECT, null=True, blank=True, related_name="packets"
    )
    egress = models.OneToOneField(
        EgressGrant, models.PROTECT, null=True, blank=True, related_name="packet"
    )
    credential = models.OneToOneField(
        CredentialGrant, models.PROTECT, null=True, blank=True, related_name="packet"
    )
    resumption = models.OneToOneField(
        Resumption, models.PROTECT, null=True, blank=True, related_name="packet"
    )
    # The packet whose place this one took. One that was edited gives its call to the next.
    supersedes = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="successors"
    )
    # Who changed the arguments, where a person did.
    edited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    effect = models.TextField()
    page = models.JSONField()
    digest = models.CharField(max_length=64, editable=False)
    # Of a publication: the facts policy was asked about when this opened. A call and a request for
    # network keep theirs in their own rows. Empty where none were kept.
    facts = models.JSONField(null=True, blank=True)
    # The few words of the page that lists show (`seal.heading`), so that a list need not read
    # whole pages. Decisions are made on the page alone.
    heading = models.JSONField(default=dict)
    # By what it is found (`words.words_of`), with a blank before and after each.
    words = models.TextField(default="", blank=True)
    # Of a test of attention (`approvals.canaries`): what is wrong with it, for those who answered.
    # Nothing is behind it that an approval could let happen. Null for every other packet.
    canary = models.JSONField(null=True, blank=True)
    # Why approving is not possible at all, for instance a check that must pass and did not.
    blocked = models.TextField(blank=True)
    # What the agent wrote, shown apart and never trusted.
    agent_words = models.TextField(blank=True)
    state = models.CharField(max_length=18, default=PacketState.OPEN.value)
    needed = models.PositiveSmallIntegerField(default=1)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    # Primary keys of people who may not decide: requester, agent owner, rule author.
    excluded = models.JSONField(default=list)
    # Where only people of its stages count: their routes (`Quorum.routes`), so that a list need not
    # read whole pages. Empty where whoever may answer counts.
    routes = models.JSONField(default=list)
    opened_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    # How long an approval may be used, seconds.
    valid_seconds = models.PositiveIntegerField()
    # Approved, and still to be undone until then. Nothing of it has happened.
    held_until = models.DateTimeField(null=True, blank=True)
    # Whoever its stages let stand in after so many seconds does so now (`approvals.reminding`).
    escalated = models.PositiveIntegerField(default=0)
    # How often those who may decide were told again, and when the next reminder and the next
    # escalation are due.
    reminded = models.PositiveIntegerField(default=0)
    remind_at = models.DateTimeField(null=True, blank=True)
    escalate_at = models.DateTimeField(null=True, blank=True)
    # Votes count in the round they were given in. A new one begins when an approval is undone.
    round = models.PositiveIntegerField(default=1)
    settled_at = models.DateTimeField(null=True, blank=True)
    usable_until = models.DateTimeField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    self_approved = models.BooleanField(default=False)
    # Who filled which stage when it was approved: pairs of a person's key and a route.
    filled = models.JSONField(default=list)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="packet_number_once", fields=["tenant", "number"]),
            models.CheckConstraint(
                name="packet_state_known", condition=Q(state__in=[s.value for s in PacketState])
            ),
            models.CheckConstraint(
                name="packet_kind_known", condition=Q(kind__in=[k.value for k in PacketKind])
            ),
            models.CheckConstraint(
                name="packet_settled_once",
                condition=Q(state="open", settled_at=None)
                | (~Q(state="open") & Q(settled_at__isnull=False)),
            ),
            models.CheckConstraint(
                name="packet_used_only_if_approved", condition=Q(used_at=None) | Q(state="approved")
            ),
            models.CheckConstraint(
                name="packet_held_only_while_open", condition=Q(held_until=None) | Q(state="open")
            ),
            models.CheckConstraint(
                name="packet_canary_has_no_effect",
                condition=Q(canary__isnull=True)
                | Q(
                    kind="call",
                    call=None,
                    candidate=None,
                    egress=None,
                    credential=None,
                    resumption=None,
                    held_until=None,
                    used_at=None,
                ),
            ),
            models.UniqueConstraint(
                name="one_open_canary",
                fields=["tenant"],
                condition=Q(state="open", canary__isnull=False),
            ),
            models.UniqueConstraint(
                name="one_open_publication_per_run",
                fields=["run"],
                condition=Q(state="open", kind="publication"),
            ),
        ]
        indexes = [
            # The queue: open packets of one tenant, soonest expiry first.
            models.Index(
                name="packet_queue_idx",
                fields=["tenant", "expires_at", "id"],
                condition=Q(state="open"),
            ),
            # The sweep: open packets past their time, over all tenants.
            models.Index(
                name="packet_expiry_idx", fields=["expires_at"], condition=Q(state="open")
            ),
            # The sweep: holds that are over.
            models.Index(
                name="packet_held_idx",
                fields=["held_until"],
                condition=Q(held_until__isnull=False),
            ),
            # The sweep: what waits, and is told of again or widened.
            models.Index(
                name="packet_remind_idx",
                fields=["remind_at"],
                condition=Q(state="open", remind_at__isnull=False),
            ),
            models.Index(
                name="packet_escalate_idx",
                fields=["escalate_at"],
                condition=Q(state="open", escalate_at__isnull=False),
            ),
            # The sweep: requests for network that nobody asks any more.
            models.Index(
                name="packet_egress_idx",
                fields=["egress"],
                condition=Q(kind="egress", state="open"),
            ),
            # The sweep: questions about going on that nobody asks any more.
            models.Index(
                name="packet_resume_idx",
                fields=["resumption"],
                condition=Q(kind="resume", state="open"),
            ),
            # The same of one kind.
            models.Index(
                name="packet_kind_queue_idx",
                fields=["tenant", "kind", "expires_at", "id"],
                condition=Q(state="open"),
            ),
            # A page that is open: what came after it was drawn.
            models.Index(
                name="packet_new_idx", fields=["tenant", "opened_at"], condition=Q(state="open")
            ),
            # What policy judged in some days (`approvals.history`).
            models.Index(name="packet_history_idx", fields=["tenant", "kind", "opened_at"]),
            # What was decided, newest first. A query must say `settled_at__isnull=False`.
            models.Index(
                name="packet_settled_idx",
                fields=["tenant", "-number"],
                condition=Q(settled_at__isnull=False),
            ),
            # The same of one kind.
            models.Index(
                name="packet_kind_settled_idx",
                fields=["tenant", "kind", "-number"],
                condition=Q(settled_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"packet {self.number}"

    def votes(self) -> QuerySet[Decision]:
        """The answers that count: those given since an approval was last undone."""
        return Decision.objects.filter(packet=self, round=self.round)

    def answers(self) -> list[Decision]:
        """The same read now, oldest first."""
        return _ANSWERS.all(packet=self.pk, round=self.round)


class PacketWord(models.Model):
    """One packet in the list of one of its words, or of its digest (`approvals.search`).

    As bytes, which every database compares alike and PostgreSQL also before it has looked whose
    row it is: of texts it would read all rows of the tenant first.
    """

    pk = models.CompositePrimaryKey("tenant", "word", "packet")
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+", db_index=False)
    word = models.BinaryField()
    packet = models.ForeignKey(Packet, models.PROTECT, related_name="+", db_index=False)


class Decision(models.Model):
    """One person's answer to one digest."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    packet = models.ForeignKey(Packet, models.PROTECT, related_name="decisions")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    # Whose right it was, where somebody decided in another's name (`Delegation`).
    on_behalf_of = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    verdict = models.CharField(max_length=16)
    digest = models.CharField(max_length=64)
    # The packet's, when it was given.
    round = models.PositiveIntegerField(default=1)
    comment = models.TextField(blank=True)
    # The form's one-time token: the same click sent twice is one decision.
    token = models.CharField(max_length=64, blank=True)
    # The vote on an earlier packet of the same content that this one repeats (`approvals.carry`).
    # Its digest is the one its person read.
    carried_from = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="carried_to"
    )
    # Where a passkey was demanded: what it signed, the signature and the public key as it was
    # then (`approvals.signatures`), so that no table and no person is needed to check it.
    signature = models.JSONField(null=True, blank=True)
    self_approved = models.BooleanField(default=False)
    # How long the page was open, how much there was and what was shown (`approvals.attention`).
    # Null where no page led to it.
    attention = models.JSONField(null=True, blank=True)
    decided_at = models.DateTimeField()

    class Meta:
        constraints = [
            # A person counts once.
            models.UniqueConstraint(
                name="decision_once_per_person", fields=["packet", "person", "round"]
            ),
            # And their right is used once, whoever has it.
            models.UniqueConstraint(
                name="decision_once_in_a_name", fields=["packet", "on_behalf_of", "round"]
            ),
            models.CheckConstraint(
                name="decision_in_anothers_name",
                condition=Q(on_behalf_of=None) | ~Q(on_behalf_of=models.F("person")),
            ),
            models.CheckConstraint(
                name="decision_verdict_known", condition=Q(verdict__in=[v.value for v in Verdict])
            ),
        ]
        indexes = [
            # What somebody decided today, counted on every page, however much it was in all.
            models.Index(name="decision_of_day_idx", fields=["tenant", "person", "decided_at"]),
        ]

    @property
    def place(self) -> int:
        """Whose place it fills, by primary key: that of whoever's right it was."""
        return self.on_behalf_of_id or self.person_id


_ANSWERS = statements.Query(
    lambda: Decision.objects.filter(
        packet=given("packet", Packet), round=given("round", Packet, "round")
    ).order_by("pk")
)


class Delegation(models.Model):
    """One member's right to decide, in the hands of another member for some time.

    Whoever has it decides in the name of whoever gave it, with what that one may do by now, and
    hands it to nobody. It ends with either membership.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    giver = models.ForeignKey(Membership, models.CASCADE, related_name="+")
    taker = models.ForeignKey(Membership, models.CASCADE, related_name="+")
    # Which packets: their kinds, and the tools they are about. Empty: all.
    kinds = models.JSONField(default=list)
    tools = models.JSONField(default=list)
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    made_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="delegation_begins_first", condition=Q(begins_at__lt=models.F("ends_at"))
            ),
            models.CheckConstraint(
                name="delegation_to_another", condition=~Q(giver=models.F("taker"))
            ),
        ]
        indexes = [
            # What somebody has of others, asked on every page.
            models.Index(
                name="delegation_taker_idx",
                fields=["taker", "ends_at"],
                condition=Q(ended_at=None),
            ),
        ]


class Publication(models.Model):
    """The one outward act after approval. The row is the intent, written before the act."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="publications")
    run = models.ForeignKey(Run, models.PROTECT, related_name="publications")
    public_id = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    packet = models.OneToOneField(Packet, models.PROTECT, related_name="publication")
    candidate = models.ForeignKey(Candidate, models.PROTECT, related_name="publications")
    state = models.CharField(max_length=10, default=PublicationState.INTENDED.value)
    target = models.JSONField()
    branch = models.CharField(max_length=200)
    marker = models.CharField(max_length=128)
    title = models.TextField()
    body = models.TextField()
    commit = models.CharField(max_length=64, blank=True)
    tree = models.CharField(max_length=64)
    url = models.TextField(blank=True)
    draft = models.BooleanField(default=True)
    note = models.TextField(blank=True)
    error_code = models.CharField(max_length=60, blank=True)
    retry_safe = models.BooleanField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    not_before = models.DateTimeField(null=True, blank=True)
    lease_token = models.UUIDField(null=True, blank=True)
    lease_expires_at = models.DateTimeField(null=True, blank=True)
    # The signed statement, once done.
    statement = models.JSONField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    acted_at = models.DateTimeField(null=True, blank=True)
    # Written before anything is sent: while it is empty, this attempt did nothing outside.
    sent_at = models.DateTimeField(null=True, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="publication_state_known",
                condition=Q(state__in=[s.value for s in PublicationState]),
            ),
        ]
        indexes = [
            # The sweep: publications that are not over.
            models.Index(name="publication_state_idx", fields=["state", "created_at"]),
            # The desk, counted on every page.
            models.Index(
                name="publication_unknown_idx",
                fields=["tenant", "state", "created_at"],
                condition=Q(state="unknown"),
            ),
        ]


class Mail(models.Model):
    """One letter to one person about one packet that waits. Gone once the server took it.

    The row is the letter, so a server that is down loses none; what it says is written when it is
    sent, and what nobody need decide any more is not sent.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    packet = models.ForeignKey(Packet, models.CASCADE, related_name="+")
    person = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    # `reminder 2`, `escalation 7200`
    occasion = models.CharField(max_length=40)
    made_at = models.DateTimeField()
    not_before = models.DateTimeField()
    # Of the worker that sends it, until `not_before`.
    lease = models.UUIDField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="mail_once", fields=["packet", "person", "occasion"]),
        ]
        indexes = [models.Index(name="mail_due_idx", fields=["not_before"])]


class Retention(models.Model):
    """How long a tenant keeps what lies in the blob store, in days after a run's end.

    0 keeps for ever. Rows, digests and the chains of evidence are never removed.
    """

    tenant = models.OneToOneField(Tenant, models.PROTECT, related_name="retention")
    snapshot_days = models.PositiveIntegerField(default=30)
    payload_days = models.PositiveIntegerField(default=0)
    blob_days = models.PositiveIntegerField(default=0)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    changed_at = models.DateTimeField(null=True, blank=True)


class Canaries(models.Model):
    """Whether a tenant wants test packets, how often, and when the next one is due."""

    tenant = models.OneToOneField(Tenant, models.PROTECT, related_name="canaries")
    # Days between two of them, at least; 0 for none.
    every_days = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField(null=True, blank=True)
    changed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    changed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="canaries_not_too_often",
                condition=Q(every_days=0) | Q(every_days__gte=7, every_days__lte=180),
            ),
            models.CheckConstraint(
                name="canaries_due_only_if_wanted", condition=Q(next_at=None) | Q(every_days__gt=0)
            ),
        ]


class Hold(models.Model):
    """A run whose evidence nothing is removed from, until somebody lifts it."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="holds")
    why = models.TextField()
    placed_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.PROTECT, related_name="+")
    placed_at = models.DateTimeField()
    lifted_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.PROTECT, null=True, blank=True, related_name="+"
    )
    lifted_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="one_hold_per_run", fields=["run"], condition=Q(lifted_at=None)
            ),
        ]


class Removal(models.Model):
    """Bytes that retention removed: what they were, of which run, and when."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.ForeignKey(Run, models.PROTECT, related_name="removals")
    kind = models.CharField(max_length=10)
    sha256 = models.CharField(max_length=64)
    size = models.PositiveBigIntegerField()
    removed_at = models.DateTimeField()

    class Meta:
        indexes = [
            models.Index(name="removal_list_idx", fields=["tenant", "-removed_at"]),
            # The sweep: what it need not look for any more.
            models.Index(name="removal_digest_idx", fields=["tenant", "sha256", "removed_at"]),
        ]
