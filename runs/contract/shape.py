"""The parts of a job contract as plain frozen data.

The name of every field is the key in the file and the key in `to_data()`, so a reviewer, the form,
the file and the stored JSON all speak of the same thing. Values here are already checked: build
them with `parse_contract` or `contract_from_data`, not by hand, wherever the input is not ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar, Literal, TypeAlias

Submodules: TypeAlias = Literal["refuse", "leave-out"]
Lfs: TypeAlias = Literal["refuse", "keep-pointers"]
LinksOut: TypeAlias = Literal["refuse", "leave-out"]
NetworkMode: TypeAlias = Literal["off", "allowlist", "request"]
TargetKind: TypeAlias = Literal["git", "github"]
Body: TypeAlias = Literal["json", "none"]
Engine: TypeAlias = Literal["postgresql", "sqlite"]

CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "shell": ("exec_command", "write_stdin"),
    "files": ("apply_patch", "view_image"),
}
"""What a capability brings: the built-in tools a contract may then list under [tools]."""

BUILTIN_TOOLS: tuple[str, ...] = tuple(tool for tools in CAPABILITIES.values() for tool in tools)
ASK_PERSON = "ask_person"
REQUEST_NETWORK = "request_network"
"""The tool that the network mode `request` brings."""


@dataclass(frozen=True)
class Agent:
    """Who works. `transcript` names a recording that is played instead of asking a model."""

    name: str
    version: str
    prompt_version: str
    model: str
    instructions: str
    transcript: str = ""


@dataclass(frozen=True)
class Source:
    """The repository that becomes `repo/`: exactly one of `git` (URL) and `path` (source root)."""

    ref: str
    git: str = ""
    path: str = ""
    credential: str = ""
    submodules: Submodules = "refuse"
    lfs: Lfs = "refuse"
    links_out: LinksOut = "refuse"


@dataclass(frozen=True)
class Reference:
    """A value the outer runtime looks up by name when the workspace is made."""

    reference: str


@dataclass(frozen=True)
class HttpTool:
    """A tool the outer runtime executes; the sandbox sees neither the address nor the credential.

    Arguments named in `url` go there; the others go into a JSON body, or with `body = "none"` into
    the query. Only the fields listed in `response` come back to the agent, those in `redact`
    masked, and nothing of an answer that does not fit `response_schema` or is longer than
    `max_kilobytes`. `timeout_seconds` is for all of one attempt.

    Every attempt of one call carries the same Idempotency-Key. `idempotent` says that the service
    does such a request once, however often it comes; only then has a tool `retries`. With
    `acting_for` the service is told the e-mail address of the person the run acts for.
    """

    name: str
    description: str
    method: str
    url: str
    parameters: Mapping[str, Any]
    response: tuple[str, ...]
    base: str = ""
    body: Body = "json"
    credential: str = ""
    idempotent: bool = False
    timeout_seconds: int = 20
    response_schema: Mapping[str, Any] = field(default_factory=dict)
    redact: tuple[str, ...] = ()
    max_kilobytes: int = 256
    retries: int = 0
    acting_for: bool = False

    kind: ClassVar[Literal["http"]] = "http"


@dataclass(frozen=True)
class SqlTool:
    """One read of a database, which the outer runtime makes in a transaction that only reads.

    `database` is the name of an address in the portal's settings. Exactly one of `statement` and
    `tables` is given: the one statement there is, whose `:name` are arguments, or the tables that
    a SELECT of the agent's own may read. Columns in `redact` come back masked.
    """

    name: str
    description: str
    engine: Engine
    database: str
    parameters: Mapping[str, Any]
    statement: str = ""
    tables: tuple[str, ...] = ()
    credential: str = ""
    redact: tuple[str, ...] = ()
    max_rows: int = 100
    max_kilobytes: int = 64
    timeout_seconds: int = 10

    kind: ClassVar[Literal["sql"]] = "sql"


@dataclass(frozen=True)
class PythonTool:
    """A tool of the team's own: a function that is installed beside the portal, by its name among
    the entry points `imprimatur.tools`. It runs in a process of its own in the outer runtime."""

    name: str
    description: str
    entry_point: str
    parameters: Mapping[str, Any]
    response: tuple[str, ...]
    credential: str = ""
    redact: tuple[str, ...] = ()
    max_kilobytes: int = 256
    timeout_seconds: int = 20

    kind: ClassVar[Literal["python"]] = "python"


BrokeredTool: TypeAlias = HttpTool | SqlTool | PythonTool


@dataclass(frozen=True)
class Tools:
    """The tools the agent is shown. What is not here does not exist for it."""

    builtin: tuple[str, ...]
    ask_person: bool = False
    http: tuple[HttpTool, ...] = ()
    sql: tuple[SqlTool, ...] = ()
    python: tuple[PythonTool, ...] = ()

    @property
    def brokered(self) -> tuple[BrokeredTool, ...]:
        """What the outer runtime carries out, in the order of the file."""
        return (*self.http, *self.sql, *self.python)


@dataclass(frozen=True)
class Fallback:
    """The job's tool-only variant, which a person may choose after a failure of the sandbox.

    Such a run has neither sandbox nor network. The agent keeps the brokered tools named here and
    `ask_person`, is told `instructions` instead of its own, and offers its last answer, no change
    of the source. `transcript` names the recording that is then played instead of asking a model.
    """

    tools: tuple[str, ...]
    instructions: str
    transcript: str = ""


@dataclass(frozen=True)
class NetworkRule:
    """One destination the sandbox may reach, and why.

    `minutes` are minutes of work, as those of the limits: a run that waits for a person has no
    network. `methods` and `path`, a folder or file, narrow plain HTTP; with either of them TLS does
    not pass, because nobody sees what is inside. `megabytes` and `connections` (at once) are for
    all traffic of the rule together.
    """

    host: str
    port: int
    purpose: str
    minutes: int
    methods: tuple[str, ...] = ()
    path: str = ""
    megabytes: int = 100
    connections: int = 16


@dataclass(frozen=True)
class Network:
    """`off`: nothing. `allowlist`: only `allow`. `request`: those, and the agent may ask."""

    mode: NetworkMode = "off"
    allow: tuple[NetworkRule, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Where a run ends by itself. `max_output_tokens` 0 leaves one answer's length to the model."""

    wall_minutes: int = 30
    turns: int = 40
    tokens: int = 400_000
    money: Decimal = Decimal("2.00")
    currency: str = "USD"
    max_output_tokens: int = 0
    memory_mb: int = 1024
    cpus: int = 1
    pids: int = 128
    workspace_mb: int = 256


@dataclass(frozen=True)
class Verification:
    """The command that shows the work is right; run again in a fresh sandbox on the candidate."""

    command: tuple[str, ...]
    timeout_seconds: int = 600


@dataclass(frozen=True)
class Output:
    """What a candidate may consist of. `allowed_paths` are globs inside `repo/`."""

    allowed_paths: tuple[str, ...]
    tray: str = "output"
    max_files: int = 200
    max_bytes: int = 5_000_000


@dataclass(frozen=True)
class Gate:
    """How many people must approve, how long they have, and how long an approval is good."""

    approvals: int = 1
    expires_minutes: int = 1440
    valid_minutes: int = 60


@dataclass(frozen=True)
class Target:
    """Where an approved candidate goes, as a draft.

    `git`: exactly one of `url` and `path` (below the source root). `github`: `repository` as
    owner/name, and `api` for a server of one's own.
    """

    kind: TargetKind
    url: str = ""
    path: str = ""
    repository: str = ""
    api: str = ""
    base: str = "main"
    branch_prefix: str = "imprimatur/"
    title: str = "{name}"
    credential: str = ""


@dataclass(frozen=True)
class Contract:
    """One reviewed page that says what a run is for and what it may do. Never changed, only
    followed by a new version."""

    name: str
    outcome: str
    acceptance: tuple[str, ...]
    agent: Agent
    source: Source
    tools: Tools
    output: Output
    target: Target
    owner: str = ""
    capabilities: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str | Reference] = field(default_factory=dict)
    fallback: Fallback | None = None
    network: Network = Network()
    limits: Limits = Limits()
    verification: Verification | None = None
    gate: Gate = Gate()

    @property
    def tool_names(self) -> tuple[str, ...]:
        """Every tool the contract names, in the order of the file."""
        asking = (ASK_PERSON,) if self.tools.ask_person else ()
        network = (REQUEST_NETWORK,) if self.network.mode == "request" else ()
        brokered = (tool.name for tool in self.tools.brokered)
        return (*self.tools.builtin, *asking, *network, *brokered)

    @property
    def references(self) -> tuple[str, ...]:
        """The names that must have a value before a workspace can be made."""
        values = self.environment.values()
        return tuple(sorted({v.reference for v in values if isinstance(v, Reference)}))

    @property
    def credentials(self) -> tuple[str, ...]:
        """What the outer runtime may use for this job. None of it enters the sandbox."""
        named = {self.source.credential, self.target.credential}
        named |= {tool.credential for tool in self.tools.brokered}
        return tuple(sorted(named - {""}))

    def narrowed(self) -> Contract:
        """The tool-only variant: all that belongs to a sandbox is taken away, nothing is added.

        Raises `ValueError` where no fallback is declared.
        """
        fallback = self.fallback
        if fallback is None:
            raise ValueError(f"the contract {self.name} declares no fallback")
        tools = self.tools
        return replace(
            self,
            capabilities=(),
            agent=replace(
                self.agent, instructions=fallback.instructions, transcript=fallback.transcript
            ),
            tools=Tools(
                builtin=(),
                ask_person=tools.ask_person,
                http=tuple(each for each in tools.http if each.name in fallback.tools),
                sql=tuple(each for each in tools.sql if each.name in fallback.tools),
                python=tuple(each for each in tools.python if each.name in fallback.tools),
            ),
            inputs={},
            files={},
            environment={},
            network=Network(),
            verification=None,
            fallback=None,
        )

    def brokered_tool(self, name: str) -> BrokeredTool | None:
        """The declared tool of that name that the outer runtime carries out, or None."""
        return next((tool for tool in self.tools.brokered if tool.name == name), None)

    def to_data(self) -> dict[str, Any]:
        """Plain JSON data with every default written out; `contract_from_data` reads it back.

        Money is text, so nothing depends on how floating point is printed.
        """
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}


def plain(value: Any) -> Any:
    """Turn frozen parts into dicts, lists and JSON scalars, without sharing any of them."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, Decimal) else value
