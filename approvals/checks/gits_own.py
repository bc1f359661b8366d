"""Files that git itself obeys: attributes, submodules, LFS pointers. Part of `control_files`."""

from __future__ import annotations

import re

from approvals.changes import is_dot_git, unsafe_path
from approvals.checks.base import Content, Notebook

_ATTRIBUTE = re.compile(
    r"(?:^|\s)[-!]?(?:diff|text|binary|filter|merge|eol|ident|export-ignore|export-subst|encoding|"
    r"working-tree-encoding|crlf|conflict-marker-size|whitespace|linguist-[a-z]+|gitlab-[a-z]+|delta)"
    r"(?:=\S*)?(?=\s|$)"
)


def attributes(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if content.name != ".gitattributes":
        return
    for number, line in content.new_text():
        names = sorted({match.group().strip() for match in _ATTRIBUTE.finditer(line)})
        if names and not line.lstrip().startswith("#"):
            notes.warn("attributes", content.shown,
                  f"sets {', '.join(names[:5])[:120]}, which changes how others see or store files",
                  number)  # fmt: skip


_SECTION = re.compile(r"\s*\[\s*submodule\s+\"((?:[^\"\\]|\\.)*)\"\s*\]")
_SETTING = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")


def modules(content: Content, changed: set[bytes], notes: Notebook) -> None:
    if content.name != ".gitmodules":
        return
    notes.warn("submodule", content.shown, "says where submodules come from")
    for number, line in content.new_text():
        if section := _SECTION.match(line):
            if ".." in section[1].split("/") or section[1].startswith(("/", "-")):
                notes.add(
                    "blocking",
                    "submodule",
                    content.shown,
                    "the name of a submodule leaves its place",
                    line=number,
                )
        elif setting := _SETTING.match(line):
            key, value = setting[1].casefold(), _unquoted(setting[2])
            if reason := _bad_setting(key, value):
                notes.add("blocking", "submodule", content.shown, reason, line=number)
            elif key == "url" and value.startswith(("http://", "git://")):
                notes.warn("submodule", content.shown, "the address is not protected", number)


_ESCAPES = {"n": "\n", "t": "\t", "b": "\b", '"': '"', "\\": "\\"}


def _unquoted(value: str) -> str:
    """The value as git reads it: no comment, no quotes, escapes undone. A final CR stays."""
    if value.endswith("\\"):
        return value
    out, quoted, at = "", False, 0
    while at < len(value):
        char = value[at]
        if char == '"':
            quoted = not quoted
        elif char == "\\" and at + 1 < len(value):
            at += 1
            # Git refuses any other escape; as a control character it is refused below.
            out += _ESCAPES.get(value[at], "\0")
        elif char in "#;" and not quoted:
            break
        else:
            out += char
        at += 1
    return out.rstrip(" \t") if not quoted else out


def _bad_setting(key: str, value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value.removesuffix("\r")):
        return f"{key} holds a control character"
    if value.endswith("\r") and key == "path":
        # Readers differ in whether a carriage return belongs to the path.
        return "path ends in a carriage return"
    value = value.rstrip("\r")
    if value.startswith("-"):
        return f"{key} begins with a hyphen and would be read as an option"
    if key == "url":
        if re.match(r"(?i)(?:ext|fd|testgit|remote-\w+)::|\w+::", value):
            return "url names a helper that runs a command"
        if re.match(r"(?i)file:|/|\.\.?(?:/|$)|~|[a-z]:[\\/]|\\\\", value):
            return "url is a path on the machine that clones"
        if re.search(r"://-|@-|%0a|%00|[\x00-\x20]", value, re.IGNORECASE):
            return "url holds an option or a line break"
    if key == "path":
        parts = value.encode().split(b"/")
        if unsafe_path(value.encode()) or any(is_dot_git(part) for part in parts):
            return "path leaves the tree"
    if key == "update" and value.startswith("!"):
        return "update runs a command"
    return ""


# --- LFS -------------------------------------------------------------------------------------

_POINTER = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    rb"(?:ext-\d-\S+ \S+\n)*oid sha256:([0-9a-f]{64})\nsize (\d{1,15})\n?"
)


def lfs(content: Content, changed: set[bytes], notes: Notebook) -> None:
    looks = content.data[:200].startswith((b"version https://git-lfs", b"version https://hawser"))
    before = content.before or b""
    had = _POINTER.fullmatch(before)
    if not looks and not had:
        return
    now = _POINTER.fullmatch(content.data)
    if now:
        old = f"{_pointer(had)} → " if had else ""
        notes.warn("LFS pointer", content.shown,
              f"{old}{_pointer(now)}; the content is not part of the candidate")  # fmt: skip
    elif looks:
        notes.warn("LFS pointer", content.shown, "looks like an LFS pointer and is not a valid one")
    else:
        notes.warn("LFS pointer", content.shown, "was an LFS pointer and is now the content itself")


def _pointer(match: re.Match[bytes]) -> str:
    return f"object {match[1][:12].decode()}, {int(match[2]):,} bytes"
