"""Vectors of others, through our own code paths; they come from the package index."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from portal.canonical import canonical, parsed
from runs.agent.arguments import ArgumentsRefused, read_object
from tests.acceptance.vectors import verifier
from tests.acceptance.vectors.records import answer
from tests.acceptance.vectors.stage import Clock, Stage
from tests.credentials.services import Authorization, serving
from tests.packages import EVIDENCE_VECTORS
from tests.walk import Walk

pytestmark = pytest.mark.package_index


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, unpacked and never imported here."""
    return EVIDENCE_VECTORS.unpacked(tmp_path_factory.mktemp("vectors"))


def _written(text: str) -> bytes:
    """What an agent sends, as a digest covers it: read as arguments are, written as pages are."""
    return canonical(read_object(f'{{"case":{text}}}')["case"])


def test_bytes_of_rfc_8785(vectors: Path) -> None:
    """The digest of a page and the reader of a bundle agree with the published bytes."""
    (file,) = vectors.rglob("jcs-byte-vectors/cases.json")
    cases: dict[str, Any] = json.loads(file.read_text())
    good, bad = cases["canonicalCases"], cases["rejectCases"]
    assert (len(good), len(bad)) == (5, 3)
    for case in good:
        expected = bytes.fromhex(case["canonicalHex"])
        assert _written(case["input"]) == expected, case["id"]
        assert canonical(parsed(expected)) == expected, case["id"]
    for case in bad:
        with pytest.raises((ArgumentsRefused, ValueError)):
            _written(case["input"])
        with pytest.raises(ValueError):  # noqa: PT011 - the message is the decoder's
            parsed(case["input"].encode())


# --- Records of approvals --------------------------------------------------------------

SUITE = "agent_evidence_vectors.run_vectors"
OTHER_NAMES = {
    # The record says how old its evidence is, and that is not so. Here no age is ever told: the
    # database's clock measures it. Taken at its other word, the worker looked at the run before
    # there was an approval, and got nothing to act with.
    "evidence-age-inconsistent": "run_waiting",
    # An approver's change leaves an argument out that has a default. Here it is filled in before
    # anybody reads the call, so what the record rebuilds is not the call that was approved.
    "modify-drops-defaulted-field": "rebuild_not_identical",
}
"""Records denied here as well, under another name than the suite's."""


@pytest.fixture
def server() -> Iterator[Authorization]:
    with serving(Authorization()) as service:
        assert isinstance(service, Authorization)
        yield service


def judged(
    vectors: Path, corpus: str, place: Path, answer_one: Callable[[Path], Mapping[str, str]]
) -> dict[str, Any]:
    """The suite's report on a verifier that asks `answer_one` about every record."""
    address, report = place / "s", place / "report.json"
    command = shlex.join([sys.executable, "-S", "-E", str(verifier.__file__), str(address)])
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        listening.settimeout(0.2)
        suite = subprocess.Popen(
            (
                *(sys.executable, "-m", SUITE, "--corpus", corpus),
                *("--verifier", command, "--report", str(report)),
            ),
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(vectors)},
            stdout=subprocess.DEVNULL,
        )
        try:
            while suite.poll() is None:
                try:
                    asking, _ = listening.accept()
                except TimeoutError:
                    continue
                asking.settimeout(60)
                with asking, asking.makefile("rw") as line:
                    line.write(json.dumps(answer_one(Path(line.readline().strip()))) + "\n")
        finally:
            suite.kill()
            suite.wait()
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize(
    ("corpus", "records"),
    [
        ("vectors-approval-binding", 23),
        ("vectors-dispatch-fence", 13),
        ("vectors-authority-at-dispatch", 14),
        ("vectors-converted-argument-binding", 17),
    ],
)
def test_records_of_approvals(
    walk: Walk,
    server: Authorization,
    vectors: Path,
    tmp_path: Path,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    corpus: str,
    records: int,
) -> None:
    """Each record is played by the functions that a worker calls before an effect."""
    clock = Clock(datetime.now(UTC))
    clock.install(monkeypatch)
    stage = Stage(walk, clock, settings)

    report = judged(vectors, corpus, tmp_path, lambda path: answer(stage, corpus, path, server))

    assert report["verifier"]["vectorsExecuted"] == records
    manifest = vectors / "agent_evidence_vectors" / "corpora" / corpus / "MANIFEST.json"
    wanted = {each["id"]: each["expected"] for each in json.loads(manifest.read_text())["vectors"]}
    ours = {name: {"decision": "deny", "reason": OTHER_NAMES[name]} for name in OTHER_NAMES}
    assert report["failures"] == [
        f"{name}: expected {wanted[name]}, got {given}"
        for name, given in ours.items()
        if name in wanted
    ]
    assert all(wanted[name]["decision"] == "deny" for name in ours if name in wanted)
