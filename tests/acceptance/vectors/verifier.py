"""The command that the suite calls for each record: it asks the test that has the database.

    python verifier.py SOCKET RECORD --json

Prints one JSON object with `decision` and `reason`; the exit status is 0 for allow, 1 for deny.
It starts in milliseconds, because it knows nothing: what answers is `tests.acceptance.vectors`.
"""

from __future__ import annotations

import json
import socket
import sys


def main() -> int:
    place, record = sys.argv[1:3]
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(place)
        asking.sendall(f"{record}\n".encode())
        answer = json.loads(asking.makefile().readline())
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return {"allow": 0, "deny": 1}[answer["decision"]]


if __name__ == "__main__":
    sys.exit(main())
