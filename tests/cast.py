"""The people of the tests, and the rows they work with, made by the real functions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from approvals.tenants import open_tenant
from portal import blobs
from portal.models import Membership, Tenant, User
from portal.roles import Role
from runs.agent.transcript import load
from runs.contract import contract_digest, manifest_digest, parse_contract
from runs.drill import Finding, Measured, Outcome, Report
from runs.lifecycle import request_run
from runs.models import ContractVersion, Drill, JobContract, Recording, Run, TenantValue

GIT_ENV = {
    "PATH": "/usr/bin:/bin",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Tests",
    "GIT_AUTHOR_EMAIL": "tests@example.com",
    "GIT_COMMITTER_NAME": "Tests",
    "GIT_COMMITTER_EMAIL": "tests@example.com",
    "GIT_AUTHOR_DATE": "2026-01-01T00:00:00+00:00",
    "GIT_COMMITTER_DATE": "2026-01-01T00:00:00+00:00",
}


def git(*arguments: str, cwd: Path) -> str:
    """Run git for a test's own repository and return what it printed."""
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=GIT_ENV, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@dataclass
class Cast:
    """Olu asks, Ada and Bo review and publish, Vic watches, Max administers, Aud audits, at Acme.

    Eve has every role at Globex and none at Acme. Mona is a machine account of Olu's. `mark` makes
    one of several casts: tenants and people of their own.
    """

    mark: str = ""
    acme: Tenant = field(init=False)
    globex: Tenant = field(init=False)
    olu: Membership = field(init=False)
    ada: Membership = field(init=False)
    bo: Membership = field(init=False)
    vic: Membership = field(init=False)
    max: Membership = field(init=False)
    aud: Membership = field(init=False)
    eve: Membership = field(init=False)
    mona: Membership = field(init=False)

    def __post_init__(self) -> None:
        root = User.objects.create_user(f"root{self.mark}@example.com", "Root")
        self.acme = open_tenant("Acme", f"acme{self.mark}", admin=root)
        self.globex = open_tenant("Globex", f"globex{self.mark}", admin=root)
        Membership.objects.filter(user=root).delete()
        both = [Role.REVIEWER, Role.PUBLISHER]
        self.olu = self.member("Olu Adeyemi", [Role.OPERATOR])
        self.ada = self.member("Ada Obi", both)
        self.bo = self.member("Bo Lindqvist", both)
        self.vic = self.member("Vic Moreau", [Role.VIEWER])
        self.max = self.member("Max Weber", [Role.ADMIN])
        self.aud = self.member("Aud Dahl", [Role.AUDITOR])
        self.eve = self.member("Eve Stone", list(Role), tenant=self.globex)
        self.mona = self.member("Mona Machine", both)
        User.objects.filter(pk=self.mona.user_id).update(is_machine=True, owner=self.olu.user)
        self.mona.user.refresh_from_db()

    def member(
        self, name: str, roles: Sequence[Role], *, tenant: Tenant | None = None
    ) -> Membership:
        """One more person with these roles, at Acme unless said otherwise."""
        email = f"{name.split()[0].lower()}{self.mark}@example.com"
        user = User.objects.filter(email=email).first() or User.objects.create_user(email, name)
        return Membership.objects.create(
            tenant=tenant or self.acme, user=user, roles=[role.value for role in roles]
        )

    @property
    def everyone(self) -> dict[str, Membership]:
        """All people by their short names."""
        names = ("olu", "ada", "bo", "vic", "max", "aud", "eve", "mona")
        return {name: getattr(self, name) for name in names}


# --- A job on a small repository ------------------------------------------------------

SOURCE = {
    "README.md": "# Adder\n",
    "adder.py": "def add(a: int, b: int) -> int:\n    return a - b\n",
    "tests/test_adder.py": (
        "from adder import add\n\n\ndef test_add() -> None:\n    assert add(2, 3) == 5\n"
    ),
}
PATCH = [
    "*** Begin Patch",
    "*** Update File: repo/adder.py",
    "@@",
    "-    return a - b",
    "+    return a + b",
    "*** End Patch",
]


def make_repository(root: Path, name: str = "adder", files: Mapping[str, str] = SOURCE) -> str:
    """A bare repository below the source root with one commit on main; returns its commit."""
    work = root / f".{name}-work"
    work.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=work)
    for path, text in files.items():
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    git("add", "-A", cwd=work)
    git("commit", "-q", "-m", "Start", cwd=work)
    git("clone", "-q", "--bare", str(work), str(root / f"{name}.git"), cwd=root)
    return git("rev-parse", "HEAD", cwd=work)


def contract_text(
    *,
    name: str = "repair-adder",
    http: bool = False,
    ask: bool = False,
    verification: bool = True,
    gate: str = "",
    limits: str = "",
    transcript: str = "adder",
    source: str = "adder.git",
    allowed: Sequence[str] = ("**",),
    target: str = "",
) -> str:
    """The text of a contract for `make_repository`'s source."""
    parts = [
        f'name = "{name}"',
        'outcome = "The adder adds."',
        'acceptance = ["the test suite passes"]',
        'capabilities = ["shell", "files"]',
        "[agent]",
        'name = "mender"',
        'version = "1"',
        'prompt_version = "1"',
        'model = "recorded"',
        f'transcript = "{transcript}"',
        'instructions = "Repair the adder."',
        "[source]",
        f'path = "{source}"',
        'ref = "main"',
        "[tools]",
        'builtin = ["exec_command", "write_stdin", "apply_patch", "view_image"]',
        f"ask_person = {str(ask).lower()}",
    ]
    if http:
        parts += [
            "[[tools.http]]",
            'name = "create_issue"',
            'description = "Open an issue."',
            'method = "POST"',
            'base = "tracker"',
            'url = "{base}/issues"',
            'response = ["number"]',
            "[tools.http.parameters]",
            'type = "object"',
            'required = ["title"]',
            "[tools.http.parameters.properties]",
            'title = { type = "string", maxLength = 200 }',
        ]
    if limits:
        parts += ["[limits]", limits]
    if verification:
        parts += [
            "[verification]",
            'command = ["python3", "-m", "pytest", "-q", "-p", "no:cacheprovider"]',
            "timeout_seconds = 120",
        ]
    parts += ["[output]", f"allowed_paths = {json.dumps(list(allowed))}"]
    parts += ["[gate]", gate or "approvals = 1"]
    parts += ["[target]", target or f'kind = "git"\npath = "{source}"\nbase = "main"']
    return "\n".join(parts) + "\n"


def call(call_id: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """One call item of a transcript."""
    return {"type": "call", "id": call_id, "tool": tool, "arguments": arguments}


def say(text: str) -> dict[str, Any]:
    """One message item of a transcript."""
    return {"type": "message", "text": text}


def transcript(*turns: Sequence[Sequence[dict[str, Any]]], agent: str = "mender") -> bytes:
    """A recording: each turn is a list of steps, each step a list of items."""
    data = {
        "format": "imprimatur-transcript",
        "version": 1,
        "label": "A recording for tests",
        "model": "recorded",
        "agent": agent,
        "turns": [
            {
                "steps": [
                    {"output": list(step), "usage": {"input_tokens": 100, "output_tokens": 10}}
                    for step in turn
                ]
            }
            for turn in turns
        ],
        "after_last": "Nothing more.",
    }
    raw = json.dumps(data).encode()
    load(raw)
    return raw


REPAIR: list[list[dict[str, Any]]] = [
    [call("read", "exec_command", cmd="cat adder.py")],
    [call("fix", "apply_patch", patch=PATCH)],
    [call("report", "exec_command", cmd="echo 'Repaired the sign.' > ../output/report.md")],
    [say("The adder adds again.")],
]
ASKING: list[list[dict[str, Any]]] = [
    [call("read", "exec_command", cmd="cat adder.py; echo kept > ../output/kept.txt")],
    [call("file", "create_issue", title="The adder subtracts")],
    *REPAIR[1:],
]


def keep_recording(cast: Cast, name: str, recording: bytes) -> None:
    """The recording of that name, which Acme's contracts may play."""
    Recording.objects.update_or_create(
        tenant=cast.acme,
        name=name,
        defaults={
            "label": "A recording for tests",
            "blob": blobs.put(cast.acme.pk, recording),
        },
    )


def make_version(
    cast: Cast, text: str | None = None, *, recording: bytes | None = None, in_force: bool = True
) -> ContractVersion:
    """A contract version of Olu's, in force, with the recording it names."""
    contract = parse_contract(text or contract_text(), "toml")
    if contract.agent.transcript:
        keep_recording(cast, contract.agent.transcript, recording or transcript(REPAIR))
    job, _ = JobContract.objects.get_or_create(tenant=cast.acme, name=contract.name)
    job.versions.filter(state=ContractVersion.State.IN_FORCE).update(
        state=ContractVersion.State.SUPERSEDED
    )
    return ContractVersion.objects.create(
        tenant=cast.acme,
        contract=job,
        number=job.versions.count() + 1,
        text=text or contract_text(),
        format="toml",
        data=contract.to_data(),
        digest=contract_digest(contract),
        manifest_digest=manifest_digest(contract),
        state=ContractVersion.State.IN_FORCE if in_force else ContractVersion.State.PROPOSED,
        author=cast.olu.user,
    )


def make_run(cast: Cast, version: ContractVersion | None = None) -> Run:
    """A queued run that Olu asked for."""
    return request_run(version or make_version(cast), member=cast.olu)


def set_value(cast: Cast, name: str, value: str) -> None:
    """One of Acme's plain values."""
    TenantValue.objects.update_or_create(tenant=cast.acme, name=name, defaults={"value": value})


def make_drill(provider: str = "bubblewrap", outcome: Outcome = "held") -> Drill:
    """A drill of one attack that came out so."""
    report = Report(
        provider=provider,
        version=f"{provider} 1.0",
        image_digest="sha256:" + "ab" * 32,
        isolation=("name spaces of its own",),
        weaker=(),
        seconds=61.5,
        findings=(
            Finding("memory", 10, "takes memory", "at most 128 MB", outcome, "120 <MB>", 400),
        ),
        measured=(Measured("one command", 26.4, "ms"), Measured("network", None, "", "off")),
    )
    return Drill.objects.create(provider=provider, passed=report.passed, report=report.to_data())
