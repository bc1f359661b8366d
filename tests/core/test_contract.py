"""The job contract: what is read, what is refused and where, and that one page has one digest."""

from __future__ import annotations

import copy
import json
import string
import tomllib
from decimal import Decimal
from typing import Any

import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from runs.contract import (
    EXAMPLE,
    Contract,
    ContractRefused,
    Format,
    HttpTool,
    Problem,
    Reference,
    contract_digest,
    contract_from_data,
    manifest_digest,
    parse_contract,
    render_toml,
)
from runs.contract.fields import MAX_PROBLEMS
from runs.contract.toml_lines import toml_lines

FORMATS: tuple[Format, ...] = ("toml", "yaml")
# Without its fallback, which names tools that most tests leave out.
DATA = {**parse_contract(EXAMPLE, "toml").to_data(), "fallback": None}


def refused(text: str, fmt: str = "toml") -> tuple[Problem, ...]:
    with pytest.raises(ContractRefused) as caught:
        parse_contract(text, fmt)  # type: ignore[arg-type]
    for problem in caught.value.problems:
        assert problem.reason.endswith("."), problem
        assert problem.remedy.endswith((".", "?")), problem
        assert problem.line is not None
        assert str(problem) in str(caught.value)
    return caught.value.problems


def refused_data(change: dict[str, Any]) -> tuple[Problem, ...]:
    """The problems of the example with some dotted paths set to other values."""
    data = copy.deepcopy(DATA)
    for path, value in change.items():
        *way, last = path.split("/")
        part = data
        for key in way:
            part = part[int(key)] if isinstance(part, list) else part.setdefault(key, {})
        if value is ...:
            part.pop(last)
        else:
            part[last] = value
    with pytest.raises(ContractRefused) as caught:
        contract_from_data(data)
    return caught.value.problems


def one(change: dict[str, Any]) -> Problem:
    problems = refused_data(change)
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


# --- One page, one meaning ----------------------------------------------------------------------


def test_the_example_has_every_section() -> None:
    contract = parse_contract(EXAMPLE, "toml")

    assert contract.name == "repair-parser"
    assert contract.tool_names == (
        "exec_command",
        "apply_patch",
        "ask_person",
        "tracker_create_issue",
        "orders_of_customer",
    )
    assert contract.credentials == ("github-publisher", "tracker-token")
    assert contract.references == ("package-index",)
    assert contract.environment["PACKAGE_INDEX"] == Reference("package-index")
    assert contract.limits.money == Decimal("2.00")
    assert contract.files == {"task.md": "See issue 118.\n"}
    tool = contract.brokered_tool("tracker_create_issue")
    assert tool is not None
    assert tool.parameters["additionalProperties"] is False
    assert contract.brokered_tool("other") is None


def test_file_form_and_stored_data_are_one_contract() -> None:
    contract = parse_contract(EXAMPLE, "toml")
    stored = json.loads(json.dumps(contract.to_data()))
    as_yaml = yaml.safe_dump(contract.to_data(), sort_keys=False)

    assert contract_from_data(stored) == contract
    assert parse_contract(render_toml(contract), "toml") == contract
    assert parse_contract(as_yaml, "yaml") == contract
    assert render_toml(parse_contract(render_toml(contract), "toml")) == render_toml(contract)


def test_data_shares_nothing_with_the_contract() -> None:
    contract = parse_contract(EXAMPLE, "toml")
    contract.to_data()["tools"]["http"][0]["parameters"]["properties"].clear()
    tool = contract.brokered_tool("tracker_create_issue")
    assert tool is not None
    assert tool.parameters["properties"]


def test_digest_ignores_words_that_mean_nothing_and_sees_every_other() -> None:
    contract = parse_contract(EXAMPLE, "toml")
    same = (
        EXAMPLE.replace("# One job", "# A job")
        .replace('mode = "off" ', "")
        .replace('money = "2.00"', "money = 2.0")
    )
    assert contract_digest(parse_contract(same, "toml")) == contract_digest(contract)

    digests = {contract_digest(contract)}
    for old, new in (
        ("wall_minutes = 30", "wall_minutes = 31"),
        ('"src/**", ', ""),
        ("approvals = 1", "approvals = 2"),
        ("Repair the cause", "Repair a cause"),
        ("maxLength = 120", "maxLength = 121"),
        ('LANG = "C.UTF-8"', 'LANG = "C"'),
        ('base = "main"\nbranch', 'base = "dev"\nbranch'),
    ):
        assert old in EXAMPLE
        digests.add(contract_digest(parse_contract(EXAMPLE.replace(old, new), "toml")))
    assert len(digests) == 8


def test_manifest_digest_covers_the_workspace_and_nothing_else() -> None:
    contract = parse_contract(EXAMPLE, "toml")
    other_words = parse_contract(EXAMPLE.replace("Find out why", "Find why"), "toml")
    wider = parse_contract(EXAMPLE.replace('"src/**"', '"**"'), "toml")

    assert manifest_digest(other_words) == manifest_digest(contract)
    assert manifest_digest(wider) != manifest_digest(contract)


# Text without what the rules refuse, so that what is left is about writing and reading it.
plain = st.text(
    st.characters(exclude_categories=["C", "Zl", "Zp"], include_characters="\n\t"), max_size=60
)
word = st.from_regex(r"[a-z][a-z0-9]{0,12}", fullmatch=True)
leaf = st.one_of(
    st.integers(-(2**40), 2**40),
    st.booleans(),
    plain,
    st.floats(allow_nan=False, allow_infinity=False, width=32).filter(lambda x: abs(x) < 2**50),
)


@settings(max_examples=60)
@given(
    files=st.dictionaries(word, plain, max_size=3),
    words=plain.filter(lambda text: text.strip() != ""),
    environment=st.dictionaries(
        st.from_regex(r"X[A-Z]{1,8}", fullmatch=True).map(lambda name: f"{name}_VALUE"), plain
    ),
    extra=st.dictionaries(word, st.lists(leaf, max_size=3), max_size=3),
    cents=st.integers(1, 10_000),
)
def test_what_is_rendered_reads_back(
    files: dict[str, str],
    words: str,
    environment: dict[str, str],
    extra: dict[str, Any],
    cents: int,
) -> None:
    data = copy.deepcopy(DATA)
    data["agent"]["instructions"] = words
    data["files"], data["environment"] = files, environment
    data["limits"]["money"] = str(Decimal(cents) / 100)
    data["tools"]["http"][0]["parameters"]["x-extra"] = extra
    try:
        contract = contract_from_data(data)
    except ContractRefused:
        reject()  # random text may look like a secret, or two places be one

    assert parse_contract(render_toml(contract), "toml") == contract
    assert contract_from_data(json.loads(json.dumps(contract.to_data()))) == contract
    assert len(contract_digest(contract)) == 64


@settings(max_examples=150)
@given(st.data())
def test_no_text_makes_the_reader_fail_in_another_way(data: st.DataObject) -> None:
    """Whatever is cut out of or put into the example: a contract, or a list of problems."""
    fmt = data.draw(st.sampled_from(FORMATS))
    text = EXAMPLE if fmt == "toml" else yaml.safe_dump(DATA)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    put = data.draw(st.text(st.sampled_from(string.printable + "é\u202e"), max_size=12))
    try:
        contract = parse_contract(text[:start] + put + text[end:], fmt)
    except ContractRefused:
        pass
    else:
        assert parse_contract(render_toml(contract), "toml") == contract


# --- Where and why ------------------------------------------------------------------------------


def test_all_mistakes_are_told_at_once_with_their_lines() -> None:
    text = (
        EXAMPLE.replace('ref = "main"', 'ref = "-main"')
        .replace("wall_minutes = 30", 'wall_minutes = "30"')
        .replace("ask_person = true", "ask_persn = true")
        .replace("approvals = 1", "approvals = 0")
        .replace("tests/test_dates.py passes and", "tests\u202e passes and")
    )

    problems = refused(text)

    found = {(p.field, p.line) for p in problems}
    assert found == {
        ("acceptance[0]", line_of(EXAMPLE, "tests/test_dates.py passes")),
        ("source.ref", line_of(EXAMPLE, 'ref = "main"')),
        ("tools.ask_persn", line_of(EXAMPLE, "ask_person = true")),
        ("limits.wall_minutes", line_of(EXAMPLE, "wall_minutes")),
        ("gate.approvals", line_of(EXAMPLE, "approvals = 1")),
    }
    assert [p.line for p in problems] == sorted(p.line or 0 for p in problems)
    assert next(p for p in problems if p.field == "tools.ask_persn").remedy == (
        "Did you mean ask_person?"
    )


def test_lines_in_yaml() -> None:
    text = yaml.safe_dump(DATA, sort_keys=False).replace("ref: main", "ref: ../main")
    (problem,) = refused(text, "yaml")
    assert (problem.field, problem.line) == ("source.ref", line_of(text, "ref: ../main"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('name = "x', 1),
        ("name = 'a'\nname = 'b'\n", 2),
        ("[a]\n[a]\n", 2),
        ("a = 1\n\n= 2\n", 3),
        ("a = {\n", 1),
    ],
)
def test_broken_toml_names_its_line(text: str, line: int) -> None:
    (problem,) = refused(text)
    assert (problem.field, problem.line) == ("the file", line)
    assert problem.reason.startswith("This is not TOML")


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("name: a\nname: b\n", 2, 'The key "name" stands on line 1 already.'),
        ("source:\n  ref: a\n  git: b\n  ref: c\n", 4, "stands on line 2 already."),
        ("a: &x b\nc: *x\n", 1, "Anchors and aliases"),
        ("a: b\nc: *x\n", 2, "Anchors and aliases"),
        ("a:\n  <<: b\n", 2, "A key is not plain text."),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "The tag"),
        ("a: !x y\n", 1, "The tag"),
        ("? [a, b]\n: c\n", 1, "A key is not plain text."),
        ("- a\n- b\n", 1, "not a table of fields"),
        ("a: b\n---\nc: d\n", 2, "This is not YAML"),
        ("a: [b\n", 2, "This is not YAML"),
        ("a: b: c\n", 1, "This is not YAML"),
        ("a: \x01\n", 1, "a character YAML forbids"),
        ("just text", 1, "not a table of fields"),
    ],
)
def test_yaml_that_could_surprise(text: str, line: int, reason: str) -> None:
    (problem,) = refused(text, "yaml")
    assert problem.line == line
    assert reason in problem.reason


def test_yaml_words_mean_what_they_look_like() -> None:
    """`off` is the network mode, not false; a version is text; no digits become minutes."""
    text = yaml.safe_dump(parse_contract(EXAMPLE, "toml").to_data(), sort_keys=False)
    for old, new in (("mode: 'off'", "mode: off"), ("money: '2.00'", "money: 2.00")):
        assert old in text
        text = text.replace(old, new)
    assert parse_contract(text, "yaml") == parse_contract(EXAMPLE, "toml")

    (problem,) = refused(text.replace("version: '1'", "version: 1.10"), "yaml")
    assert (problem.field, problem.remedy) == ("agent.version", "Put it in quotes.")


@pytest.mark.parametrize(
    ("text", "fmt"),
    [
        ("x = " + "[" * 50_000, "toml"),
        ("a: " + "[" * 50_000, "yaml"),
        ("- " * 5_000, "yaml"),
        ("[" + "a." * 40_000 + "a]", "toml"),
        ("'a'." * 40_000 + "a = 1", "toml"),
        ("a: &a [x]\n" + "".join(f"b{n}: [*a, *a]\n" for n in range(999)), "yaml"),
        ("a: " + "x" * 300_000, "yaml"),
        ("a = '" + "x" * 300_000 + "'", "toml"),
        ("a: [" + "x," * 60_000 + "]", "yaml"),
        ("\n".join(f"k{n} = 1" for n in range(9_000)), "toml"),
        ("", "toml"),
        ("\x00", "yaml"),
        ('a = "\\ud800"', "toml"),
    ],
)
def test_text_made_to_exhaust_is_refused(text: str, fmt: str) -> None:
    assert 1 <= len(refused(text, fmt)) <= MAX_PROBLEMS


# --- The rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("name", "Repair Parser", "not a short name"),
        ("name", 7, "a number, not text"),
        ("name", ..., "missing"),
        ("name", "", "empty"),
        ("outcome", "x" * 2001, "2001 characters"),
        ("acceptance", [], "empty"),
        ("acceptance", ["a", "a"], "listed twice"),
        ("acceptance", "a", "text, not a list"),
        ("acceptance", ["a"] + [str(n) for n in range(30)], "31 entries"),
        ("acceptance", ["a\nb"], "more than one line"),
        ("capabilities", ["shell", "files", "root"], "not known"),
        ("agent", ..., "missing"),
        ("agent/model", ..., "missing"),
        ("agent/transcript", "../x", "not a short name"),
        ("source", ..., "missing"),
        ("source/submodules", "recurse", "not known"),
        ("inputs", "x", "text, not a table"),
        ("files/notes.md", 7, "a number, not text"),
        ("environment/1X", "v", "not the name of an environment variable"),
        ("environment/LD_PRELOAD", "v", "changes how every command starts"),
        ("environment/LEVEL", 3, "a number, not text"),
        ("environment/PLACE", {"reference": "a", "default": "b"}, "not known"),
        ("tools", ..., "missing"),
        ("tools/builtin", ["exec_comand"], "not a built-in tool"),
        ("network/mode", "on", "not known"),
        ("limits/turns", True, "true or false, not a whole number"),
        ("limits/turns", 0, "out of bounds"),
        ("limits/turns", 2.5, "a number with a fraction"),
        ("limits/money", "0", "not an amount"),
        ("limits/money", "1e3x", "not an amount"),
        ("limits/money", "NaN", "not an amount"),
        ("limits/money", "0.00001", "not an amount"),
        ("limits/money", True, "true or false"),
        ("limits/currency", "usd", "not a currency code"),
        ("limits/wal_minutes", 3, "not known here"),
        ("verification/command", [], "empty"),
        ("output/tray", "out", "not known"),
        ("output/allowed_paths", ["/src"], "absolute"),
        ("output/allowed_paths", ["src/../x"], "`..`"),
        ("output/allowed_paths", ["src/[ab].py"], "pattern"),
        ("output/allowed_paths", ["src/**.py"], "**"),
        ("gate/approvals", 11, "out of bounds"),
        ("target/repository", "team/parser.git", "not a repository"),
        ("target/repository", ..., "missing"),
        ("target/path", "x.git", "no such field"),
        ("target/title", "{name} {secret}", "{secret} is not known"),
        ("target/title", "{name", "left open"),
        ("target/branch_prefix", "-x/", "hyphen"),
        ("target/api", "ftp://host", "not an address"),
        ("colour", "red", "not known here"),
    ],
)
def test_a_wrong_value_names_its_field(field: str, value: Any, reason: str) -> None:
    problem = one({field: value})
    for part in field.split("/"):
        assert part in problem.field
    assert reason in problem.reason
    assert problem.line is None


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "~/x",
        "C:\\x",
        "c:/x",
        "\\\\host\\x",
        "../x",
        "a/../x",
        "a/..",
        "..",
        ".",
        "a/./b",
        "a//b",
        "a/",
        "",
        "a\\b",
        ".git/hooks/x",
        "a/.GIT/x",
        ".git /x",
        "x" * 256,
        "a/" + "é" * 128,
    ],
)
@pytest.mark.parametrize("field", ["inputs", "files"])
def test_a_path_that_leaves_or_means_two_things(field: str, path: str) -> None:
    problems = refused_data({field: {path: "docs/x"}})
    assert {p.field.split(".")[0] for p in problems} == {field}
    if field == "inputs" and path:
        assert refused_data({field: {"place": path}})


def test_two_things_in_one_place() -> None:
    problem = one({"files": {"STYLE-guide.md": "x"}})
    assert problem.reason == 'It lies in the same place as "style-guide.md".'
    assert one({"files": {"a": "x", "a/b": "y"}}).field == 'files."a/b"'


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"source/git": "https://user:pw@host/x"}, "source.git"),
        ({"source/git": "https://user@host/x"}, "source.git"),
        ({"source/git": "http://host/x"}, "source.git"),
        ({"source/git": "git@host:x/y.git"}, "source.git"),
        ({"source/git": "ext::sh -c x"}, "source.git"),
        ({"source/git": "-x"}, "source.git"),
        ({"source/git": "file:///x"}, "source.git"),
        ({"source/git": "https://host/x?token=1"}, "source.git"),
        ({"source/git": "ssh://-oProxyCommand=x/y"}, "source.git"),
        ({"source/git": "https://[::1/x"}, "source.git"),
        ({"source/git": "", "source/path": ""}, "source"),
        ({"source/path": "x.git"}, "source.git"),
        ({"source/git": "", "source/path": "/srv/x.git"}, "source.path"),
        ({"source/ref": "a..b"}, "source.ref"),
        ({"source/ref": "x.lock"}, "source.ref"),
        ({"source/ref": "a b"}, "source.ref"),
        ({"source/ref": "@{u}"}, "source.ref"),
    ],
)
def test_sources_that_are_refused(change: dict[str, Any], field: str) -> None:
    assert field in {p.field for p in refused_data(change)}


def test_a_git_target_has_one_address() -> None:
    git = {"target/kind": "git", "target/repository": ""}
    assert one(git).field == "target"
    assert one(git | {"target/url": "https://h/x", "target/path": "y"}).field == "target.url"
    assert (
        contract_from_data(
            {**DATA, "target": {"kind": "git", "path": "demo/x.git"}}
        ).target.branch_prefix
        == "imprimatur/"
    )


# --- Secrets and hidden characters --------------------------------------------------------------


def made_up(prefix: str) -> str:
    """Text with the shape of a secret, put together here so that no scanner finds it in a file."""
    return prefix + "".join("aB3dE5gH7jK9"[n % 12] for n in range(36))


@pytest.mark.parametrize("prefix", ["ghp_", "github_pat_", "sk-", "AKIA", "xoxb-", "glpat-"])
@pytest.mark.parametrize("field", ["agent/instructions", "files/notes", "environment/LEVEL"])
def test_a_secret_is_refused_wherever_it_stands(prefix: str, field: str) -> None:
    problems = refused_data({field: f"use {made_up(prefix)} for it"})
    assert "shape of a secret" in problems[0].reason
    assert made_up(prefix) not in str(problems), "the message must not repeat the secret"


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("API_TOKEN", "x", False),
        ("DB_PASSWORD", "hunter", False),
        ("AWS_SECRET_ACCESS_KEY", "x", False),
        ("SENTRY_DSN", "x", False),
        ("LEVEL", "aB3dE5gH7jK9aB3dE5gH7jK9aB3dE5gH7jK9", False),
        ("REVISION", "0123456789abcdef0123456789abcdef01234567", True),
        ("TOKENIZER", "fast", True),
        ("AUTHOR", "Olu", True),
        ("LEVEL", "debug", True),
        ("EMPTY", "", True),
    ],
)
def test_credentials_only_by_reference(name: str, value: str, allowed: bool) -> None:
    if allowed:
        assert contract_from_data({**DATA, "environment": {name: value}}).environment[name] == value
        return
    problem = one({f"environment/{name}": value})
    assert '{ reference = "name" }' in problem.remedy
    by_reference = {**DATA, "environment": {name: {"reference": "ci-value"}}}
    assert contract_from_data(by_reference).references == ("ci-value",)


@pytest.mark.parametrize("hidden", ["\u202e", "\u200b", "\ufeff", "\u2066", "\x07", "\U000e0041"])
def test_nothing_is_invisible(hidden: str) -> None:
    for field in ("outcome", "agent/instructions", "files/notes", "target/title"):
        problem = refused_data({field: f"a{hidden}b"})[0]
        assert f"U+{ord(hidden):04X}" in problem.reason
    assert refused_data({"environment": {f"A{hidden}": "x"}})


# --- Tools --------------------------------------------------------------------------------------

HTTP = "tools/http/0"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({f"{HTTP}/name": "tracker.create"}, "tools.http[0].name"),
        ({f"{HTTP}/name": "exec_command"}, "tools.http[0].name"),
        ({f"{HTTP}/name": "ask_person"}, "tools.http[0].name"),
        ({f"{HTTP}/method": "TRACE"}, "tools.http[0].method"),
        ({f"{HTTP}/method": "GET"}, "tools.http[0].body"),
        ({f"{HTTP}/url": "https://host/x/{project}"}, "tools.http[0].url"),
        ({f"{HTTP}/base": ""}, "tools.http[0].base"),
        ({f"{HTTP}/base": "", f"{HTTP}/url": "http://host/{project}"}, "tools.http[0].url"),
        ({f"{HTTP}/base": "", f"{HTTP}/url": "https://{project}/x"}, "tools.http[0].url"),
        ({f"{HTTP}/base": "", f"{HTTP}/url": "https://a:b@host/x"}, "tools.http[0].url"),
        ({f"{HTTP}/base": "", f"{HTTP}/url": "file:///{project}"}, "tools.http[0].url"),
        ({f"{HTTP}/url": "{base}/x/{missing}"}, "tools.http[0].url"),
        ({f"{HTTP}/url": "{base}/x/{text}"}, "tools.http[0].parameters.required"),
        ({f"{HTTP}/url": "{base}/{project"}, "tools.http[0].url"),
        ({f"{HTTP}/parameters/type": "array"}, "tools.http[0].parameters.type"),
        ({f"{HTTP}/parameters": "x"}, "tools.http[0].parameters"),
        ({f"{HTTP}/parameters/properties/title": 7}, "tools.http[0].parameters.properties"),
        ({f"{HTTP}/parameters/properties/title": {"type": "txt"}}, "tools.http[0].parameters"),
        (
            {f"{HTTP}/parameters/properties/title": {"$ref": "http://host/x"}},
            "tools.http[0].parameters",
        ),
        (
            {f"{HTTP}/parameters/properties/base": {"type": "string"}},
            "tools.http[0].parameters.properties.base",
        ),
        (
            {f"{HTTP}/parameters/properties/title": {"default": None}},
            "tools.http[0].parameters.properties.title.default",
        ),
        ({f"{HTTP}/parameters/description": "x" * 17_000}, "tools.http[0].parameters"),
        ({f"{HTTP}/response": ["a b"]}, "tools.http[0].response[0]"),
        ({f"{HTTP}/timeout_seconds": 0}, "tools.http[0].timeout_seconds"),
        ({f"{HTTP}/header": "x"}, "tools.http[0].header"),
        ({"capabilities": ["files"]}, "tools.builtin[0]"),
    ],
)
def test_tools_that_are_refused(change: dict[str, Any], field: str) -> None:
    assert field in {p.field for p in refused_data(change)}


def test_two_tools_of_one_name() -> None:
    tools = [DATA["tools"]["http"][0]] * 2
    assert one({"tools/http": tools}).reason == "tracker_create_issue is declared twice."


def test_a_tool_without_parameters_takes_none() -> None:
    tool = {
        "name": "ping",
        "description": "Ask whether the service is up.",
        "method": "GET",
        "url": "https://host.example/ping",
    }
    contract = contract_from_data({**DATA, "tools": {"builtin": [], "http": [tool]}})
    found = contract.brokered_tool("ping")
    assert isinstance(found, HttpTool)
    assert found.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    assert (found.body, found.idempotent, found.response) == ("none", True, ())


FALLBACK = {"tools": ["ping"], "instructions": "Say what is down."}
PING = {
    "name": "ping",
    "description": "Ask whether the service is up.",
    "method": "GET",
    "url": "https://host.example/ping",
}


def test_a_fallback_only_leaves_things_away() -> None:
    """What is left of a contract without a sandbox: named tools, and nothing that needs one."""
    tools = {"builtin": ["exec_command"], "ask_person": True, "http": [PING, {**PING, "name": "b"}]}
    more = {"network": {"mode": "request"}, "verification": {"command": ["true"]}}
    contract = contract_from_data({**DATA, "tools": tools, **more, "fallback": FALLBACK})
    narrow = contract.narrowed()

    assert narrow.tool_names == ("ask_person", "ping")
    assert narrow.agent.instructions == "Say what is down."
    assert (narrow.capabilities, narrow.network.mode, narrow.verification) == ((), "off", None)
    assert (narrow.inputs, narrow.files, narrow.environment) == ({}, {}, {})
    assert manifest_digest(narrow) != manifest_digest(contract)
    assert (narrow.source, narrow.target, narrow.gate, narrow.limits) == (
        contract.source,
        contract.target,
        contract.gate,
        contract.limits,
    )
    assert parse_contract(render_toml(contract), "toml") == contract
    assert contract_from_data(contract.to_data()) == contract
    with pytest.raises(ValueError, match="declares no fallback"):
        narrow.narrowed()


@pytest.mark.parametrize(
    ("fallback", "field", "reason"),
    [
        ({"tools": ["pong"]}, "fallback.tools[0]", "not a brokered tool"),
        ({"tools": ["exec_command"]}, "fallback.tools[0]", "a fallback has none"),
        ({"tools": []}, "fallback.tools", "nothing that it could do"),
        ({"instructions": ""}, "fallback.instructions", ""),
        ({"transcript": "recorded"}, "fallback.transcript", "the agent asks a model"),
        ({"shell": True}, "fallback.shell", ""),
    ],
)
def test_a_fallback_that_would_add_something_is_refused(
    fallback: dict[str, Any], field: str, reason: str
) -> None:
    tools = {"builtin": ["exec_command"], "http": [PING]}
    found = one({"tools": tools, "fallback": {**FALLBACK, **fallback}})
    assert (found.field, reason in found.reason, bool(found.remedy)) == (field, True, True)


def test_a_fallback_of_a_recorded_job_names_its_recording() -> None:
    agent = {**DATA["agent"], "transcript": "recorded"}
    tools = {"builtin": ["exec_command"], "http": [PING]}
    found = one({"agent": agent, "tools": tools, "fallback": FALLBACK})
    assert found.field == "fallback.transcript"


def test_the_network_is_off_unless_a_rule_says_more() -> None:
    rule = {"host": "packages.example.com", "purpose": "install", "port": 443, "minutes": 10}
    assert one({"network": {"mode": "off", "allow": [rule]}}).field == "network.allow"
    assert one({"network": {"mode": "allowlist"}}).field == "network.mode"
    for host in (
        "*.packages.example.com",
        "Packages.example.com",
        "packages.example.com:443",
        "a b",
    ):
        wrong = {"mode": "allowlist", "allow": [{**rule, "host": host}]}
        assert one({"network": wrong}).field == "network.allow[0].host"
    network = contract_from_data({**DATA, "network": {"mode": "request", "allow": [rule]}}).network
    assert network.allow[0].host == "packages.example.com"
    assert (network.allow[0].methods, network.allow[0].path) == ((), "")
    without = {key: value for key, value in DATA.items() if key != "network"}
    assert contract_from_data(without).network.mode == "off"


def test_plain_http_may_be_narrowed_to_methods_and_a_folder() -> None:
    rule = {
        "host": "index.example",
        "port": 8080,
        "purpose": "read the index",
        "methods": ["GET", "HEAD"],
        "path": "/simple",
    }

    def field_of(**wrong: object) -> str:
        return one({"network": {"mode": "allowlist", "allow": [{**rule, **wrong}]}}).field

    network = contract_from_data(
        {**DATA, "network": {"mode": "allowlist", "allow": [rule]}}
    ).network
    assert network.allow[0].methods == ("GET", "HEAD")
    assert (network.allow[0].megabytes, network.allow[0].connections) == (100, 16)
    for path in ("simple", "/a/../b", "/a//b", "/a%2f", "/a?b", "/a;b", "/a b", "/a#b"):
        assert field_of(path=path) == "network.allow[0].path"
    for method in ("get", "CONNECT"):
        assert field_of(methods=[method]) == "network.allow[0].methods[0]"
    # Nobody sees a method or a path inside TLS.
    assert field_of(port=443, path="") == "network.allow[0].methods"
    assert field_of(port=443, methods=[]) == "network.allow[0].path"
    for key, value in (("megabytes", 0), ("connections", 33)):
        assert field_of(**{key: value}) == f"network.allow[0].{key}"


def test_the_tool_that_asks_for_network_comes_with_the_mode() -> None:
    assert "request_network" not in contract_from_data(DATA).tool_names
    asking = contract_from_data({**DATA, "network": {"mode": "request"}})
    assert "request_network" in asking.tool_names


def test_a_command_in_one_line_is_read_by_the_shell() -> None:
    contract = contract_from_data({**DATA, "verification": {"command": "a && b"}})
    assert contract.verification is not None
    assert contract.verification.command == ("sh", "-c", "a && b")
    assert contract_from_data(contract.to_data()) == contract


# --- Lines in TOML ------------------------------------------------------------------------------


def test_the_scanner_finds_every_kind_of_place() -> None:
    text = '''\
a = 1 # not "b"
"c d" = """
x = 1
"""
[t."u.v"] # comment [x]
k = [
  1, # one
  { m = 'q"', n = [2, 3] },
]
[[l]]
p.q = 1979-05-27 07:32:00
[[l]]
r = \'\'\'
[fake]\'\'\'
[l.s]
z = "]"
'''
    lines = toml_lines(text)

    assert lines[("a",)] == 1
    assert lines[("c d",)] == 2
    assert ("x",) not in lines
    assert lines[("t", "u.v", "k")] == 6
    assert lines[("t", "u.v", "k", 0)] == 7
    assert lines[("t", "u.v", "k", 1, "m")] == 8
    assert lines[("l", 0, "p", "q")] == 11
    assert lines[("l", 1)] == 12
    assert ("fake",) not in lines
    assert lines[("l", 1, "s", "z")] == 16


def test_every_field_of_the_example_has_a_line() -> None:
    lines = toml_lines(EXAMPLE)

    def paths(value: Any, path: tuple[str | int, ...]) -> list[tuple[str | int, ...]]:
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        return [path, *(p for key, each in items for p in paths(each, (*path, key)))]

    assert [p for p in paths(tomllib.loads(EXAMPLE), ())[1:] if p not in lines] == []


def test_contracts_can_be_compared_and_not_changed() -> None:
    contract = parse_contract(EXAMPLE, "toml")
    assert isinstance(contract, Contract)
    with pytest.raises(AttributeError):
        contract.name = "other"  # type: ignore[misc]
