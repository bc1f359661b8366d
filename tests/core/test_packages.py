"""What a request for network says about packages, and what it does not say."""

from __future__ import annotations

import pytest

from runs.egress.packages import MOST, packages_of


@pytest.mark.parametrize(
    ("purpose", "path", "named"),
    [
        ("pip install requests==2.31 numpy", "", ("pip requests", "pip numpy")),
        ("To run `pip3 install -q Flask[async]>=3` for the tests", "", ("pip flask",)),
        ("npm install @types/node left-pad@1.3.0, then build", "", None),
        ("apt-get install -y libxml2-dev and more", "", ("apt libxml2-dev",)),
        ("cargo add serde. It is missing.", "", ("cargo serde",)),
        ("go get golang.org/x/tools", "", ("go golang.org/x/tools",)),
        ("to read the index", "/simple/Requests/", ("pip requests",)),
        ("pip install requests", "/simple/requests", ("pip requests",)),
        ("to install what is needed with pip", "/files", ()),
        ("pip install", "", ()),
        ("", "", ()),
    ],
)
def test_packages_are_read_from_words_and_path(
    purpose: str, path: str, named: tuple[str, ...] | None
) -> None:
    found = packages_of(purpose, path)
    if named is None:
        assert found[:2] == ("npm @types/node", "npm left-pad")
    else:
        assert found == named


def test_a_long_request_names_no_more_than_a_few() -> None:
    assert len(packages_of("pip install " + " ".join(f"p{n}" for n in range(50)))) == MOST
    assert packages_of("pip install " + "a" * 100_000 + "!") == ()
