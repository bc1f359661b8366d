"""The small shell of the scripted sandbox, and the programs it knows.

A script is simple commands joined by `;`, `&&`, `||`, `|` or a new line, with quotes, `$NAME`, and
redirections of standard output and input. The programs are the ones below, with the few options
that are named there. Anything else ends with 127, as a program does that is not installed. What is
here behaves as in a real sandbox: the conformance suite runs the same scripts in all of them.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from runs.sandbox.memory import Files, trouble

Output = Callable[[bytes], None]
BLOCK = 1 << 16


class Exit(Exception):
    """A script ends now."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


class Cut(Exception):
    """Nobody takes more output."""


@dataclass
class Input:
    """Standard input: what is there, and a way to wait for more where somebody may type."""

    data: bytearray = field(default_factory=bytearray)
    closed: bool = True
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def line(self) -> bytes | None:
        """The next line with its end, or what is left; None at the end."""
        while b"\n" not in self.data and not self.closed:
            self.news.clear()
            await self.news.wait()
        if not self.data:
            return None
        end = self.data.find(b"\n") + 1 or len(self.data)
        line = bytes(self.data[:end])
        del self.data[:end]
        return line

    async def lines(self) -> AsyncIterator[bytes]:
        while (line := await self.line()) is not None:
            yield line


@dataclass
class Process:
    """One running program: where it stands, what it reads, and where its words go."""

    files: Files
    environment: dict[str, str]
    folder: str
    stdin: Input
    out: Output
    error: Output

    def path(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.folder}/{name}"

    def complain(self, words: str) -> int:
        self.error(words.encode("utf-8", "surrogateescape") + b"\n")
        return 1


Program = Callable[[Process, list[str]], Awaitable[int]]


# --- The shell ---------------------------------------------------------------

_OPERATORS = ("&&", "||", ">>", "2>&1", "2>", ";", "|", ">", "<", "\n")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+|[?@#]))")


@dataclass
class _Word:
    """A word of a script: pieces, each with whether variables in it stand for something."""

    pieces: list[tuple[str, bool]]


def _tokens(script: str) -> list[str | _Word]:
    items: list[str | _Word] = []
    word: _Word | None = None
    position = 0
    while position < len(script):
        rest = script[position:]
        operator = next((found for found in _OPERATORS if rest.startswith(found)), None)
        character = script[position]
        if operator is not None and not (operator.startswith("2") and word is not None):
            if word is not None:
                items.append(word)
            word = None
            items.append(operator)
            position += len(operator)
            continue
        if character in " \t":
            if word is not None:
                items.append(word)
            word = None
            position += 1
            continue
        if character == "&":
            raise Exit(2)  # nothing goes on in the background here
        if character == "#" and word is None:
            position += len(rest.split("\n", 1)[0])
            continue
        word = word or _Word([])
        if character in "'\"":
            end = script.find(character, position + 1)
            if end < 0:
                raise Exit(2)
            word.pieces.append((script[position + 1 : end], character == '"'))
            position = end + 1
        elif character == "\\" and position + 1 < len(script):
            word.pieces.append((script[position + 1], False))
            position += 2
        else:
            word.pieces.append((character, True))
            position += 1
    if word is not None:
        items.append(word)
    return items


def _plain(word: _Word, variables: dict[str, str]) -> str:
    """The word with its variables put in. A name may span unquoted pieces, so they are joined."""
    text = ""
    for live, group in itertools.groupby(word.pieces, key=lambda piece: piece[1]):
        joined = "".join(piece for piece, _ in group)
        if live:
            joined = _VARIABLE.sub(
                lambda found: variables.get(found.group(1) or found.group(2), ""), joined
            )
        text += joined
    return text


async def run_script(process: Process, script: str, arguments: list[str]) -> int:
    """Run a script; returns the exit code of its last command."""
    try:
        items = _tokens(script)
        variables = dict(process.environment)
        for number, argument in enumerate(arguments):
            variables[str(number)] = argument
        return await _run_list(process, items, variables)
    except Exit as ended:
        return ended.code


async def _run_list(process: Process, items: list[str | _Word], variables: dict[str, str]) -> int:
    code = 0
    skip = False
    pipeline: list[list[str | _Word]] = [[]]
    for item in [*items, ";"]:
        if item == "|":
            pipeline.append([])
            continue
        if item not in (";", "\n", "&&", "||"):
            pipeline[-1].append(item)
            continue
        if any(pipeline) and not skip:
            variables["?"] = str(code)
            code = await _run_pipeline(process, pipeline, variables)
        pipeline = [[]]
        if item == "&&":
            skip = code != 0
        elif item == "||":
            skip = code == 0
        else:
            skip = False
    return code


async def _run_pipeline(
    process: Process, commands: list[list[str | _Word]], variables: dict[str, str]
) -> int:
    stdin = process.stdin
    code = 0
    for number, command in enumerate(commands):
        if number == len(commands) - 1:
            return await _run_simple(process, command, variables, stdin, process.out)
        # Programs of a pipeline run one after the other here: each one's output is kept whole.
        kept = bytearray()

        def keep(data: bytes, kept: bytearray = kept) -> None:
            kept.extend(data)
            if len(kept) > 64 << 20:
                raise Cut

        code = await _run_simple(process, command, variables, stdin, keep)
        stdin = Input(kept)
    return code


async def _run_simple(
    process: Process,
    items: list[str | _Word],
    variables: dict[str, str],
    stdin: Input,
    out: Output,
) -> int:
    words: list[str] = []
    error = process.error
    position = 0
    while position < len(items):
        item = items[position]
        if isinstance(item, _Word):
            if item.pieces == [("$@", True)]:
                words += [variables[key] for key in sorted(variables) if key.isdecimal()][1:]
            else:
                words.append(_plain(item, variables))
            position += 1
            continue
        if item == "2>&1":
            error = out
            position += 1
            continue
        target = items[position + 1] if position + 1 < len(items) else None
        if not isinstance(target, _Word):
            raise Exit(2)
        name = process.path(_plain(target, variables))
        try:
            if item == "<":
                stdin = Input(bytearray(_content(process.files, name)))
            else:
                opened = _to_file(process.files, name, append=item == ">>")
                if item == "2>":
                    error = opened
                else:
                    out = opened
        except OSError as failed:
            process.complain(f"sh: 1: cannot open {name}: {failed.strerror}")
            return 2
        position += 2
    assignments = list(
        itertools.takewhile(lambda word: re.fullmatch(r"\w+=.*", word, re.DOTALL), words)
    )
    words = words[len(assignments) :]
    given = dict(assignment.split("=", 1) for assignment in assignments)
    if not words:
        variables.update(given)
        process.environment.update(
            {name: value for name, value in given.items() if name in process.environment}
        )
        return 0
    inner = Process(
        process.files, {**process.environment, **given}, process.folder, stdin, out, error
    )
    return await _run_builtin(process, inner, words, variables)


async def _run_builtin(
    process: Process, inner: Process, words: list[str], variables: dict[str, str]
) -> int:
    match words:
        case ["exit", *rest]:
            raise Exit(int(rest[0]) if rest else int(variables.get("?", "0")))
        case ["cd", *rest]:
            target = process.path(rest[-1] if rest else process.environment.get("HOME", "/"))
            try:
                where, node = process.files.resolve(target)
                if node is None or node.kind != "folder":
                    raise trouble(errno.ENOENT if node is None else errno.ENOTDIR, target)
            except OSError:
                inner.complain(f"sh: 1: cd: can't cd to {rest[-1] if rest else ''}")
                return 2
            process.folder = where
            return 0
        case ["export", *rest]:
            for word in rest:
                name, _, value = word.partition("=")
                process.environment[name] = variables[name] = value
            return 0
        case ["read", *names]:
            line = await inner.stdin.line()
            variables[names[-1] if names else "REPLY"] = (line or b"").decode().rstrip("\r\n")
            return 1 if line is None else 0
        case ["exec", *rest] if rest:
            raise Exit(await run_program(inner, rest))
        case _:
            return await run_program(inner, words)


async def run_program(process: Process, argv: list[str]) -> int:
    """Run one program by its name, with or without its folder."""
    name = argv[0].rpartition("/")[2] if argv[0].startswith(("/bin/", "/usr/bin/")) else argv[0]
    program = PROGRAMS.get(name)
    if program is None:
        process.complain(f"sh: 1: {argv[0]}: not found")
        return 127
    try:
        return await program(process, argv[1:])
    except OSError as failed:
        return process.complain(f"{name}: {failed.filename}: {failed.strerror}")
    except (ValueError, IndexError):
        return process.complain(f"{name}: these arguments are not understood here")


def _content(files: Files, path: str) -> bytes:
    node = files.get(path)
    if node.kind == "folder":
        raise trouble(errno.EISDIR, path)
    if node.kind == "fifo":
        # A real one would wait for a writer for ever, and be killed at the limit.
        raise trouble(errno.ENXIO, path)
    return bytes(node.data)


def _to_file(files: Files, path: str, *, append: bool) -> Output:
    if path == "/dev/null":
        return lambda data: None
    if not append or not files.exists(path):
        files.write(path, b"")

    def write(data: bytes) -> None:
        files.write(path, data, how="append")

    return write


# --- The programs ----------------------------------------------------------------


async def _sh(process: Process, arguments: list[str]) -> int:
    match arguments:
        case [("-c" | "-lc"), script, *rest]:
            return await run_script(process, script, rest or ["sh"])
        case [file, *rest]:
            script = _content(process.files, process.path(file)).decode()
            return await run_script(process, script, [file, *rest])
        case _:
            script = b"".join([line async for line in process.stdin.lines()]).decode()
            return await run_script(process, script, ["sh"])


async def _true(process: Process, arguments: list[str]) -> int:
    return 0


async def _false(process: Process, arguments: list[str]) -> int:
    return 1


async def _echo(process: Process, arguments: list[str]) -> int:
    end = "\n"
    if arguments[:1] == ["-n"]:
        arguments, end = arguments[1:], ""
    process.out((" ".join(arguments) + end).encode("utf-8", "surrogateescape"))
    return 0


async def _printf(process: Process, arguments: list[str]) -> int:
    text = arguments[0]
    escapes = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\", "r": "\r"}
    text = re.sub(r"\\([nt0\\r])", lambda found: escapes[found.group(1)], text)
    values = iter(arguments[1:])
    text = re.sub(r"%s", lambda _: next(values, ""), text)
    process.out(text.encode("utf-8", "surrogateescape"))
    return 0


async def _cat(process: Process, arguments: list[str]) -> int:
    if not arguments:
        async for line in process.stdin.lines():
            process.out(line)
    code = 0
    for name in arguments:
        if process.path(name) == "/dev/zero":
            await _zeros(process, None)
        try:
            process.out(_content(process.files, process.path(name)))
        except OSError as failed:
            code = process.complain(f"cat: {name}: {failed.strerror}")
    return code


async def _zeros(process: Process, count: int | None) -> None:
    while count is None or count > 0:
        size = BLOCK if count is None else min(BLOCK, count)
        process.out(bytes(size))
        count = None if count is None else count - size
        await asyncio.sleep(0)


_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


async def _head(process: Process, arguments: list[str]) -> int:
    match arguments:
        case ["-c", count, *names]:
            size = int(count.rstrip("KMG")) * _UNITS.get(count[-1], 1)
            if names == ["/dev/zero"]:
                await _zeros(process, size)
                return 0
            data = b"".join([_content(process.files, process.path(name)) for name in names])
            if not names:
                data = b"".join([line async for line in process.stdin.lines()])
            process.out(data[:size])
        case ["-n", count, *names]:
            data = b"".join([_content(process.files, process.path(name)) for name in names])
            if not names:
                data = b"".join([line async for line in process.stdin.lines()])
            process.out(b"".join(data.splitlines(keepends=True)[: int(count)]))
        case _:
            raise ValueError
    return 0


async def _sleep(process: Process, arguments: list[str]) -> int:
    await asyncio.sleep(float(arguments[0]))
    return 0


async def _yes(process: Process, arguments: list[str]) -> int:
    line = (" ".join(arguments) or "y").encode() + b"\n"
    while True:
        process.out(line * (BLOCK // len(line) + 1))
        await asyncio.sleep(0)


async def _env(process: Process, arguments: list[str]) -> int:
    if arguments:
        return await run_program(process, arguments)
    for name, value in process.environment.items():
        process.out(f"{name}={value}\n".encode())
    return 0


async def _pwd(process: Process, arguments: list[str]) -> int:
    process.out(f"{process.folder}\n".encode())
    return 0


async def _id(process: Process, arguments: list[str]) -> int:
    match arguments:
        case ["-u"] | ["-g"]:
            process.out(b"1000\n")
        case ["-un"]:
            process.out(b"agent\n")
        case _:
            process.out(b"uid=1000(agent) gid=1000(agent) groups=1000(agent)\n")
    return 0


async def _test(process: Process, arguments: list[str]) -> int:
    if arguments[-1:] == ["]"]:
        arguments = arguments[:-1]
    wrong = False
    while arguments[:1] == ["!"]:
        wrong, arguments = not wrong, arguments[1:]
    files, path = process.files, process.path
    match arguments:
        case ["-e", name]:
            holds = files.exists(path(name))
        case ["-f", name]:
            holds = files.exists(path(name)) and files.get(path(name)).kind == "file"
        case ["-d", name]:
            holds = files.exists(path(name)) and files.get(path(name)).kind == "folder"
        case [("-L" | "-h"), name]:
            holds = (
                files.exists(path(name), follow=False)
                and files.get(path(name), follow=False).kind == "link"
            )
        case ["-x", name]:
            holds = files.exists(path(name)) and bool(files.get(path(name)).mode & 0o111)
        case ["-n", text] | [text]:
            holds = bool(text)
        case ["-z", text]:
            holds = not text
        case [left, "=", right]:
            holds = left == right
        case [left, "!=", right]:
            holds = left != right
        case [left, "-eq", right]:
            holds = int(left) == int(right)
        case [left, "-ef", right]:
            holds = files.get(path(left)) is files.get(path(right))
        case _:
            raise ValueError
    return int(holds == wrong)


async def _touch(process: Process, arguments: list[str]) -> int:
    for name in arguments:
        process.files.write(process.path(name), b"", how="append")
    return 0


def _options(arguments: list[str], known: str) -> tuple[set[str], list[str]]:
    options: set[str] = set()
    while arguments and arguments[0].startswith("-") and arguments[0] != "-":
        option, arguments = arguments[0], arguments[1:]
        if option == "--":
            break
        if not set(option[1:]) <= set(known):
            raise ValueError
        options |= set(option[1:])
    return options, arguments


async def _mkdir(process: Process, arguments: list[str]) -> int:
    options, names = _options(arguments, "p")
    for name in names:
        process.files.make_folder(process.path(name), parents="p" in options)
    return 0


async def _rm(process: Process, arguments: list[str]) -> int:
    options, names = _options(arguments, "rf")
    for name in names:
        path = process.path(name)
        if "f" in options and not process.files.exists(path, follow=False):
            continue
        process.files.remove(path, recursive="r" in options)
    return 0


async def _cp(process: Process, arguments: list[str]) -> int:
    _, (source, dest) = _options(arguments, "p")
    data = _content(process.files, process.path(source))
    path = process.path(dest)
    if process.files.exists(path) and process.files.get(path).kind == "folder":
        path = f"{path}/{source.rpartition('/')[2]}"
    process.files.write(path, data, mode=process.files.get(process.path(source)).mode)
    return 0


async def _mv(process: Process, arguments: list[str]) -> int:
    _, (source, dest) = _options(arguments, "fT")
    process.files.move(process.path(source), process.path(dest))
    return 0


async def _ln(process: Process, arguments: list[str]) -> int:
    options, (target, name) = _options(arguments, "sf")
    if "f" in options and process.files.exists(process.path(name), follow=False):
        process.files.remove(process.path(name))
    if "s" in options:
        process.files.make_link(process.path(name), target)
    else:
        process.files.make_hard_link(process.path(name), process.path(target))
    return 0


async def _mkfifo(process: Process, arguments: list[str]) -> int:
    for name in arguments:
        process.files.make_fifo(process.path(name))
    return 0


async def _chmod(process: Process, arguments: list[str]) -> int:
    mode, *names = arguments
    for name in names:
        node = process.files.get(process.path(name))
        if mode == "+x":
            node.mode |= 0o111
        elif mode == "-x":
            node.mode &= ~0o111
        else:
            node.mode = int(mode, 8)
    return 0


async def _ls(process: Process, arguments: list[str]) -> int:
    options, names = _options(arguments, "aA1")
    for name in names or ["."]:
        node = process.files.get(process.path(name))
        entries = sorted(node.entries) if node.kind == "folder" else [name]
        for entry in entries:
            if not entry.startswith(".") or options & {"a", "A"}:
                process.out(entry.encode("utf-8", "surrogateescape") + b"\n")
    return 0


async def _wc(process: Process, arguments: list[str]) -> int:
    options, names = _options(arguments, "cl")
    data = b"".join([_content(process.files, process.path(name)) for name in names])
    if not names:
        data = b"".join([line async for line in process.stdin.lines()])
    count = len(data) if "c" in options else data.count(b"\n")
    process.out(f"{count}{''.join(f' {name}' for name in names[:1])}\n".encode())
    return 0


async def _grep(process: Process, arguments: list[str]) -> int:
    options, rest = _options(arguments, "qcF")
    pattern, *names = rest
    if names:
        data = b"".join([_content(process.files, process.path(name)) for name in names])
    else:
        data = b"".join([line async for line in process.stdin.lines()])
    text = data.decode("utf-8", "surrogateescape")
    wanted = re.compile(re.escape(pattern) if "F" in options else pattern)
    found = [line for line in text.splitlines() if wanted.search(line)]
    if "c" in options:
        process.out(f"{len(found)}\n".encode())
    elif "q" not in options:
        for line in found:
            process.out(line.encode("utf-8", "surrogateescape") + b"\n")
    return 0 if found else 1


async def _readlink(process: Process, arguments: list[str]) -> int:
    node = process.files.get(process.path(arguments[-1]), follow=False)
    if node.kind != "link":
        return 1
    process.out(node.target.encode("utf-8", "surrogateescape") + b"\n")
    return 0


PROGRAMS: dict[str, Program] = {
    "sh": _sh,
    "bash": _sh,
    "true": _true,
    "false": _false,
    ":": _true,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "head": _head,
    "sleep": _sleep,
    "yes": _yes,
    "env": _env,
    "pwd": _pwd,
    "id": _id,
    "test": _test,
    "[": _test,
    "touch": _touch,
    "mkdir": _mkdir,
    "rm": _rm,
    "cp": _cp,
    "mv": _mv,
    "ln": _ln,
    "mkfifo": _mkfifo,
    "chmod": _chmod,
    "ls": _ls,
    "wc": _wc,
    "grep": _grep,
    "readlink": _readlink,
}
"""By name. A test may add one that its script needs, and take it away again."""
