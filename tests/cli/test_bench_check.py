"""`kbuild bench --check` with the real loader: what is right, what is wrong, and what must be mended first."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from clients import Client, kernel_tester
from runs import Finished, kbuild
from trees import write_variant

ROOT = Path(__file__).parents[2]
KERNEL = b"""
import torch
import torch.nn.functional as F


def silu(x):
    return F.silu(x)


def cut_short(x):
    y = torch.empty_like(x)
    torch._C._nn.silu(x[:-1], out=y[:-1])
    return y


def quantize(x):
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale).to(torch.int8), scale
"""
REFERENCE = b"""
import torch
import torch.nn.functional as F


def silu(x):
    return F.silu(x.double())


def quantize(x):
    scale = x.double().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.double() / scale), scale


def eager_quantize(x):
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return torch.round(x.float() / scale), scale
"""
BENCHMARK = """
import torch
from kbuild.harness import Operation, nbytes, normal

SHAPES = [(4, 256)]


def operations(kernel, reference):
    yield Operation(
        name="SiLU",
        shapes=SHAPES,
        inputs=lambda shape, dtype: (normal(*shape, dtype=dtype),),
        moved=lambda x: nbytes(x, x),
        exact=reference.silu,
        ours=lambda x: kernel.silu(x),
        eager=lambda x: x * torch.sigmoid(x),
    )
"""
OURS = "kernel.silu(x)"


@pytest.fixture(scope="session")
def tester() -> Client:
    return kernel_tester()


@pytest.fixture
def project(base_project: Path) -> Path:
    """A project with a build for the CPU that is Python alone, and one benchmark."""
    write_variant(
        base_project / "build",
        "torch-cpu",
        {"__init__.py": KERNEL, "reference.py": REFERENCE},
        kernel="rms-norm",
    )
    (base_project / "benchmarks").mkdir()
    (base_project / "benchmarks" / "silu.py").write_text(BENCHMARK)
    return base_project


def on_path(client: Client) -> Mapping[str, str]:
    return {"PATH": f"{client.python.parent}{os.pathsep}{os.environ['PATH']}"}


def check(root: Path, tester: Client, *options: str) -> Finished:
    return kbuild("bench", root, "--check", *options, env=on_path(tester))


def rewrite(root: Path, old: str, new: str) -> None:
    path = root / "benchmarks" / "silu.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_right_kernel(project: Path, tester: Client) -> None:
    done = check(project, tester, "--json")
    assert (done.code, done.stderr) == (0, "")
    (result,) = done.json()["results"]
    assert {column["name"]: column["wrong"] for column in result["columns"]} == {"eager": None, "ours": None}


WRONG = {
    "kernel.silu(x) * float('nan')": "NaN or infinity, unlike float64, in 1024 of 1024 values",
    "kernel.silu(x).index_fill(1, torch.tensor([7]), float('inf'))": "in 4 of 1024 values",
    "kernel.silu(x)[0]": "has the shape [256], expected [4, 256] as exact has",
    "kernel.silu(x)[None]": "has the shape [1, 4, 256], expected [4, 256] as exact has",
    "(kernel.silu(x), x)": "has the shape [4, 256], [4, 256], expected [4, 256] as exact has",
    "kernel.silu(x).float()": "has the dtype float32, expected bfloat16 as eager has",
    "kernel.silu(x).double()": "has the dtype float64, expected bfloat16 as eager has",
    "kernel.cut_short(x)": "",  # NaN, or what else lay there
    "None": "returns NoneType, expected tensors",
    "[kernel.silu(x), None]": "returns (Tensor, NoneType), expected tensors",
    "kernel.silu(x) * 1.1": "error 1.0e-01, 5.0e-03 allowed",
}


def test_wrong_kernels(project: Path, tester: Client) -> None:
    """A file each, so that they share one process; the right one beside them is not blamed."""
    for number, ours in enumerate(WRONG):
        text = BENCHMARK.replace(OURS, ours).replace('"SiLU"', f'"wrong {number}"')
        (project / "benchmarks" / f"wrong_{number}.py").write_text(text)
    done = check(project, tester)
    assert done.code == 1
    lines = done.stderr.splitlines()
    assert len(lines) == len(WRONG)
    for number, said in enumerate(WRONG.values()):
        (line,) = [line for line in lines if line.startswith(f"wrong: wrong {number} at 4×256: ")]
        assert said in line
    assert "| wrong 0 | bfloat16 | 4×256 | " in done.stdout
    assert " | wrong | 5.0e-03 |" in done.stdout


def test_what_is_infinite_as_it_should_be(project: Path, tester: Client) -> None:
    """A mask of -inf, say; the same values in the wrong place are seen."""
    rewrite(project, "exact=reference.silu", "exact=lambda x: reference.silu(x).where(x > 0, -torch.inf)")
    rewrite(project, OURS, "kernel.silu(x).where(x > 0, -torch.inf)")
    assert check(project, tester).code == 0
    rewrite(project, "where(x > 0, -torch.inf),\n        eager", "where(x > 1, -torch.inf),\n        eager")
    done = check(project, tester)
    assert done.code == 1
    assert "NaN or infinity, unlike float64" in done.stderr


def test_integers_are_compared_as_numbers(project: Path, tester: Client) -> None:
    """Also with an eager formula that leaves them floats; where it has integers, they are of its dtype."""
    rewrite(project, "reference.silu", "reference.quantize")
    rewrite(project, "lambda x: kernel.silu(x)", "kernel.quantize")
    rewrite(project, "lambda x: x * torch.sigmoid(x)", "reference.eager_quantize")
    assert check(project, tester).code == 0
    rewrite(project, "eager=reference.eager_quantize", "eager=kernel.quantize")
    assert check(project, tester).code == 0
    rewrite(project, "ours=kernel.quantize", "ours=lambda x: [one.float() for one in kernel.quantize(x)]")
    done = check(project, tester)
    assert done.code == 1
    assert "has the dtype float32, float32, expected int8, float32 as eager has" in done.stderr


def test_an_error_beyond_all_numbers_is_json(project: Path, tester: Client) -> None:
    rewrite(project, "reference.silu", "lambda x: torch.zeros_like(x, dtype=torch.float64)")
    rewrite(project, OURS, "kernel.silu(x) * 1e30")
    done = check(project, tester, "--json")
    assert done.code == 1
    (result,) = done.json()["results"]
    assert "Infinity" not in done.stdout
    assert result["columns"][-1]["error"] > 1e300


FAULTY = [
    ("[(4, 256)]", "[]", "operation 'SiLU' has no shapes"),
    ("[(4, 256)]", "[7]", "operation 'SiLU': 7 is no shape, a tuple of integers is"),
    ("[(4, 256)]", "[('a',)]", "operation 'SiLU': ('a',) is no shape, a tuple of integers is"),
    ("def operations", "def operation", "defines no operations(kernel, reference)"),
    ("    yield Operation(", "    return Operation(", "operations() returns Operation, not Operations"),
    ("    yield Operation(", "    return [None]\n    Operation(", "NoneType among its Operations"),
    ("    yield Operation(", "    Operation(", "operations() returns NoneType, not Operations"),
    ("SHAPES =", "import sys; sys.exit(0)\nSHAPES =", "SystemExit: 0\n  benchmarks/faulty_7.py:5, in <module>"),
    ("SHAPES =", "SHAPES ==", "NameError: name 'SHAPES' is not defined"),
    ("SHAPES =", "SHAPES = =", "SyntaxError"),
    ("(normal(*shape, dtype=dtype),)", "normal(*shape, dtype=dtype)", "inputs: returns Tensor, not a tuple"),
    ("exact=reference.silu", "exact=lambda x: None", "4x256: exact: returns NoneType, not a tensor"),
    (OURS, "kernel.relu(x)", "SiLU at 4x256: ours: AttributeError: "),
    ("x * torch.sigmoid(x)", "x @ x", "SiLU at 4x256: eager: RuntimeError: "),
    ("        eager=", "        dtype=torch.float64,\n        eager=", "dtype is none of float32, float16"),
]  # fmt: skip
HARNESS = """
import json, sys
from kbuild import harness

for file in sys.argv[1:]:
    harness.main(["report.json", "my-org/rms-norm", "", "check", file])
    print(json.loads(open("report.json").read())["faulty"], end="\\0")
"""


def test_faulty_benchmarks_are_named(project: Path, tester: Client) -> None:
    files = []
    for number, (old, new, _) in enumerate(FAULTY):
        assert old in BENCHMARK
        files.append(project / "benchmarks" / f"faulty_{number}.py")
        files[-1].write_text(BENCHMARK.replace(old, new))
    done = subprocess.run(
        [tester.python, "-c", HARNESS, *files],
        cwd=project,
        env={"PYTHONPATH": str(ROOT), "LOCAL_KERNELS": f"my-org/rms-norm={project / 'build'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    messages = done.stdout.split("\0")[:-1]
    assert len(messages) == len(FAULTY)
    for number, ((*_, said), message) in enumerate(zip(FAULTY, messages, strict=True)):
        assert message.startswith(f"benchmarks/faulty_{number}.py: ")
        assert said in message


def test_a_fault_is_a_finding(project: Path, tester: Client) -> None:
    rewrite(project, OURS, "kernel.relu(x)")
    done = check(project, tester)
    assert done.code == 1
    said = "error: benchmarks/silu.py: SiLU at 4x256: ours: AttributeError: "
    assert done.stderr.startswith(said)
    assert "\n  benchmarks/silu.py:15, in <lambda>" in done.stderr


def test_a_file_without_an_operation(project: Path, tester: Client) -> None:
    (project / "benchmarks" / "silu.py").write_text("def operations(kernel, reference):\n    return []\n")
    done = check(project, tester)
    assert done.code == 1
    assert "no operations in benchmarks/silu.py" in done.stderr


def test_a_process_that_leaves_is_no_success(project: Path, tester: Client) -> None:
    rewrite(project, "[(4, 256)]", "[(4, 256), (8, 256)]")
    rewrite(project, OURS, "kernel.silu(x) if len(x) == 4 else __import__('os')._exit(0)")
    done = check(project, tester)
    assert done.code == 4
    assert "the benchmarks ended early" in done.stderr


def test_chosen_by_name(project: Path, tester: Client) -> None:
    assert check(project, tester, "-k", "silu").code == 0
    done = check(project, tester, "-k", "relu")
    assert done.code == 2
    assert "no operation has 'relu' in its name; there are: SiLU" in done.stderr


def test_a_variant_that_is_not_there(project: Path, tester: Client) -> None:
    for name in ("", "nope", "../build/torch-cpu", "."):
        done = check(project, tester, "--variant", name)
        assert done.code == 2
        assert f"{name!r} is not built; there are: torch-cpu" in done.stderr
    assert check(project, tester, "--variant", "torch-cpu").code == 0


def test_a_variant_that_does_not_load_here(project: Path, tester: Client) -> None:
    (project / "build" / "torch-cpu").rename(project / "build" / "torch213-cxx11-cu130-x86_64-linux")
    done = check(project, tester)
    assert done.code == 3
    assert "no built variant fits this machine's PyTorch 2.13 with no CUDA" in done.stderr
    done = check(project, tester, "--variant", "torch213-cxx11-cu130-x86_64-linux")
    assert done.code == 3
    assert "does not load in this machine's PyTorch 2.13 with no CUDA" in done.stderr


def test_a_path_that_local_kernels_cannot_name(project: Path, tester: Client) -> None:
    done = check(project.rename(project.with_name("a:b")), tester)
    assert done.code == 2
    assert "has a colon in its path" in done.stderr


@pytest.mark.parametrize(("name", "said"), [("metadata.json", "metadata"), ("__init__.py", "SyntaxError")])
def test_a_build_that_cannot_be_loaded(project: Path, tester: Client, name: str, said: str) -> None:
    (project / "build" / "torch-cpu" / name).write_text("{")
    done = check(project, tester)
    assert done.code == 1
    assert "the built kernel cannot be loaded: " in done.stderr
    assert said in done.stderr


def test_a_kernel_without_its_reference(project: Path, tester: Client) -> None:
    (project / "build" / "torch-cpu" / "reference.py").unlink()
    done = check(project, tester)
    assert done.code == 1
    assert "the kernel has no module `reference`" in done.stderr


def test_an_environment_without_the_loader(project: Path) -> None:
    done = kbuild("bench", project, "--check", env={"PATH": "/usr/bin:/bin"})
    assert done.code == 3
    assert "pip install torch" in done.stderr
