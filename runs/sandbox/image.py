"""The root file system of a sandbox, put together from this machine's own programs.

No image registry and no root are needed: a fixed list of tools, the Python that runs the portal,
and the packages a verification command needs are copied with the libraries they load. The same
versions give the same bytes, so the same digest, which is recorded with every run; an update of a
package gives another one, and that is the wanted signal.

Bubblewrap uses the unpacked folder; Docker loads the same content as an image whose ID is the
digest. `python -m runs.sandbox.image --data DIR [--docker]` builds it by hand.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from packaging.requirements import Requirement
from typing_extensions import Buffer

from runs.sandbox import DEFAULT_PACKAGES, PARTS, WORKSPACE, SandboxUnavailable, archive

RECIPE = 1
"""Part of the digest: raise it when this file makes something else of the same inputs."""

RECIPE_LABEL = "imprimatur.recipe"

EPOCH = 1704067200
"""The time of everything in the image: a fixed one, or no two builds would be the same."""

HELPERS = "/usr/lib/imprimatur"
"""Where the image keeps our own programs, those of `_OWN`."""

_OWN = ("inside.py", "forward.py", "first.py", "seccomp.py", "carry.py")

AGENT_UID = 1000
_UNUSED_SECONDS = 3600.0
"""An image that nobody asked for in so long is needed by no process that is about to use it."""

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INNER_PATH = "/usr/local/bin:/usr/bin:/bin"
INNER_HOME = "/tmp"  # noqa: S108 - of the sandbox alone, and writable as little else there is

_NEEDED = """
    sh cat cp mv rm ls mkdir rmdir ln chmod touch head tail wc sort uniq cut tr tee printf echo env
    test [ true false sleep date id pwd readlink realpath dirname basename stat du df seq yes mktemp
    mkfifo expr od comm join paste split fold nl timeout dd sync truncate install kill uname whoami
    sha256sum md5sum cksum nproc tac find xargs grep sed tar gzip git
"""
_OPTIONAL = """
    bash awk mawk diff cmp patch egrep fgrep gunzip zcat ps pgrep pkill hostname which rg less xz
    bzip2 unzip zip make jq file chgrp numfmt shuf sha1sum sha512sum tty stty setsid nohup
"""
NEEDED = tuple(_NEEDED.split())
OPTIONAL = tuple(_OPTIONAL.split())
_SKIPPED_STDLIB = {
    "__pycache__",
    "test",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
}

_ETC = {
    "passwd": (
        "root:x:0:0:root:/root:/bin/sh\n"
        f"agent:x:{AGENT_UID}:{AGENT_UID}:agent:/tmp:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    ),
    "group": f"root:x:0:\nagent:x:{AGENT_UID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "profile": f"PATH={INNER_PATH}\nexport PATH\n",
    # The source belongs to another user where Docker made the folder; that is no danger here.
    "gitconfig": (
        "[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n"
        "[user]\n\tname = agent\n\temail = agent@sandbox.invalid\n"
    ),
}


@dataclass(frozen=True)
class Image:
    """A root file system that is ready. `digest` is the ID that Docker gives to the same bytes."""

    digest: str
    root: Path


class _Hash(io.RawIOBase):
    """A file that keeps nothing of what is written but its digest."""

    def __init__(self) -> None:
        self.sum = hashlib.sha256()

    def write(self, data: Buffer, /) -> int:
        self.sum.update(data)
        return memoryview(data).nbytes


def ensure(data_dir: Path, packages: Sequence[str] = DEFAULT_PACKAGES) -> Image:
    """The image of what is installed now, built if it is not there. Raises SandboxUnavailable.

    Safe to call from several processes at once: one builds, the others wait for it.
    """
    sources = _Sources.find(packages)
    images = data_dir / "sandbox" / "images"
    images.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = images / sources.fingerprint()
    ready = _ready(home)
    if ready is not None and claim(ready):
        return ready
    with _lock(images / "lock"):
        ready = _ready(home)
        if ready is not None and claim(ready):
            return ready
        for stale in images.glob("build-*"):
            shutil.rmtree(stale)
        building = Path(tempfile.mkdtemp(prefix="build-", dir=images))
        try:
            root = building / "root"
            _build(root, sources)
            description = {"digest": image_config(root)[1], "recipe": RECIPE}
            (building / "image.json").write_text(json.dumps(description))
            building.chmod(0o755)
            building.rename(home)
        except OSError as failed:
            shutil.rmtree(building, ignore_errors=True)
            raise SandboxUnavailable(
                f"The sandbox image could not be built: {failed}.",
                f"Make room and give the portal write access to {images}, then start it again.",
            ) from failed
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return _read(home)


def claim(image: Image) -> bool:
    """Say that the image is about to be used, so that nobody forgets it. False if it is gone."""
    try:
        os.utime(image.root.parent)
    except FileNotFoundError:
        return False
    return True


def forget_others(data_dir: Path, keep: Iterable[Path]) -> list[str]:
    """Remove the images whose roots are not in `keep`, and that nobody claimed for an hour.

    Returns what was removed. Another process may be about to use an image that no sandbox has yet.
    """
    images = data_dir / "sandbox" / "images"
    kept = {root.parent for root in keep}
    removed: list[str] = []
    if not images.is_dir():
        return removed
    with _lock(images / "lock"):
        for home in sorted(images.iterdir()):
            unused = time.time() - home.stat().st_mtime > _UNUSED_SECONDS
            if home.is_dir() and home not in kept and unused:
                shutil.rmtree(home)
                removed.append(f"image {home.name}")
    return removed


def _ready(home: Path) -> Image | None:
    try:
        return _read(home)
    except FileNotFoundError:
        return None


def _read(home: Path) -> Image:
    description = json.loads((home / "image.json").read_text())
    return Image(digest=str(description["digest"]), root=home / "root")


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


# --- What goes in ----------------------------------------------------------


@dataclass(frozen=True)
class _Sources:
    """Where everything that goes into the image lies on this machine."""

    tools: dict[str, Path]
    python: Path
    stdlib: Path
    distributions: tuple[importlib.metadata.Distribution, ...]

    @classmethod
    def find(cls, packages: Sequence[str]) -> _Sources:
        tools: dict[str, Path] = {}
        missing: list[str] = []
        for name in (*NEEDED, *OPTIONAL):
            found = shutil.which(name, path=SEARCH)
            if found is not None:
                tools[name] = Path(found).resolve()
            elif name in NEEDED:
                missing.append(name)
        if missing:
            raise SandboxUnavailable(
                f"The sandbox image lacks programs of this machine: {', '.join(missing)}.",
                "Install them (Debian: apt-get install coreutils findutils grep sed tar gzip git).",
            )
        return cls(
            tools=tools,
            python=Path(os.path.realpath(sys.executable)),
            stdlib=Path(sysconfig.get_path("stdlib")),
            distributions=tuple(_closure(packages)),
        )

    def fingerprint(self) -> str:
        """Changes when a source does. Looks at names, sizes and times only, so it is quick."""
        libc = Path("/etc/ld.so.cache")
        files = [*self.tools.values(), self.python, self.stdlib / "os.py", libc]
        facts = [
            RECIPE,
            sys.version,
            *_ETC.values(),
            [[name, str(path)] for name, path in sorted(self.tools.items())],
            [_stamp(path) for path in files],
            [[d.name, d.version] for d in self.distributions],
            [(_own(name)).read_text() for name in _OWN],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def _stamp(path: Path) -> list[object]:
    try:
        status = path.stat()
    except OSError:
        return [str(path)]
    return [str(path), status.st_size, status.st_mtime_ns]


def _own(name: str) -> Path:
    return Path(__file__).with_name(name)


def _closure(packages: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """The distributions with everything they require, by name."""
    found: dict[str, importlib.metadata.Distribution] = {}
    pending = list(packages)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise SandboxUnavailable(
                f"The sandbox image is to hold the Python package {name}, which is not installed.",
                f"Install it beside the portal: pip install {name}.",
            ) from None
        found[name] = distribution
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return [found[name] for name in sorted(found)]


# --- Putting it together ----------------------------------------------------


def _build(root: Path, sources: _Sources) -> None:
    for folder in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / folder).mkdir(parents=True)
        (root / folder).symlink_to(f"usr/{folder}")
    for folder in ("proc", "sys", "dev", "run", "tmp", "root", "home", "etc", "var/tmp"):
        (root / folder).mkdir(parents=True)
    for mounted in ("egress", "carry"):
        (root / mounted).mkdir()
    for part in PARTS:
        (root / WORKSPACE.strip("/") / part).mkdir(parents=True)
    (root / "usr/share/git-core/templates").mkdir(parents=True)
    for name, text in _ETC.items():
        (root / "etc" / name).write_text(text)
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.is_file():
        _put(root, certificates, "etc/ssl/certs/ca-certificates.crt")

    programs = [_tool(root, name, path) for name, path in sources.tools.items()]
    programs.extend(_python(root, sources))
    _libraries(root, programs)
    for distribution in sources.distributions:
        _package(root, distribution, _site(root, sources))
    helpers = root / HELPERS.strip("/")
    helpers.mkdir()
    for name in _OWN:
        _put(root, _own(name), f"{HELPERS}/{name}")
    _compile(root, sources)


def _put(root: Path, source: Path, where: str) -> Path:
    """Copy the content of a file, not its owner, times or special bits."""
    dest = root / where.lstrip("/")
    dest.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, dest)
    dest.chmod(0o755 if os.access(source, os.X_OK) else 0o644)
    return dest


def _tool(root: Path, name: str, source: Path) -> Path:
    """One program under its own name, and a link to it where the tool is called differently."""
    dest = root / "usr/bin" / source.name
    if not dest.exists():
        _put(root, source, f"usr/bin/{source.name}")
    if name != source.name:
        (root / "usr/bin" / name).symlink_to(source.name)
    return source


def _python(root: Path, sources: _Sources) -> list[Path]:
    """The interpreter and its standard library; returns what loads libraries."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    _put(root, sources.python, f"usr/bin/{version}")
    for alias in ("python3", "python"):
        (root / "usr/bin" / alias).symlink_to(version)
    binaries = [sources.python]
    target = f"usr/{sys.platlibdir}/{version}"
    for folder, subfolders, files in os.walk(sources.stdlib):
        here = Path(folder)
        inner = here.relative_to(sources.stdlib)
        subfolders[:] = sorted(
            name
            for name in subfolders
            if name not in _SKIPPED_STDLIB and not name.startswith("config-")
        )
        for name in sorted(files):
            source = here / name
            if name.startswith("_tkinter") or name.endswith((".pyc", ".a", ".o")):
                continue
            if not source.is_file():
                continue  # a link to something outside of the library that is not there
            _put(root, source, f"{target}/{inner}/{name}")
            if name.endswith(".so"):
                binaries.append(source)
    return binaries


def _site(root: Path, sources: _Sources) -> str:
    """Where this build of Python looks for packages: Debian's looks in a place of its own."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if "dist-packages" in (sources.stdlib / "site.py").read_text():
        return "usr/lib/python3/dist-packages"
    return f"usr/{sys.platlibdir}/{version}/site-packages"


def _package(root: Path, distribution: importlib.metadata.Distribution, site: str) -> None:
    for file in distribution.files or ():
        parts = file.parts
        if ".." in parts or "__pycache__" in parts or file.suffix == ".pyc":
            continue
        if parts[0].endswith(".dist-info") and file.name not in ("METADATA", "entry_points.txt"):
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            _put(root, source, f"{site}/{'/'.join(parts)}")


def _libraries(root: Path, programs: Sequence[Path]) -> None:
    """Copy what the dynamic loader would load for these programs."""
    loaded = subprocess.run(
        ["ldd", *map(str, dict.fromkeys(programs))],
        capture_output=True,
        text=True,
        env={"PATH": SEARCH, "LC_ALL": "C"},
        check=False,  # a script among them is "not a dynamic executable"
    ).stdout
    found = {Path(match) for match in re.findall(r"(?:=> |^\t)(/\S+) \(0x", loaded, re.MULTILINE)}
    # Where the loader looks without being told; a library from elsewhere is put there as well.
    usual = next((path.parent for path in sorted(found) if path.name == "libc.so.6"), Path("/lib"))
    for library in sorted(found):
        where = library if library.is_relative_to("/usr") else None
        if str(library.parent).startswith("/lib"):
            where = Path("/usr") / library.relative_to("/")
        if where is None or where.is_relative_to("/usr/local"):
            where = usual / library.name
            where = where if where.is_relative_to("/usr") else Path("/usr") / where.relative_to("/")
        dest = root / where.relative_to("/")
        if not dest.exists():
            _put(root, library, str(where))
            dest.chmod(0o755)


def _compile(root: Path, sources: _Sources) -> None:
    """Byte code beside the sources: the root is read-only, and compiling anew takes half a second.

    Checked by nothing and made in one process in a fixed order: the same bytes every time.
    """
    subprocess.run(
        [
            str(sources.python),
            "-I",
            "-m",
            "compileall",
            "-q",
            "--invalidation-mode=unchecked-hash",
            "-s",
            str(root),
            "-p",
            "/",
            str(root / "usr"),
        ],
        env={"PATH": SEARCH, "LC_ALL": "C", "PYTHONHASHSEED": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,  # a template that is not Python is no reason to stop
    )


# --- The digest, and the form that Docker loads ------------------------------


def write_layer(root: Path, out: IO[bytes] | io.RawIOBase) -> None:
    """The root as one tar: names in order, one time, owner 0, modes as read or run."""
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as layer:
        for name, path in archive.walk(root):
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                layer.addfile(archive.header(name, "link", 0o777, 0, EPOCH, os.readlink(path)))
            elif stat.S_ISDIR(status.st_mode):
                mode = 0o1777 if name in ("tmp", "var/tmp") else 0o755
                info = archive.header(name, "folder", 0o755, 0, EPOCH)
                info.mode = mode
                layer.addfile(info)
            else:
                mode = 0o755 if status.st_mode & 0o100 else 0o644
                with path.open("rb") as opened:
                    layer.addfile(archive.header(name, "file", mode, status.st_size, EPOCH), opened)


def image_config(root: Path) -> tuple[bytes, str]:
    """The image's configuration and its ID, which is the digest of it."""
    layer = _Hash()
    write_layer(root, layer)
    machine = platform.machine()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine),
        "os": "linux",
        "created": "2024-01-01T00:00:00Z",
        "config": {
            "User": f"{AGENT_UID}:{AGENT_UID}",
            "WorkingDir": f"{WORKSPACE}/repo",
            "Cmd": ["sh"],
            # The shell that is process 1 there takes no other signal, and nothing waits for it.
            "StopSignal": "SIGKILL",
            "Env": [f"PATH={INNER_PATH}", "LANG=C.UTF-8"],
            "Labels": {RECIPE_LABEL: str(RECIPE)},
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer.sum.hexdigest()}"]},
        "history": [{"created": "2024-01-01T00:00:00Z", "created_by": "imprimatur"}],
    }
    raw = json.dumps(config, sort_keys=True, separators=(",", ":")).encode()
    return raw, f"sha256:{hashlib.sha256(raw).hexdigest()}"


def write_docker_archive(image: Image, out: BinaryIO, *, tag: str) -> None:
    """The image as `docker load` reads it. Raises SandboxUnavailable if it was altered."""
    raw, digest = image_config(image.root)
    if digest != image.digest:
        raise SandboxUnavailable(
            f"The sandbox image in {image.root.parent} is not what was built ({image.digest}).",
            "Remove that folder; it is built again at the next start.",
        )
    layer_name = json.loads(raw)["rootfs"]["diff_ids"][0].removeprefix("sha256:")
    config_name = f"{digest.removeprefix('sha256:')}.json"
    manifest = [{"Config": config_name, "RepoTags": [tag], "Layers": [f"{layer_name}/layer.tar"]}]
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as bundle:
        for name, data in ((config_name, raw), ("manifest.json", json.dumps(manifest).encode())):
            bundle.addfile(archive.header(name, "file", 0o644, len(data), EPOCH), io.BytesIO(data))
        with tempfile.TemporaryFile() as layer:
            write_layer(image.root, layer)
            size = layer.tell()
            layer.seek(0)
            info = archive.header(f"{layer_name}/layer.tar", "file", 0o644, size, EPOCH)
            bundle.addfile(info, layer)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m runs.sandbox.image", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the portal's data directory")
    parser.add_argument("--docker", type=Path, metavar="FILE", help="also write it for docker load")
    parser.add_argument("--tag", default="imprimatur-sandbox:local")
    options = parser.parse_args(arguments)
    try:
        image = ensure(options.data)
        if options.docker is not None:
            with options.docker.open("wb") as out:
                write_docker_archive(image, out, tag=options.tag)
    except SandboxUnavailable as unavailable:
        print(unavailable, file=sys.stderr)
        return 1
    print(image.digest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
