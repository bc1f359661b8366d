"""The first process of a container: takes in orphans, keeps one program running, ends in time.

It must neither fork to go on (a fork bomb leaves it no room) nor die of a signal from inside.
Standard library only.

    first.py SECONDS [COMMAND…]
"""

from __future__ import annotations

import os
import signal
import sys
import time

PATIENCE = 2.0
"""Between two tries to start the program, and between two looks at the clock."""


def main(seconds: int, command: list[str]) -> None:
    # The kernel keeps SIGKILL and whatever has no handler away from a first process. Python has
    # made itself a handler for SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    end = time.monotonic() + seconds
    child = 0
    while (left := end - time.monotonic()) > 0:
        if command and not child:
            try:
                child = os.posix_spawn(command[0], command, os.environ, setsigmask=())
            except OSError:
                child = 0  # no room now; the next turn tries again
        signal.sigtimedwait({signal.SIGCHLD}, min(left, PATIENCE))
        child = 0 if child in _ended() else child


def _ended() -> set[int]:
    ended: set[int] = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.add(pid)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
