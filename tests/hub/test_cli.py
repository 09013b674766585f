"""`kbuild publish` as a process: output, exit codes, what it refuses."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clients import Client
from hubs import CONFIG
from starlette.types import ASGIApp, Receive, Scope, Send
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild import freshness
from kbuild.localhub.running import RunningHub, running_hub
from kbuild.project import Project

REPO = "acme/relu"
KERNEL = "rms-norm"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one variant, which passes the verification."""
    write_variant(tmp_path / "a project" / "build", UNIVERSAL, python_package())
    return tmp_path / "a project"


def run(
    hub: RunningHub, *argv: str | Path, cwd: Path | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | hub.environment | extra
    finished = subprocess.run(
        [sys.executable, "-m", "kbuild", "publish", *map(str, argv)],
        env=environment,
        cwd=cwd,
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


def test_no_project_and_no_build(hub: RunningHub, tmp_path: Path, base_project: Path) -> None:
    finished = run(hub, REPO, tmp_path)
    assert finished.returncode == 2
    assert f"there is no build.toml in {tmp_path}" in finished.stderr
    finished = run(hub, REPO, base_project)
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


@pytest.fixture
def built_project(base_project: Path) -> Path:
    """A whole project, with one variant that is what its build.toml says."""
    config = (base_project / "build.toml").read_text()
    (base_project / "build.toml").write_text(
        config.replace("[torch]", '[general.hub]\nrepo-id = "acme/from-config"\n\n[torch]', 1)
    )
    write_variant(base_project / "build", UNIVERSAL, python_package(), kernel=KERNEL)
    return base_project


def test_the_project_is_found_as_by_other_commands(hub: RunningHub, built_project: Path) -> None:
    (built_project / "sub").mkdir()
    places: list[tuple[Path, tuple[str | Path, ...]]] = [
        (built_project, ()),
        (built_project / "sub", ()),
        (built_project, (".",)),
        (built_project / "sub", ("..",)),
        (built_project, ("./build",)),
        (built_project / "build", (".",)),
        (built_project, ("./build.toml",)),
        (built_project.parent, (built_project,)),
    ]
    for cwd, argv in places:
        finished = run(hub, *argv, "--dry-run", cwd=cwd)
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.startswith("kernel repository acme/from-config ")
    given = run(hub, REPO, built_project, "--dry-run")
    assert given.stdout.startswith("kernel repository acme/relu ")


def test_the_branch_of_the_configuration(hub: RunningHub, built_project: Path) -> None:
    config = built_project / "build.toml"
    config.write_text(config.read_text().replace("[general.hub]", '[general.hub]\nbranch = "staging"'))
    assert "branch staging (to be created)" in run(hub, built_project, "--dry-run").stdout
    assert "branch v7 (to be created)" in run(hub, built_project, "--dry-run", "--branch", "v7").stdout


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("build",), "As a path, write ./build"),
        (("a/b", ".", "c"), "Too many words"),
    ],
)
def test_words_that_name_no_repository(
    hub: RunningHub, built_project: Path, argv: tuple[str, ...], message: str
) -> None:
    finished = run(hub, *argv, cwd=built_project)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_a_repository_has_to_be_named(hub: RunningHub, project: Path) -> None:
    finished = run(hub, project)
    assert finished.returncode == 2
    assert "set repo-id in [general.hub]" in finished.stderr


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("name", KERNEL, "gelu"),
        ("version", 1, 2),
        ("license", "Apache-2.0", "MIT"),
        ("source", None, "https://example.org/relu"),
        ("python-depends", [], ["einops"]),
        ("kernel-depends", [], [{"repo-id": "acme/gelu", "version": 3}]),
    ],
)
def test_a_build_of_another_configuration_stays_here(
    hub: RunningHub, built_project: Path, key: str, old: object, new: object
) -> None:
    path = built_project / "build" / UNIVERSAL / "metadata.json"
    metadata = json.loads(path.read_text())
    assert (metadata[key] if old else metadata.get(key) or old) == old
    path.write_text(json.dumps({**metadata, key: new}))
    refused = run(hub, built_project)
    assert refused.returncode == 1
    assert f"{UNIVERSAL}: metadata.json says {key} " in refused.stderr


def test_variants_of_different_commits_need_a_word(hub: RunningHub, project: Path) -> None:
    write_variant(project / "build", "torch-cpu", python_package(), commit="b" * 40)
    refused = run(hub, REPO, project)
    assert refused.returncode == 1
    assert f"torch-cpu from {'b' * 40}; {UNIVERSAL} from {'a' * 40}" in refused.stderr
    assert "--allow-mixed" in refused.stderr
    done = run(hub, REPO, project, "--allow-mixed")
    assert done.returncode == 0
    assert f"warning: torch-cpu from {'b' * 40}" in done.stderr


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to(UNIVERSAL)])
def test_what_lies_among_variants_is_named(
    hub: RunningHub, project: Path, make: Callable[[Path], None]
) -> None:
    make(project / "build" / "torch-cpu")
    refused = run(hub, REPO, project)
    assert refused.returncode == 1
    assert f"{project / 'build' / 'torch-cpu'} is " in refused.stderr


def test_what_nobody_can_verify_needs_a_word(hub: RunningHub, project: Path) -> None:
    name = CPU.replace("torch213", "torch28")
    write_variant(project / "build", name, native_package())
    refused = run(hub, REPO, project)
    assert f"{name}: cannot be verified: the symbols of PyTorch 2.8 are not known" in refused.stderr
    allowed = run(hub, REPO, project, "--allow-unverified")
    assert "cannot be verified" not in allowed.stderr
    assert f"warning: {name} is not verified: the symbols of PyTorch 2.8" in allowed.stderr


def test_benchmarks_go_beside_the_build(hub: RunningHub, built_project: Path) -> None:
    folder = built_project / "benchmarks"
    folder.mkdir()
    for name in ("benchmark.py", "benchmark_large.py", "helper.py"):
        (folder / name).write_text("print(1)\n")
    planned = run(hub, built_project, "--dry-run").stdout
    assert "  upload  benchmarks/benchmark.py" in planned
    assert "  upload  benchmarks/benchmark_large.py" in planned
    assert "helper.py" not in planned
    assert run(hub, built_project).returncode == 0
    (folder / "benchmark_large.py").unlink()
    assert "  delete  benchmarks/benchmark_large.py" in run(hub, built_project, "--dry-run").stdout


def test_a_path_that_looks_like_a_repository(hub: RunningHub, built_project: Path) -> None:
    folder = built_project.rename(built_project.parent / "norms")
    looks_like_one = f"{folder.parent.name}/norms"
    refused = run(hub, looks_like_one, "--dry-run", cwd=folder.parents[1])
    assert refused.returncode == 2
    assert f"As a path, write ./{looks_like_one}" in refused.stderr
    assert run(hub, f"./{looks_like_one}", "--dry-run", cwd=folder.parents[1]).returncode == 0


def test_a_backend_without_a_variant_is_named(hub: RunningHub, built_project: Path) -> None:
    note = "note: build/ has no variant for cuda: run `kbuild build --all-variants` for the rest"
    assert "note:" not in run(hub, built_project, "--dry-run").stdout, "torch-universal is for all"
    (built_project / "build" / UNIVERSAL).rename(built_project / "build" / "torch-cpu")
    assert note in run(hub, built_project, "--dry-run").stdout
    assert json.loads(run(hub, built_project, "--dry-run", "--json").stdout)["plan"]["notes"] == [
        note[len("note: ") :]
    ]
    assert note in run(hub, built_project).stderr


def test_a_build_of_other_sources_goes_with_a_note(hub: RunningHub, built_project: Path) -> None:
    """One from the commit before last is good to publish, but its author may not know."""
    general, _, _ = (built_project / "build.toml").read_text().partition("[torch]")
    (built_project / "build.toml").write_text(general + "[torch-noarch]\n")
    build = built_project / "build"
    fresh = freshness.digests(Project.open(built_project))["torch-cuda"]
    for name, digest, archs in (("torch-cpu", "0" * 12, None), ("torch-cuda", fresh, ("9.0",))):
        identity = f"_rms_norm_{digest}_{name}".replace("-", "_")
        write_variant(build, name, python_package(), kernel=KERNEL, identity=identity, archs=archs)
    note = "note: the sources are not those that torch-cpu was built from: run `kbuild build`"
    assert note in run(hub, built_project, "--dry-run").stdout
    done = run(hub, built_project)
    assert done.returncode == 0, done.stderr
    assert note in done.stderr


def test_an_interrupt_says_what_may_be_left(tmp_path: Path, project: Path) -> None:
    publisher: list[subprocess.Popen[str]] = []

    def wrap(app: ASGIApp) -> ASGIApp:
        async def interrupting(scope: Scope, receive: Receive, send: Send) -> None:
            if "/commit/" in scope["path"]:
                publisher[0].send_signal(signal.SIGINT)
                await asyncio.sleep(1)
            await app(scope, receive, send)

        return interrupting

    with running_hub(tmp_path / "hub", CONFIG, wrap=wrap) as running:
        argv = [sys.executable, "-m", "kbuild", "publish", REPO, str(project)]
        environment = {**os.environ, **running.environment}
        publisher.append(subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE, text=True))
        _, stderr = publisher[0].communicate(timeout=60)
    assert publisher[0].returncode == 130
    assert "Interrupted. acme/relu may be new, have a new branch" in stderr
    assert "nothing half-done" not in stderr
