"""What a person does wrong, or a machine lacks: one clear message, the right exit code, nothing half-done."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import kbuild

pytestmark = pytest.mark.nix

RELU = Path(__file__).parents[2] / "example_kernels" / "relu"
CPU = "torch213-cxx11-cpu-x86_64-linux"


@pytest.fixture
def relu(tmp_path: Path) -> Path:
    root = tmp_path / "relu"
    shutil.copytree(RELU, root, ignore=shutil.ignore_patterns("build", "__pycache__"))
    return root


def tools(folder: Path, *names: str) -> str:
    """A PATH with nothing but these programs."""
    folder.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return str(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB; needs root."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=64k", "kbuild-test", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_no_nix(relu: Path, tmp_path: Path) -> None:
    done = kbuild("build", relu, "--variant", CPU, env={"PATH": tools(tmp_path / "bin", "git")})
    assert done.code == 3
    assert "Nix is not installed" in done.stderr
    assert "apt-get install nix-bin" in done.stderr
    assert not (relu / "build").exists()


def test_nix_with_flakes_off(relu: Path, tmp_path: Path) -> None:
    """kbuild switches flakes on by flag, so a configuration without them simply works."""
    conf = tmp_path / "conf"
    (conf / "nix").mkdir(parents=True)
    (conf / "nix" / "nix.conf").write_text("experimental-features =\n")
    done = kbuild(
        "build", relu, "--variant", CPU, env={"XDG_CONFIG_HOME": str(conf), "NIX_CONF_DIR": str(conf / "nix")}
    )
    assert done.code == 0, done.stderr


def test_nix_too_old(relu: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("nix", "nix-store"):
        (folder / name).write_text("#!/bin/sh\necho 'nix (Nix) 2.3.16'\n")
        (folder / name).chmod(0o755)
    done = kbuild("build", relu, "--variant", CPU, env={"PATH": f"{folder}:/usr/bin:/bin"})
    assert done.code == 3
    assert "2.3.16 is too old" in done.stderr


def test_full_disk_under_build(relu: Path, small_disk: Path) -> None:
    (relu / "build").symlink_to(small_disk)
    (small_disk / "filler").write_bytes(bytes(40 << 10))
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code == 3
    assert "No space left on device" in done.stderr
    assert "hint:" in done.stderr
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_full_disk_under_the_store(relu: Path, small_disk: Path) -> None:
    done = kbuild("build", relu, "--variant", CPU, "--store", str(small_disk))
    assert done.code == 3
    assert "hint:" in done.stderr
    assert not (relu / "build").exists()


def test_untracked_source(relu: Path) -> None:
    git = ["git", "-C", str(relu), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "rm", "-q", "--cached", "relu_cpu/relu.cpp"], check=True)
    subprocess.run([*git, "commit", "-qm", "all but one"], check=True)
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code == 1
    assert "relu_cpu/relu.cpp" in done.stderr
    assert "git add" in done.stderr
    assert not (relu / "build").exists()


def test_unknown_variant(relu: Path) -> None:
    done = kbuild("build", relu, "--variant", CPU.replace("x86_64", "x86-64"))
    assert done.code == 2
    assert f"Did you mean '{CPU}'" in done.stderr


def test_skipped_variant_says_why(relu: Path) -> None:
    done = kbuild("build", relu, "--variant", "torch213-cxx11-cu126-x86_64-linux")
    assert done.code == 2
    assert "no source for the CUDA 12.6 toolkit" in done.stderr


def test_another_kbuild_is_writing(relu: Path) -> None:
    (relu / "build").mkdir()
    held = os.open(relu / "build", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        done = kbuild("build", relu, "--variant", CPU)
    finally:
        os.close(held)
    assert done.code == 2
    assert "another kbuild" in done.stderr


def test_no_network_and_trees_missing(relu: Path, tmp_path: Path) -> None:
    env = {
        "http_proxy": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
        "PIP_NO_INDEX": "0",
        "PIP_RETRIES": "1",
    }
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = kbuild("build", relu, "--variant", CPU, "--store", str(tmp_path / "store"), env=env)
    assert done.code == 5, done.stderr
    assert "package index cannot be reached" in done.stderr
    assert "hint: check the network" in done.stderr
    assert not (relu / "build").exists()


def test_a_dirty_flake_input_that_is_no_builder(relu: Path) -> None:
    (relu / "flake.nix").write_text('{ inputs.other.url = "path:/x"; outputs = { self, other }: { }; }\n')
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code == 2
    assert "no input that stands for the builder" in done.stderr


def test_a_flake_that_does_not_evaluate(relu: Path) -> None:
    (relu / "flake.nix").write_text('{ inputs.kbuild.url = "path:/x"; outputs = { self, kbuild }: { \n')
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code in (1, 4)
    assert "flake.nix" in done.stderr


@pytest.mark.parametrize("cache", ["/dev/null/x", "/proc/nowhere"])
@pytest.mark.parametrize("command", ["build", "doctor"])
def test_no_place_for_the_cache(relu: Path, command: str, cache: str) -> None:
    arguments: list[str] = [str(relu), "--variant", CPU] if command == "build" else []
    done = kbuild(command, *arguments, env={"XDG_CACHE_HOME": cache})
    assert done.code == 3
    assert "XDG_CACHE_HOME" in done.stderr + done.stdout


def test_full_temporary_folder(relu: Path, small_disk: Path) -> None:
    done = kbuild("build", relu, "--variant", CPU, env={"TMPDIR": str(small_disk)})
    assert done.code == 3
    assert "No space left on device" in done.stderr
    assert "TMPDIR" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_temporary_folder_with_an_odd_name(relu: Path, tmp_path: Path) -> None:
    odd = tmp_path / "t m#p?x"
    odd.mkdir()
    done = kbuild("build", relu, "--variant", CPU, env={"TMPDIR": str(odd)})
    assert done.code == 0, done.stderr


@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_else_in_the_place_of_a_variant(relu: Path, tmp_path: Path, kind: str) -> None:
    place = relu / "build" / CPU
    place.parent.mkdir()
    target = tmp_path / "mine"
    target.mkdir()
    (target / "kept").touch()
    if kind == "file":
        place.touch()
    else:
        place.symlink_to(target)
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code == 0, done.stderr
    assert (place / "metadata.json").is_file()
    assert not place.is_symlink()
    assert (target / "kept").exists()
    assert [path.name for path in place.parent.iterdir()] == [CPU]


def test_a_read_only_project(relu: Path, tmp_path: Path) -> None:
    argv = ["mount", "--bind", "-o", "ro", str(relu), str(relu)]
    if os.geteuid() != 0 or subprocess.run(argv, check=False, capture_output=True).returncode != 0:
        pytest.skip("a read-only mount needs root")
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(relu)], check=True)
        done = kbuild("build", relu, "--variant", CPU)
    finally:
        subprocess.run(["umount", str(relu)], check=True)
    assert done.code == 3
    assert "Read-only file system" in done.stderr
    assert "hint:" in done.stderr


def test_symbols_defined_twice_are_named(relu: Path) -> None:
    (relu / "relu_cpu" / "again.cpp").write_text("void twice() {}\n")
    source = relu / "relu_cpu" / "relu.cpp"
    source.write_text(source.read_text() + "void twice() {}\n")
    config = relu / "build.toml"
    config.write_text(
        config.read_text().replace('"relu_cpu/relu.cpp",', '"relu_cpu/relu.cpp", "relu_cpu/again.cpp",')
    )
    done = kbuild("build", relu, "--variant", CPU)
    assert done.code == 4
    assert "multiple definition of `twice()'" in done.stderr
    assert "\x1b" not in done.stderr
