"""Make the facts policy is asked about from a contract, a run and a call.

Arguments come from a model. They become facts only as measured here: their size, the programs
in a command, whether paths stay inside, and for brokered tools nothing at all: method, host and
credential are the contract's.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any
from urllib.parse import urlsplit

from approvals.policy import CallFacts
from portal.canonical import canonical
from runs.contract import (
    ASK_PERSON,
    REQUEST_NETWORK,
    BrokeredTool,
    Contract,
    HttpTool,
    SqlTool,
)

MAX_COUNT = 2**53 - 1
WORKSPACE = "/workspace"
BUILTIN_KINDS = {
    "exec_command": "shell",
    "write_stdin": "stdin",
    "apply_patch": "patch",
    "view_image": "view",
}
SEPARATORS = re.compile(r"[;&|()<>\n`]+")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
PIPELINE_FILES = frozenset(
    {
        ".gitlab-ci.yml",
        ".travis.yml",
        ".drone.yml",
        ".woodpecker.yml",
        "azure-pipelines.yml",
        "bitbucket-pipelines.yml",
        "jenkinsfile",
        "appveyor.yml",
    }
)
PIPELINE_FOLDERS = (
    ".github/workflows/",
    ".github/actions/",
    ".gitea/workflows/",
    ".forgejo/workflows/",
    ".circleci/",
    ".woodpecker/",
    ".buildkite/",
    ".gitlab/ci/",
)


def call_facts(
    contract: Contract,
    *,
    tenant: str,
    tool: str,
    kind: str,
    arguments: Mapping[str, Any],
    bases: Mapping[str, str] | None = None,
    cost: Decimal = Decimal(0),
    denied_before: bool = False,
    workspace: str = WORKSPACE,
) -> CallFacts:
    """The facts of one call.

    `bases` are the tenant's named addresses that tools of the contract use. `workspace` is
    the absolute path of the workspace as the agent sees it.
    """
    brokered = contract.brokered_tool(tool)
    if brokered is not None and brokered.kind != kind:
        brokered = None
    address = address_of_tool(brokered, bases or {})
    asked = arguments if kind == "network" else {}
    if asked:
        address = str(asked.get("host", "")), int(asked.get("port", 0))
    command = arguments.get({"shell": "cmd", "stdin": "command"}.get(kind, ""), "")
    programs = programs_of(command) if isinstance(command, str) else ()
    return CallFacts(
        agent=contract.agent.name,
        tool=tool,
        kind=kind,
        declared=declared_kind(contract, tool) == kind,
        outward=kind in {"http", "sql", "python", "network", "credential"},
        tenant=tenant,
        contract=contract.name,
        network=contract.network.mode,
        method=brokered.method if isinstance(brokered, HttpTool) else "",
        host=address[0],
        port=address[1],
        minutes=int(asked.get("minutes", 0)),
        credential=brokered.credential if brokered else "",
        program=programs[0] if programs else "",
        programs=frozenset(programs),
        paths_inside=all(inside(path, workspace) for path in paths_of(kind, arguments)),
        own_process=kind == "stdin" and bool(command),
        argument_bytes=size_of(arguments),
        cost_cents=cents(cost),
        denied_before=denied_before,
    )


def declared_kind(contract: Contract, tool: str) -> str | None:
    """The kind of call the contract names that tool for, or None if it does not name it."""
    if tool in contract.tools.builtin:
        return BUILTIN_KINDS.get(tool)
    if tool == ASK_PERSON and contract.tools.ask_person:
        return "question"
    if tool == REQUEST_NETWORK and contract.network.mode == "request":
        return "network"
    brokered = contract.brokered_tool(tool)
    return brokered.kind if brokered else None


def address_of_tool(tool: BrokeredTool | None, bases: Mapping[str, str]) -> tuple[str, int]:
    """Host and port the tool would talk to; a file and a function have neither."""
    if isinstance(tool, HttpTool):
        return address_of(tool.url, tool.base, bases)
    if isinstance(tool, SqlTool) and tool.engine == "postgresql":
        return address_of("{base}", tool.database, bases)
    return "", 0


def address_of(url: str, base: str, bases: Mapping[str, str]) -> tuple[str, int]:
    """Host and port a declared address goes to; empty when the base has no value yet."""
    if base:
        url = url.replace("{base}", bases.get(base, ""), 1)
    try:
        parts = urlsplit(re.sub(r"\{[^{}]*\}", "x", url))
        port = parts.port or {"https": 443, "http": 80, "postgresql": 5432}.get(parts.scheme, 0)
    except ValueError:
        return "", 0
    return (parts.hostname or "", port) if parts.hostname else ("", 0)


def programs_of(command: str) -> tuple[str, ...]:
    """The first word of every part of a shell command, without folders, in order.

    Best effort: it reads pipes, lists, subshells and assignments, not `xargs`, `eval` or a script.
    """
    found = []
    for part in SEPARATORS.split(command[:20_000].replace("$(", "(")):
        try:
            words = shlex.split(part, comments=True)
        except ValueError:
            words = part.split()
        word = next((each for each in words if not ASSIGNMENT.match(each)), "")
        if name := posixpath.basename(word):
            found.append(name[:100])
    return tuple(dict.fromkeys(found))


def paths_of(kind: str, arguments: Mapping[str, Any]) -> Iterator[object]:
    """The paths a patch or a view names."""
    if kind == "view":
        yield arguments.get("path")
    if kind == "patch":
        files = arguments.get("files")
        for each in files if isinstance(files, list | tuple) else [None]:
            entry = each if isinstance(each, Mapping) else {}
            yield entry.get("path")
            if entry.get("move_to") is not None:
                yield entry.get("move_to")


def inside(path: object, workspace: str) -> bool:
    """Does the path, followed as text, stay in the workspace? Links are the sandbox's matter."""
    if not isinstance(path, str) or not path or "\x00" in path:
        return False
    whole = posixpath.normpath(posixpath.join(workspace, path))
    return whole == workspace or whole.startswith(workspace.rstrip("/") + "/")


def size_of(arguments: Mapping[str, Any]) -> int:
    """Bytes of the normalised arguments; what cannot be written exactly counts as huge."""
    try:
        return len(canonical(dict(arguments)))
    except (ValueError, TypeError, RecursionError):
        return MAX_COUNT


def cents(cost: Decimal) -> int:
    """Money in hundredths, rounded up; a cost that is no number counts as huge."""
    if not cost.is_finite():
        return MAX_COUNT
    return min(int((cost * 100).to_integral_value(ROUND_CEILING)), MAX_COUNT)


def touches_pipeline(paths: Iterable[str]) -> bool:
    """Is one of the changed files executed by a build service as soon as it is pushed?"""
    return any(is_pipeline(path.casefold()) for path in paths)


def is_pipeline(path: str) -> bool:
    return path.startswith(PIPELINE_FOLDERS) or path in PIPELINE_FILES
