"""Fetching a source: what is laid out, what is refused, and that nothing in it can act."""

from __future__ import annotations

import base64
import http.server
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

from runs import source
from runs.contract import Source
from runs.gitcmd import Git
from runs.links import judge_links
from runs.source import SourceRefused

Take: TypeAlias = Callable[..., source.CheckoutInfo]
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12\n"


class Repository:
    """A repository below the source root, made with plumbing so that it may hold anything."""

    def __init__(self, root: Path, name: str = "project.git") -> None:
        self.root, self.name, self.path = root, name, root / name
        self.path.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", ".")

    def git(self, *arguments: str, stdin: bytes = b"") -> str:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "Olu",
            "GIT_AUTHOR_EMAIL": "olu@example.com",
            "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
            "GIT_COMMITTER_NAME": "Olu",
            "GIT_COMMITTER_EMAIL": "olu@example.com",
            "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
        }
        ran = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env=environment,
            input=stdin,
            capture_output=True,
            check=True,
        )
        return ran.stdout.decode().strip()

    def commit(self, *entries: tuple[str, str | bytes, str | bytes], branch: str = "main") -> str:
        """Entries are (mode, path, content); the content of a submodule is a commit id."""
        index = ""
        for mode, path, content in entries:
            name = path.encode() if isinstance(path, str) else path
            if mode == "160000":
                blob = str(content)
            else:
                data = content.encode() if isinstance(content, str) else content
                blob = self.git("hash-object", "-w", "--stdin", stdin=data)
            index += f"{mode} {blob}\t{os.fsdecode(name)}\0"
        self.git("read-tree", "--empty")
        self.git("update-index", "-z", "--index-info", stdin=os.fsencode(index))
        tree = self.git("write-tree")
        commit = self.git("commit-tree", tree, "-m", "work")
        self.git("update-ref", f"refs/heads/{branch}", commit)
        return commit

    def spec(self, ref: str = "main", **rules: str) -> Source:
        return Source(ref=ref, path=self.name, **rules)  # type: ignore[arg-type]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "root")


@pytest.fixture
def take(repository: Repository, tmp_path: Path) -> Take:
    """Resolve and lay out in `tmp_path / "repo"`."""

    def both(spec: Source | None = None, **limits: int) -> source.CheckoutInfo:
        cache = tmp_path / "cache"
        resolved = source.resolve(spec or repository.spec(), cache, root=repository.root)
        return source.checkout(resolved, cache, tmp_path / "repo", **limits)

    return both


def refusal(act: Callable[[], object]) -> SourceRefused:
    with pytest.raises(SourceRefused) as caught:
        act()
    assert len(caught.value.text) > 40, "a refusal says what happened and what to do"
    return caught.value


def files_of(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_text()
    return found


# --- What is laid out ---------------------------------------------------------------------------


def test_a_commit_becomes_plain_files(repository: Repository, take: Take, tmp_path: Path) -> None:
    """Bytes, modes and inner links as stored; no repository, no attributes at work."""
    commit = repository.commit(
        ("100644", "README.md", "hello\r\n"),
        ("100755", "bin/run", "#!/bin/sh\n"),
        ("120000", "bin/go", "run"),
        ("100644", ".gitattributes", "* text=auto eol=lf export-ignore filter=lfs ident\n"),
        ("100644", "id.txt", "$Id$\n"),
    )

    info = take()

    repo = tmp_path / "repo"
    assert (repo / "README.md").read_bytes() == b"hello\r\n"
    assert files_of(repo)["bin/go"] == "-> run"
    assert (repo / "id.txt").read_text() == "$Id$\n"
    assert stat.S_IMODE((repo / "bin/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((repo / "README.md").stat().st_mode) == 0o644
    assert not list(repo.rglob(".git"))
    assert (info.files, info.left_out) == (5, ())
    resolved = source.resolve(repository.spec(), tmp_path / "cache", root=repository.root)
    assert resolved.commit == commit
    assert resolved.tree == repository.git("rev-parse", f"{commit}^{{tree}}")
    assert (resolved.repository(tmp_path / "cache") / "objects").is_dir()


def test_every_way_to_name_a_commit(repository: Repository, tmp_path: Path) -> None:
    first = repository.commit(("100644", "a", "1"))
    second = repository.commit(("100644", "a", "2"))
    repository.git("tag", "v1", first)
    repository.git("tag", "-a", "-m", "two", "v2", second)
    names = {
        "main": second,
        "refs/heads/main": second,
        "HEAD": second,
        "v1": first,
        "v2": second,
        "refs/tags/v2": second,
        first: first,
    }

    for at, (ref, commit) in enumerate(names.items()):
        cache = tmp_path / f"cache{at}"
        found = source.resolve(repository.spec(ref), cache, root=repository.root)
        assert found.commit == commit, ref


def test_a_pinned_commit_needs_no_remote(repository: Repository, tmp_path: Path) -> None:
    """A run that was paused goes on although the branch moved and the host is gone."""
    first = repository.commit(("100644", "a", "1"))
    cache = tmp_path / "cache"
    before = source.resolve(repository.spec(), cache, root=repository.root)
    repository.commit(("100644", "a", "2"))
    shutil.rmtree(repository.path / "objects")

    again = source.resolve(repository.spec(), cache, root=repository.root, commit=first)

    assert again == before
    source.checkout(again, cache, tmp_path / "repo")
    assert files_of(tmp_path / "repo") == {"a": "1"}


def test_a_repository_with_a_work_tree(tmp_path: Path) -> None:
    """`path` may name a folder somebody works in; what is not committed stays there."""
    repository = Repository(tmp_path / "root", "store.git")
    repository.commit(("100644", "a", "committed"))
    work = repository.root / "work"
    repository.git("clone", "--quiet", ".", str(work))
    (work / "a").write_text("changed")
    (work / "secret").write_text("not committed")

    cache = tmp_path / "cache"
    resolved = source.resolve(Source(ref="main", path="work"), cache, root=repository.root)
    source.checkout(resolved, cache, tmp_path / "repo")

    assert files_of(tmp_path / "repo") == {"a": "committed"}


def test_many_at_once_into_one_cache(repository: Repository, tmp_path: Path) -> None:
    commit = repository.commit(*[("100644", f"file{n}", str(n)) for n in range(30)])
    cache = tmp_path / "cache"

    def one(number: int) -> str:
        resolved = source.resolve(repository.spec(), cache, root=repository.root)
        source.checkout(resolved, cache, tmp_path / f"repo{number}")
        return resolved.commit

    with ThreadPoolExecutor(6) as pool:
        assert set(pool.map(one, range(6))) == {commit}
    assert all(len(files_of(tmp_path / f"repo{n}")) == 30 for n in range(6))


def test_a_cache_half_made_by_a_process_that_died_is_completed(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(("100644", "a", "1"))
    cache = tmp_path / "cache"
    key = source.resolve(repository.spec(), cache, root=repository.root).key
    shutil.rmtree(cache / f"{key}.git/refs")
    (cache / f"{key}.git/HEAD").unlink()

    found = source.resolve(repository.spec(), cache, root=repository.root)

    source.checkout(found, cache, tmp_path / "repo")
    assert files_of(tmp_path / "repo") == {"a": "1"}


def test_the_locks_of_a_git_that_was_killed_hold_up_nobody(
    repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit(("100644", "a.txt", "a"))
    cache = tmp_path / "cache"
    first = source.resolve(repository.spec(), cache, root=repository.root)
    kept = first.repository(cache)
    for name in ("packed-refs.lock", "HEAD.lock", f"refs/imprimatur/{commit}.lock"):
        (kept / name).touch()
    assert source.resolve(repository.spec(), cache, root=repository.root) == first
    assert not list(kept.rglob("*.lock"))


# --- The stated rules ---------------------------------------------------------------------------


def test_submodules(repository: Repository, take: Take, tmp_path: Path) -> None:
    repository.commit(
        ("100644", "a", "1"),
        ("100644", ".gitmodules", '[submodule "m"]\n\tpath = m\n\turl = ../m.git\n'),
        ("160000", "m", "1" * 40),
    )

    refused = refusal(take)
    assert refused.code == "source.submodule"
    assert 'submodules = "leave-out"' in refused.text
    assert not (tmp_path / "repo").exists()

    info = take(repository.spec(submodules="leave-out"))
    assert [(each.path, each.why) for each in info.left_out] == [("m", "submodule")]
    assert list((tmp_path / "repo/m").iterdir()) == []


def test_lfs_pointers(repository: Repository, take: Take, tmp_path: Path) -> None:
    repository.commit(("100644", "big.bin", LFS), ("100644", "notes", "about " + LFS))

    refused = refusal(take)
    assert refused.code == "source.lfs_pointer"
    assert refused.text.startswith("big.bin is a Git LFS pointer. ")

    info = take(repository.spec(lfs="keep-pointers"))
    assert [(each.path, each.why) for each in info.left_out] == [("big.bin", "lfs pointer")]
    assert (tmp_path / "repo/big.bin").read_text() == LFS


def test_links_out(repository: Repository, take: Take, tmp_path: Path) -> None:
    repository.commit(
        ("120000", "d/here", "."),
        ("120000", "d/up", "here/../.."),
        ("120000", "abs", "/etc/passwd"),
        ("120000", "ok", "d/here/../a"),
        ("100644", "a", "1"),
    )

    refused = refusal(take)
    assert refused.code == "source.link_out"
    assert "and 1 more" in refused.text

    info = take(repository.spec(links_out="leave-out"))
    assert [each.path for each in info.left_out] == ["abs", "d/up"]
    assert files_of(tmp_path / "repo") == {"a": "1", "d/here": "-> .", "ok": "-> d/here/../a"}


@pytest.mark.parametrize(
    ("links", "wanted"),
    [
        ({"a": "b"}, "inside"),
        ({"a": "../b"}, "outside"),
        ({"x/a": "../b"}, "inside"),
        ({"x/a": "../../b"}, "outside"),
        ({"a": ""}, "outside"),
        ({"a": "/"}, "outside"),
        ({"a": "a"}, "loop"),
        ({"a": "b", "b": "a"}, "loop"),
        ({"p/q/a": "d/../../..", "p/q/d": "../.."}, "outside"),
        ({"a": "b/c", "b": "/etc"}, "outside"),
        ({"a": "./x/./y//z"}, "inside"),
        ({"a": "x/../../y"}, "outside"),
        ({"a": "x/../../y", "x": "p/q/r"}, "outside"),
    ],
)
def test_links_are_judged_by_following_them(links: dict[str, str], wanted: str) -> None:
    judged = judge_links({k.encode(): v.encode() for k, v in links.items()})
    assert judged[next(iter(links)).encode()] == wanted


@pytest.mark.parametrize("path", ["new\nline", "bell\a", b"latin\xe9"])
def test_paths_that_cannot_be_named(repository: Repository, take: Take, path: str | bytes) -> None:
    repository.commit(("100644", path, "1"))
    assert refusal(take).code == "source.bad_path"


def raw_tree(repository: Repository, *entries: tuple[str, str, str]) -> str:
    """A commit on main whose tree git's own commands would not write."""
    body = b"".join(
        f"{mode} {name}".encode() + b"\0" + bytes.fromhex(object_id)
        for mode, name, object_id in entries
    )
    literally = ("hash-object", "-w", "--literally", "--stdin", "-t", "tree")
    tree = repository.git(*literally, stdin=body)
    commit = repository.git("commit-tree", tree, "-m", "hostile")
    repository.git("update-ref", "refs/heads/main", commit)
    return commit


@pytest.mark.parametrize("name", ["..", ".git", ".GIT"])
def test_a_tree_that_would_leave_is_refused_when_fetched(
    repository: Repository, take: Take, name: str, tmp_path: Path
) -> None:
    blob = repository.git("hash-object", "-w", "--stdin", stdin=b"x")
    inner = repository.git("mktree", stdin=f"100644 blob {blob}\tconfig\n".encode())
    raw_tree(repository, ("40000", name, inner))

    refused = refusal(take)

    assert refused.code == "source.damaged"
    assert not (tmp_path / "repo").exists()


def test_limits(repository: Repository, take: Take, tmp_path: Path) -> None:
    repository.commit(("100644", "a", "1" * 500), ("100644", "b", "2" * 500))

    assert refusal(lambda: take(max_files=1)).code == "source.too_many_files"
    assert refusal(lambda: take(max_bytes=999)).code == "source.too_large"
    assert not (tmp_path / "repo").exists()
    assert take(max_files=2, max_bytes=1000).bytes == 1000


def test_a_fetch_larger_than_the_limit_is_stopped(repository: Repository, tmp_path: Path) -> None:
    repository.commit(("100644", "a", os.urandom(300_000)))
    cache = tmp_path / "cache"

    refused = refusal(
        lambda: source.resolve(repository.spec(), cache, root=repository.root, max_bytes=100_000)
    )

    assert refused.code == "source.too_large", refused.text


def test_the_place_must_be_empty(repository: Repository, take: Take, tmp_path: Path) -> None:
    repository.commit(("100644", "a", "1"))
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo/mine").write_text("kept")

    assert refusal(take).code == "source.not_empty"
    assert files_of(tmp_path / "repo") == {"mine": "kept"}


# --- Addresses and refs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        ("nope", "source.ref_missing"),
        ("refs/heads/nope", "source.ref_missing"),
        ("f" * 40, "source.ref_missing"),
        ("abc1234", "source.ref_missing"),
        ("--upload-pack=touch /tmp/x", "source.bad_ref"),
        ("-x", "source.bad_ref"),
        ("main~1", "source.bad_ref"),
        ("main:a", "source.bad_ref"),
        ("main^{tree}", "source.bad_ref"),
        ("ma*", "source.bad_ref"),
        ("both", "source.ref_ambiguous"),
        ("picture", "source.not_commit"),
    ],
)
def test_refs_that_are_refused(repository: Repository, tmp_path: Path, ref: str, code: str) -> None:
    commit = repository.commit(("100644", "a", "1"))
    repository.git("branch", "both", commit)
    repository.git("tag", "both", commit)
    repository.git("tag", "picture", f"{commit}:a")

    refused = refusal(
        lambda: source.resolve(repository.spec(ref), tmp_path / "cache", root=repository.root)
    )

    assert refused.code == code
    assert not refused.retry_safe


def test_an_empty_repository_has_no_branch(repository: Repository, take: Take) -> None:
    assert refusal(take).code == "source.ref_missing"


@pytest.mark.parametrize(
    "address",
    [
        "--upload-pack=touch x",
        "-uhttps://host/x",
        "ext::sh -c touch% x",
        "file:///etc",
        "/etc",
        "git://host/x",
        "ssh://-oProxyCommand=touch/x",
        "https://user:pw@host/x",
        "http://host.example/x",
        "https://host/x?y",
        "git@host:team/x.git",
        "https://ho\nst/x",
    ],
)
def test_addresses_that_are_refused(tmp_path: Path, address: str) -> None:
    spec = Source(ref="main", git=address)
    assert refusal(lambda: source.resolve(spec, tmp_path / "cache")).code == "source.bad_address"
    assert not (tmp_path / "cache").exists()


def test_only_the_protocols_the_caller_allows(tmp_path: Path) -> None:
    spec = Source(ref="main", git="ssh://host/x.git")
    refused = refusal(lambda: source.resolve(spec, tmp_path, protocols=("https",)))
    assert refused.code == "source.protocol"


def test_paths_stay_below_the_root(repository: Repository, tmp_path: Path) -> None:
    outside = Repository(tmp_path / "elsewhere", "other.git")
    outside.commit(("100644", "a", "1"))
    (repository.root / "link").symlink_to(outside.path)
    (repository.root / "plain").mkdir()
    wanted = {
        "../elsewhere/other.git": "source.bad_path",
        str(outside.path): "source.bad_path",
        "link": "source.path_outside",
        "plain": "source.not_repository",
        "missing": "source.not_repository",
    }

    for path, code in wanted.items():
        spec = Source(ref="main", path=path)
        refused = refusal(lambda: source.resolve(spec, tmp_path / "c", root=repository.root))  # noqa: B023
        assert refused.code == code, path
    spec = Source(ref="main", path="project.git")
    assert refusal(lambda: source.resolve(spec, tmp_path / "c")).code == "source.no_root"


# --- Nothing in a source acts -------------------------------------------------------------------


def test_hooks_and_configuration_do_not_run(
    repository: Repository, take: Take, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the repository's own, nor the user's, nor what the environment carries."""
    mark = tmp_path / "ran"
    script = f"#!/bin/sh\ntouch {mark}\n"
    repository.commit(("100644", "a", "1"))
    for name in ("post-checkout", "reference-transaction", "post-update", "pre-receive"):
        hook = repository.path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(script)
        hook.chmod(0o755)
    with (repository.path / "config").open("a") as config:
        config.write(f"[uploadpack]\n\tpackObjectsHook = touch {mark}; git\n")
        config.write(f"[core]\n\tfsmonitor = touch {mark}\n\thooksPath = {hook.parent}\n")
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {hook.parent}\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(hook.parent))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {mark}")

    take()

    assert not mark.exists()


def test_a_repository_of_somebody_else_is_read(repository: Repository, take: Take) -> None:
    """git refuses folders of other users unless it is told which one is meant."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to another user")
    repository.commit(("100644", "a", "1"))
    for folder, names, files in os.walk(repository.path):
        for name in [".", *names, *files]:
            os.chown(os.path.join(folder, name), 65534, 65534)

    assert take().files == 1


def test_a_git_that_hangs_is_stopped_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    child = tmp_path / "child"
    (fake / "git").write_text(f"#!/bin/sh\nsleep 600 & echo $! > {child}\nwait\n")
    (fake / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")

    refused = refusal(lambda: Git(tmp_path, 1.0).run("anything"))

    assert (refused.code, refused.retry_safe) == ("source.timed_out", True)
    pid = int(child.read_text())
    ended = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    assert ended.stdout.strip() in {"", "Z"}


# --- Over HTTP ----------------------------------------------------------------------------------


class Backend(http.server.BaseHTTPRequestHandler):
    """`git http-backend` behind a password, a redirect and a broken server."""

    root: Path
    wanted: str | None = None
    seen: list[str] = []

    def answer(self) -> None:
        type(self).seen.append(self.headers.get("Authorization", ""))
        path, _, query = self.path.partition("?")
        if path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", f"/project.git{path.removeprefix('/moved.git')}?{query}")
            self.end_headers()
            return
        if path.startswith("/broken"):
            self.send_error(503)
            return
        if self.wanted and self.headers.get("Authorization") != self.wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            return
        self.backend(path, query)

    do_GET = do_POST = answer  # noqa: N815

    def backend(self, path: str, query: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "CONTENT_LENGTH": str(len(body)),
        }
        ran = subprocess.run(
            ["git", "http-backend"], env=environment, input=body, capture_output=True, check=False
        )
        head, _, content = ran.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Quiet."""


@pytest.fixture
def host(repository: Repository) -> Iterator[str]:
    Backend.root, Backend.wanted, Backend.seen = repository.root, None, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_over_http_with_a_credential(repository: Repository, host: str, tmp_path: Path) -> None:
    """The credential opens the door and is found nowhere afterwards."""
    commit = repository.commit(("100644", "a", "1"))
    pair = base64.b64encode(b"reader:" + os.urandom(9).hex().encode()).decode()
    Backend.wanted = f"Basic {pair}"
    spec = Source(ref="main", git=f"{host}/project.git")
    cache = tmp_path / "cache"

    refused = refusal(lambda: source.resolve(spec, cache))
    assert (refused.code, refused.retry_safe) == ("source.denied", False)
    resolved = source.resolve(spec, cache, authorization=Backend.wanted)

    assert resolved.commit == commit
    source.checkout(resolved, cache, tmp_path / "repo")
    for path in [*cache.rglob("*"), *(tmp_path / "repo").rglob("*")]:
        if path.is_file():
            assert pair.encode() not in path.read_bytes()


def test_what_hosts_answer(repository: Repository, host: str, tmp_path: Path) -> None:
    repository.commit(("100644", "a", "1"))
    wanted = {
        f"{host}/moved.git": ("source.redirect", False),
        f"{host}/broken.git": ("source.unreachable", True),
        f"{host}/nothing.git": ("source.not_repository", False),
        "http://127.0.0.1:9/x.git": ("source.unreachable", True),
    }

    for address, expected in wanted.items():
        spec = Source(ref="main", git=address)
        refused = refusal(lambda: source.resolve(spec, tmp_path / "cache"))  # noqa: B023
        assert (refused.code, refused.retry_safe) == expected, (address, refused.text)


def test_a_commit_by_its_id_over_http(repository: Repository, host: str, tmp_path: Path) -> None:
    first = repository.commit(("100644", "a", "1"))
    repository.git("tag", "old", first)
    repository.commit(("100644", "a", "2"))
    spec = Source(ref=first, git=f"{host}/project.git")

    assert source.resolve(spec, tmp_path / "cache").commit == first


if sys.platform != "linux":
    pytest.skip("the portal runs on Linux", allow_module_level=True)
