"""The verifier over a bundle of a million lines, against the least that could be done with them.

Bare: each line is parsed with `json.loads` and hashed once with SHA-256, in one pass over the same
file. The two take turns in one process, and it is its own seconds of the processor that count:
neither waits for anything. The verifier is also run as its command, to see how much
memory it takes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from approvals.bundle_form import END_TYPE, framed, lines_of
from approvals.verifier import verified
from portal import dsse
from portal.canonical import canonical
from portal.evidence import CHECKPOINT_TYPE, GENESIS
from tests.bench.report import Report

CHECKPOINT_EVERY = 100
BAR = 4.0
# What the verifier may need more for a long bundle than for one of a hundredth, in megabytes.
MEMORY_BAR = 16.0
_MEASURED = (
    "import resource, sys; from approvals.verify import main; status = main(sys.argv[1:]);"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024); sys.exit(status)"
)


def main() -> None:
    from tests.bench.ground import small

    rows = 50_000 if small() else 1_000_000
    report = Report(f"verify: a bundle of {rows:,} audit lines", "no database")
    key = Ed25519PrivateKey.generate()
    name = dsse.key_id(key.public_key())
    with tempfile.TemporaryDirectory() as folder:
        file, short = Path(folder) / "long.jsonl", Path(folder) / "short.jsonl"
        size = _write(file, rows, key)
        _write(short, rows // 100, key)
        report.say(f"{size / 1e6:,.0f} MB, {size / rows:,.0f} bytes for each line")
        bare, ours = [], []
        for _ in range(3):
            bare.append(_bare(file))
            ours.append(_verified(file, name))
        floor = report.took("json.loads and SHA-256 of each line", bare)
        mine = report.took("approvals.verify", ours)
        report.say(f"{rows / mine.median * 1000:,.0f} lines/s")
        report.bar("times the bare pass", mine.median / floor.median, BAR)
        grown = _memory(file, name) - _memory(short, name)
        report.bar("MB more than for a hundredth of the lines", grown, MEMORY_BAR)
    report.end()


def _bare(file: Path) -> float:
    began = time.process_time()
    with file.open("rb") as lines:
        for line in lines:
            json.loads(line)
            hashlib.sha256(line).hexdigest()
    return time.process_time() - began


def _verified(file: Path, key: str) -> float:
    began = time.process_time()
    with file.open("rb") as lines:
        report = verified(lines_of(lines), [key])
    taken = time.process_time() - began
    assert report.status == 0, report.problems
    return taken


def _memory(file: Path, key: str) -> float:
    """The most the command ever held, in megabytes."""
    command = (sys.executable, "-c", _MEASURED, str(file), "--key", key)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


# --- A bundle without a portal --------------------------------------------------------


def _write(file: Path, rows: int, key: Ed25519PrivateKey) -> int:
    read, lines, last = hashlib.sha256(), 0, GENESIS
    with file.open("wb") as out:
        for line, last in _log(rows, key):  # noqa: B007 - the last one is wanted below
            read.update(line)
            lines += 1
            out.write(line)
        said = {"tenant": 7, "seq": rows, "hash": last, "lines": lines, "sha256": read.hexdigest()}
        out.write(framed("end", dsse.sign(said, END_TYPE, key)))
        return out.tell()


def _log(rows: int, key: Ed25519PrivateKey) -> Iterator[tuple[bytes, str]]:
    last = GENESIS
    header = {"version": 1, "tenant": "acme", "tenant_key": 7, "after": {"seq": 0, "hash": last}}
    yield framed("bundle", header), last
    for seq in range(1, rows + 1):
        entry = _entry(seq, last)
        last = hashlib.sha256(canonical(entry)).hexdigest()
        yield framed("audit", entry), last
        if seq % CHECKPOINT_EVERY == 0:
            said = {"tenant": 7, "seq": seq, "hash": last}
            yield framed("checkpoint", dsse.sign(said, CHECKPOINT_TYPE, key)), last


def _entry(seq: int, previous: str) -> dict[str, object]:
    """A line as the portal writes them when a credential was used, the most frequent one."""
    return {
        "tenant": 7,
        "seq": seq,
        "at": f"2026-11-30T05:20:51.{seq % 1_000_000:06}+00:00",
        "action": "credential.minted",
        "subject": f"credentialgrant:{seq}",
        "actor": None,
        "facts": {
            "credential": "forge",
            "scope": {"audience": "forge.example", "actions": ["read", "write"], "n": seq % 60},
        },
        "previous": previous,
    }


if __name__ == "__main__":
    main()
