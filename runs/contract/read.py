"""From plain data to a checked `Contract`: one function per section, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, cast

from runs.contract import rules
from runs.contract.fields import Fields, Lines, Problems, did_you_mean, kind_of, quoted
from runs.contract.read_tools import read_tools
from runs.contract.shape import (
    BUILTIN_TOOLS,
    CAPABILITIES,
    Agent,
    Contract,
    Fallback,
    Gate,
    Lfs,
    Limits,
    LinksOut,
    Network,
    NetworkMode,
    NetworkRule,
    Output,
    Reference,
    Source,
    Submodules,
    Target,
    TargetKind,
    Verification,
)

MAX_INSTRUCTIONS = 60_000
MAX_FILE = 64_000
MAX_FILES = 50
CURRENCY = re.compile(r"[A-Z]{3}")


def read_contract(data: Mapping[str, Any], lines: Lines | None = None) -> Contract:
    """The contract, or `ContractRefused` with all that is wrong."""
    problems = Problems(lines)
    check_every_text(data, problems)
    top = Fields(data, problems)
    contract = Contract(
        name=top.text("name", example='"repair-parser"', rule=rules.slug),
        outcome=top.text("outcome", most=2_000, example='"All tests pass"', lines=True),
        acceptance=top.texts("acceptance", required=True, most=20, longest=500),
        owner=top.text("owner", default="", most=150),
        capabilities=read_capabilities(top),
        agent=read_agent(top),
        source=read_source(top),
        inputs=read_inputs(top),
        files=read_files(top),
        environment=read_environment(top),
        tools=read_tools(top),
        fallback=read_fallback(top),
        network=read_network(top),
        limits=read_limits(top),
        verification=read_verification(top),
        output=read_output(top),
        gate=read_gate(top),
        target=read_target(top),
    )
    top.done()
    check_together(top, contract)
    problems.refuse_if_any()
    return contract


def check_every_text(data: Any, problems: Problems, path: tuple[str | int, ...] = ()) -> None:
    """Nothing invisible and nothing that looks like a secret, in any text, keys included."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if isinstance(key, str) and (found := rules.hidden_character(key)):
                problems.add((*path, key), *found)
            check_every_text(value, problems, (*path, str(key)))
    elif isinstance(data, list | tuple):
        for at, item in enumerate(data):
            check_every_text(item, problems, (*path, at))
    elif isinstance(data, str):
        text = data.replace("\r\n", "\n")
        if found := rules.hidden_character(text) or rules.credential_shape(text):
            problems.add(path, *found)


def read_capabilities(top: Fields) -> tuple[str, ...]:
    found = top.texts("capabilities", required=True, longest=20)
    for at, name in enumerate(found):
        if name and name not in CAPABILITIES:
            known = ", ".join(CAPABILITIES)
            top.fault("capabilities", f"{quoted(name)} is not known.", f"Known: {known}.", at)
    return found


def read_agent(top: Fields) -> Agent:
    part = top.table("agent", required='name = "mender"') or empty(top, "agent")
    agent = Agent(
        name=part.text("name", example='"mender"', rule=rules.slug),
        version=part.text("version", example='"1"', rule=rules.version),
        prompt_version=part.text("prompt_version", example='"1"', rule=rules.version),
        model=part.text("model", most=120, example='"gpt-5.1"'),
        instructions=part.text(
            "instructions", most=MAX_INSTRUCTIONS, example='"Repair the failing test."', lines=True
        ),
        transcript=part.text("transcript", default="", rule=rules.slug),
    )
    part.done()
    return agent


def empty(top: Fields, key: str) -> Fields:
    """Stands in for a section whose absence has been noted, without noting each of its fields."""
    return Fields({}, Problems(), (*top.path, key))


def read_source(top: Fields) -> Source:
    part = top.table("source", required='git = "https://host/team/project.git"')
    part = part or empty(top, "source")
    source = Source(
        git=part.text("git", default="", most=500, rule=rules.git_url),
        path=part.text("path", default="", most=500, rule=rules.workspace_path),
        ref=part.text("ref", most=250, example='"main"', rule=rules.git_ref),
        credential=part.text("credential", default="", rule=rules.slug),
        submodules=cast(Submodules, part.choice("submodules", ("refuse", "leave-out"), "refuse")),
        lfs=cast(Lfs, part.choice("lfs", ("refuse", "keep-pointers"), "refuse")),
        links_out=cast(LinksOut, part.choice("links_out", ("refuse", "leave-out"), "refuse")),
    )
    if bool(source.git) == bool(source.path):
        part.fault(
            "git" if source.git else None,
            "The source is given twice." if source.git else "It says no repository.",
            "Write either git = an address, or path = a repository below the source root.",
        )
    part.done()
    return source


def text_table(top: Fields, key: str, most: int) -> tuple[Fields, dict[str, Any]]:
    """A table whose keys are the author's own, such as paths."""
    part = top.table(key)
    if part is None:
        return empty(top, key), {}
    if len(part.data) > most:
        part.fault(None, f"There are {len(part.data)} entries.", f"Keep at most {most}.")
    names = [name for name in part.data if isinstance(name, str)][:most]
    return part, {name: part.take(name) for name in names}


def read_inputs(top: Fields) -> dict[str, str]:
    """Place below `input/` → file or folder of the source. Read-only in the workspace."""
    part, table = text_table(top, "inputs", MAX_FILES)
    for place, origin in table.items():
        if found := rules.workspace_path(place):
            part.fault(place, *found)
        part.checked(origin, place, most=500, rule=rules.workspace_path)
    part.done()
    return {place: str(origin).strip() for place, origin in table.items()}


def read_files(top: Fields) -> dict[str, str]:
    """Place below `input/` → text, kept exactly, blanks and last newline included."""
    part, table = text_table(top, "files", MAX_FILES)
    files = {}
    for place, content in table.items():
        if found := rules.workspace_path(place):
            part.fault(place, *found)
        if not isinstance(content, str):
            part.fault(place, f"This is {kind_of(content)}, not text.", "Put it in quotes.")
        elif len(content) > MAX_FILE:
            part.fault(place, f"It has {len(content)} characters.", f"Keep it to {MAX_FILE}.")
        files[place] = str(content).replace("\r\n", "\n")
    part.done()
    return files


def read_environment(top: Fields) -> dict[str, str | Reference]:
    """Variable → literal text or reference. Credentials only by reference."""
    part, table = text_table(top, "environment", 100)
    found = {name: read_value(part, name, value) for name, value in table.items()}
    part.done()
    return found


def read_value(part: Fields, name: str, value: object) -> str | Reference:
    if fault := rules.variable(name):
        part.fault(name, *fault)
    if isinstance(value, Mapping):
        inner = Fields(value, part.problems, (*part.path, name))
        reference = inner.text("reference", example='"index-address"', rule=rules.slug)
        inner.done()
        return Reference(reference)
    text = part.checked(value, name, most=4_000, rule=None, empty=True)
    if fault := rules.literal_value(name, text):
        part.fault(name, *fault)
    return text


def read_fallback(top: Fields) -> Fallback | None:
    """What is left of the job without a sandbox, or nothing."""
    part = top.table("fallback")
    if part is None:
        return None
    fallback = Fallback(
        tools=part.texts("tools", longest=64),
        instructions=part.text(
            "instructions",
            most=MAX_INSTRUCTIONS,
            example='"Say what you would have changed, and open an issue for it."',
            lines=True,
        ),
        transcript=part.text("transcript", default="", rule=rules.slug),
    )
    part.done()
    return fallback


def read_network(top: Fields) -> Network:
    part = top.table("network")
    if part is None:
        return Network()
    mode = cast(NetworkMode, part.choice("mode", ("off", "allowlist", "request"), "off"))
    allow = tuple(read_network_rule(each) for each in part.tables("allow"))
    if mode == "off" and allow:
        part.fault(
            "allow",
            "The network is off, and destinations are listed.",
            'Write mode = "allowlist", or remove them.',
        )
    if mode == "allowlist" and not allow:
        part.fault("mode", "No destination is listed.", 'Add [[network.allow]], or write "off".')
    part.done()
    return Network(mode, allow)


def read_network_rule(part: Fields) -> NetworkRule:
    rule = NetworkRule(
        host=part.text("host", example='"packages.example.com"', most=253, rule=rules.host),
        port=part.number("port", 443, 1, 65_535),
        purpose=part.text("purpose", example='"install the test runner"'),
        minutes=part.number("minutes", 30, 1, 1_440),
        methods=part.texts("methods", most=10, rule=rules.method),
        path=part.text("path", default="", rule=rules.url_path),
        megabytes=part.number("megabytes", 100, 1, 10_240),
        connections=part.number("connections", 16, 1, 32),
    )
    for key in ("methods", "path"):
        if getattr(rule, key) and rule.port == 443:
            part.fault(
                key,
                "Port 443 speaks TLS, and inside TLS nobody sees it.",
                "Remove it, or name the port where the service speaks plain HTTP.",
            )
    part.done()
    return rule


def read_limits(top: Fields) -> Limits:
    part = top.table("limits")
    if part is None:
        return Limits()
    base = Limits()
    limits = Limits(
        wall_minutes=part.number("wall_minutes", base.wall_minutes, 1, 1_440),
        turns=part.number("turns", base.turns, 1, 1_000),
        tokens=part.number("tokens", base.tokens, 1_000, 1_000_000_000),
        money=read_money(part, base.money),
        currency=part.text("currency", default=base.currency, most=3),
        max_output_tokens=part.number("max_output_tokens", 0, 0, 1_000_000),
        memory_mb=part.number("memory_mb", base.memory_mb, 64, 65_536),
        cpus=part.number("cpus", base.cpus, 1, 64),
        pids=part.number("pids", base.pids, 8, 4_096),
        workspace_mb=part.number("workspace_mb", base.workspace_mb, 16, 65_536),
    )
    if not CURRENCY.fullmatch(limits.currency):
        part.fault("currency", "It is not a currency code.", "Write three capitals, as USD.")
    part.done()
    return limits


def read_money(part: Fields, default: Decimal) -> Decimal:
    """An amount above zero, in whole hundredths of a cent at the finest."""
    value = part.take("money")
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        part.fault("money", f"This is {kind_of(value)}, not an amount.", 'Write money = "2.50".')
        return default
    try:
        amount = Decimal(str(value).strip())
        fine = amount == amount.quantize(Decimal("0.0001")) and 0 < amount <= 1_000_000
    except InvalidOperation:
        fine = False
    if not fine:
        part.fault(
            "money",
            f"{quoted(value)} is not an amount that can be a limit.",
            'Write 0.0001 to 1000000 with at most four decimals, as "2.50".',
        )
        return default
    # One value, one spelling: 2.5 and "2.50" are the same limit and must have the same digest.
    cents = amount.quantize(Decimal("0.01"))
    return cents if cents == amount else amount.quantize(Decimal("0.0001"))


def read_verification(top: Fields) -> Verification | None:
    """`command` as a list of words, or as one line that the shell reads."""
    part = top.table("verification")
    if part is None:
        return None
    if isinstance(part.data.get("command"), str):
        line = part.text("command", most=2_000, lines=True)
        command: tuple[str, ...] = ("sh", "-c", line)
    else:
        command = part.texts("command", required=True, longest=2_000, lines=True)
    verification = Verification(command, part.number("timeout_seconds", 600, 1, 7_200))
    part.done()
    return verification


def read_output(top: Fields) -> Output:
    part = top.table("output", required='allowed_paths = ["src/**"]') or empty(top, "output")
    output = Output(
        tray=part.choice("tray", ("output",), "output"),
        allowed_paths=part.texts("allowed_paths", required=True, rule=rules.glob),
        max_files=part.number("max_files", 200, 1, 10_000),
        max_bytes=part.number("max_bytes", 5_000_000, 1, 1_000_000_000),
    )
    part.done()
    return output


def read_gate(top: Fields) -> Gate:
    part = top.table("gate")
    if part is None:
        return Gate()
    gate = Gate(
        approvals=part.number("approvals", 1, 1, 10),
        expires_minutes=part.number("expires_minutes", 1_440, 1, 43_200),
        valid_minutes=part.number("valid_minutes", 60, 1, 10_080),
    )
    part.done()
    return gate


def read_target(top: Fields) -> Target:
    part = top.table("target", required='kind = "github"') or empty(top, "target")
    target = Target(
        kind=cast(TargetKind, part.choice("kind", ("git", "github"))),
        url=part.text("url", default="", most=500, rule=rules.git_url),
        path=part.text("path", default="", most=500, rule=rules.workspace_path),
        repository=part.text("repository", default="", rule=rules.repository),
        api=part.text("api", default="", most=500, rule=rules.web_url),
        base=part.text("base", default="main", most=250, rule=rules.git_ref),
        branch_prefix=part.text(
            "branch_prefix", default="imprimatur/", most=100, rule=rules.branch_prefix
        ),
        title=part.text("title", default="{name}", rule=rules.title),
        credential=part.text("credential", default="", rule=rules.slug),
    )
    check_target(part, target)
    part.done()
    return target


def check_target(part: Fields, target: Target) -> None:
    """Each kind has its own address, and none of the other's."""
    if target.kind == "github":
        if not target.repository:
            part.missing("repository", '"owner/name"')
        for key in ("url", "path"):
            if getattr(target, key):
                part.fault(key, "A GitHub target has no such field.", "Name it in `repository`.")
        return
    if bool(target.url) == bool(target.path):
        part.fault(
            "url" if target.url else None,
            "A git target needs one address.",
            "Write either url, or path = a repository below the source root.",
        )
    for key in ("repository", "api"):
        if getattr(target, key):
            part.fault(key, "A git target has no such field.", 'Write kind = "github".')


def check_together(top: Fields, contract: Contract) -> None:
    """Rules that need more than one section."""
    granted = {t for name in contract.capabilities for t in CAPABILITIES.get(name, ())}
    for at, tool in enumerate(contract.tools.builtin):
        wanted = next((name for name, tools in CAPABILITIES.items() if tool in tools), None)
        if wanted and tool not in granted:
            top.fault(
                "tools",
                f"{tool} needs the capability {wanted}.",
                f'Add "{wanted}" to capabilities, or remove the tool.',
                "builtin",
                at,
            )
    if contract.fallback is not None:
        check_fallback(top, contract, contract.fallback)
    places: dict[str, str] = {}
    for key, table in (("inputs", contract.inputs), ("files", contract.files)):
        for place in table:
            check_place(top, key, place, places)


def check_fallback(top: Fields, contract: Contract, fallback: Fallback) -> None:
    """It only leaves tools away, and leaves something that the agent can do."""
    brokered = [tool.name for tool in contract.tools.brokered]
    for at, name in enumerate(fallback.tools):
        if name and name not in brokered:
            reason = f"{quoted(name)} is not a brokered tool of this contract."
            if name in BUILTIN_TOOLS:
                reason = f"{name} works in the sandbox, and a fallback has none."
            top.fault("fallback", reason, did_you_mean(name, brokered), "tools", at)
    if not fallback.tools and not contract.tools.ask_person:
        top.fault(
            "fallback",
            "It leaves the agent nothing that it could do.",
            "Name a tool of [[tools.http]], [[tools.sql]] or [[tools.python]], or remove it.",
            "tools",
        )
    if bool(fallback.transcript) != bool(contract.agent.transcript):
        top.fault(
            "fallback",
            "It plays a recording and the agent asks a model."
            if fallback.transcript
            else "The agent plays a recording, and the fallback names none.",
            "Name a transcript in both, or in neither.",
            "transcript",
        )


def check_place(top: Fields, key: str, place: str, places: dict[str, str]) -> None:
    """Two things must not lie in the same place, nor one inside the other's file. Letter case does
    not make a difference, since it does not on every reviewer's machine."""
    folded = place.casefold()
    for other_folded, other in places.items():
        short, long = sorted((folded, other_folded), key=len)
        if long == short or long.startswith(short + "/"):
            top.fault(key, f"It lies in the same place as {quoted(other)}.", "Rename one.", place)
            return
    places[folded] = place
