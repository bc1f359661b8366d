"""Run a command whose input or output is a socket of the host's.

Runs inside a sandbox, from the image's read-only root. The engine would carry the same bytes as
well, through two more programs and in small pieces. Standard library only.

    carry.py 0|1 SOCKET COMMAND…    connect, and become the command with that descriptor connected
"""

from __future__ import annotations

import os
import socket
import sys


def main(descriptor: int, path: str, command: list[str]) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as host:
        host.connect(path)
        os.dup2(host.fileno(), descriptor)
    os.execvp(command[0], command)  # noqa: S606 - inside, and a command of the portal's own


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
