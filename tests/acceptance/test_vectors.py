"""Vectors of others, through our own code paths; they come from the package index."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from portal.canonical import canonical, parsed
from runs.agent.arguments import ArgumentsRefused, read_object
from tests import parts

pytestmark = pytest.mark.package_index
NAME, VERSION = "agent-evidence-vectors", "0.27.0"


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distribution, unpacked and never imported."""
    place = tmp_path_factory.mktemp("vectors")
    fetched = subprocess.run(
        (*parts.pip(), "download", "--only-binary", ":all:", "--no-deps", f"{NAME}=={VERSION}"),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert fetched.returncode == 0, fetched.stderr
    (wheel,) = place.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


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
