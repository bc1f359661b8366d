"""How a command in a container and a thread of ours come to share one connection.

A folder of the host is mounted there, read-only, and is empty but for the moments in which a socket
stands in it. Whoever makes one sees to it that nothing of the agent's runs meanwhile.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path

from runs.sandbox.running import Flow

INSIDE = "/carry"
"""Where the folder is mounted."""


class Meeting:
    """One socket for one command, which `carry.py` runs, and for the flow that talks to it."""

    def __init__(self, folder: Path, flow: Flow) -> None:
        name = secrets.token_hex(8)
        self.inside = f"{INSIDE}/{name}"
        self._flow = flow
        self._path = folder / name
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            entry = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                # By way of the descriptor: the path of a socket is short, a folder's may not be.
                self._listener.bind(f"/proc/self/fd/{entry}/{name}")
            finally:
                os.close(entry)
            self._path.chmod(0o666)
            self._listener.listen(1)
        except BaseException:
            self.close()
            raise

    def meet(self) -> bool:
        """Wait for the command and let the flow talk to it; False if it never came. Blocks."""
        try:
            met, _ = self._listener.accept()
        except OSError:
            return False
        self._path.unlink(missing_ok=True)
        with met:
            self._flow(met.fileno())
        return True

    def over(self) -> None:
        """The command has ended: one that has not come yet does not come any more."""
        self._listener.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        self._listener.close()
        self._path.unlink(missing_ok=True)
