"""Control files: changes that have power beyond the program they stand in.

A diff of three harmless lines can change who reviews, what a build runs, where dependencies come
from, or whether a test counts. This check names such files by their path and, where it matters, by
what the new lines say. Each is a warning to be acknowledged; an ordinary change to ordinary code
gives none.

* **CI control**: workflows and pipelines, with their triggers, permissions, secrets and
  interpolated input named.
* **Ownership**: CODEOWNERS, authorized keys and the like.
* **Dependencies**: a lock that changes without its manifest, a new host, hashes taken away, other
  package indexes.
* **Install and build time**: lifecycle scripts, build hooks, start-up hooks, editor tasks.
* **Test control**: conftest and runner settings, tests that are skipped, deleted or weakened.
* **Git's own**: attributes, hooks, `core.hooksPath`. None of it has power over this portal, which
  reads no attributes and runs no hooks, but it has over the next clone.
* **Submodules**: a gitlink's content is not part of the candidate. An address in `.gitmodules` that
  is an option, a local path or a helper blocks; nothing is ever fetched.
* **LFS pointers**: the content is not part of the candidate; nothing is ever fetched.
* **Instructions for agents**: files that other agents obey.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from approvals.changes import GITLINK, Change, Status, spell
from approvals.checks import gits_own, packages, weakened
from approvals.checks.base import READ_CHARS, CheckResult, Content, Notebook, Subject, is_text

NAME, VERSION = "control_files", "portal 1"
# Patterns here are bounded: a hostile line must cost no more than its length.
_LARGEST = 4 << 20  # of a control file that is read line by line


@dataclass(frozen=True, slots=True)
class _Kind:
    rule: str
    words: str
    pattern: re.Pattern[str]


def _kind(rule: str, words: str, *patterns: str) -> _Kind:
    return _Kind(rule, words, re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE))


_ANYWHERE = r"(?:.*/)?"
_KINDS = (
    _kind(
        "CI control", "steers continuous integration",
        rf"{_ANYWHERE}\.(?:github|gitea|forgejo)/(?:workflows|actions)/.+",
        rf"{_ANYWHERE}action\.ya?ml", rf"{_ANYWHERE}\.gitlab-ci\.ya?ml", r"\.gitlab/ci/.+",
        rf"{_ANYWHERE}\.(?:circleci|buildkite|woodpecker|semaphore|teamcity|tekton|azuredevops)/.+",
        rf"{_ANYWHERE}(?:jenkinsfile.*|.*\.jenkinsfile)",
        rf"{_ANYWHERE}azure-pipelines.*\.ya?ml", rf"{_ANYWHERE}bitbucket-pipelines\.ya?ml",
        rf"{_ANYWHERE}\.?(?:travis|drone|woodpecker|appveyor|cirrus|codefresh|buildspec"
        r"|cloudbuild|wercker|codemagic)\.ya?ml",
        r"\.github/dependabot\.ya?ml", rf"{_ANYWHERE}\.?renovate(?:rc)?(?:\.json5?)?", r"\.ci/.+",
    ),
    _kind(
        "ownership", "says who owns, reviews or may enter",
        rf"{_ANYWHERE}(?:codeowners|owners|owners_aliases)", rf"{_ANYWHERE}authorized_keys2?",
        rf"{_ANYWHERE}(?:allowed_signers|trusted[_-]?keys.*|sudoers|known_hosts)",
        rf"{_ANYWHERE}sudoers\.d/.+", r"\.github/settings\.ya?ml", r"\.github/rulesets/.+",
    ),
    _kind(
        "package source", "says where packages come from",
        rf"{_ANYWHERE}(?:\.npmrc|\.yarnrc(?:\.yml)?|\.pypirc|pip\.(?:conf|ini)|nuget\.config|\.gemrc)",
        rf"{_ANYWHERE}(?:bunfig\.toml|\.pnpmfile\.cjs|\.cargo/config(?:\.toml)?|\.condarc)",
        rf"{_ANYWHERE}(?:\.mvn/.+|gradle-wrapper\.(?:properties|jar)|\.bundle/config)",
    ),
    _kind(
        "install time", "runs when the package is installed or started",
        rf"{_ANYWHERE}setup\.py", rf"{_ANYWHERE}(?:site|user)customize\.py", rf"{_ANYWHERE}.+\.pth",
        rf"{_ANYWHERE}(?:build\.rs|binding\.gyp|extconf\.rb|.+\.gemspec|.+\.podspec)",
        rf"{_ANYWHERE}debian/(?:pre|post)(?:inst|rm)",
    ),
    _kind(
        "test control", "steers how tests run and what counts as passed",
        rf"{_ANYWHERE}conftest\.py",
        rf"{_ANYWHERE}(?:pytest\.ini|\.pytest\.ini|tox\.ini|noxfile\.py|\.coveragerc|\.rspec)",
        rf"{_ANYWHERE}(?:jest|vitest|karma|cypress|playwright|ava|wdio)\.conf(?:ig)?\.[cm]?[jt]sx?(?:on)?",
        rf"{_ANYWHERE}(?:\.mocharc.*|phpunit\.xml.*|codecov\.ya?ml|\.codecov\.ya?ml|\.nycrc.*)",
    ),
    _kind(
        "git hooks", "can run when git is used",
        rf"{_ANYWHERE}\.(?:husky|githooks|git-hooks|hooks)/.+",
        rf"{_ANYWHERE}(?:hooks|git-hooks)/(?:pre|post|commit|prepare|update|applypatch)[a-z-]*",
        rf"{_ANYWHERE}(?:\.?lefthook(?:-local)?\.(?:ya?ml|toml|json)|\.overcommit\.yml)",
        rf"{_ANYWHERE}(?:\.pre-commit-(?:config|hooks)\.ya?ml|\.lintstagedrc.*|\.gitconfig|\.lfsconfig)",
    ),
    _kind(
        "build and editor", "runs when the project is built or opened",
        rf"{_ANYWHERE}\.(?:vscode|idea|devcontainer|fleet|zed)/.+", rf"{_ANYWHERE}\.envrc",
        rf"{_ANYWHERE}devcontainer\.json", rf"{_ANYWHERE}(?:vagrantfile|rakefile|brewfile)",
        rf"{_ANYWHERE}(?:gruntfile|gulpfile|webpack\.config|vite\.config|rollup\.config"
        r"|babel\.config|next\.config|postcss\.config|\.eslintrc|eslint\.config)\.[cm]?[jt]s",
        rf"{_ANYWHERE}.+\.gradle(?:\.kts)?",
        rf"{_ANYWHERE}(?:\.mise\.toml|mise\.toml|\.justfile|justfile)",
    ),
    _kind(
        "instructions for agents", "is obeyed by agents that work on the project",
        rf"{_ANYWHERE}(?:agents?|claude|gemini|copilot)\.md", rf"{_ANYWHERE}\.(?:cursor|claude)/.+",
        rf"{_ANYWHERE}\.(?:cursorrules|windsurfrules|clinerules|aider\.conf\.yml|mcp\.json)",
        r"\.github/copilot-instructions\.md", rf"{_ANYWHERE}mcp\.json",
    ),
)  # fmt: skip


def check(subject: Subject) -> CheckResult:
    notes = Notebook(NAME, VERSION, subject)
    changed = {path for change in subject.changes for path in (change.path, change.before)}
    for change in subject.changes:
        _by_path(change, notes)
        if GITLINK in (change.old_mode, change.new_mode):
            notes.warn("submodule", change.name, "a submodule; its content is not part of the "
                  "candidate and was not reviewed")  # fmt: skip
        if change.status is Status.DELETED and weakened.is_test(change.path):
            notes.warn("test weakened", change.name, "a test file is deleted")
        if change.status is Status.RENAMED and weakened.is_test(change.before) > weakened.is_test(
            change.path
        ):
            notes.warn("test weakened", change.name, "a test is moved to where none is looked for")
    for content in subject.contents():
        if content.change is None or content.is_link:
            continue
        gits_own.lfs(content, changed, notes)
        if is_text(content.data) and len(content.data) <= _LARGEST:
            for judge in _JUDGES:
                judge(content, changed, notes)
            _too_long(content, notes)
        elif _is_read(content):
            notes.warn("not read", content.shown, "a control file that is binary or too large")
    return notes.result()


def _by_path(change: Change, notes: Notebook) -> None:
    verbs = {Status.ADDED: "is new", Status.DELETED: "is deleted"}
    for kind in _KINDS:
        for path in dict.fromkeys((change.path, change.before)):
            if kind.pattern.fullmatch(path.decode("utf-8", "replace")):
                verb = verbs.get(change.status, "is changed")
                notes.warn(kind.rule, spell(path), f"{kind.words}, and {verb}")


def _is_read(content: Content) -> bool:
    """Whether new lines of this file are searched for what they do."""
    path = content.path.decode("utf-8", "replace")
    return (
        _WORKFLOW.fullmatch(path) is not None
        or any(where.fullmatch(path) for where, _, _ in _BUILD_SAYS)
        or weakened.is_test(content.path)
        or content.name in (".gitattributes", ".gitmodules", "package.json", "conftest.py")
        or packages.is_list(content)
    )


def _too_long(content: Content, notes: Notebook) -> None:
    if len(content.data) <= READ_CHARS or not _is_read(content):
        return
    for number, line in content.new_lines():
        if len(line) > READ_CHARS:
            text = f"a new line is longer than {READ_CHARS:,} bytes and was not read to its end"
            notes.warn("not read", content.shown, text, number)


# --- what new lines say ----------------------------------------------------------------------

_WORKFLOW = _KINDS[0].pattern
_WORKFLOW_SAYS = (
    (re.compile(r"\bpull_request_target\b"), "runs with secrets on other people's pull requests"),
    (re.compile(r"\b(?:workflow_run|issue_comment|repository_dispatch)\b"),
     "is started by events that outsiders can cause"),
    (re.compile(r"permissions\s*:\s*write-all|:\s*write\b"), "asks for permission to write"),
    (re.compile(r"\bsecrets\s*[.\[:]|secrets\s*:\s*inherit"), "uses secrets"),
    (re.compile(r"\$\{\{\s*(?:github\.(?:event|head_ref)|inputs|steps)\b"),
     "puts text from outside into a command or a setting"),
    (re.compile(r"runs-on\s*:.{0,200}self-hosted"), "runs on machines of one's own"),
    (re.compile(r"uses\s*:\s*[^\s@]+@(?![0-9a-f]{40}\b)\S+"),
     "uses an action by a name that can move"),
    (re.compile(r"(?:curl|wget)\b[^|]{0,300}\|\s*(?:sudo\s+)?(?:ba|z)?sh\b"),
     "runs what it downloads"),
    (re.compile(r"(?:continue-on-error|allow_failure)\s*:\s*true|\|\|\s*true\b|if\s*:\s*false"),
     "lets a failure pass"),
)  # fmt: skip


def _workflow(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if not _WORKFLOW.fullmatch(content.path.decode("utf-8", "replace")):
        return
    for number, line in content.new_text():
        for pattern, words in _WORKFLOW_SAYS:
            if pattern.search(line):
                notes.warn("CI control", content.shown, f"a new line {words}", number)


_BUILD_SAYS = (
    (re.compile(r"(?:.*/)?(?:gnu)?makefile|(?:.*/)?.+\.mk", re.IGNORECASE),
     re.compile(r"\$[({]shell\b|^\s*[\w.-]+\s*!=|^\s*-?include\s|\.ONESHELL|^\s*SHELL\s*[:?]?="),
     "runs a command when the file is only read, or changes the shell"),
    (re.compile(r"(?:.*/)?(?:cmakelists\.txt|.+\.cmake)", re.IGNORECASE),
     re.compile(r"(?i)execute_process|file\s*\(\s*download|exec_program|externalproject_add"),
     "runs a command or downloads when the build is configured"),
    (re.compile(r"(?:.*/)?(?:dockerfile.*|containerfile.*)", re.IGNORECASE),
     re.compile(r"(?i)(?:curl|wget)\b[^|]{0,300}\|\s*(?:ba)?sh|^\s*add\s+https?:|--privileged|docker\.sock"),
     "downloads and runs, or asks for power over the host"),
    (re.compile(r"(?:.*/)?(?:docker-)?compose.*\.ya?ml", re.IGNORECASE),
     re.compile(r"privileged\s*:\s*true|docker\.sock|network_mode\s*:\s*[\"']?host|pid\s*:\s*[\"']?host"),
     "asks for power over the host"),
    (re.compile(r"(?:.*/)?pom\.xml", re.IGNORECASE),
     re.compile(r"exec-maven-plugin|maven-antrun-plugin|<pluginRepositor|groovy-maven"),
     "runs a command during the build"),
    (re.compile(r"(?:.*/)?(?:composer\.json)", re.IGNORECASE),
     re.compile(r"\"(?:pre|post)-[a-z-]+-cmd\"|\"allow-plugins\""),
     "runs a command at install time"),
    (re.compile(r"(?:.*/)?pyproject\.toml", re.IGNORECASE),
     re.compile(r"^\s*(?:requires|build-backend|backend-path)\s*=|^\[build-system|\[tool\.hatch\.build"),
     "changes what builds the package"),
    (re.compile(r"(?:.*/)?(?:pyproject\.toml|setup\.cfg)", re.IGNORECASE),
     re.compile(r"^\[tool[.:](?:pytest|coverage)|^\s*(?:addopts|testpaths|norecursedirs|fail_under"
                r"|python_files|filterwarnings)\s*="),
     "changes how tests run"),
    (re.compile(r"(?:.*/)?cargo\.toml", re.IGNORECASE),
     re.compile(r"^\s*build\s*=|^\[patch|^\s*links\s*=|git\s*=\s*\""),
     "changes what the build runs"),
)  # fmt: skip


def _build(content: Content, changed: set[bytes], notes: Notebook) -> None:
    path = content.path.decode("utf-8", "replace")
    for where, pattern, words in _BUILD_SAYS:
        if not where.fullmatch(path):
            continue
        for number, line in content.new_text():
            if pattern.search(line):
                notes.warn("build and editor", content.shown, f"a new line {words}", number)


_HOOKS_PATH = re.compile(r"(?i)core\.hookspath|git\s+config\b.{0,200}hooks|husky\s+install")


def _hooks_path(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if b"ooks" not in content.data and b"usky" not in content.data:
        return
    for number, line in content.new_text():
        if _HOOKS_PATH.search(line):
            notes.warn("git hooks", content.shown, "a new line makes git run hooks", number)


_JUDGES: tuple[Callable[[Content, set[bytes], Notebook], None], ...] = (
    _workflow,
    _build,
    _hooks_path,
    packages.package_json,
    packages.dependencies,
    weakened.tests,
    gits_own.attributes,
    gits_own.modules,
)
