"""`kbuild publish` as a process: output, exit codes, what it refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from clients import Client
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild.localhub.running import RunningHub

REPO = "acme/relu"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one variant, which passes the verification."""
    write_variant(tmp_path / "a project" / "build", UNIVERSAL, python_package())
    return tmp_path / "a project"


def run(hub: RunningHub, *argv: str | Path, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | hub.environment | extra
    finished = subprocess.run(
        [sys.executable, "-m", "kbuild", "publish", *map(str, argv)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in finished.stderr
    assert "hf_ada" not in finished.stdout + finished.stderr
    return finished


def test_publish_then_nothing_to_do(hub: RunningHub, project: Path, new: Client) -> None:
    dry = run(hub, REPO, project, "--dry-run")
    assert dry.returncode == 0
    assert dry.stdout.splitlines()[:3] == [
        "kernel repository acme/relu (`kernels` 0.14 and later load from it)",
        "  create it, public",
        "branch v1 (to be created)",
    ]
    assert f"  upload  build/{UNIVERSAL}/__init__.py" in dry.stdout
    assert "  upload  README.md" in dry.stdout

    done = run(hub, REPO, project, "--json")
    assert done.returncode == 0
    outcome = json.loads(done.stdout)
    assert (outcome["version"], outcome["repository_type"], outcome["revision"]) == (1, "kernel", "v1")
    assert [commit["branch"] for commit in outcome["commits"]] == ["v1", "main"]
    assert outcome["url"] == f"{hub.endpoint}/kernels/{REPO}/tree/v1"

    again = run(hub, REPO, project, "--verify")
    assert again.returncode == 0
    assert again.stdout.startswith("Nothing to do: the Hub has all of it.\n")
    assert "Not loaded back: this Python has no torch" in again.stderr

    plan = json.loads(run(hub, REPO, project, "--dry-run", "--json").stdout)["plan"]
    assert [branch["uploads"] for branch in plan["branches"]] == [[], []]


def test_what_fails_the_verification_stays_here(hub: RunningHub, project: Path) -> None:
    write_variant(project / "build", CPU, native_package())
    refused = run(hub, REPO, project)
    assert refused.returncode == 1
    assert f"{CPU}: _tiny.abi3.so: does not export PyInit__tiny [module]" in refused.stderr
    assert run(hub, REPO, project, "--dry-run").returncode == 1
    (project / "build" / UNIVERSAL / "stray.pyc").touch()
    assert f"{UNIVERSAL}: stray.pyc" in run(hub, REPO, project).stderr


def test_dirty_builds_need_a_word(hub: RunningHub, project: Path) -> None:
    write_variant(project / "build", UNIVERSAL, {}, dirty=True)
    refused = run(hub, REPO, project)
    assert refused.returncode == 1
    assert "--allow-dirty" in refused.stderr
    assert run(hub, REPO, project, "--allow-dirty").returncode == 0


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["relu"], 2, "'relu' names no repository"),
        (["a/b/c"], 2, "'a/b/c' names no repository"),
        (["nowhere/relu"], 5, "'nowhere' does not exist"),
        ([REPO, "--repo-type", "space"], 2, "'space' is not one of"),
        ([REPO, "--create-pr"], 5, "no repository acme/relu to open a pull request against"),
    ],
)
def test_wrong_words(hub: RunningHub, project: Path, argv: list[str], code: int, message: str) -> None:
    finished = run(hub, argv[0], project, *argv[1:])
    assert finished.returncode == code
    assert message in finished.stderr


def test_no_build(hub: RunningHub, tmp_path: Path) -> None:
    finished = run(hub, REPO, tmp_path)
    assert finished.returncode == 2
    assert "kbuild build" in finished.stderr


def test_no_network_and_no_token(hub: RunningHub, project: Path) -> None:
    gone = run(hub, REPO, project, HF_ENDPOINT="http://127.0.0.1:9")
    assert gone.returncode == 5
    assert "http://127.0.0.1:9 did not answer" in gone.stderr
    offline = run(hub, REPO, project, HF_HUB_OFFLINE="1")
    assert offline.returncode == 5
    for token in ("", "hf_wrong"):
        refused = run(hub, REPO, project, HF_TOKEN=token)
        assert refused.returncode == 5
        assert "hf auth login" in refused.stderr
    assert "hf_wrong" not in refused.stderr
