"""Read and write one file inside a sandbox. Runs there, from the image's read-only root.

Not a boundary: it runs as the agent's user, and the sandbox around it is what confines it. It is
here so that every provider opens files in the same way: no waiting on a FIFO, no device, no path
through a link that leads out of the workspace. Standard library only, and no import of ours.

    inside.py read PATH MAX            the file's first MAX + 1 bytes to standard output
    inside.py write PATH MODE new|any  standard input to the file, its folders made as needed
"""

from __future__ import annotations

import errno
import os
import stat
import sys

WORKSPACE = "/workspace"

# Exit codes; the host turns them into reasons.
NOT_FOUND, OUTSIDE, NOT_A_FILE, READ_ONLY, NO_SPACE, EXISTS, OTHER = 40, 41, 42, 43, 44, 45, 46

_BY_ERRNO = {
    errno.ENOENT: NOT_FOUND,
    errno.ENOTDIR: NOT_A_FILE,
    errno.EISDIR: NOT_A_FILE,
    errno.ENXIO: NOT_A_FILE,
    errno.ELOOP: NOT_A_FILE,
    errno.EROFS: READ_ONLY,
    errno.EACCES: READ_ONLY,
    errno.EPERM: READ_ONLY,
    errno.ENOSPC: NO_SPACE,
    errno.EDQUOT: NO_SPACE,
    errno.EFBIG: NO_SPACE,
    errno.EEXIST: EXISTS,
}


def resolved(path: str) -> str:
    real = os.path.realpath(path)
    if not real.startswith(WORKSPACE + "/"):
        print(f"{path} leads to {real}", file=sys.stderr)
        raise SystemExit(OUTSIDE)
    return real


def opened(path: str, flags: int, mode: int = 0) -> int:
    # O_NONBLOCK: opening a FIFO that nobody writes to would wait for ever.
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise SystemExit(NOT_A_FILE)
    return fd


def read(path: str, limit: int) -> None:
    fd = opened(resolved(path), os.O_RDONLY)
    left = limit + 1
    while left > 0 and (chunk := os.read(fd, min(left, 1 << 20))):
        left -= len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(1, view) :]


def write(path: str, mode: int, *, new: bool) -> None:
    folder, name = os.path.split(path)
    folder = resolved(folder)
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError:
        raise SystemExit(NOT_A_FILE) from None
    where = os.path.join(folder, name)
    if new:
        fd = opened(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    else:
        fd = opened(resolved(where), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    while chunk := os.read(0, 1 << 20):
        view = memoryview(chunk)
        while view:
            view = view[os.write(fd, view) :]
    if new or mode & 0o111:
        os.fchmod(fd, mode)
    os.close(fd)


def main(arguments: list[str]) -> int:
    try:
        match arguments:
            case ["read", path, limit]:
                read(path, int(limit))
            case ["write", path, mode, how]:
                write(path, int(mode, 8), new=how == "new")
            case _:
                return 2
    except OSError as failed:
        print(failed.strerror, file=sys.stderr)
        return _BY_ERRNO.get(failed.errno or 0, OTHER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
