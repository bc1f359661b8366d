"""A real Celery worker in which chosen runs stand still at chosen steps of the walk.

    python -m tests.drill.standing_worker PLAN -A portal.celery worker ...

PLAN is a folder with one file for each run, named by its number and holding the name of a step in
`STEPS`. When the run comes to its step, a file `<number>.here` appears beside it and the thread
waits there for ever, its leases renewed, until somebody kills the process: SIGKILL then hits many
runs at once, each of them exactly where the plan says. The product knows nothing of this module.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import django
from celery.exceptions import Ignore

Given = Mapping[str, Any]
Condition = Callable[[Given, Any], bool]


def _always(given: Given, result: Any) -> bool:
    return True


@dataclass(frozen=True)
class Step:
    """A place in the walk: before or after a function, for the run that `whose` finds."""

    owner: str
    name: str
    when: Literal["before", "after"]
    whose: Callable[[Given, Any], Any]
    only: Condition = _always
    # The command that the sandbox starts stops itself first: it never gets to its end.
    stop_command: bool = False
    # The function names the next hop, or asks a person: both must find the door shut.
    hands_on: bool = False


# --- Finding the run in what a function was given -------------------------------------


def _run_id(given: Given, result: Any) -> Any:
    return given["run_id"]


def _lease(given: Given, result: Any) -> Any:
    return given["lease"].run_id


def _run(given: Given, result: Any) -> Any:
    return given["run"].pk


def _sandbox(given: Given, result: Any) -> Any:
    return given["sandbox"].spec.run_id


def _command(given: Given, result: Any) -> Any:
    return given["self"].spec.run_id


def _call(given: Given, result: Any) -> Any:
    from runs.models import ToolCall

    return ToolCall.objects.values_list("run_id", flat=True).get(pk=given["call_id"])


def _candidate(given: Given, result: Any) -> Any:
    from approvals.models import Candidate

    found = given.get("candidate")
    if found is not None:
        return found.run_id
    return Candidate.objects.values_list("run_id", flat=True).get(pk=given["candidate_id"])


def _publication(given: Given, result: Any) -> Any:
    from approvals.models import Publication

    key = given["publication_id"] if "publication_id" in given else given["claim"].publication_id
    return Publication.objects.values_list("run_id", flat=True).get(pk=key)


def _intent(given: Given, result: Any) -> Any:
    from approvals.models import Publication

    marker = given["intent"].marker
    return Publication.objects.values_list("run_id", flat=True).get(marker=marker)


def _request(given: Given, result: Any) -> Any:
    # The request knows its run only by the key that goes along with it.
    from runs.models import ToolCall

    return next(
        call.run_id
        for call in ToolCall.objects.filter(state="acting").select_related("run")
        if given["key"] == _key_of(call)
    )


def _key_of(call: Any) -> str:
    import uuid

    return str(uuid.uuid5(call.run.public_id, call.call_id))


def _says(*words: str) -> Condition:
    """The command that was started holds these words."""

    def asks(given: Given, result: Any) -> bool:
        return all(any(word in str(part) for part in given["argv"]) for word in words)

    return asks


def _is(**wanted: Any) -> Condition:
    return lambda given, result: all(given[name] == value for name, value in wanted.items())


def _keeps(purpose: str) -> Condition:
    return lambda given, result: bool(given["kept"].purpose == purpose)


def _claimed(given: Given, result: Any) -> bool:
    return result is not None


def _answered(given: Given, result: Any) -> bool:
    """The run is queued again because a person answered, and not for its first time."""
    from runs.models import Run

    return Run.objects.filter(pk=given["run_id"], status="queued", attempts__gt=0).exists()


L, A = "runs.lifecycle", "approvals"
STEPS: dict[str, Step] = {
    # The agent's first stretch
    "claimed": Step(L, "claim_run", "after", _run_id, _claimed),
    "sandbox made": Step("runs.driver", "_fill", "before", _sandbox),
    "workspace filled": Step(L, "note_start", "after", _lease, _is(resumed=False)),
    "in a call": Step(
        "runs.sandbox.bubblewrap:BubblewrapSandbox",
        "_spawn",
        "after",
        _command,
        _says("cat adder.py"),
        stop_command=True,
    ),
    "call recorded": Step(L, "finish_call", "after", _lease, _is(call_id="read")),
    "snapshot stored": Step(L, "save_checkpoint", "before", _lease, _keeps("waiting")),
    "checkpoint saved": Step(
        L, "save_checkpoint", "after", _lease, _keeps("waiting"), hands_on=True
    ),
    # The first gate
    "before the packet": Step(f"{A}.opening", "open_call_packet", "before", _call),
    "packet open": Step(f"{A}.opening", "open_call_packet", "after", _call, hands_on=True),
    "decided": Step(L, "claim_run", "before", _run_id, _answered),
    "resumed": Step(L, "note_start", "after", _lease, _is(resumed=True)),
    "approval used": Step(L, "begin_call", "after", _lease, _is(call_id="file")),
    "request sent": Step("runs.broker.http", "send", "after", _request),
    "request recorded": Step(L, "finish_call", "after", _lease, _is(call_id="file")),
    "parked as unknown": Step(L, "park_unknown", "after", _lease, hands_on=True),
    # The candidate
    "agent finished": Step(L, "save_checkpoint", "before", _lease, _keeps("finished")),
    "before collecting": Step(f"{A}.candidates", "collect_candidate", "before", _run_id),
    "tray read": Step(f"{A}.candidates", "_take", "after", _run),
    "candidate stored": Step(f"{A}.candidates", "_store", "after", _run_id, hands_on=True),
    "before the checks": Step(f"{A}.checking", "run_checks", "before", _candidate),
    "in the checks": Step(f"{A}.checking", "_store", "before", _candidate, _is(name="secrets")),
    "in verification": Step(
        "runs.sandbox.bubblewrap:BubblewrapSandbox",
        "_spawn",
        "after",
        _command,
        _says("pytest", "no:cacheprovider"),
        stop_command=True,
    ),
    "verified": Step(f"{A}.checking", "_store", "before", _candidate, _is(name="verification")),
    "checks done": Step(f"{A}.checking", "_hand_on", "before", _candidate),
    # The second gate
    "checks handed on": Step(f"{A}.checking", "_hand_on", "after", _candidate, hands_on=True),
    "publication asked": Step(
        f"{A}.opening", "open_publication_packet", "after", _candidate, hands_on=True
    ),
    # Publishing
    "publication decided": Step(f"{A}.publishing", "_claim", "before", _publication),
    "publication claimed": Step(f"{A}.publishing", "_claim", "after", _publication, _claimed),
    "before the push": Step(f"{A}.publishers.git:GitRemote", "push", "before", _intent),
    "pushed": Step(f"{A}.publishers.git:GitRemote", "push", "after", _intent),
    "found by looking": Step(f"{A}.publishing", "_done", "before", _publication),
    "known as unknown": Step(f"{A}.publishing", "_unknown", "after", _publication),
    "published": Step(f"{A}.publishing", "_done", "after", _publication),
}


# Where each hop begins. A run that stands takes no other hop: its worker is as good as dead.
DOORS: dict[tuple[str, str], Callable[[Given, Any], Any]] = {
    (L, "claim_run"): _run_id,
    (f"{A}.opening", "open_call_packet"): _call,
    (f"{A}.candidates", "collect_candidate"): _run_id,
    (f"{A}.checking", "run_checks"): _candidate,
    (f"{A}.opening", "open_publication_packet"): _candidate,
    (f"{A}.publishing", "_claim"): _publication,
}


class Stage:
    """What the plan says, and who stands where."""

    def __init__(self, plan: Path) -> None:
        self._plan = plan

    def expected(self, step: str, run: Any) -> int | None:
        """The run's number if the plan says that it stands here."""
        number = self._number(run)
        told = self._plan / str(number)
        return number if told.exists() and told.read_text() == step else None

    def shut_door(self, number: int) -> None:
        """No other hop of this run begins: what the step hands on stays undone."""
        (self._plan / f"{number}.door").touch()

    def open_door(self, number: int) -> None:
        """The step failed, or was not the one."""
        (self._plan / f"{number}.door").unlink(missing_ok=True)

    def pass_door(self, run: Any) -> None:
        """Raises Celery's `Ignore` if it is shut."""
        if (self._plan / f"{self._number(run)}.door").exists():
            raise Ignore

    def _number(self, run: Any) -> int:
        from runs.models import Run

        key = {"pk": run} if isinstance(run, int) else {"public_id": run}
        return Run.objects.values_list("number", flat=True).get(**key)

    def stand(self, number: int) -> None:
        """Wait for the end. The leases go on: time stands still for this run only."""
        from django.conf import settings
        from django.db import connection
        from django.db.models import Q

        from approvals.models import Publication
        from portal.clock import database_now
        from runs.models import Run

        self.shut_door(number)
        (self._plan / f"{number}.here").touch(exist_ok=False)
        held = Q(lease_token__isnull=False)
        while True:
            until = database_now() + timedelta(seconds=settings.RUN_LEASE)
            Run.objects.filter(held, number=number).update(lease_expires_at=until)
            acting = Publication.objects.filter(held, run__number=number)
            acting.update(lease_expires_at=until)
            connection.close()  # a pool is for those who move
            time.sleep(0.5)


def _wrapped(stage: Stage, label: str, step: Step, function: Callable[..., Any]) -> Any:
    signature = inspect.signature(function)

    def given_to(args: Any, kwargs: Any) -> dict[str, Any]:
        return dict(signature.bind(*args, **kwargs).arguments)

    def here(given: Given, result: Any = None) -> int | None:
        if not step.only(given, result):
            return None
        return stage.expected(label, step.whose(given, result))

    def begins(given: Given) -> int | None:
        """Before a step that hands on when it ends: who will stand after it?"""
        number = here(given) if step.when == "after" and step.hands_on else None
        if number is not None:
            stage.shut_door(number)
        return number

    @functools.wraps(function)
    def standing(*args: Any, **kwargs: Any) -> Any:
        given = given_to(args, kwargs)
        if step.when == "before" and (number := here(given)):
            stage.stand(number)
        began = begins(given)
        try:
            result = function(*args, **kwargs)
        except BaseException:
            if began:
                stage.open_door(began)
            raise
        if step.when == "after" and (number := began or here(given, result)):
            stage.stand(number)
        return result

    @functools.wraps(function)
    async def standing_async(*args: Any, **kwargs: Any) -> Any:
        given = given_to(args, kwargs)
        # Whether it is this one shows before it begins, for each of these.
        number = await asyncio.to_thread(here, given)
        if number is None:
            return await function(*args, **kwargs)
        if step.when == "before":
            await asyncio.to_thread(stage.stand, number)
        if step.stop_command:
            given["argv"] = ["/bin/sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *given["argv"]]
        result = await function(**given)
        await asyncio.to_thread(stage.stand, number)
        return result

    return standing_async if inspect.iscoroutinefunction(function) else standing


def _guarded(stage: Stage, whose: Callable[[Given, Any], Any], function: Any) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        stage.pass_door(whose(signature.bind(*args, **kwargs).arguments, None))
        return function(*args, **kwargs)

    return guarded


def wrap(stage: Stage) -> None:
    """Put every step's wrapper around its function, and the doors around those."""
    for label, step in STEPS.items():
        module, _, kind = step.owner.partition(":")
        owner: Any = importlib.import_module(module)
        if kind:
            owner = getattr(owner, kind)
        setattr(owner, step.name, _wrapped(stage, label, step, getattr(owner, step.name)))
    for (module, name), whose in DOORS.items():
        owner = importlib.import_module(module)
        setattr(owner, name, _guarded(stage, whose, getattr(owner, name)))


def main() -> None:
    """Wrap, then be a worker."""
    plan, *arguments = sys.argv[1:]
    django.setup()
    wrap(Stage(Path(plan)))
    from celery.bin.celery import main as celery

    sys.argv = ["celery", *arguments]
    celery()


if __name__ == "__main__":
    main()
