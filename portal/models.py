"""Tenants, people, roles, sign-in links and the audit chain."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models import F, Q

from portal.roles import FOR_PEOPLE, Permission, permissions_of
from portal.visible import pieces_of_name
from portal.webauthn import fingerprint


class UserManager(BaseUserManager["User"]):
    """Creates people by e-mail address."""

    def create_user(self, email: str, name: str, password: str | None = None) -> User:
        """A new person. Without a password only a one-time link signs them in."""
        user = self.model(email=self.normalize_email(email), name=name)
        user.set_password(password)
        user.save(using=self._db)
        return user


class User(AbstractBaseUser):
    """A person, or a machine account that belongs to one."""

    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120)
    is_active = models.BooleanField(default=True)
    # A machine account may ask; it may never decide (invariant 6).
    is_machine = models.BooleanField(default=False)
    owner = models.ForeignKey(
        "self", models.PROTECT, null=True, blank=True, related_name="machines"
    )
    theme = models.CharField(max_length=5, blank=True)
    single_keys = models.BooleanField(default=True)
    created_at = models.DateTimeField(auto_now_add=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = ["name"]
    objects = UserManager()

    class Meta:
        constraints = [
            models.CheckConstraint(
                name="user_machine_has_owner",
                condition=Q(is_machine=False) | Q(owner__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def initials(self) -> str:
        """Two letters for the avatar."""
        words = "".join(
            piece.text for piece in pieces_of_name(self.name) if not piece.hidden
        ).split()
        return "".join(word[0] for word in words[:2]).upper() or "?"

    @property
    def person_id(self) -> int:
        """The key of the human behind this account: an owner counts for their machines."""
        return self.owner_id if self.is_machine and self.owner_id else self.pk


class Tenant(models.Model):
    """The company or team that owns everything below; nothing crosses it."""

    slug = models.SlugField(unique=True, max_length=40)
    name = models.CharField(max_length=120)
    # Declared by its admin: the only person may decide what they asked for, and it is
    # labelled self-approved everywhere.
    one_person = models.BooleanField(default=False)
    run_count = models.PositiveIntegerField(default=0)
    packet_count = models.PositiveIntegerField(default=0)
    # Where the audit log ends, so that lines cut off its end are missed too.
    audit_seq = models.PositiveBigIntegerField(default=0)
    audit_head = models.CharField(max_length=64, default="0" * 64)
    created_at = models.DateTimeField(auto_now_add=True)
    # From then on nothing of it goes on, and only its auditors find it. Its rows stay: they are
    # the evidence. Emptied once nothing else is left.
    deleted_at = models.DateTimeField(null=True, blank=True)
    emptied_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    def next_number(self, counter: str) -> int:
        """The next number of `run_count` or `packet_count`; call it inside a transaction.

        The UPDATE locks the row until commit, so two callers never get the same number.
        """
        Tenant.objects.filter(pk=self.pk).update(**{counter: F(counter) + 1})
        return int(Tenant.objects.values_list(counter, flat=True).get(pk=self.pk))


class Membership(models.Model):
    """One person's roles in one tenant."""

    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    roles = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="membership_once", fields=["tenant", "user"]),
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.tenant}"

    @property
    def permissions(self) -> frozenset[Permission]:
        """What the roles grant together; to a machine account nothing that decides."""
        granted = permissions_of(self.roles)
        return granted - FOR_PEOPLE if self.user.is_machine else granted

    def may(self, permission: Permission) -> bool:
        """Whether one of the roles grants `permission`."""
        return permission in self.permissions


class SignInLink(models.Model):
    """A one-time way in. Only the token's hash is kept."""

    user = models.ForeignKey(User, models.CASCADE)
    token_hash = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Passkey(models.Model):
    """A key that a person signs decisions with. Only its public part is here; it may be removed.

    Binary values are base64url, as browsers write them.
    """

    user = models.ForeignKey(User, models.CASCADE, related_name="passkeys")
    name = models.CharField(max_length=60)
    credential = models.CharField(max_length=1364, unique=True)
    # COSE, as the authenticator gave it.
    public_key = models.TextField()
    # What the key last said; a smaller one may come from a copy of it.
    sign_count = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.name

    @property
    def fingerprint(self) -> str:
        """What people and evidence compare the key by."""
        return fingerprint(self.public_key)


class PasskeyChallenge(models.Model):
    """A random value that one signature may answer, once. Used up it is gone."""

    class Purpose(models.TextChoices):
        ADD = "add", "add a key"
        PROVE = "prove", "change one's keys"
        DECIDE = "decide", "decide a packet"

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    purpose = models.CharField(max_length=8, choices=Purpose.choices)
    nonce = models.CharField(max_length=64, unique=True)
    expires_at = models.DateTimeField()


class RecoveryCode(models.Model):
    """Stands in for a lost key, once, to change one's keys. Only its hash is kept."""

    user = models.ForeignKey(User, models.CASCADE, related_name="recovery_codes")
    code_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)


class AuditEntry(models.Model):
    """One line of a tenant's audit log, chained to the line before it.

    `hash` covers every other field and `previous`, so a changed, removed or
    inserted line breaks every line after it. The database refuses UPDATE and
    DELETE on this table (see the migration).
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="audit_entries")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    action = models.CharField(max_length=60)
    subject = models.CharField(max_length=80)
    actor = models.ForeignKey(User, models.PROTECT, null=True, blank=True, related_name="+")
    facts = models.JSONField(default=dict)
    previous = models.CharField(max_length=64)
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="audit_seq_once", fields=["tenant", "seq"]),
        ]

    def body(self) -> dict[str, Any]:
        """What the hash covers, as plain data."""
        return {
            "tenant": self.tenant_id,
            "seq": self.seq,
            "at": self.at.isoformat(),
            "action": self.action,
            "subject": self.subject,
            "actor": self.actor_id,
            "facts": self.facts,
            "previous": self.previous,
        }


class AuditCheckpoint(models.Model):
    """Where a tenant's audit log stood at some time, signed. Append-only as the log itself."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    seq = models.PositiveBigIntegerField()
    # The number, hash and time of the line, in an envelope.
    envelope = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="checkpoint_once", fields=["tenant", "seq"]),
        ]
