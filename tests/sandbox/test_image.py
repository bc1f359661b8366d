"""The image: the same twice, complete, nobody's, and refused when it cannot be made."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from runs.sandbox import SandboxUnavailable, image, seccomp


@pytest.fixture(scope="module")
def built(sandbox_data: Path) -> image.Image:
    return image.ensure(sandbox_data)


def test_it_is_built_once_and_found_again(sandbox_data: Path, built: image.Image) -> None:
    assert image.ensure(sandbox_data) == built
    assert built.root.is_dir()


def test_the_same_programs_give_the_same_digest_elsewhere(
    tmp_path: Path, built: image.Image
) -> None:
    again = image.ensure(tmp_path / "elsewhere")
    assert again.root != built.root
    assert again.digest == built.digest


def test_other_packages_give_another_image(tmp_path: Path, built: image.Image) -> None:
    other = image.ensure(tmp_path, ("pytest", "iniconfig", "pyyaml"))
    assert other.digest != built.digest


def test_it_holds_no_special_file_and_no_right_to_gain(built: image.Image) -> None:
    for path in built.root.rglob("*"):
        status = path.lstat()
        assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode) or path.is_symlink()
        assert path.is_symlink() or not status.st_mode & (stat.S_ISUID | stat.S_ISGID)
        if path.is_symlink():
            assert not os.path.isabs(os.readlink(path)), path


def test_docker_s_form_says_the_same_digest(built: image.Image) -> None:
    bundle = io.BytesIO()
    image.write_docker_archive(built, bundle, tag="imprimatur-sandbox:test")
    bundle.seek(0)
    with tarfile.open(fileobj=bundle) as reader:
        manifest = json.load(reader.extractfile("manifest.json"))  # type: ignore[arg-type]
        name = manifest[0]["Config"]
        config = json.load(reader.extractfile(name))  # type: ignore[arg-type]
        layer = manifest[0]["Layers"][0]
    assert f"sha256:{name.removesuffix('.json')}" == built.digest
    assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.partition('/')[0]}"]
    assert config["config"]["User"] == "1000:1000"


def test_an_altered_image_is_not_given_to_docker(tmp_path: Path, built: image.Image) -> None:
    copy = tmp_path / "root"
    shutil.copytree(built.root, copy, symlinks=True)
    (copy / "etc/passwd").write_text("root::0:0::/:/bin/sh\n")
    with pytest.raises(SandboxUnavailable, match="not what was built"):
        image.write_docker_archive(
            image.Image(built.digest, copy), io.BytesIO(), tag="imprimatur-sandbox:test"
        )


def test_a_missing_package_is_said_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="no-such-package") as missing:
        image.ensure(tmp_path, ("no-such-package",))
    assert "pip install" in missing.value.remedy


def test_missing_programs_are_said_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "SEARCH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="git") as missing:
        image.ensure(tmp_path)
    assert "apt-get install" in missing.value.remedy


def test_only_images_that_nobody_needs_are_forgotten(tmp_path: Path) -> None:
    images = tmp_path / "sandbox/images"
    for name in ("needed", "new", "claimed", "old"):
        (images / name / "root").mkdir(parents=True)
    for name in ("needed", "claimed", "old"):
        os.utime(images / name, (0, 0))
    assert image.claim(image.Image("", images / "claimed/root"))
    assert image.forget_others(tmp_path, [images / "needed/root"]) == ["image old"]
    assert sorted(each.name for each in images.iterdir() if each.is_dir()) == [
        *("claimed", "needed", "new"),
    ]
    assert not image.claim(image.Image("", images / "old/root"))


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_is_a_whole_program(machine: str) -> None:
    program = seccomp.compiled(machine)
    assert program is not None
    assert len(program) % 8 == 0
    assert len(program) // 8 < 4096  # the kernel's limit
    assert seccomp.compiled("another") is None
