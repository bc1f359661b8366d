"""`python -m tests.bench [NAME...] [--database sqlite|postgres|both] [--small]`.

Each measurement is a program of its own in a fresh process, on a throwaway installation. It
prints its raw figures and ratios that were taken in the same run, and exits with 1 if a bar was
missed. Not part of the tests: figures of a busy machine prove nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

# The measurements, and whether the database makes a difference to them.
NAMES = {
    "resume": True,
    "fanout": True,
    "decision": True,
    "queue_page": True,
    "queue_filters": True,
    "events": True,
    "stack": False,
    "egress": False,
    "sandboxes": False,
    "snapshots": False,
    "locks": False,
    "verify": False,
    "simulator": True,
}


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.bench", description=__doc__)
    parser.add_argument("name", nargs="*", choices=[*NAMES, []], help="all, if none is named")
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--small", action="store_true", help="fewer rows and rounds, to try it out")
    options = parser.parse_args()
    databases = ("sqlite", "postgres") if options.database == "both" else (options.database,)
    missed = []
    for name in options.name or NAMES:
        for database in databases if NAMES[name] else ("sqlite",):
            environment = {
                **os.environ,
                "IMPRIMATUR_TEST_DATABASE": database,
                # Commits that are not written to disk would flatter whatever is built from them.
                "IMPRIMATUR_TEST_DURABLE": "1",
                "IMPRIMATUR_BENCH_SMALL": "1" if options.small else "",
            }
            command = (sys.executable, "-m", f"tests.bench.{name}")
            if subprocess.run(command, env=environment, check=False).returncode:
                missed.append(f"{name} on {database}")
    if missed:
        print(f"\nMissed or broken: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
