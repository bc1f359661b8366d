"""The whole walk on a real library: its own tests are the verification, its own source the proof.

The source distribution comes from the package index. A bug is planted; an agent repairs it; what
is published has to be, byte for byte, what the library's authors wrote.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from approvals import receipt
from approvals.models import Candidate, Packet, Publication, Receipt
from approvals.states import Verdict
from portal import blobs
from portal.signing import signing_key
from runs.fetching import repositories_of
from runs.models import Run
from tests.cast import GIT_ENV, call, contract_text, git, make_run, make_version, say, transcript
from tests.packages import TOOLZ
from tests.real_walk import RealWalk

pytestmark = [
    pytest.mark.package_index,
    pytest.mark.parametrize(
        "provider",
        [
            pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
            pytest.param("docker", marks=pytest.mark.docker),
        ],
    ),
]

NAME, VERSION = TOOLZ.name, TOOLZ.version
MODULE = "toolz/itertoolz.py"
RIGHT = "    return itertools.islice(seq, 0, None, n)\n"
WRONG = "    return itertools.islice(seq, 1, None, n)\n"
SUITE = "python3 -m pytest -q -p no:cacheprovider"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library's source distribution, unpacked."""
    return TOOLZ.unpacked(tmp_path_factory.mktemp("library"))


def files(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Path → mode, as git has them, and bytes of every file of a folder."""
    return {
        str(path.relative_to(folder)): (
            "100755" if path.stat().st_mode & 0o100 else "100644",
            path.read_bytes(),
        )
        for path in folder.rglob("*")
        if path.is_file()
    }


def entries(repository: Path, revision: str) -> dict[str, tuple[str, bytes]]:
    """Path → mode and bytes of every file of a revision."""
    listed = subprocess.run(
        ("git", "ls-tree", "-r", "-z", revision),
        cwd=repository,
        env=GIT_ENV,
        capture_output=True,
        check=True,
    ).stdout
    found = {}
    for line in listed.split(b"\0")[:-1]:
        facts, _, path = line.partition(b"\t")
        mode, _, blob = facts.decode().split()
        content = subprocess.run(
            ("git", "cat-file", "blob", blob),
            cwd=repository,
            env=GIT_ENV,
            capture_output=True,
            check=True,
        ).stdout
        found[path.decode()] = (mode, content)
    return found


@dataclass
class Job:
    """The library as a job: its repository with a bug, and what its authors wrote."""

    walk: RealWalk
    library: Path
    repository: Path
    authors_tree: str

    def run(self, *steps: list[dict[str, object]]) -> Run:
        """A run whose agent plays these steps."""
        text = contract_text(
            name=f"repair-{NAME}", http=True, source=f"{NAME}.git", transcript=NAME
        ).replace("timeout_seconds = 120", "timeout_seconds = 600")
        version = make_version(self.walk.cast, text, recording=transcript(list(steps)))
        return make_run(self.walk.cast, version)


@pytest.fixture
def job(real_walk: RealWalk, library: Path, provider: str, tmp_path: Path) -> Iterator[Job]:
    real_walk.provider = provider
    work = tmp_path / "work"
    work.mkdir()
    git("init", "-q", "-b", "main", cwd=work)
    git("--work-tree", str(library), "add", "-A", "-f", cwd=work)
    authors = git("write-tree", cwd=work)
    git("checkout-index", "-a", cwd=work)
    source = (work / MODULE).read_text()
    assert source.count(RIGHT) == 1
    (work / MODULE).write_text(source.replace(RIGHT, WRONG))
    git("add", "-A", "-f", cwd=work)
    git("commit", "-q", "-m", f"{NAME} {VERSION}", cwd=work)
    repository = repositories_of(real_walk.cast.acme) / f"{NAME}.git"
    git("clone", "-q", "--bare", str(work), str(repository), cwd=tmp_path)
    real_walk.web()
    real_walk.worker(RUN_LEASE="10")
    yield Job(real_walk, library, repository, authors)
    assert provider != "docker" or real_walk.containers() == []


REPAIR = [
    [
        call(
            "see",
            "exec_command",
            cmd=f"{SUITE} {NAME}/tests/test_itertoolz.py",
            yield_time_ms=60000,
        )
    ],
    [call("file", "create_issue", title="take_nth leaves the first one out")],
    [
        call(
            "fix",
            "apply_patch",
            patch=[
                "*** Begin Patch",
                f"*** Update File: repo/{MODULE}",
                "@@",
                f"-{WRONG.rstrip()}",
                f"+{RIGHT.rstrip()}",
                "*** End Patch",
            ],
        )
    ],
    [call("try", "exec_command", cmd=SUITE, yield_time_ms=120000)],
    [
        call(
            "report",
            "exec_command",
            cmd="echo 'It begins with the first one.' > ../output/report.md",
        )
    ],
    [say("take_nth takes the first one again, and the suite passes.")],
]
NO_REPAIR = [
    [call("note", "exec_command", cmd="echo 'Known to be wrong.' >> README.rst")],
    [say("I only wrote it down.")],
]


def test_what_is_published_is_what_the_authors_wrote(job: Job, provider: str) -> None:
    walk = job.walk
    run = job.run(*REPAIR)
    asked = walk.until_asked(run, "call")
    seen = run.calls.get(call_id="see")
    assert seen.exit_code == 1
    assert "test_take_nth" in seen.result
    assert walk.sent(run, "file") == 0
    walk.decide(asked)

    packet = walk.until_asked(run, "publication")
    assert walk.sent(run, "file") == 1
    assert run.calls.get(call_id="try").exit_code == 0
    candidate = Candidate.objects.get(run=run)
    verified = Receipt.objects.get(candidate=candidate, check_name="verification")
    assert verified.outcome == "passed"
    assert verified.evidence["provider"] == provider
    assert verified.evidence["tree"] == candidate.tree == job.authors_tree
    assert " passed" in blobs.get(run.tenant_id, verified.evidence_blob).decode()
    refs = [event.facts["sandbox"] for event in run.events.filter(kind__startswith="sandbox.")]
    assert len(set(refs)) == len(refs) == 2  # before and after the first gate; a third verified
    walk.decide(packet)

    walk.until_status(run, "published")
    done = Publication.objects.get(run=run)
    assert walk.branches(job.repository) == {
        "main": candidate.base_commit,
        done.branch: done.commit,
    }
    packet.refresh_from_db()
    assert packet.page["candidate"]["tree"] == done.tree == job.authors_tree
    assert git("rev-parse", f"{done.branch}^{{tree}}", cwd=job.repository) == job.authors_tree
    published = entries(job.repository, done.branch)
    assert published == files(job.library)
    assert published[MODULE][1].decode().count(RIGHT) == 1

    assert done.statement is not None
    statement = receipt.verify(done.statement, [signing_key().public_key()])
    assert statement["subject"][0]["digest"]["gitTree"] == job.authors_tree
    assert statement["predicate"]["commit"] == done.commit
    assert statement["predicate"]["packet_digest"] == packet.digest
    assert statement["predicate"]["receipts"]["verification"]["outcome"] == "passed"
    walk.until_clean()


def test_without_the_repair_the_suite_fails_and_nothing_can_be_approved(
    job: Job, provider: str
) -> None:
    walk = job.walk
    run = job.run(*NO_REPAIR)
    packet = walk.until_asked(run, "publication")
    verified = Receipt.objects.get(candidate__run=run, check_name="verification")
    assert verified.outcome == "failed"
    assert verified.evidence["exit_code"] == 1
    assert "test_take_nth" in blobs.get(run.tenant_id, verified.evidence_blob).decode()
    assert "verification" in Packet.objects.get(pk=packet.pk).blocked
    walk.decide(packet, Verdict.DENY, "It repairs nothing.")
    walk.until_status(run, "denied")
    assert set(walk.branches(job.repository)) == {"main"}
    walk.until_clean()
