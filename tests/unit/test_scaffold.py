"""`kbuild init`: every kind of project it writes passes the strictest check, and names are explained."""

import contextlib
import itertools
import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id
from runs import kbuild
from trees import CPU, native_package, write_variant

from kbuild.cli import COMMANDS, cli
from kbuild.config.schema import REPO_ID
from kbuild.errors import UsageError
from kbuild.hub import card
from kbuild.hub.plan import RepoType
from kbuild.hub.tree import read_build
from kbuild.resources import data_path
from kbuild.scaffold import Backend, Op, Scaffold, parse_function, parse_repository, render, write

BACKENDS = [(Backend.CUDA, Backend.CPU), (Backend.CPU,), (Backend.CUDA,)]
EVERY_KIND = [
    pytest.param(
        Scaffold(org="acme", name="my-kernel", backends=backends, op=op, stable_abi=stable),
        id=f"{op}-{'-'.join(backends)}{'-stable' if stable else ''}",
    )
    for backends, op, stable in itertools.product(BACKENDS, Op, [False, True])
] + [
    pytest.param(
        Scaffold(org="acme", name="my-kernel", backends=backends, op=op, stable_abi=False, noarch=True),
        id=f"{op}-{'-'.join(backends)}-noarch",
    )
    for backends, op in itertools.product([(Backend.CUDA, Backend.CPU), (Backend.CUDA,)], Op)
]


EVERY_OP = pytest.mark.parametrize("op", list(Op))


@pytest.fixture(params=EVERY_KIND)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    write(render(request.param), tmp_path / "my-kernel")
    return tmp_path / "my-kernel"


def test_passes_the_strictest_check(project: Path) -> None:
    checked = kbuild("check", project, "--strict")
    assert checked.code == 0, checked.stdout
    assert checked.stdout == ""


def test_nothing_of_the_templates_is_left(project: Path) -> None:
    for path in project.rglob("*"):
        assert "@{" not in path.name
        if path.is_file():
            text = path.read_text()
            assert "@{" not in text, path
            assert "%@" not in text, path
            assert text.endswith("\n"), path
            assert not text.endswith("\n\n"), path
            assert "\n\n\n\n" not in text, path


def test_python_is_clean(project: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        options = ["--isolated", "--line-length=110", "--target-version=py39"]
        done = subprocess.run([*ruff, *command, *options, "."], cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_workflow_and_hooks_are_yaml(project: Path) -> None:
    workflow = yaml.safe_load((project / ".github/workflows/kernel.yml").read_text())
    commands = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    for command in ("kbuild check --strict", "kbuild build --all-variants", "kbuild publish acme/my-kernel"):
        assert command in commands
    assert workflow["jobs"]["publish"]["permissions"]["attestations"] == "write"
    (install,) = {command for command in commands if command.startswith("pip install")}
    refused = subprocess.run(["bash", "-c", install], env=workflow["env"], capture_output=True, text=True)
    assert refused.returncode != 0, "no stranger's package is installed by its name"
    assert "what to install kbuild from" in refused.stderr
    assert yaml.safe_load((project / ".pre-commit-config.yaml").read_text())["repos"]


def test_the_commands_it_names_exist(project: Path) -> None:
    named = [
        project / "README.md",
        project / ".github/workflows/kernel.yml",
        project / ".pre-commit-config.yaml",
    ]
    lines = re.findall(r"(?m)\bkbuild (\w+)(.*)$", "\n".join(path.read_text() for path in named))
    assert {command for command, _ in lines} >= {"check", "build", "test", "publish"}
    for command, rest in lines:
        if command in COMMANDS:
            arguments = shlex.split(rest, comments=True)
            found = cli.get_command(click.Context(cli), command)
            assert found is not None
            found.make_context(command, arguments)


@pytest.mark.parametrize("backends", BACKENDS)
def test_only_what_was_asked_for(backends: tuple[Backend, ...]) -> None:
    files = render(Scaffold(org="a", name="k", backends=backends, op=Op.RMSNORM, stable_abi=False))
    assert ("rms_norm/rms_norm.cu" in files) == (Backend.CUDA in backends)
    assert ("rms_norm/rms_norm.cpp" in files) == (Backend.CPU in backends)
    assert ("cuda" in files["torch-ext/torch_binding.cpp"]) == (Backend.CUDA in backends)
    assert ("benchmarks/rms_norm.py" in files) == (Backend.CUDA in backends)
    assert ("kbuild bench" in files["README.md"]) == (Backend.CUDA in backends)
    assert ("on a CPU too" in files["README.md"]) == (len(backends) == 2)


@EVERY_OP
def test_a_noarch_project_shares_all_but_the_implementation(op: Op) -> None:
    compiled = Scaffold(org="acme", name="my-kernel", backends=BACKENDS[0], op=op, stable_abi=False)
    ours, theirs = render(replace(compiled, noarch=True)), render(compiled)
    package = "torch-ext/my_kernel"
    assert set(ours) - set(theirs) == {f"{package}/operation.py", f"{package}/triton_kernel.py"}
    assert {Path(path).suffix for path in set(theirs) - set(ours)} == {".cpp", ".cu", ".cuh", ".h"}
    differ = {path for path in set(ours) & set(theirs) if ours[path] != theirs[path]}
    assert differ == {"build.toml", "README.md", ".github/workflows/kernel.yml", f"{package}/functional.py"}
    assert "[torch-noarch]\n" in ours["build.toml"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--stable-abi"], "leave --stable-abi out"),
        (["--backends", "cpu"], "--backends takes cuda or cuda,cpu with --noarch"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_options_that_noarch_does_not_go_with(tmp_path: Path, option: list[str], says: str) -> None:
    made = kbuild("init", "acme/relu", "--noarch", *option, cwd=tmp_path)
    assert made.code == 2
    assert says in made.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["acme/relu", "acme/rms-norm", "A.c_m-e/rope3d"])
def test_good_names(text: str) -> None:
    assert "/".join(parse_repository(text)) == text


# A package of one of these names would import itself.
IMPORTED = ["torch", "triton", "kernels", "kbuild", "pytest", "os", "importlib", "pathlib"]


@pytest.mark.parametrize(
    ("text", "says", "proposes"),
    [
        ("relu", "is not ORG/NAME", "my-org/relu"),
        ("a/b/relu", "is not ORG/NAME", "my-org/relu"),
        ("acme/", "is not ORG/NAME", "my-org/acme"),
        ("acme/My_Kernel", "lower-case", "acme/my-kernel"),
        ("acme/FusedSwiGLU", "lower-case", "acme/fused-swi-glu"),
        ("acme/3d-rope", "first a letter", "acme/d-rope"),
        ("acme/x", "two or more", "acme/my-kernel"),
        ("acme/relu-", "last no dash", "acme/relu"),
        ("acme/lambda", "a word of Python", "acme/lambda-kernel"),
        ("acme/fused--norm", "nowhere '--'", "acme/fused-norm"),
        ("acme/" + "n" * 97, "96 of them at most", "acme/" + "n" * 64),
        *((f"acme/{name}", "its own files import", f"acme/{name}-kernel") for name in IMPORTED),
        ("ac me/relu", "Hub organisation", None),
        ("acme-/relu", "Hub organisation", None),
        ("acme./relu", "Hub organisation", None),
        ("ac--me/relu", "Hub organisation", None),
        ("ac..me/relu", "Hub organisation", None),
    ],
)
def test_bad_names_are_explained(text: str, says: str, proposes: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parse_repository(text)
    assert says in caught.value.message
    assert (caught.value.hint is None) == (proposes is None)
    if proposes is not None and caught.value.hint is not None:
        assert caught.value.hint.endswith(proposes)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("acme/relu", True),
        ("A.c_m-e/r.e_l-u_", True),
        (f"{'a' * 96}/{'b' * 96}", True),
        ("acme/a--b", False),
        ("acme/a..b", False),
        ("acme/relu.git", False),
        ("acme/relu.", False),
        ("acme-/relu", False),
        (f"acme/{'b' * 97}", False),
        (f"{'a' * 97}/relu", False),
    ],
)
def test_a_repository_is_what_the_hub_s_client_takes(text: str, valid: bool) -> None:
    assert (re.fullmatch(REPO_ID.pattern or "", text) is not None) == valid
    with contextlib.nullcontext() if valid else pytest.raises(HFValidationError):
        validate_repo_id(text)


@EVERY_OP
@pytest.mark.parametrize("kind", [[], ["--stable-abi"], ["--noarch"]], ids=["ordinary", "stable", "noarch"])
def test_a_function_of_its_own_name(tmp_path: Path, op: Op, kind: list[str]) -> None:
    """Nothing of the name that the operation has in PyTorch is left but PyTorch's own function."""
    made = kbuild("init", "acme/gates", "--op", op, "--function", "fused_gate2", *kind, cwd=tmp_path)
    assert made.code == 0, made.stderr
    root = tmp_path / "gates"
    assert kbuild("check", root, "--strict").code == 0
    files = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    named = {path for path in files if "fused_gate2" in path}
    assert named >= {"tests/test_fused_gate2.py", "benchmarks/fused_gate2.py"}
    assert ("fused_gate2/fused_gate2.cu" in named) == (kind != ["--noarch"])
    for path, file in files.items():
        assert (
            re.search(
                r"silu|rms_norm", path + file.read_text().replace("F.silu", "").replace("F.rms_norm", "")
            )
            is None
        )
    assert "class FusedGate2(nn.Module)" in files["torch-ext/gates/layers.py"].read_text()
    claims = ("README.md", "CARD.md", "flake.nix", "torch-ext/gates/layers.py")
    assert all("still to be replaced" in files[path].read_text() for path in claims)


@EVERY_OP
def test_without_a_layer(tmp_path: Path, op: Op) -> None:
    """What is removed where the operation is no layer: the file and its import. The card follows by itself."""
    root = tmp_path / "relu"
    write(render(Scaffold(org="acme", name="relu", backends=BACKENDS[0], op=op, stable_abi=False)), root)
    write_variant(tmp_path / "build", CPU, native_package())
    build = read_build(tmp_path / "build", violations={CPU: ()})
    assert "\nLayers: `" in card.render(root, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)
    package = root / "torch-ext" / "relu"
    (package / "layers.py").unlink()
    init = package / "__init__.py"
    init.write_text(init.read_text().replace("from . import layers\n", "").replace('"layers", ', ""))
    checked = kbuild("check", root, "--strict")
    assert checked.code == 0, checked.stdout
    assert "Layers" not in card.render(root, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)


@EVERY_OP
def test_the_name_it_has_may_be_said(op: Op) -> None:
    name = {Op.RMSNORM: "rms_norm", Op.ELEMENTWISE: "silu"}[op]
    plain = Scaffold(org="acme", name="gates", backends=BACKENDS[0], op=op, stable_abi=False)
    assert render(replace(plain, function=parse_function(name, op))) == render(plain)


@EVERY_OP
@pytest.mark.parametrize(
    "text",
    [
        "swiglu",
        "int8_quantize",
        "gelu",
        "softmax",
        "rope",
        "add_rms_norm",
        "q",
        "tanh",
        "fma",
        "abs",
        "log",
        "y0",
    ],
)
def test_good_functions(text: str, op: Op) -> None:
    assert parse_function(text, op) == text


@EVERY_OP
@pytest.mark.parametrize(
    ("text", "says", "proposes"),
    [
        ("FusedGate", "lower-case", "fused_gate"),
        ("fused-gate", "lower-case", "fused_gate"),
        ("fused__gate", "single '_'", "fused_gate"),
        ("_swiglu", "first a letter", "swiglu"),
        ("8bit", "first a letter", "bit"),
        ("", "first a letter", "my_kernel"),
        ("lambda", "a word of Python", "fused_lambda"),
        ("union", "a word of C++", "fused_union"),
        ("torch", "for something else", "fused_torch"),
        ("layers", "for something else", "fused_layers"),
        ("tests", "for something else", "fused_tests"),
        ("build", "for something else", "fused_build"),
        ("kernel", "for something else", "fused_kernel"),
        ("aligned", "for something else", "fused_aligned"),
        ("expect", "for something else", "fused_expect"),
        ("ops_", "single '_'", "fused_ops"),
        ("none", "a word of Python", "fused_none"),
        ("None", "lower-case", "fused_none"),
        ("benchmark", "publishing takes", "fused_benchmark"),
        ("n" * 300, "300 characters", "n" * 64),
    ],
)
def test_bad_functions_are_explained(tmp_path: Path, op: Op, text: str, says: str, proposes: str) -> None:
    made = kbuild("init", "acme/relu", "--op", op, "--function", text, cwd=tmp_path)
    assert made.code == 2
    assert says in made.stderr
    assert f"--function {proposes}\n" in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_refuses_to_overwrite(tmp_path: Path) -> None:
    first = kbuild("init", "acme/relu", cwd=tmp_path)
    assert first.code == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = kbuild("init", "acme/relu", cwd=tmp_path)
    assert again.code == 2
    assert "relu exists" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_empty_folder_may_be_filled_and_a_file_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    filled = kbuild("init", "acme/relu", "--dest", tmp_path / "empty", "--json")
    assert filled.code == 0
    assert "build.toml" in json.loads(filled.stdout)["files"]
    assert (tmp_path / "empty" / "build.toml").is_file()
    (tmp_path / "file").write_text("mine")
    assert kbuild("init", "acme/relu", "--dest", tmp_path / "file").code == 2
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_is_filled_stays(tmp_path: Path) -> None:
    """The shell stands in it, and it may be a mount point."""
    here = tmp_path / "here"
    here.mkdir(mode=0o700)
    before = here.stat()
    made = kbuild("init", "acme/relu", "--dest", ".", cwd=here)
    assert made.code == 0, made.stderr
    assert "cd " not in made.stderr
    assert (here.stat().st_ino, here.stat().st_mode) == (before.st_ino, before.st_mode)
    assert {path.name for path in here.iterdir() if path.name.startswith(".")} == {
        ".github",
        ".gitignore",
        ".pre-commit-config.yaml",
    }
    assert kbuild("check", "--strict", cwd=here).code == 0


@pytest.mark.parametrize("filled", [True, False])
def test_a_failure_leaves_nothing(tmp_path: Path, filled: bool) -> None:
    if filled:
        (tmp_path / "project").mkdir()
    with pytest.raises(OSError, match="name too long"):
        write({"a": "text", "b" * 300: "text"}, tmp_path / "project")
    assert list(tmp_path.rglob("*")) == ([tmp_path / "project"] if filled else [])


def test_a_failure_after_the_first_file_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if any(tmp_path.glob("[a-z]")):
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    (tmp_path / ".git").mkdir()
    with pytest.raises(KeyboardInterrupt):
        write({"a": "text", "b/c": "text"}, tmp_path)
    assert list(tmp_path.rglob("*")) == [tmp_path / ".git"]


def git(*argv: str | Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    subprocess.run(["git", *argv], check=True, capture_output=True)


def test_inside_a_git_work_tree_it_says_what_a_build_needs(tmp_path: Path) -> None:
    git("init", "-q", tmp_path)
    made = kbuild("init", "acme/relu", cwd=tmp_path)
    assert "git add relu && cd relu && kbuild check" in made.stderr
    assert kbuild("check", tmp_path / "relu").code == 1
    git("-C", tmp_path, "add", "relu")
    assert kbuild("check", tmp_path / "relu", "--strict").code == 0


def test_a_fresh_work_tree_may_be_filled(tmp_path: Path) -> None:
    git("init", "-q", tmp_path)
    made = kbuild("init", "acme/relu", "--dest", ".", cwd=tmp_path)
    assert made.code == 0, made.stderr
    assert "Next: git add . && kbuild check" in made.stderr


def test_a_folder_that_git_ignores(tmp_path: Path) -> None:
    git("init", "-q", tmp_path)
    (tmp_path / ".gitignore").write_text("/scratch/\n")
    (tmp_path / "scratch").mkdir()
    made = kbuild("init", "acme/relu", cwd=tmp_path / "scratch")
    assert "Next: git add -f relu && cd relu" in made.stderr
    root = tmp_path / "scratch" / "relu"
    refused = kbuild("check", root)
    assert refused.code == 1
    assert "git ignores it" in refused.stdout
    (said,) = re.findall(r"`git (-C .* check-ignore -v build.toml)`", refused.stdout)
    git(*shlex.split(said))
    git("-C", root, "add", "-f", ".")
    assert kbuild("check", root, "--strict").code == 0


@pytest.mark.parametrize("backends", ["metal", "cdua,cpu", ""])
def test_backends_without_a_template(tmp_path: Path, backends: str) -> None:
    made = kbuild("init", "acme/relu", "--backends", backends, cwd=tmp_path)
    assert made.code == 2
    assert "--backends takes cuda, cpu or cuda,cpu" in made.stderr
    assert list(tmp_path.iterdir()) == []


def test_bytecode_beside_the_templates_is_no_template() -> None:
    """pip compiles every .py file of a package that it installs, templates among them."""
    folder = data_path("templates/project")
    scaffold = Scaffold(
        org="acme", name="my-kernel", backends=BACKENDS[0], op=Op.ELEMENTWISE, stable_abi=False
    )
    before = render(scaffold)
    made = list(folder.rglob("*.py"))
    for path in made:
        (path.parent / "__pycache__").mkdir(exist_ok=True)
        (path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").write_bytes(b"\xa7\x0d\x0d\x0a")
    try:
        assert made
        assert render(scaffold) == before
    finally:
        for path in made:
            shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)
