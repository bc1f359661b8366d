"""The six recovery steps: one run is interrupted and recovered, and six stories look at it.

The run parks at the gate with an intermediate artifact. A person approves; a worker carries out the
effect, the agent works on, and then the worker is killed with everything it held. What follows is
what any worker does that finds the run's lease over.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

from approvals.drill.stage import Stage, call, shell
from approvals.models import Packet
from approvals.states import PacketState
from portal.handoff import Job
from runs.drill import Broken, attack
from runs.models import CredentialGrant, Event, Run, ToolCall
from runs.states import CREDENTIALS_HELD, CallState, RunStatus

_BEGIN = "echo half > ../output/part.txt; echo changed > notes.txt"
_LONG = 3
"""Seconds of the command that the worker is killed in. It runs to its end when it is done again."""


@dataclass(frozen=True)
class Recovered:
    """One run that was interrupted, as it stood before and as it stands now."""

    run: Run
    titles: tuple[str, str]
    before: dict[str, Any]
    files_before: dict[str, bytes]
    left: list[str]
    old_token: str


def recovered(stage: Stage) -> Recovered:
    """The run, interrupted and recovered once for all six stories."""
    kept = stage.kept.get("recovered")
    if kept is None:
        kept = stage.kept["recovered"] = _recover(stage)
    if isinstance(kept, Exception):
        raise kept
    assert isinstance(kept, Recovered)  # noqa: S101 - nothing else is kept by this name
    return kept


def _recover(stage: Stage) -> Recovered | Exception:
    try:
        return _interrupted(stage)
    except Exception as error:
        return error


def _interrupted(stage: Stage) -> Recovered:
    titles = (f"first {stage.mark}", f"second {stage.mark}")
    run, packet = stage.parked(
        "recovery",
        [
            shell("begin", f"{_BEGIN}; id > /tmp/old"),
            [call("first", "open_issue", title=titles[0])],
            shell("long", f"echo whole >> ../output/part.txt; sleep {_LONG}; ls -A /tmp"),
            [call("second", "open_issue", title=titles[1])],
            shell("end", "cat ../output/part.txt notes.txt; ls -A /tmp"),
        ],
    )
    checkpoint = stage.checkpoint(run)
    before = {
        "image": run.image_digest,
        "commit": run.source_commit,
        "manifest": run.version.manifest_digest,
        "sdk": checkpoint.sdk_version,
    }
    files = stage.files_of(checkpoint)
    stage.approve(packet)
    worker = stage.worker(run)
    try:
        acting = ToolCall.objects.filter(run=run, call_id="long", state=CallState.ACTING)
        stage.until(
            lambda: acting.exists() or worker.poll() is not None, "the agent works after the effect"
        )
        if worker.poll() is not None:
            raise Broken("the worker ended before it could be interrupted")
        # The command that it is killed in should really run.
        time.sleep(0.3)
    finally:
        worker.kill()
        worker.wait()
    run.refresh_from_db()
    before["interrupted"] = run.status
    old = stage.ours.rotate()
    stage.lose_worker(run)
    # The sweep removes what the dead worker left and gives the run to the next one.
    stage.sweep()
    stage.carry()
    again = Packet.objects.filter(run=run, state=PacketState.OPEN).first()
    if again is None:
        run.refresh_from_db()
        raise Broken(f"the run did not come back to the gate: {run.status} {run.failure_text}")
    stage.approve(again)
    stage.carry()
    # While the run was at work, what its dead worker left was not told from what it uses now.
    stage.sweep()
    run.refresh_from_db()
    return Recovered(run, titles, before, files, stage.leftovers(), old)


@attack(
    "recover-1-interrupt",
    9,
    attack="has its worker killed after an intermediate artifact and a completed effect",
    promised="the artifact was saved before the effect, and the run is not lost",
)
def interrupt(stage: Stage) -> str:
    """Step 1."""
    seen = recovered(stage)
    if seen.before["interrupted"] != RunStatus.RUNNING:
        raise Broken(f"the run was {seen.before['interrupted']} when its worker was killed")
    if seen.files_before.get("output/part.txt") != b"half\n":
        raise Broken(f"what was saved lacks the artifact: {sorted(seen.files_before)}")
    if seen.run.status in (RunStatus.FAILED, RunStatus.RUNNING, RunStatus.QUEUED):
        raise Broken(f"the run is {seen.run.status}: {seen.run.failure_text}")
    return f"killed while it ran; the artifact was saved; now the run is {seen.run.status}"


@attack(
    "recover-2-fresh-compute",
    9,
    attack="leaves files outside the workspace for whoever works next",
    promised="the run goes on in fresh compute, and the old one is removed",
)
def fresh_compute(stage: Stage) -> str:
    """Step 2."""
    seen = recovered(stage)
    begun = Event.objects.filter(run=seen.run, kind__startswith="sandbox.").order_by("seq")
    places = [each.facts["sandbox"] for each in begun if each.facts.get("sandbox")]
    if len(places) < 4 or len(set(places)) < len(places):
        raise Broken(f"a sandbox was used again: {', '.join(places)}")
    if "old" in stage.said(seen.run, "end").split():
        raise Broken("a file that lay outside the workspace is still there")
    if seen.left:
        raise Broken(f"left behind: {', '.join(seen.left)}")
    return "four stretches of work, four sandboxes; nothing of an earlier one is left"


@attack(
    "recover-3-reissue",
    9,
    attack="would profit from being told its task again, or more than was approved",
    promised="the task is said once, and only what a person approved goes on",
)
def reissue(stage: Stage) -> str:
    """Step 3."""
    seen = recovered(stage)
    items = conversations(json.loads(stage.state_of(stage.checkpoint(seen.run))))[0]
    tasks = [each for each in items if each.get("role") == "user"]
    asked = [str(each["call_id"]) for each in items if str(each.get("type", "")).endswith("_call")]
    if len(tasks) != 1:
        raise Broken(f"the task was said {len(tasks)} times")
    if asked != ["begin", "first", "long", "second", "end"]:
        raise Broken(f"the conversation holds the calls {asked}")
    outward = ToolCall.objects.filter(run=seen.run, outward=True)
    if outward.exclude(packet__state=PacketState.APPROVED).exists():
        raise Broken("an outward call went on that nobody approved")
    return "one task, each call once, and both outward calls have an approved packet"


def conversations(state: Any) -> list[list[dict[str, Any]]]:
    """The lists of what was said in a saved state, the longest first. Raises `Broken` for none."""
    found: list[list[dict[str, Any]]] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            if any(isinstance(each, dict) and each.get("role") == "user" for each in value):
                found.append(value)
            for each in value:
                look(each)

    look(state)
    if not found:
        raise Broken("the saved state holds no conversation")
    return sorted(found, key=len, reverse=True)


@attack(
    "recover-4-confirm",
    9,
    attack="would profit from another image, manifest or source",
    promised="artifact, manifest, image and dependencies are the ones from before",
)
def confirm(stage: Stage) -> str:
    """Step 4."""
    seen = recovered(stage)
    run, last = seen.run, stage.checkpoint(seen.run)
    now = {
        "image": run.image_digest,
        "commit": run.source_commit,
        "manifest": run.version.manifest_digest,
        "sdk": last.sdk_version,
    }
    changed = [name for name, value in now.items() if not value or value != seen.before[name]]
    if changed:
        raise Broken(f"not the same as before: {', '.join(changed)}")
    for name in ("image_digest", "manifest_digest"):
        events = Event.objects.filter(run=run).values_list("facts", flat=True)
        if len({each[name] for each in events if each.get(name)}) != 1:
            raise Broken(f"the evidence names more than one {name}")
    files = stage.files_of(last)
    for name, wanted in (("output/part.txt", b"half\nwhole\n"), ("repo/notes.txt", b"changed\n")):
        if files.get(name) != wanted:
            raise Broken(f"{name} is {files.get(name)!r}")
    return "all four are the same, and the artifact is whole"


@attack(
    "recover-5-credentials",
    9,
    attack="goes on after its credential was replaced",
    promised="only the new credential is used, and neither is in what was saved",
)
def credentials(stage: Stage) -> str:
    """Step 5."""
    seen = recovered(stage)
    used = [each.authorization for each in stage.service.about(seen.titles[1])]
    if used != [f"Bearer {stage.ours.token}"]:
        which = "the old one" if f"Bearer {seen.old_token}" in used else "something else"
        raise Broken(f"after the recovery {which} was used, in {len(used)} requests")
    uses = CredentialGrant.objects.filter(run=seen.run)
    if uses.filter(state__in=[each.value for each in CREDENTIALS_HELD]).exists():
        raise Broken("a secret is still held, and nobody works")
    for call_id in ("first", "second"):
        if not uses.filter(call__call_id=call_id).exists():
            raise Broken(f"the secret of {call_id} was not given for that call alone")
    last = stage.checkpoint(seen.run)
    held = stage.snapshot_path(last).read_bytes().decode("latin-1") + stage.state_of(last)
    if seen.old_token in held or stage.ours.token in held:
        raise Broken("what was saved holds a credential")
    return (
        "the effect after the recovery used the new credential, each call its own use of it; "
        "nothing is held and nothing saved holds either"
    )


@attack(
    "recover-6-effects",
    9,
    attack="has an effect behind it that its saved state knows nothing of",
    promised="each approved effect happened once",
)
def effects(stage: Stage) -> str:
    """Step 6."""
    seen = recovered(stage)
    times = [len(stage.service.about(title)) for title in seen.titles]
    if times != [1, 1]:
        raise Broken(f"the two effects happened {times[0]} and {times[1]} times")
    stage.deliver(Job.EXECUTE_RUN, seen.run.pk)
    stage.sweep()
    if [len(stage.service.about(title)) for title in seen.titles] != [1, 1]:
        raise Broken("an effect was repeated after the run had ended")
    return "one request each, the first of them from before the interruption"


ATTACKS = (interrupt, fresh_compute, reissue, confirm, credentials, effects)
"""The six steps, in order."""
