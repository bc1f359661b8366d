"""The network of one stretch of work: its proxy, kept in step with the rows that say what is open.

The rows are the truth. They are read again whenever a hint says that something about the run has
changed, and once a second in any case, so a rule that a person grants works in the living run, and
one that is taken back is cut, without anything being started anew. Without a network in the
contract there is no proxy, no socket and no folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import DatabaseError

from portal import live
from portal.clock import database_now
from portal.hub import hub
from runs import grants
from runs.agent.port import ProposedCall
from runs.contract import Contract
from runs.egress.asking import Ask
from runs.egress.proxy import Cut, EgressProxy, Usage
from runs.egress.tally import Tally
from runs.judging import judge_network
from runs.lifecycle import Lease, LeaseLost
from runs.models import EgressGrant, Run
from runs.opened import OpenRules
from runs.states import GrantState
from runs.threads import in_thread

logger = logging.getLogger(__name__)

READ_SECONDS = 1.0
WRITE_SECONDS = 1.0
PACKET_SECONDS = 3.0
"""How long a request that returns at once waits for its packet: the number helps both sides."""

_ADVICE = {
    "allowlist": "The contract names what may be reached.",
    "request": "Ask for it with the tool request_network.",
}


class Network:
    """What a run reaches while this worker drives it. Made in every run; open only where it is."""

    def __init__(self, lease: Lease, run: Run, contract: Contract) -> None:
        self._lease = lease
        self._run = run
        self._contract = contract
        self._proxy: EgressProxy | None = None
        self._tally = Tally()
        self._ended: list[grants.Ended] = []
        self._written: dict[str, Usage] = {}
        self._skew = 0.0
        self._helpers: list[asyncio.Task[None]] = []
        self._open = OpenRules(run, contract)
        self._look = asyncio.Event()
        self._reading = asyncio.Lock()
        self._writing = asyncio.Lock()
        self.folder: Path | None = None
        """What the sandbox gets, or None."""

    async def open(self, folder: Path) -> None:
        """Start the proxy in a new `folder`, if the contract opens the network at all."""
        if self._contract.network.mode == "off":
            return
        await in_thread(grants.open_rules)(self._lease, self._contract)
        self._skew = await in_thread(_skew)()
        folder.mkdir(mode=0o755)
        self._proxy = EgressProxy(
            private_hosts=settings.EGRESS_PRIVATE_HOSTS,
            # The rows' ends are told by the database's clock, not by this machine's.
            clock=lambda: time.time() + self._skew,
            refused=lambda host, port, why: self._tally.add(host, port, why.value),
            ended=self._rule_ended,
            advice=_ADVICE[self._contract.network.mode],
        )
        await self.refresh()
        await self._proxy.start(folder)
        self.folder = folder
        self._helpers = [
            asyncio.create_task(self._follow(), name=f"rules of run {self._run.number}"),
            asyncio.create_task(self._write_on(), name=f"traffic of run {self._run.number}"),
        ]

    async def refresh(self) -> None:
        """Let the proxy know the rules of now; connections of those that are gone are cut."""
        if self._proxy is None:
            return
        async with self._reading:
            rules, shut = await in_thread(self._open.now)()
            for cut in self._proxy.set_rules(rules):
                self._rule_ended(cut)
            # It passes nothing from here on, whoever writes that down.
            with contextlib.suppress(LeaseLost):
                for each in shut:
                    await in_thread(grants.hold_back)(self._lease, each)

    async def close(self) -> None:
        """Cut everything, and write down what was not written yet. Safe to repeat.

        Raises `LeaseLost`: what happened since the last report is then left to the logs.
        """
        proxy, self._proxy = self._proxy, None
        for helper in self._helpers:
            helper.cancel()
        if self._helpers:
            await asyncio.wait(self._helpers)
        self._helpers = []
        hub().forget((live.run_topic(self._run.pk),), self._heard)
        if proxy is not None:
            await proxy.close()
            await self._write(proxy, final=True)

    # --- Rules ---------------------------------------------------------------------------------

    def _heard(self, topic: str) -> None:
        self._look.set()

    async def _follow(self) -> None:
        listening = asyncio.create_task(
            hub().listen((live.run_topic(self._run.pk),), self._heard), name="egress hints"
        )
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), READ_SECONDS)
                self._look.clear()
                try:
                    await self.refresh()
                except DatabaseError:
                    # A rule that could not be read again still ends by its own time.
                    logger.exception("the rules of run %s were not read", self._run.number)
        finally:
            listening.cancel()

    def _rule_ended(self, cut: Cut) -> None:
        self._ended.append(grants.Ended(cut.rule.key, cut.why.value, cut.connections))

    # --- Traffic -------------------------------------------------------------------------------

    async def _write_on(self) -> None:
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            proxy = self._proxy
            if proxy is None:
                return
            try:
                await self._write(proxy)
            except LeaseLost:
                # Whoever lost the run may carry nothing for it any more.
                await proxy.close()
                return
            except DatabaseError:
                logger.exception("traffic of run %s was not written down", self._run.number)

    async def _write(self, proxy: EgressProxy, *, final: bool = False) -> None:
        async with self._writing:
            usage = {key: Usage(**vars(each)) for key, each in proxy.usage.items()}
            traffic = {
                key: grants.Traffic(
                    connections=now.connections - before.connections,
                    sent=now.sent - before.sent,
                    received=now.received - before.received,
                )
                for key, now in usage.items()
                if now != (before := self._written.get(key, Usage()))
            }
            refused, self._ended, ended = self._tally.take(), [], self._ended
            report = grants.Report(
                traffic=traffic,
                refused=refused,
                lines=list(self._tally.lines(refused, final=final)),
                ended=ended,
                final=final,
            )
            if report.empty:
                return
            try:
                await in_thread(grants.note)(self._lease, report)
            except BaseException:
                self._tally.put_back(refused)
                self._ended = [*ended, *self._ended]
                raise
            self._written = usage

    # --- The agent's tool ------------------------------------------------------------------------

    async def ask(self, asked: Ask, wait_seconds: int) -> str:
        """File what the agent asks for, wait for an answer if it wants to, and say what it is.

        May be cancelled while it waits: the request stands as it is.
        """
        judged = await in_thread(judge_network)(self._run, self._contract, asked)
        try:
            grant = await in_thread(grants.ask)(self._lease, asked, judged)
        except grants.TooManyRequests as refused:
            return str(refused)
        deadline = time.monotonic() + (wait_seconds or PACKET_SECONDS)
        number = await in_thread(_packet_number)(grant.pk)
        while grant.state == GrantState.REQUESTED and time.monotonic() < deadline:
            if number is not None and not wait_seconds:
                break
            await asyncio.sleep(0.3)
            grant = await in_thread(EgressGrant.objects.get)(pk=grant.pk)
            number = await in_thread(_packet_number)(grant.pk)
        await self.refresh()
        return answer_words(grant, number)


def _skew() -> float:
    return database_now().timestamp() - time.time()


def _packet_number(grant_id: int) -> int | None:
    """By the relation's name: this app does not know the one that decides."""
    numbers = EgressGrant.objects.filter(pk=grant_id).values_list("packet__number", flat=True)
    return numbers.first()


def answer_words(grant: EgressGrant, packet: int | None) -> str:
    """What the agent is told about its request. Each end has its own words."""
    where = str(grant)
    said = f" They said: {grant.answer}" if grant.answer else ""
    match GrantState(grant.state):
        case GrantState.REQUESTED:
            number = f" (packet {packet})" if packet is not None else ""
            return (
                f"Asked: a person is asked about {where}{number}. Nothing is open yet, and the "
                "run goes on. Do something else meanwhile, or call this again with the same host "
                "and port and wait_seconds to wait for the answer."
            )
        case GrantState.ACTIVE:
            end = f"{grant.expires_at:%H:%M:%S} UTC" if grant.expires_at else "its end"
            megabytes = grant.max_bytes // 1_000_000
            return (
                f"Granted: {where} is open until {end}, for {grant.through}, at most {megabytes} "
                f"MB and {grant.max_connections} connections at once. It works now, through the "
                f"proxy in http_proxy and https_proxy.{said}"
            )
        case GrantState.REFUSED:
            return f"Refused by policy: {where} is not opened. {grant.reason}"
        case GrantState.DENIED:
            return (
                f"Denied: a person does not want {where} to be opened.{said} Do without it; do "
                "not ask again."
            )
        case GrantState.UNANSWERED:
            return (
                f"Expired: nobody decided about {where} in time. This is not a denial and not an "
                "approval; nothing is open."
            )
        case GrantState.WITHDRAWN:
            return f"Withdrawn: the request for {where} was closed before anybody decided.{said}"
        case GrantState.EXPIRED:
            return f"Over: the time of {where} is used up. Ask again if it is still needed."
        case GrantState.REVOKED:
            return f"Taken back: a person closed {where} again. Do without it."
        case GrantState.ENDED:
            return f"Over: {where} ended with the run."


def asked_by_call(call: ProposedCall) -> tuple[Ask, int]:
    """What a call of the tool asks for, and for how long it would wait."""
    given: dict[str, Any] = dict(call.arguments)
    wait = int(given.pop("wait_seconds", 0))
    expected = given.pop("expected_response")
    methods = tuple(given.pop("methods"))
    return Ask(**given, expected=expected, methods=methods), wait
