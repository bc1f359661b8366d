"""Encrypt what is sealed anew, with the first of the configured keys."""

from __future__ import annotations

from typing import Any

from django.db import models, transaction

from portal import vault
from runs.models import Checkpoint, Credential, CredentialChange, CredentialGrant

SEALED: tuple[tuple[type[models.Model], str], ...] = (
    (Credential, "sealed"),
    (CredentialChange, "sealed"),
    (CredentialGrant, "sealed"),
    (Checkpoint, "sealed_state"),
)
"""Every column that holds sealed bytes."""


def reseal() -> int:
    """Encrypt every sealed column with the first key; returns how many values there were.

    Safe to repeat and to stop. Once it is through, the keys after the first one are not needed.
    Raises `SealBroken` for a value that none of the keys opens.
    """
    count = 0
    for model, field in SEALED:
        rows: models.QuerySet[Any] = model._default_manager.filter(**{f"{field}__isnull": False})
        for key in list(rows.values_list("pk", flat=True)):
            count += _one(rows, key, field)
    return count


@transaction.atomic(durable=True)
def _one(rows: models.QuerySet[Any], key: int, field: str) -> int:
    row = rows.select_for_update(no_key=True).filter(pk=key).first()
    if row is None:
        return 0
    setattr(row, field, vault.rotate(bytes(getattr(row, field))))
    row.save(update_fields=[field])
    return 1
