"""Taking a hostile directory as a tree: what is taken, listed, left out and refused."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from approvals import tree
from approvals.changes import Status
from approvals.tree import (
    Author,
    MaterialiseRefused,
    ObjectMissing,
    TreeLimits,
    TreeRefused,
    writing,
)
from approvals.tree.walking import Found

QUIET = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def git(where: Path, *arguments: str, data: bytes = b"") -> bytes:
    return subprocess.run(
        ["git", "-C", where, *arguments], input=data, env=QUIET, capture_output=True, check=True
    ).stdout


class Repository:
    """A bare repository and commits made from plain data."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir()
        git(path, "init", "-q", "--bare", ".")

    def commit(self, files: dict[str, bytes | tuple[str, bytes]]) -> str:
        stream = b"feature done\ncommit refs/heads/made\ncommitter A <a@example.invalid> 0 +0000\n"
        stream += b"data 1\nm\ndeleteall\n"
        for name, content in files.items():
            mode, data = content if isinstance(content, tuple) else ("100644", content)
            if mode == "160000":
                stream += b"M 160000 %s %s\n" % (data, name.encode())
            else:
                stream += b"M %s inline %s\ndata %d\n%s\n" % (
                    mode.encode(), name.encode(), len(data), data,
                )  # fmt: skip
        git(self.path, "fast-import", "--quiet", "--force", data=stream + b"done\n")
        return git(self.path, "rev-parse", "made").decode().strip()

    def objects(self) -> set[bytes]:
        return set(
            git(self.path, "cat-file", "--batch-check=%(objectname)", "--batch-all-objects").split()
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "bare.git")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


BASE: dict[str, bytes | tuple[str, bytes]] = {
    "README.md": b"# Hello\n",
    "src/app.py": b"print('one')\n" * 20,
    "run.sh": b"#!/bin/sh\n",
    "data.bin": b"\0\1\2\3",
    "old/gone.txt": b"gone\n",
    "link": ("120000", b"README.md"),
}


def listed(taken: tree.TakenTree) -> dict[str, str]:
    return {change.name: change.status.value for change in taken.changes}


def test_an_untouched_workspace_is_the_same_tree(repository: Repository, work: Path) -> None:
    base = repository.commit(BASE)
    before = repository.objects()
    tree.materialise(repository.path, base, work)
    taken = tree.build_tree(work, repository.path, base)
    assert taken.tree == taken.base_tree == tree.tree_of(repository.path, base)
    assert (taken.changes, taken.left_out, taken.files) == ((), (), 6)
    assert repository.objects() == before


def test_every_kind_of_change_is_listed_once(repository: Repository, work: Path) -> None:
    base = repository.commit(BASE)
    tree.materialise(repository.path, base, work)
    (work / "run.sh").chmod(0o755)
    (work / "src/app.py").rename(work / "src/main.py")
    (work / "data.bin").write_bytes(b"\0\1\2\4\5")
    (work / "old/gone.txt").unlink()
    (work / "README.md").unlink()
    (work / "README.md").symlink_to("src/main.py")
    (work / "link").unlink()
    (work / "link").write_text("now a file")
    (work / "new\nname \u202e.txt").write_text("new\n")
    taken = tree.build_tree(work, repository.path, base)

    by_name = {change.name: change for change in taken.changes}
    assert listed(taken) == {
        "run.sh": "M", "src/main.py": "R", "data.bin": "M", "old/gone.txt": "D",
        "README.md": "T", "link": "T", "new\\u{a}name \\u{202e}.txt": "A",
    }  # fmt: skip
    assert by_name["run.sh"].made_executable
    assert not by_name["run.sh"].content_changed
    assert by_name["src/main.py"].similarity == 100
    assert by_name["src/main.py"].old_path == b"src/app.py"
    assert by_name["data.bin"].binary
    assert (by_name["data.bin"].old_size, by_name["data.bin"].new_size) == (4, 5)
    assert by_name["link"].new_mode == "100644"
    assert tree.build_tree(work, repository.path, base) == taken
    again = work.parent / "again"
    tree.materialise(repository.path, taken.tree, again)
    assert tree.build_tree(again, repository.path, base) == taken


def test_no_hook_filter_attribute_or_configuration_has_a_say(
    repository: Repository, work: Path
) -> None:
    base = repository.commit({"a.py": b"one\r\n", "b.bin": b"x\n"})
    tree.materialise(repository.path, base, work)
    proof = work.parent / "ran"
    run = f"#!/bin/sh\ntouch {proof}\n"
    for name in ("post-checkout", "pre-commit", "reference-transaction", "post-index-change"):
        hook = repository.path / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(run)
        hook.chmod(0o755)
    (work / ".gitattributes").write_text(
        "* text=auto eol=lf filter=evil -diff diff=evil working-tree-encoding=UTF-16 ident\n"
    )
    git(repository.path, "config", "filter.evil.clean", f"touch {proof}; cat")
    git(repository.path, "config", "diff.evil.textconv", f"touch {proof}; cat")
    git(repository.path, "config", "diff.external", f"touch {proof};")
    git(repository.path, "config", "core.autocrlf", "true")
    (work / "a.py").write_bytes(b"one\r\ntwo $Id$\r\n")
    taken = tree.build_tree(work, repository.path, base)
    patch = tree.patch(repository.path, base, taken.tree)
    blob = next(change.new_blob for change in taken.changes if change.name == "a.py")
    assert tree.read_blob(repository.path, blob) == b"one\r\ntwo $Id$\r\n"
    assert b"+two $Id$\r\n" in patch
    assert listed(taken) == {".gitattributes": "A", "a.py": "M"}
    assert not proof.exists()


def test_own_and_nested_repositories_are_left_out_and_told(
    repository: Repository, work: Path
) -> None:
    base = repository.commit({"a": b"1\n"})
    tree.materialise(repository.path, base, work)
    git(work, "init", "-q", ".")
    (work / "lib").mkdir()
    git(work / "lib", "init", "-q", ".")
    (work / "lib/code.py").write_text("x = 1\n")
    (work / "sub").mkdir()
    (work / "sub/.git").write_text("gitdir: ../.git/modules/sub\n")
    (work / "odd").mkdir()
    (work / "odd/.GIT").mkdir()
    (work / "odd/.GIT/config").write_text("[core]\n")
    (work / "git~1").write_text("x")
    taken = tree.build_tree(work, repository.path, base)
    assert listed(taken) == {"lib/code.py": "A"}
    assert {(item.name, item.reason, item.blocking) for item in taken.left_out} == {
        (".git", "own repository", False),
        ("git~1", "reads as .git", True),
        ("lib/.git", "nested repository", True),
        ("odd/.GIT", "reads as .git", True),
        ("sub/.git", "nested repository", True),
    }


def test_links_are_taken_as_links_and_never_followed(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    secret = work.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("not for the tree")
    (work / "a").write_text("1\n")
    (work / "file").symlink_to(secret / "key")
    (work / "folder").symlink_to(secret)
    taken = tree.build_tree(work, repository.path, base)
    assert listed(taken) == {"file": "A", "folder": "A"}
    assert all(change.new_mode == "120000" for change in taken.changes)
    assert b"not for the tree" not in tree.patch(repository.path, base, taken.tree)
    with pytest.raises(MaterialiseRefused, match="absolute path"):
        tree.materialise(repository.path, taken.tree, work.parent / "out")
    assert not (work.parent / "out").exists()


def test_devices_and_pipes_block(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    (work / "a").write_text("1\n")
    os.mkfifo(work / "pipe")
    taken = tree.build_tree(work, repository.path, base)
    assert [(item.name, item.reason, item.blocking) for item in taken.left_out] == [
        ("pipe", "special", True)
    ]


def test_only_the_sources_own_ignore_files_count(repository: Repository, work: Path) -> None:
    base = repository.commit(
        {
            ".gitignore": b"build/\n*.log\n",
            "kept.log": b"tracked\n",
            "deep/.gitignore": b"!wanted.log\n",
        }
    )
    tree.materialise(repository.path, base, work)
    (work / "kept.log").write_text("tracked and changed\n")
    for name in ("build/a", "build/b", "x.log", "deep/wanted.log", "pkg/__pycache__/m.pyc", "new"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    (work / ".gitignore").write_text("new\n")
    taken = tree.build_tree(work, repository.path, base)
    assert listed(taken) == {
        ".gitignore": "M", "kept.log": "M", "deep/wanted.log": "A", "new": "A",
    }  # fmt: skip
    assert [(item.name, item.reason, item.count) for item in taken.left_out] == [
        ("build/", "ignored", 2),
        ("pkg/__pycache__/m.pyc", "tool cache", 1),
        ("x.log", "ignored", 1),
    ]
    assert not any(item.blocking for item in taken.left_out)


def test_a_submodule_stays_until_files_take_its_place(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n", "lib": ("160000", b"1" * 40)})
    tree.materialise(repository.path, base, work)
    assert (work / "lib").is_dir()
    assert tree.build_tree(work, repository.path, base).changes == ()
    (work / "lib/code").write_text("x")
    taken = tree.build_tree(work, repository.path, base)
    assert listed(taken) == {"lib": "D", "lib/code": "A"}
    (work / "lib/code").unlink()
    (work / "lib").rmdir()
    assert tree.build_tree(work, repository.path, base).changes == ()


def test_a_link_out_that_the_source_has_stays_though_no_workspace_gets_it(
    repository: Repository, work: Path
) -> None:
    base = repository.commit(
        {"a": b"1\n", "out": ("120000", b"/etc/hosts"), "in": ("120000", b"a")}
    )
    with pytest.raises(MaterialiseRefused, match="absolute"):
        tree.materialise(repository.path, base, work)
    assert tree.materialise(repository.path, base, work, source=base) == 2
    assert not (work / "out").is_symlink()
    (work / "a").write_text("2\n")
    (work / "in").unlink()
    taken = tree.build_tree(work, repository.path, base)
    assert listed(taken) == {"a": "M", "in": "D"}
    again = work.parent / "again"
    assert tree.materialise(repository.path, taken.tree, again, source=base) == 1
    (work / "out").symlink_to("/etc/shadow")
    changed = tree.build_tree(work, repository.path, base)
    with pytest.raises(MaterialiseRefused, match="absolute"):
        tree.materialise(repository.path, changed.tree, work.parent / "third", source=base)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (TreeLimits(files=2), "more than 2 files"),
        (TreeLimits(total_bytes=5), "or 5 bytes"),
        (TreeLimits(file_bytes=3), "the limit for one file is 3"),
        (TreeLimits(depth=1), "1 directories deep"),
    ],
)
def test_a_limit_refuses_the_whole(
    repository: Repository, work: Path, limits: TreeLimits, words: str
) -> None:
    base = repository.commit({"a": b"1\n"})
    for name in ("a", "b", "d/e/f"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("1234")
    before = repository.objects()
    with pytest.raises(TreeRefused, match=words):
        tree.build_tree(work, repository.path, base, limits=limits)
    assert repository.objects() == before


def test_a_sparse_file_is_refused_before_it_is_read(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    with open(work / "huge", "wb") as out:
        out.truncate(1 << 40)
    with pytest.raises(TreeRefused, match="huge"):
        tree.build_tree(work, repository.path, base)


def test_paths_longer_than_a_system_call_takes(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    handle = os.open(work, os.O_DIRECTORY)
    for _ in range(40):
        os.mkdir("d" * 120, dir_fd=handle)
        deeper = os.open("d" * 120, os.O_DIRECTORY, dir_fd=handle)
        os.close(handle)
        handle = deeper
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
    os.close(handle)
    with pytest.raises(TreeRefused, match="longer than 4096 bytes"):
        tree.build_tree(work, repository.path, base)


def test_a_file_that_changes_under_the_reader_is_noticed(
    repository: Repository, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = repository.commit({"a": b"1\n"})
    (work / "a").write_text("2\n")
    send: Callable[..., None] = writing.send

    def change_first(pipe: object, found: Found, number: int) -> None:
        (work / "a").write_text("3\n")
        send(pipe, found, number)

    monkeypatch.setattr(writing, "send", change_first)
    with pytest.raises(TreeRefused, match="changed while it was read"):
        tree.build_tree(work, repository.path, base)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read_is_read(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    (work / "a").write_text("2\n")
    (work / "a").chmod(0)
    assert listed(tree.build_tree(work, repository.path, base)) == {"a": "M"}


def test_names_that_meet_on_this_file_system_or_leave_are_not_written(
    repository: Repository, work: Path
) -> None:
    commit = repository.commit({"a": b"1\n"})
    blob = tree.list_tree(repository.path, commit)[0].blob
    for name in ("..", ".git", ".GIT", "a\\..\\..\\b"):
        made = git(
            repository.path, "mktree", "-z", data=f"100644 blob {blob}\t{name}\0".encode()
        ).decode().strip()  # fmt: skip
        with pytest.raises(MaterialiseRefused):
            tree.materialise(repository.path, made, work / "out")
        assert not (work / "out").exists()


def test_nothing_is_written_into_a_directory_in_use(repository: Repository, work: Path) -> None:
    base = repository.commit({"a": b"1\n"})
    (work / "mine").write_text("x")
    with pytest.raises(MaterialiseRefused, match="not empty"):
        tree.materialise(repository.path, base, work)
    assert os.listdir(work) == ["mine"]


def test_many_files_are_taken_at_once(repository: Repository, work: Path) -> None:
    base = repository.commit({f"d{i % 40}/f{i}": b"%d\n" % i for i in range(3000)})
    tree.materialise(repository.path, base, work)
    for i in range(0, 3000, 2):
        (work / f"d{i % 40}/f{i}").write_text(f"changed {i}\n")
    taken = tree.build_tree(work, repository.path, base)
    assert len(taken.changes) == 1500
    assert {change.status for change in taken.changes} == {Status.MODIFIED}


def test_the_patch_has_a_section_for_every_change(repository: Repository, work: Path) -> None:
    base = repository.commit(BASE)
    tree.materialise(repository.path, base, work)
    (work / "run.sh").chmod(0o755)
    (work / "src/app.py").rename(work / "moved.py")
    (work / "data.bin").write_bytes(b"\0")
    taken = tree.build_tree(work, repository.path, base)
    shown = tree.patch(repository.path, base, taken.tree)
    assert shown.count(b"diff --git ") == len(taken.changes) == 3
    whole = tree.patch(repository.path, base, taken.tree, binary=True)
    index = {"GIT_INDEX_FILE": str(work.parent / "index"), **QUIET}
    for arguments in (("read-tree", base), ("apply", "--cached", "-")):
        subprocess.run(
            ["git", "-C", repository.path, *arguments], input=whole, env=index, check=True
        )
    written = subprocess.run(
        ["git", "-C", repository.path, "write-tree"], env=index, capture_output=True, check=True
    )
    assert written.stdout.decode().strip() == taken.tree


def test_repositories_with_longer_names_work_alike(tmp_path: Path, work: Path) -> None:
    bare = tmp_path / "long.git"
    git(tmp_path, "init", "-q", "--bare", "--object-format=sha256", "long.git")
    empty = git(bare, "hash-object", "-w", "-t", "tree", "/dev/null").decode().strip()
    (work / "a").write_text("1\n")
    first = tree.build_tree(work, bare, empty)
    (work / "a").write_text("2\n")
    second = tree.build_tree(work, bare, first.tree)
    assert len(second.tree) == 64
    assert listed(second) == {"a": "M"}
    assert b"+2\n" in tree.patch(bare, first.tree, second.tree)
    assert tree.read_blob(bare, second.changes[0].new_blob) == b"2\n"


def test_a_commit_is_a_function_of_its_arguments(repository: Repository) -> None:
    base = repository.commit({"a": b"1\n"})
    author = Author("Imprimatur", "portal@example.invalid")
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
    made = [
        tree.make_commit(repository.path, base, base, "A title.\n", author, when)
        for when in (moment, elsewhere)
    ]
    assert made[0] == made[1]
    text = git(repository.path, "cat-file", "commit", made[0]).decode()
    assert text == (
        f"tree {tree.tree_of(repository.path, base)}\nparent {base}\n"
        "author Imprimatur <portal@example.invalid> 1767323045 +0000\n"
        "committer Imprimatur <portal@example.invalid> 1767323045 +0000\n\nA title.\n"
    )
    with pytest.raises(TreeRefused, match="author"):
        tree.make_commit(repository.path, base, base, "x", Author("a\nb", "c"), moment)
    with pytest.raises(TreeRefused, match="message"):
        tree.make_commit(repository.path, base, base, " ", author, moment)


@pytest.mark.parametrize("name", ["HEAD", "--help", "0" * 40, "made", "", "deadbeef"])
def test_only_full_names_of_what_is_there_are_found(repository: Repository, name: str) -> None:
    repository.commit({"a": b"1\n"})
    with pytest.raises(ObjectMissing):
        tree.tree_of(repository.path, name)
    with pytest.raises(ObjectMissing):
        tree.read_blob(repository.path, name)
