"""Running a kernel's tests against its build, loaded the way its users load it."""

import ast
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild import machine, metadata, process
from kbuild.errors import BuildError, MachineError, UsageError
from kbuild.loading import place_to_load, raise_for_failure, require_fit

_NEEDED = "pip install torch 'kernels>=0.17' pytest numpy"

_PYTEST_CONFIGS = ("pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")

# NB: runs under the Python that has PyTorch, where nothing of kbuild need be importable.
_SCRIPT = r"""
import importlib.util, json, os, re, sys
report, repo_id, *arguments = sys.argv[1:]
def write(**what):
    with open(report, "w") as file:
        json.dump(what, file)
def end(**what):
    write(**what)
    os._exit(1)
missing = [name for name in ("torch", "kernels", "pytest") if importlib.util.find_spec(name) is None]
if missing:
    end(missing=missing)
from importlib.metadata import version
if tuple(int(part) for part in version("kernels").split(".")[:2]) < (0, 17):
    end(old=version("kernels"))
import pytest
class Plugin:
    def __init__(self):
        self.loaded, self.outcomes = None, {"passed": 0, "failed": 0, "skipped": 0}
        self.gpu, self.stopped, self.not_found = True, False, set()
    def pytest_configure(self, config):
        if config.args_source.name not in ("ARGS", "TESTPATHS"):
            config.args = ["tests"]
    # Not before pytest runs: it wants to be there when packages are imported.
    def pytest_sessionstart(self):
        if not repo_id:
            return
        import kernels, torch
        # Left to itself a PyTorch built for CUDA takes the CUDA build, without a GPU too.
        self.gpu = torch.cuda.is_available()
        backend = "cpu" if torch.version.cuda and not self.gpu else None
        try:
            self.loaded = kernels.get_kernel(
                repo_id, version=1, trust_remote_code=True, backend=backend
            ).__file__
        except FileNotFoundError as error:
            end(unfit=str(error))
        except Exception as error:
            end(broken="\n".join([type(error).__name__ + ": " + str(error), *getattr(error, "__notes__", ())]))
    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        self.look_for_imports(report)
    def pytest_collectreport(self, report):
        self.outcomes["failed"] += report.failed
        self.look_for_imports(report)
    def look_for_imports(self, report):
        if report.failed:
            self.not_found.update(re.findall(r"No module named '(\w+)", str(report.longrepr)))
    # Ctrl-C, and pytest.exit() with whatever exit code.
    def pytest_keyboard_interrupt(self):
        self.stopped = True
plugin = Plugin()
code = int(pytest.main(arguments, plugins=[plugin]))
write(
    loaded=plugin.loaded, code=code, stopped=plugin.stopped, gpu=plugin.gpu,
    not_found=sorted(plugin.not_found), **plugin.outcomes,
)
raise SystemExit(code)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TestRun:
    """How the tests went; `ok` is None where none passed and none failed.

    `variant` is the build that was loaded, None where the tests load one by themselves; `notes` are what a reader would
    take wrongly otherwise.
    """

    variant: str | None
    passed: int
    failed: int
    skipped: int
    ok: bool | None
    notes: tuple[str, ...] = ()


def repo_ids(root: Path, name: str, configured: str | None) -> tuple[str, ...]:
    """What stands for the project on the Hub: the configured repository, and what its tests load by its name."""
    found = [] if configured is None else [configured]
    for path in sorted((root / "tests").rglob("*.py")):
        found += [repo for repo in _loaded_in(path) if repo.rpartition("/")[2] == name]
    return tuple(dict.fromkeys(found))


def _loaded_in(path: Path) -> Iterator[str]:
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
    except (SyntaxError, ValueError):
        return  # pytest says it better
    texts = {
        name: node.value.value
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for name in map(ast.unparse, node.targets)
    }
    for node in nodes:
        match node:
            case ast.Call(
                func=ast.Name(id="get_kernel") | ast.Attribute(attr="get_kernel"), args=[argument, *_]
            ):
                repo = (
                    argument.value if isinstance(argument, ast.Constant) else texts.get(ast.unparse(argument))
                )
                if isinstance(repo, str):
                    yield repo


def run_tests(
    root: Path,
    name: str,
    repos: Sequence[str],
    *,
    variant: str | None = None,
    arguments: Sequence[str] = (),
    to_stderr: bool = False,
    find_torch: Callable[[], machine.InstalledTorch | None] = machine.installed_torch,
    runner: Callable[..., int] = process.run_in_foreground,
) -> TestRun:
    """Run pytest in `root`, on its tests unless `arguments` name others; its output goes to the terminal (to stderr
    where asked).

    Raises MachineError where PyTorch, kernels or pytest is missing or no built variant fits, UsageError where nothing
    is built, there are no tests, none is selected or pytest does not take the arguments, and FindingsError where the
    kernel cannot be loaded.
    """
    if not (root / "tests").is_dir():
        raise UsageError(f"{root} has no tests folder", hint="put pytest files into tests/")
    place = place_to_load(root, variant)
    here = find_torch()
    if here is None:
        raise MachineError(
            "running a kernel's tests needs PyTorch, and this environment has none", hint=_NEEDED
        )
    require_fit(variant, here, does="test")
    # Importing the kernel must leave no bytecode in a build that is to be published.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("LOCAL_KERNELS", None)
    if repos:
        environment["LOCAL_KERNELS"] = ":".join(f"{repo}={place}" for repo in repos)
    with tempfile.TemporaryDirectory(prefix="kbuild-test-") as scratch:
        report = Path(scratch, "report.json")
        first = repos[0] if repos else ""
        options = [*_isolated(root), *(arguments or ["-q"])]
        argv = [here.python, "-c", _SCRIPT, str(report), first, *options]
        code = runner(argv, cwd=root, env=environment, to_stderr=to_stderr)
        if not report.is_file():
            raise BuildError(f"the tests ended early: {here.python} left with status {code}")
        return _judge(json.loads(report.read_text(encoding="utf-8")), here, root, name, first)


def _isolated(root: Path) -> list[str]:
    """Options that keep the configuration of a surrounding repository, meant for its own tests, out of the kernel's."""
    if any((root / name).is_file() for name in _PYTEST_CONFIGS):
        return []
    return ["-c", os.devnull, "--rootdir", str(root), "--confcutdir", str(root)]


def _judge(report: dict[str, Any], here: machine.InstalledTorch, root: Path, name: str, repo: str) -> TestRun:
    raise_for_failure(report, here, root, needed=_NEEDED)
    code, passed = report["code"], report["passed"]
    match code:
        case 4:  # pytest.ExitCode.USAGE_ERROR
            raise UsageError(
                "pytest did not run the tests: its reason stands above",
                hint=f"it runs in {root}, and paths are relative to that",
            )
        case 5:  # pytest.ExitCode.NO_TESTS_COLLECTED
            raise UsageError(
                f"pytest selected none of the tests in {root / 'tests'}",
                hint=f"their names: kbuild test {root} --collect-only -q",
            )
    loaded = None if report["loaded"] is None else Path(report["loaded"]).parent
    ran = passed > 0 or code != 0 or report["stopped"]
    return TestRun(
        variant=None if loaded is None else loaded.name,
        passed=passed,
        failed=report["failed"],
        skipped=report["skipped"],
        ok=code == 0 and not report["stopped"] if ran else None,
        notes=tuple(_notes(report, loaded, name, repo)),
    )


def _notes(report: dict[str, Any], loaded: Path | None, name: str, repo: str) -> Iterator[str]:
    package = name.replace("-", "_")
    if package in report["not_found"]:
        yield (
            f"{package} is built, not installed, so tests cannot import it: "
            f'{package} = kernels.get_kernel("{repo or f"ORG/{name}"}", ...)'
        )
    if loaded is None:
        yield (
            "no build was put in the place of what the tests load, because it is not known what that is: set repo-id "
            f"in [general.hub] of build.toml, or say --repo-id ORG/{name}"
        )
    elif not report["gpu"] and "TRITON_INTERPRET" not in os.environ:
        backend = metadata.load(loaded / metadata.FILE_NAME).backend.type
        if backend is metadata.BackendType.CUDA:
            yield f"there is no GPU here: of {loaded.name} only what runs on a CPU was tested"
