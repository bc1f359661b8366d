"""The walk with real processes: workers, web, broker. Nothing is carried by hand here.

`RealWalk` starts workers on the test's database, asks for runs, and waits until rows say that
something happened. Its people decide on their pages, in HTTP, as a browser would.
"""

from __future__ import annotations

import html
import os
import re
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from django.conf import settings
from django.test import Client

from approvals.models import Packet, Publication
from approvals.publishing import reconcile, try_again
from approvals.states import PacketState, PublicationState, Verdict
from portal.audit import broken_at
from portal.models import Membership
from runs.fetching import repositories_of
from runs.lifecycle import event_chain_broken_at, settle_unknown_call
from runs.models import Event, Run, ToolCall
from runs.sandbox.base import owner_mark
from runs.states import CallState, RunStatus
from tests.cast import Cast, git, make_repository, set_value
from tests.processes import Process, Processes, Site
from tests.walk import Tracker

# Generous: waited for in full only when something is wrong.
DEADLINE = 180.0
ANSWERS = {Verdict.APPROVE: "approve", Verdict.DENY: "deny", Verdict.REQUEST_CHANGES: "changes"}
ENDED = frozenset({"published", "denied", "failed", "cancelled", "expired"})


T = TypeVar("T")


def until(ready: Callable[[], T], why: str, *, deadline: float = DEADLINE) -> T:
    """Ask until the answer is true, and return it."""
    end = time.monotonic() + deadline
    while not (answer := ready()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:g} s: {why}")
        time.sleep(0.1)
    return answer


@dataclass
class RealWalk:
    """One installation in this test's database, and the people who work with it."""

    cast: Cast
    processes: Processes
    tracker: Tracker
    provider: str = "bubblewrap"
    site: Site | None = None
    workers: list[Process] = field(default_factory=list)
    # Whether a worker that ended by itself is started again, as whoever runs it does. Celery may
    # end where the broker goes away in the moment in which it acknowledges a message.
    supervised: bool = False

    def __post_init__(self) -> None:
        root = repositories_of(self.cast.acme)
        self.commit = make_repository(root)
        self.remote = root / "adder.git"
        set_value(self.cast, "tracker", self.tracker.url)

    # --- Processes

    def environment(self, **more: str) -> dict[str, str]:
        """What the processes of this walk are told: the same places, and short leases."""
        return {
            "SANDBOX_PROVIDER": self.provider,
            "SOURCE_ROOT": str(settings.SOURCE_ROOT),
            "SOURCE_CACHE_DIR": str(settings.SOURCE_CACHE_DIR),
            "BLOB_DIR": str(settings.BLOB_DIR),
            "BROKER_PRIVATE_HOSTS": "127.0.0.1",
            "RUN_LEASE": "6",
            "SWEEP_SECONDS": "1",
            **more,
        }

    def worker(self, **more: str) -> Process:
        """A Celery worker with the scheduler in it."""
        started = self.processes.worker(**self.environment(**more))
        self.workers.append(started)
        return started

    def web(self) -> Site:
        """A web process, in the place of the one before."""
        port = self.site.port if self.site else 0
        self.site = self.processes.site(port, **self.environment())
        return self.site

    # --- Waiting

    def status(self, run: Run) -> str:
        """As it is stored now."""
        run.refresh_from_db()
        return run.status

    def until(self, ready: Callable[[], Any], why: str, deadline: float = DEADLINE) -> Any:
        """Wait for it; a failure shows where the runs stand and what the workers said."""

        def look() -> Any:
            if self.supervised and self.workers and not self.workers[-1].alive:
                self.worker()
            return ready()

        try:
            return until(look, why, deadline=deadline)
        except AssertionError as late:
            said = "\n".join(worker.words()[-3000:] for worker in self.workers[-2:])
            stand = "\n".join(self.story(run)[-1500:] for run in Run.objects.order_by("pk"))
            raise AssertionError(f"{late}\n{stand}\n{said}") from None

    def until_status(self, run: Run, *wanted: str) -> str:
        """Wait until the run stands at one of these; an end that was not asked for fails."""
        self.until(
            lambda: self.status(run) in {*wanted, *ENDED}, f"{run} becomes {' or '.join(wanted)}"
        )
        if run.status not in wanted:
            raise AssertionError(f"{run} is {run.status}, not {wanted}:\n{self.story(run)}")
        return run.status

    def until_asked(self, run: Run, kind: str = "") -> Packet:
        """Wait for an open packet of the run."""
        mine = Packet.objects.filter(run=run, state=PacketState.OPEN)
        mine = mine.filter(kind=kind) if kind else mine
        packet = self.until(
            lambda: mine.first() or self.status(run) in ENDED,
            f"{run} asks for a {kind or 'packet'}",
        )
        if not isinstance(packet, Packet):
            raise AssertionError(f"{run} is {run.status}, and asked nobody:\n{self.story(run)}")
        return packet

    def story(self, run: Run) -> str:
        """The run in words, for a test that fails."""
        run.refresh_from_db()
        lines = [f"{run}: {run.status} {run.failure_code} {run.failure_text}"]
        for event in Event.objects.filter(run=run).order_by("seq"):
            facts = {k: v for k, v in event.facts.items() if k in ("operation", "call", "result")}
            lines.append(f"  {event.seq} {event.kind} {facts}")
        return "\n".join(lines)

    # --- Deciding

    def browser(self, member: Membership) -> httpx.Client:
        """Somebody signed in at the site."""
        assert self.site is not None
        client = Client()
        client.force_login(member.user)
        name = settings.SESSION_COOKIE_NAME
        return httpx.Client(
            base_url=self.site.url, cookies={name: client.cookies[name].value}, timeout=60
        )

    def decide(
        self,
        packet: Packet,
        verdict: Verdict = Verdict.APPROVE,
        comment: str = "",
        member: Membership | None = None,
    ) -> None:
        """Read the packet's page and answer it with the form that is on it."""
        address = f"/t/{self.cast.acme.slug}/packets/{packet.public_id}/"
        with self.browser(member or self.cast.ada) as browser:
            page = browser.get(address)
            assert page.status_code == 200, page.text[:2000]
            form = {
                name: _field(page.text, name) for name in ("csrfmiddlewaretoken", "seen", "token")
            }
            if verdict is not Verdict.APPROVE:
                comment = comment or "Not like this."
            typed = re.search(r'data-typed="([^"]*)"', page.text)
            answer = {"answer": ANSWERS[verdict], "comment": comment}
            answer |= {"typed": html.unescape(typed[1])} if typed else {}
            sent = browser.post(f"{address}decide/", data=form | answer)
        assert sent.status_code == 302, f"{sent.status_code}: {_words(sent.text)}"

    def settle(self, runs: Collection[int]) -> list[str]:
        """Look at all whose outcome is unknown, as a person would, and say what came of it."""
        said = []
        unknown = ToolCall.objects.filter(state=CallState.UNKNOWN, run_id__in=runs)
        for call in unknown.select_related("run"):
            if RunStatus(call.run.status) is RunStatus.WAITING:
                happened = self.sent(call.run, call.call_id) > 0
                settle_unknown_call(call, happened=happened, note="", member=self.cast.ada)
                said.append(f"{call.run}: call {'happened' if happened else 'did not happen'}")
        for row in Publication.objects.filter(state=PublicationState.UNKNOWN, run_id__in=runs):
            seen = reconcile(row.public_id, member=self.cast.ada)
            if seen == "absent":
                try_again(row.public_id, member=self.cast.ada)
            said.append(f"{row.run}: publication {seen}")
        return said

    # --- Looking

    def sent(self, run: Run, call_id: str) -> int:
        """How many requests of one call reached the tracker."""
        key = str(uuid.uuid5(run.public_id, call_id))
        keys = [_header(request.headers, "Idempotency-Key") for request in self.tracker.requests]
        return keys.count(key)

    def branches(self, remote: Path | None = None) -> dict[str, str]:
        """Branch → commit at the target."""
        listed = git(
            "for-each-ref", "--format=%(refname:short) %(objectname)", cwd=remote or self.remote
        )
        return dict(line.split() for line in listed.splitlines())

    def problems(self, run: Run, *, requests: int | None = None) -> list[str]:
        """What is wrong with a run that should be published with one effect of each kind."""
        run.refresh_from_db()
        if run.status != RunStatus.PUBLISHED:
            return [f"it is {run.status} ({run.failure_code} {run.failure_text})"]
        wrong: list[str] = []

        def hold(true: bool, what: str) -> None:
            if not true:
                wrong.append(what)

        done = list(Publication.objects.filter(run=run))
        hold([row.state for row in done] == ["done"], f"publications: {[r.state for r in done]}")
        mine = {
            branch: commit
            for branch, commit in self.branches().items()
            if f"/run-{run.number}-" in branch
        }
        hold(mine == {row.branch: row.commit for row in done}, f"branches: {mine}")
        for commit in mine.values():
            above = git("rev-list", f"main..{commit}", cwd=self.remote).split()
            hold(above == [commit], f"commits above the base: {above}")
        hold(run.candidates.filter(superseded=False).count() == 1, "more than one candidate")
        hold(not run.packets.filter(state=PacketState.OPEN).exists(), "a packet is open")
        left = run.calls.filter(state__in=["waiting", "approved", "acting", "unknown"])
        hold(not left.exists(), f"calls: {list(left.values_list('call_id', 'state'))}")
        hold(run.lease_token is None, "a lease is held")
        hold(event_chain_broken_at(run) is None, "the chain of events is broken")
        if requests is not None:
            hold(self.sent(run, "file") == requests, f"{self.sent(run, 'file')} requests were sent")
        return wrong

    def containers(self) -> list[str]:
        """Containers of this installation that are still there."""
        import docker

        client = docker.from_env()
        mine = f"imprimatur.owner={owner_mark(Path(settings.DATA_DIR).resolve())}"
        found = client.containers.list(all=True, filters={"label": mine})
        client.close()
        return [str(each.name) for each in found]

    def leftovers(self) -> list[str]:
        """Processes, folders, cgroups and packets that outlived their run."""
        data = Path(settings.DATA_DIR)
        left = [f"working folder {each.name}" for each in _inside(data / "work")]
        left = [each for each in left if "folder temporary-" not in each]
        left += [f"sandbox {each.name}" for each in _inside(data / "sandbox" / "bubblewrap")]
        mark = owner_mark(data.resolve())
        left += [f"cgroup {each}" for each in Path("/sys/fs/cgroup").glob(f"**/*{mark}*")]
        left += [f"process {each}" for each in strangers(self.processes)]
        open_packets = Packet.objects.filter(state=PacketState.OPEN)
        left += [f"open {packet}" for packet in open_packets]
        held = Run.objects.exclude(lease_token=None)
        return left + [f"lease of {run}" for run in held]

    def until_clean(self) -> None:
        """Nothing is left of any run: only the running workers' own folders."""
        try:
            self.until(lambda: not self.leftovers(), "nothing is left")
        except AssertionError as late:
            raise AssertionError(f"{late}\nleft: {self.leftovers()}") from None
        alive = sum(worker.alive for worker in self.workers)
        folders = [each.name for each in _inside(Path(settings.DATA_DIR) / "work")]
        assert len(folders) == alive, folders
        assert broken_at(self.cast.acme) is None


def strangers(processes: Processes) -> list[str]:
    """Processes that work for this test's installation and are none of those it started."""
    ours = {os.getpid()} | {each.pid for each in processes.started if each.alive}
    data, sources = str(settings.DATA_DIR), str(settings.SOURCE_ROOT)
    mark = owner_mark(Path(data).resolve())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or int(entry.name) in ours:
            continue
        try:
            environment = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (entry / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            group = (entry / "cgroup").read_text()
        except OSError:
            continue  # it has just ended
        # The run's own servers, and a browser whose test this is.
        known = ("valkey-server", "postgres", "chromium", "playwright")
        works = f"DATA_DIR={data}" in environment or data in command or sources in command
        if (works or mark in group) and not any(each in command for each in known):
            found.append(f"{entry.name} {command[:200]}")
    return found


def _inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _header(headers: Mapping[str, str], name: str) -> str:
    return next((value for key, value in headers.items() if key.lower() == name.lower()), "")


def _field(page: str, name: str) -> str:
    # What a person ticks may have the same name in a form of its own.
    found = re.search(rf'type="hidden" name="{name}" value="([^"]*)"', page)
    assert found, f"the page has no field {name}: {_words(page)}"
    return found[1]


def _words(page: str) -> str:
    """A page without its markup, for messages."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))[:1500]
