"""Carry connections to 127.0.0.1:3128 inside a sandbox to the socket of the run's egress proxy.

Runs inside the sandbox, whose network holds nothing but its own loopback; the socket is the one
way out, and what may pass is decided at its other end. Standard library only, and little of that:
where every command has a network of its own, this starts before every command.

    forward.py SOCKET             carry for ever
    forward.py SOCKET COMMAND…    carry in the background, and become the command
    forward.py --wait             end when somebody carries
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time

PORT = 3128
MOST_WAITING = 1 << 18
"""Bytes of one direction that are held while nobody takes them."""

MOST_AT_ONCE = 64
"""Connections; more wait in the kernel."""


class End:
    """One of the two sockets of a connection, and what waits to be sent to it."""

    __slots__ = ("ended", "interest", "other", "shut", "socket", "waiting", "watched")

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.other = self
        self.waiting = bytearray()
        self.ended = False  # nothing more comes from it
        self.shut = False  # nothing more is sent to it
        self.interest = select.EPOLLIN
        self.watched = True


class Carrier:
    """All connections, in one thread."""

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener = listener
        self._path = path
        self._poll = select.epoll()
        self._ends: dict[int, End] = {}
        listener.setblocking(False)
        self._poll.register(listener, select.EPOLLIN)

    def serve(self) -> None:
        """For ever."""
        listening = self._listener.fileno()
        while True:
            for number, events in self._poll.poll():
                if number == listening:
                    self._accept()
                elif (end := self._ends.get(number)) is not None:
                    self._moved(end, events)

    def _accept(self) -> None:
        try:
            taken, _ = self._listener.accept()
        except OSError:
            return
        out = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            out.connect(self._path)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            out.close()
            taken.close()
            return
        near, far = End(taken), End(out)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends[end.socket.fileno()] = end
            self._poll.register(end.socket, select.EPOLLIN)
        if len(self._ends) >= 2 * MOST_AT_ONCE:
            self._poll.modify(self._listener, 0)

    def _moved(self, end: End, events: int) -> None:
        gone = events & (select.EPOLLHUP | select.EPOLLERR)
        if gone and end.ended and end.watched:
            # The kernel would say so for ever. What it still owes the other end is sent there.
            end.watched = False
            self._poll.unregister(end.socket)
        try:
            if events & select.EPOLLOUT:
                self._send(end)
            if gone or events & select.EPOLLIN:
                self._receive(end)
        except OSError:
            self._close(end)
            return
        if end.ended and end.other.ended and not end.waiting and not end.other.waiting:
            self._close(end)
        else:
            self._wish(end)
            self._wish(end.other)

    def _receive(self, end: End) -> None:
        if end.ended:
            return
        try:
            data = end.socket.recv(1 << 16)
        except BlockingIOError:
            return
        if not data:
            end.ended = True
        end.other.waiting += data
        self._send(end.other)

    def _send(self, end: End) -> None:
        try:
            while end.waiting:
                del end.waiting[: end.socket.send(end.waiting)]
        except BlockingIOError:
            return
        if end.other.ended and not end.shut:
            end.shut = True
            end.socket.shutdown(socket.SHUT_WR)

    def _wish(self, end: End) -> None:
        """Ask the kernel for what is wanted now, and only if that changed."""
        interest = select.EPOLLOUT if end.waiting else 0
        if not end.ended and len(end.other.waiting) < MOST_WAITING:
            interest |= select.EPOLLIN
        if end.watched and interest != end.interest:
            end.interest = interest
            self._poll.modify(end.socket, interest)

    def _close(self, end: End) -> None:
        for each in (end, end.other):
            self._ends.pop(each.socket.fileno(), None)
            each.socket.close()
        self._poll.modify(self._listener, select.EPOLLIN)


def become(command: list[str]) -> None:
    """The command in our place; a program that does not exist ends as it does in a shell."""
    try:
        os.execvp(command[0], command)  # noqa: S606 - inside, the agent's own command
    except OSError as failed:
        print(f"sh: 1: exec: {command[0]}: {failed.strerror}", file=sys.stderr)
        raise SystemExit(127) from None


def wait() -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(1)


def main(arguments: list[str]) -> None:
    if arguments == ["--wait"]:
        wait()
        return
    path, *command = arguments
    listening = socket.create_server(("127.0.0.1", PORT), backlog=MOST_AT_ONCE)
    if command and os.fork():
        listening.close()
        become(command)
    if command:
        # The command's output ends with the command, not with us; nor does a key that is typed
        # into its terminal mean us.
        os.setsid()
        silence = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(silence, stream)
    Carrier(listening, path).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
