"""Tools of a team's own: a function installed beside the portal, run in a process of its own.

A distribution names the function among its entry points:

    [project.entry-points."imprimatur.tools"]
    price_of_parcel = "tideline_tools:price_of_parcel"

and the deployment allows it, for one tenant or for all, in `BROKER_TOOLS`:

    BROKER_TOOLS=tideline/price_of_parcel

The function takes one mapping, `{"arguments", "person", "secret", "idempotency_key"}`: the
arguments as people saw them, the person the run acts for (`email`, `name`, `roles`), the value of
the declared credential or None, and a key that is the same whenever this call is. It returns a
mapping that JSON can say, of which the contract lists what the agent gets. `PermissionError`,
raised before it has done anything, refuses the call in words for the agent; any other error leaves
it open whether there was an effect, and people are asked.

A credential for the function names `price_of_parcel.python` as its audience.

The process sees nothing of the portal: no key, no database, no environment but `PATH` and `LANG`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from django.conf import settings

from portal.canonical import digest
from runs import credentials
from runs.broker import hands
from runs.broker.answers import BrokerRefused, BrokerUnknown, Done, Plan, listed, too_deep, written
from runs.broker.person import acting_for
from runs.contract import PythonTool
from runs.models import Run

GROUP = "imprimatur.tools"


def plan(run: Run, tool: PythonTool, arguments: Mapping[str, Any]) -> Plan:
    """What a packet shows of the call. Raises `BrokerRefused`."""
    found = function_of(run, tool)
    return Plan(
        target_of(found),
        _address(tool),
        {
            "entry_point": found.name,
            "function": found.value,
            "distribution": _distribution(found),
            "acting_for": acting_for(run).email,
            "seconds": tool.timeout_seconds,
            "gives_back": list(tool.response),
            "hides": list(tool.redact),
        },
    )


def target_of(found: EntryPoint) -> str:
    """The very function of the very version: another one needs another permission."""
    return f"{found.value} of {_distribution(found)}"


def _address(tool: PythonTool) -> str:
    """Where a credential goes that a function gets: its audience names it like a host."""
    return f"python://{tool.entry_point}.python"


def _distribution(found: EntryPoint) -> str:
    return f"{found.dist.name} {found.dist.version}" if found.dist else "no distribution"


def function_of(run: Run, tool: PythonTool) -> EntryPoint:
    """The installed function that this tenant's contracts may name. Raises `BrokerRefused`."""
    names = {tool.entry_point, f"{run.tenant.slug}/{tool.entry_point}"}
    if not names & set(settings.BROKER_TOOLS):
        raise BrokerRefused(
            f"The deployment does not allow this tenant the function “{tool.entry_point}”. "
            f"Whoever runs the portal can list {run.tenant.slug}/{tool.entry_point} in "
            "BROKER_TOOLS."
        )
    found = list(entry_points(group=GROUP, name=tool.entry_point))
    if len(found) != 1:
        raise BrokerRefused(
            f"{len(found) or 'No'} installed functions are named “{tool.entry_point}” among the "
            f"entry points {GROUP}. Whoever runs the portal can mend that."
        )
    return found[0]


def call(
    run: Run, tool: PythonTool, arguments: Mapping[str, Any], *, call_id: str, key: str
) -> Done:
    """Run the function once. Raises `BrokerRefused` and `BrokerUnknown`."""
    found = function_of(run, tool)
    given = {
        "function": found.value,
        # Where the function that was allowed lies, and not another one of its name.
        "path": str(found.dist.locate_file("")) if found.dist else "",
        "arguments": dict(arguments),
        "person": acting_for(run).to_data(),
        "secret": None,
        "idempotency_key": key,
    }
    if not tool.credential:
        return _answer(tool, found, given, _run(tool, given))
    try:
        with credentials.use(
            run,
            tool.credential,
            address=_address(tool),
            consumer=f"tool {tool.name}",
            call_id=call_id,
        ) as secret:
            return _answer(tool, found, given, _run(tool, given | {"secret": secret.value}))
    except credentials.CredentialRefused as refused:
        raise BrokerRefused(str(refused)) from refused


def _run(tool: PythonTool, given: Mapping[str, Any]) -> Any:
    """What the function returned. The process and whatever it started are gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-I", hands.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # What it prints may hold anything, and nobody is to read it.
        stderr=subprocess.DEVNULL,
        cwd=Path("/"),
        env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        start_new_session=True,
        close_fds=True,
    )
    try:
        out, _ = process.communicate(json.dumps(given).encode(), timeout=tool.timeout_seconds)
    except subprocess.TimeoutExpired as late:
        raise BrokerUnknown(f"It did not end in {tool.timeout_seconds} seconds.") from late
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if len(out) > tool.max_kilobytes * 1024:
        raise BrokerUnknown(f"Its answer is longer than {tool.max_kilobytes} kilobytes.")
    try:
        said = json.loads(out)
        kind, value = said["kind"], said["value"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BrokerUnknown(f"It ended with exit {process.returncode} and no answer.") from error
    if kind == "refused":
        raise BrokerRefused(str(value)[:2_000])
    if kind != "returned" or not isinstance(value, dict):
        raise BrokerUnknown(f"It failed ({str(value)[:100]}).")
    if too_deep(value):
        raise BrokerUnknown("Its answer is nested too deeply.")
    return value


def _answer(tool: PythonTool, found: EntryPoint, given: Mapping[str, Any], value: Any) -> Done:
    receipt = {
        "kind": "function",
        "function": target_of(found),
        "arguments": digest(given["arguments"]),
    }
    return Done(True, written(listed(value, tool.response, tool.redact)), receipt)
