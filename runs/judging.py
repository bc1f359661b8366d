"""How runs reach policy: a small protocol, named in settings, answered by another app."""

from __future__ import annotations

from functools import cache
from typing import Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from runs.agent.port import REQUEST_NETWORK, ProposedCall
from runs.contract import Contract
from runs.egress.asking import Ask
from runs.lifecycle import Held, Judged
from runs.models import CredentialGrant, EgressGrant, Resumption, Run, ToolCall


class Judge(Protocol):
    """Turns facts about a call into allowed, refused or waiting. Never raises: an error refuses."""

    def judge(
        self, run: Run, contract: Contract, call: ProposedCall, *, target: str, outward: bool
    ) -> Judged:
        """Judge `call` under the tenant's policy of now. Has no effect of its own."""
        ...

    def use_up(self, call: ToolCall) -> Held | None:
        """Use up what a person approved for `call`, in the caller's transaction, or say why not.

        `call` is locked and its run too. None as well for a call that needed nobody.
        """
        ...

    def opens(self, grant: EgressGrant) -> Held | None:
        """Why people did not open this network rule, as its row has it, or None."""
        ...

    def lets_go_on(self, asked: Resumption) -> Held | None:
        """Why people did not approve that the run goes on after these changes, or None."""
        ...

    def gives(self, grant: CredentialGrant) -> Held | None:
        """Why people did not approve this use of a credential, as its row has it, or None."""
        ...

    def in_force(self, tenant_id: int) -> tuple[int, str]:
        """Version and digest of the policy in force; 0 and nothing where there is none."""
        ...


@cache
def judge() -> Judge:
    """The judge named by `settings.RUN_JUDGE`."""
    made: Judge = import_string(settings.RUN_JUDGE)()
    return made


def judge_network(run: Run, contract: Contract, asked: Ask) -> Judged:
    """What policy says to a destination, whoever asks for it."""
    call = ProposedCall("", REQUEST_NETWORK, "network", asked.arguments(), "")
    return judge().judge(run, contract, call, target=asked.place, outward=True)
