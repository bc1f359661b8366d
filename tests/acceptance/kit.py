"""Contracts and credentials that only scenarios need."""

from __future__ import annotations

from portal import vault
from runs.models import Credential
from tests.cast import contract_text
from tests.real_walk import RealWalk
from tests.walk import Walk


def contract_with(*, properties: str = "", credential: str = "", **contract: object) -> str:
    """The text of a contract with a brokered tool that has more arguments, or a credential."""
    text = contract_text(http=True, **{"verification": False, **contract})  # type: ignore[arg-type]
    place = 'title = { type = "string", maxLength = 200 }'
    text = text.replace(place, f"{place}\n{properties}")
    if credential:
        text = text.replace('base = "tracker"', f'base = "tracker"\ncredential = "{credential}"')
    return text


def give_credential(walk: Walk | RealWalk, value: str, name: str = "token", *more: str) -> None:
    """The tenant's credential of that name, for the tracker and whatever else is named."""
    host = walk.tracker.url.removeprefix("http://")
    Credential.objects.update_or_create(
        tenant=walk.cast.acme,
        name=name,
        defaults={"sealed": vault.seal(value.encode()), "audience": [host, *more]},
    )
