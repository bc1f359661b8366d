"""Data files and documents: one reading, bounded, nothing active."""

from __future__ import annotations

import json
import zlib

import pytest

from approvals.checks import CheckResult, documents
from tests.core.check_kit import candidate, rules


def tray(name: str, data: bytes | str) -> CheckResult:
    raw = data.encode() if isinstance(data, str) else data
    return documents.check(candidate(tray={name: raw}))


LAUGHS = 'a: &a ["x","x","x","x","x","x","x","x","x"]\n' + "".join(
    f"{b}: &{b} [" + ",".join([f"*{a}"] * 9) + "]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("rule", "name", "data"),
    [
        ("two readings", "a.json", '{"branch":"fix","branch":"main"}'),
        ("two readings", "a.json", '{"x":{"a":1,"a":1}}'),
        ("two readings", "a.json", '{"n":9007199254740993}'),
        ("two readings", "a.json", '{"n":' + "9" * 100_000 + "}"),
        ("two readings", "a.json", '{"n":1e400}'),
        ("two readings", "a.json", '{"n":NaN}'),
        ("two readings", "a.jsonl", '{"a":1}\n{"b":1,"b":2}\n'),
        ("two readings", "a.json", '{"a":1}'.encode("utf-16")),
        ("too deep", "a.json", "[" * 100_000 + "]" * 100_000),
        ("too deep", "a.json", '{"a":' * 5_000 + "1" + "}" * 5_000),
        ("expands", "a.yaml", LAUGHS),
        ("too deep", "a.yml", "[" * 5_000),
        ("active", "a.yaml", "x: !!python/object/apply:os.system ['id']\n"),
        ("expands", "a.xml", '<!DOCTYPE t [<!ENTITY a "ha">]><t>&a;</t>'),
        ("expands", "a.svg", '<!DOCTYPE t [<!ENTITY a SYSTEM "file:///etc/passwd">]><svg>&a;</svg>'),
        ("expands", "report", '<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a "ha">]><t/>'),
        ("expands", "a.xml", '<?xml version="1.0"?><!DOCTYPE t [<!ENTITY a "b">]><t/>'
            .encode("utf-16")),
        ("reaches outside", "a.xml", '<!DOCTYPE t SYSTEM "http://x.example.invalid/t.dtd"><t/>'),
        ("too deep", "a.xml", "<a>" * 5_000 + "</a>" * 5_000),
    ],
)  # fmt: skip
def test_what_readers_take_differently_or_choke_on_blocks_in_the_tray(
    rule: str, name: str, data: bytes | str
) -> None:
    result = tray(name, data)
    assert result.outcome == "failed"
    assert rule in rules(result)
    raw = data.encode() if isinstance(data, str) else data
    in_tree = documents.check(candidate({name: (None, raw)}))
    assert in_tree.outcome == "warned"
    assert all(each.acknowledge for each in in_tree.findings if each.severity == "warning")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", '{"b":[1,2.5,true,null,""],"a":{"\u00e9":"9007199254740993","z":{}}}'),
        ("a.json", json.dumps({"pi": 3.141592653589793, "n": 2**53, "tiny": 1e-300})),
        ("tsconfig.json", '{\n  // a comment\n  "strict": true,\n}\n'),
        ("a.jsonl", '{"a":1}\n{"a":2}\n'),
        ("a.json", "\ufeff{}"),
        ("a.ipynb", '{"cells":[]}'),
        ("a.yaml", "base: &base\n  x: 1\nmore:\n  <<: *base\n  y: 2\n"),
        ("a.yml", "name: CI\nsteps: [a, b]\n"),
        ("a.svg", "<svg xmlns='http://www.w3.org/2000/svg'><rect/></svg>"),
        ("a.xml", '<?xml version="1.0" encoding="UTF-8"?><a><b/></a>'),
        ("a.html", "<!doctype html><p>hi</p>"),
        ("a.pdf", b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n%%EOF\n"),
        ("a.txt", "[" * 5_000),
    ],
)
def test_ordinary_files_pass(name: str, data: bytes | str) -> None:
    assert tray(name, data).outcome == "passed"


def test_values_that_yaml_versions_read_differently_are_noted() -> None:
    result = tray("c.yaml", "country: no\nmode: 0644\ntime: 1:30\non: true\nname: nobody\n")
    assert result.outcome == "passed"
    (finding,) = result.findings
    assert "0644, 1:30, no, on" in finding.text


@pytest.mark.parametrize(
    "body",
    [
        b"<< /Type /Catalog /OpenAction << /S /JavaScript /JS (x) >> >>",
        b"<< /Type /Catalog /#4fpenAction << /S /J#61vaScript >> >>",
        b"<< /Length 9 /Filter /FlateDecode >>\nstream\n"
        + zlib.compress(b"<< /AA << /O << /S /Launch >> >> >>")
        + b"\nendstream",
    ],
)
def test_active_documents_are_a_warning(body: bytes) -> None:
    result = tray("r.pdf", b"%PDF-1.7\n1 0 obj\n" + body + b"\nendobj\n%%EOF\n")
    assert result.outcome == "warned"
    assert rules(result) == {"active"}


def test_an_unchanged_or_huge_file_is_left_alone() -> None:
    twice = b'{"a":1,"a":2}'
    moved = candidate({"b.json": (twice, twice)}, renames={"b.json": "a.json"})
    assert documents.check(moved).findings == ()
    large = documents.check(candidate(tray={"a.json": b" " * (9 << 20)}))
    assert rules(large) == {"not looked into"}
