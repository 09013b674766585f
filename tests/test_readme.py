"""What the README shows is what happens: its sessions run, and print the lines that stand below their commands."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from clients import Client, kernel_tester
from runs import kbuild

from kbuild.cli import COMMANDS, cli
from kbuild.localhub.config import Config, User
from kbuild.localhub.running import running_hub

pytestmark = pytest.mark.nix

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [
    (kind, body) for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
]
HUB = Config(users=(User(name="ada", token="hf_ada", orgs=("your-org",)),), orgs=("your-org",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A command of a session, and the lines that the README shows of its output; `...` stands for any."""

    command: str
    lines: tuple[str, ...]


def session(first: str) -> list[Shown]:
    """The session that begins with this command."""
    (body,) = (body for _, body in BLOCKS if body.startswith(f"$ {first}"))
    parts = [part.splitlines() for part in re.split(r"^\$ ", body, flags=re.MULTILINE) if part]
    return [
        Shown(command=command, lines=tuple(line for line in lines if line.strip() != "..."))
        for command, *lines in parts
    ]


def play(shown: list[Shown], cwd: Path, environment: Mapping[str, str], code: int = 0) -> None:
    """Run a session in one shell, and find every line that is shown in what its command printed."""
    where = cwd
    for one in shown:
        done = subprocess.run(
            ["bash", "-c", f"{one.command}\ncode=$?; echo; pwd -P; exit $code"],
            cwd=where,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        stdout, _, there = done.stdout.rstrip("\n").rpartition("\n")
        where = Path(there)
        printed = _comparable(f"{stdout}\n{done.stderr}".replace(f"{cwd}/", ""))
        missing = [line for line in one.lines if _comparable(line).removesuffix("...") not in printed]
        assert not missing, f"$ {one.command}\n{stdout}\n{done.stderr}"
        assert done.returncode == code, one.command


def _comparable(text: str) -> str:
    """Without how long things took and how wide columns are."""
    return re.sub(r" +", " ", re.sub(r"\d+\.\d+ ?s\b", "# s", text)).strip()


@pytest.fixture(scope="module")
def tester() -> Client:
    return kernel_tester()


@pytest.fixture
def environment(tester: Client, tmp_path: Path) -> dict[str, str]:
    """A person with kbuild, PyTorch and pytest on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "kbuild").write_text(f'#!/bin/sh\nexec {sys.executable} -m kbuild "$@"\n')
    (folder / "kbuild").chmod(0o755)
    return {
        "PATH": os.pathsep.join([str(folder), str(tester.python.parent), os.environ["PATH"]]),
        "GIT_AUTHOR_NAME": "Ada",
        "GIT_AUTHOR_EMAIL": "ada@example.org",
        "GIT_COMMITTER_NAME": "Ada",
        "GIT_COMMITTER_EMAIL": "ada@example.org",
        "DO_NOT_TRACK": "",
    }


def test_every_session_is_played() -> None:
    found = {body.split(maxsplit=3)[2] for _, body in BLOCKS if body.startswith("$ ")}
    assert found == {"check", "variants", "build", "abi", "skills", "init"}


def lacks_no_option(words: list[str]) -> bool:
    """Whether a command can be run as it is written; running text names some without their arguments."""
    command: click.Command = cli
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words[0])
        assert found is not None, words
        command, words = found, words[1:]
    try:
        command.make_context(command.name, list(words))
    except click.MissingParameter as error:
        return isinstance(error.param, click.Argument)
    return True


def test_commands_and_options_exist() -> None:
    """Those in running text and in overviews, which no session runs."""
    overview = [line for _, body in BLOCKS for line in body.splitlines() if line.startswith("kbuild ")]
    for text in [*re.findall(r"`(kbuild [^`]+)`", README), *overview]:
        assert text.split()[1] in COMMANDS, text
    for text in re.findall(r"`(kbuild [^`]+)`", README):
        assert lacks_no_option(shlex.split(text.partition("|")[0])[1:]), text
    groups = {"skills": ["list", "add"], "lock": ["list", "fetch", "refresh"], "localhub": ["serve"]}
    asked = [[name] for name in COMMANDS] + [
        [group, name] for group, names in groups.items() for name in names
    ]
    helps = "\n".join(kbuild(*words, "--help").stdout for words in asked)
    for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", README):
        assert re.search(rf"{option}\b", helps), option


def test_check(tmp_path: Path, environment: dict[str, str]) -> None:
    root = tmp_path / "norm"
    shutil.copytree(ROOT / "tests" / "fixtures" / "accepted" / "base", root)
    config, header = root / "build.toml", root / "cuda" / "norm.cuh"
    config.write_text(config.read_text().replace("\n\n[torch]", '\npython-depend = ["einops"]\n\n[torch]'))
    header.write_text('#pragma once\n\n#include "deep.cuh"\n' + header.read_text())
    (root / "cuda" / "deep.cuh").touch()
    play(session("kbuild check"), root, environment, code=1)


def test_variants(environment: dict[str, str]) -> None:
    play(session("kbuild variants"), ROOT, environment)


def test_build_and_abi(tmp_path: Path, environment: dict[str, str]) -> None:
    """All variants only in a dry run; the heavy tests build them."""
    relu = tmp_path / "example_kernels" / "relu"
    shutil.copytree(ROOT / "example_kernels" / "relu", relu, ignore=shutil.ignore_patterns("build"))
    (build,) = session("kbuild build")
    play([Shown(command=f"{build.command} --dry-run", lines=())], tmp_path, environment)
    (abi,) = session("kbuild abi")
    assert kbuild("build", relu, "--variant", abi.command.rpartition("/")[2]).code == 0
    play([abi], tmp_path, environment)


def test_skills(tmp_path: Path, environment: dict[str, str]) -> None:
    play(session("kbuild skills"), tmp_path, environment)


def test_from_a_sentence_to_a_kernel(tmp_path: Path, environment: dict[str, str], tester: Client) -> None:
    shown = session("kbuild init")
    (use,) = (body for kind, body in BLOCKS if kind == "python" and "my-norm" in body)
    with running_hub(tmp_path / "hub", HUB) as hub:
        environment |= hub.environment
        play([one for one in shown if not one.command.startswith("kbuild bench")], tmp_path, environment)
        code = f"import torch\nfrom kernels import get_kernel\nx, weight = torch.randn(2, 8, 64), torch.ones(64)\n{use}"
        tester.check(code, environment=hub.environment)


def test_the_two_commands_are_there() -> None:
    for script in re.findall(r"^bash (\S+)", README, re.MULTILINE):
        assert os.access(ROOT / script, os.R_OK), script
