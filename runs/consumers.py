"""Sockets of the run pages."""

from __future__ import annotations

import uuid
from typing import Any

from portal import live
from portal.models import Membership
from portal.sockets import HintSocket
from runs.access import access_run


class RunSocket(HintSocket):
    """One open run page."""

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        public_id: uuid.UUID = kwargs["public_id"]
        return (live.run_topic(access_run(membership, public_id).pk),)


class TenantSocket(HintSocket):
    """An open list of runs: anything that moves a run of the tenant."""

    def topics(self, membership: Membership, **kwargs: Any) -> tuple[str, ...]:
        return (live.queue_topic(membership.tenant_id),)
