"""From the entries of a git tree to plain files: judge all of them first, then write."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, TypeAlias

from runs.contract import Source
from runs.gitcmd import Git, SourceRefused, kill_group, timed_out
from runs.links import judge_links

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
LFS_MARK = b"version https://git-lfs.github.com/spec/"
LFS_MOST = 1024
CHUNK = 1 << 16

Why: TypeAlias = Literal["submodule", "lfs pointer", "link out"]


@dataclass(frozen=True)
class LeftOut:
    """Something of the source that is not, or not wholly, in the workspace."""

    path: str
    why: Why


@dataclass(frozen=True)
class CheckoutInfo:
    """What was written. `left_out` also names LFS pointers, which are there as pointers only."""

    files: int
    bytes: int
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class Entry:
    """One line of a tree. `size` is 0 for a submodule."""

    mode: str
    object: str
    size: int
    path: bytes

    @classmethod
    def read(cls, record: bytes) -> Entry:
        head, _, path = record.partition(b"\t")
        mode, _kind, name, size = head.decode("ascii").split()
        return cls(mode, name, 0 if size == "-" else int(size), path)

    @property
    def shown(self) -> str:
        return self.path.decode("utf-8", "backslashreplace")


# --- Judging ------------------------------------------------------------------------------------


def judge_entries(
    git: Git, entries: Sequence[Entry], spec: Source, max_files: int, max_bytes: int
) -> tuple[list[Entry], tuple[LeftOut, ...]]:
    """The entries to write, and what is left out. Raises `SourceRefused` by the source's rules."""
    for entry in entries:
        check_path(entry)
    if len(entries) > max_files:
        raise SourceRefused(
            "source.too_many_files",
            f"The source has {len(entries)} files, and {max_files} are allowed. Use a smaller one.",
        )
    total = sum(entry.size for entry in entries)
    if total > max_bytes:
        raise SourceRefused(
            "source.too_large",
            f"The source's files have {total} bytes, and {max_bytes} are allowed. Use a smaller "
            "repository, or raise workspace_mb.",
        )
    modules = [entry for entry in entries if entry.mode == SUBMODULE]
    out = links_out(git, [entry for entry in entries if entry.mode == LINK])
    pointers = lfs_pointers(git, entries)
    refuse(modules, "source.submodule", "a submodule", spec.submodules, "submodules", "leave-out")
    refuse(
        out,
        "source.link_out",
        "a link out of the repository",
        spec.links_out,
        "links_out",
        "leave-out",
    )
    refuse(pointers, "source.lfs_pointer", "a Git LFS pointer", spec.lfs, "lfs", "keep-pointers")
    gone = {entry.path for entry in (*modules, *out)}
    left_out = [LeftOut(entry.shown, "submodule") for entry in modules]
    left_out += [LeftOut(entry.shown, "link out") for entry in out]
    left_out += [LeftOut(entry.shown, "lfs pointer") for entry in pointers]
    kept = [entry for entry in entries if entry.path not in gone]
    return kept, tuple(sorted(left_out, key=lambda each: each.path))


def refuse(found: Sequence[Entry], code: str, what: str, rule: str, key: str, instead: str) -> None:
    """Refuse the first, and say how many, unless the contract says otherwise."""
    if not found or rule != "refuse":
        return
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    raise SourceRefused(
        code,
        f"{found[0].shown} is {what}{more}. Remove it from the repository, or write "
        f'{key} = "{instead}" under [source].',
    )


def check_path(entry: Entry) -> None:
    """A path every later step can name, and that cannot leave or become a repository."""
    parts = entry.path.split(b"/")
    reason = ""
    if entry.mode not in {FILE, PROGRAM, LINK, SUBMODULE, "100664"}:
        reason = f"has the unknown mode {entry.mode}"
    elif any(part in {b"", b".", b".."} for part in parts):
        reason = "would leave its folder"
    elif any(part.lower().rstrip(b" .") == b".git" or part.lower() == b"git~1" for part in parts):
        reason = "is inside a .git folder"
    elif any(len(part) > 255 for part in parts) or len(entry.path) > 4000:
        reason = "is too long"
    else:
        try:
            text = entry.path.decode("utf-8")
        except UnicodeDecodeError:
            reason = "is not UTF-8"
        else:
            if any(unicodedata.category(each) == "Cc" for each in text):
                reason = "contains a control character"
    if reason:
        raise SourceRefused(
            "source.bad_path",
            f"The path {ascii(entry.shown)[:200]} {reason}. Rename it in the repository.",
        )


def links_out(git: Git, links: Sequence[Entry]) -> list[Entry]:
    targets = dict(zip((link.path for link in links), contents(git, links), strict=True))
    judged = judge_links(targets)
    return [link for link in links if judged[link.path] == "outside"]


def lfs_pointers(git: Git, entries: Sequence[Entry]) -> list[Entry]:
    """Small files that begin as a pointer of the LFS specification does."""
    small = [
        entry
        for entry in entries
        if entry.mode not in {LINK, SUBMODULE} and len(LFS_MARK) < entry.size <= LFS_MOST
    ]
    found = zip(small, contents(git, small), strict=True)
    return [entry for entry, content in found if content.startswith(LFS_MARK)]


# --- Reading objects ----------------------------------------------------------------------------


def contents(git: Git, entries: Sequence[Entry]) -> list[bytes]:
    """The whole content of small objects."""
    if not entries:
        return []
    with reader(git) as read:
        return [b"".join(read(entry)) for entry in entries]


class Reader:
    """Asks one `git cat-file --batch` for one object after the other."""

    def __init__(self, ask: IO[bytes], answer: IO[bytes]) -> None:
        self.ask, self.answer = ask, answer

    def __call__(self, entry: Entry) -> Iterator[bytes]:
        """The content in pieces; it must be read to its end before the next is asked for."""
        self.ask.write(entry.object.encode() + b"\n")
        self.ask.flush()
        head = self.answer.readline().split()
        if len(head) != 3 or head[1] != b"blob" or int(head[2]) != entry.size:
            raise SourceRefused(
                "source.damaged",
                f"The content of {entry.shown} is missing in the cache. Fetch the source again.",
            )
        left = entry.size
        while left:
            piece = self.answer.read(min(left, CHUNK))
            if not piece:
                raise SourceRefused("source.damaged", f"{entry.shown} could not be read whole.")
            left -= len(piece)
            yield piece
        self.answer.read(1)


@contextmanager
def reader(git: Git) -> Iterator[Reader]:
    """A reader that ends with the block, or when the time is up."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with git.process(("cat-file", "--batch"), **pipes) as process:
        late = threading.Event()

        def stop() -> None:
            late.set()
            with suppress(OSError):
                kill_group(process)

        clock = threading.Timer(git.timeout, stop)
        clock.start()
        try:
            if process.stdin is None or process.stdout is None:
                raise SourceRefused("source.git_failed", "git gave no pipes.")
            with process.stdin, process.stdout:
                yield Reader(process.stdin, process.stdout)
        except (SourceRefused, OSError):
            if late.is_set():
                raise timed_out(git.timeout) from None
            raise
        finally:
            clock.cancel()


# --- Writing ------------------------------------------------------------------------------------


def write_entries(
    git: Git, entries: Sequence[Entry], dest: Path, left_out: tuple[LeftOut, ...]
) -> CheckoutInfo:
    """Write files first and links last, so nothing can be written through a link."""
    made = not dest.exists()
    dest.mkdir(parents=True, exist_ok=True)
    if any(dest.iterdir()):
        raise SourceRefused(
            "source.not_empty", f"{dest} is not empty, so the source was not written. Empty it."
        )
    files = [entry for entry in entries if entry.mode != LINK]
    links = [entry for entry in entries if entry.mode == LINK]
    try:
        with reader(git) as read:
            for entry in files:
                place_file(dest, entry, read(entry))
            for entry in links:
                place_link(dest, entry, b"".join(read(entry)))
    except BaseException:
        empty(dest, made)
        raise
    for each in left_out:
        if each.why == "submodule":
            # Empty, as git leaves one that was not fetched: without it a candidate would seem to
            # delete the submodule.
            (dest / each.path).mkdir(parents=True, exist_ok=True)
    return CheckoutInfo(len(entries), sum(entry.size for entry in entries), left_out)


def place_file(dest: Path, entry: Entry, pieces: Iterable[bytes]) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(dest), entry.path)))
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o755 if entry.mode == PROGRAM else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, mode), "wb") as out:
        os.fchmod(out.fileno(), mode)
        for piece in pieces:
            out.write(piece)


def place_link(dest: Path, entry: Entry, target: bytes) -> None:
    path = os.path.join(os.fsencode(dest), entry.path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)


def empty(dest: Path, made: bool) -> None:
    """Leave the place as it was found."""
    for inside in dest.iterdir():
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside, ignore_errors=True)
        else:
            inside.unlink(missing_ok=True)
    if made:
        dest.rmdir()
