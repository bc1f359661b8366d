"""Distributions of others, fetched from the package index where a test needs them.

Each is pinned by version and by the SHA-256 of its file. What comes is unpacked and never
installed; who runs it does so in a process of its own.
"""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tests import parts


@dataclass(frozen=True)
class Package:
    """One file of the index: a wheel of pure Python, or a source distribution."""

    name: str
    version: str
    sha256: str
    wheel: bool = True

    def unpacked(self, place: Path) -> Path:
        """The files of the distribution, below `place`."""
        (place / "wanted.txt").write_text(
            f"{self.name}=={self.version} --hash=sha256:{self.sha256}"
        )
        only = "--only-binary" if self.wheel else "--no-binary"
        fetched = subprocess.run(
            (
                *(*parts.pip(), "download", "-q", "--disable-pip-version-check", "--no-deps"),
                *(only, ":all:", "--require-hashes", "-r", "wanted.txt"),
            ),
            cwd=place,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert fetched.returncode == 0, fetched.stderr
        if self.wheel:
            (file,) = place.glob("*.whl")
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(place)
            return place
        (file,) = place.glob("*.tar.gz")
        with tarfile.open(file) as archive:
            archive.extractall(place, filter="data")
        return place / f"{self.name}-{self.version}"


TOOLZ = Package(
    "toolz",
    "1.0.0",
    "2c86e3d9a04798ac556793bced838816296a2f085017664e4995cb40a1047a02",
    wheel=False,
)
EVIDENCE_VECTORS = Package(
    "agent-evidence-vectors",
    "0.27.0",
    "bc37690a57fdc3f09cbeff8f694ac00677287780659409d645ca74022139f304",
)
AGENTACK = Package(
    "agentack",
    "0.6.3",
    "e9ee30e3ffa191b44215241c3521b8aa0bd153b06ff71bfcefa951b5a99c1bd1",
)
AGENTBARRIER = Package(
    "agentbarrier",
    "1.1.0",
    "cc866bc496f984298f03c075b09476384da20d6c3ccc74166001b86e658e7173",
)
