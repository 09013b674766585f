"""The example kernels without a GPU: what they share, what their layers may be, what their ops say of themselves."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "example_kernels"
PROJECTS = ["ltx_video", "qwen3_8b"]


def package(project: str) -> Path:
    return EXAMPLES / project / "torch-ext" / project


def definitions(project: str) -> dict[str, str]:
    """Op name -> schema, as the binding defines them."""
    text = (EXAMPLES / project / "torch-ext" / "torch_binding.cpp").read_text(encoding="utf-8")
    found = re.findall(r'ops\.def\(\s*((?:"[^"]*"\s*)+)\)', text)
    schemas = ["".join(re.findall(r'"([^"]*)"', strings)) for strings in found]
    return {schema.partition("(")[0]: schema for schema in schemas}


def test_shared_device_code_is_the_same_everywhere() -> None:
    first, *others = (sorted((EXAMPLES / project / "rms_norm").iterdir()) for project in PROJECTS)
    for other in others:
        assert [path.name for path in first] == [path.name for path in other]
        for one, two in zip(first, other, strict=True):
            assert one.read_bytes() == two.read_bytes(), f"cp {one} {two}"


@pytest.mark.parametrize("project", PROJECTS)
def test_device_code_needs_no_torch(project: str) -> None:
    for path in (EXAMPLES / project).glob("*/*.cu*"):
        assert not re.search(r"#include\s*[<\"](torch|ATen|c10)/", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("project", PROJECTS)
def test_layers_are_pure(project: str) -> None:
    tree = ast.parse((package(project) / "layers.py").read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert classes
    for layer in classes:
        methods = [node.name for node in layer.body if isinstance(node, ast.FunctionDef)]
        assert methods == ["forward"], layer.name
        values = {
            node.target.id
            for node in layer.body
            if isinstance(node, ast.AnnAssign)
            and node.value is not None
            and isinstance(node.target, ast.Name)
        }
        assert values == {"has_backward", "can_torch_compile"}, layer.name


@pytest.mark.parametrize("project", PROJECTS)
def test_every_op_has_an_implementation_and_a_fake(project: str) -> None:
    ops = set(definitions(project))
    binding = (EXAMPLES / project / "torch-ext" / "torch_binding.cpp").read_text(encoding="utf-8")
    assert set(re.findall(r'ops\.impl\("(\w+)"', binding)) == ops
    register = (package(project) / "_register.py").read_text(encoding="utf-8")
    fakes = re.findall(r'register_fake\(add_op_namespace_prefix\("(\w+)"\)\)|@_fake\("(\w+)"\)', register)
    assert {a or b for a, b in fakes} == ops


@pytest.fixture(params=PROJECTS, scope="module")
def kernel(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The package over ops that are only declared: everything but the computation is real."""
    torch = pytest.importorskip("torch")
    project: str = request.param
    name = f"example_{project}"
    library = torch.library.Library(name, "DEF")
    for schema in definitions(project).values():
        library.define(schema)
    stub: Any = ModuleType(f"{name}._ops")
    stub.ops = getattr(torch.ops, name)
    stub.add_op_namespace_prefix = lambda op: f"{name}::{op}"
    sys.modules[f"{name}._ops"] = stub
    spec = importlib.util.spec_from_file_location(name, package(project) / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    library._destroy()
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
        del sys.modules[loaded]


def test_fakes_know_shapes_and_types(kernel: ModuleType) -> None:
    import torch

    x = torch.empty(3, 5, 4, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2)
    weight = torch.empty(64, device="meta")
    out = kernel.rms_norm(x, weight)
    assert (out.shape, out.dtype, out.is_contiguous()) == (x.shape, x.dtype, True)
    if hasattr(kernel, "add_rms_norm"):
        assert [t.shape for t in kernel.add_rms_norm(x, x, weight)] == [x.shape, x.shape]
    if hasattr(kernel, "geglu"):
        assert kernel.geglu(x).shape == (3, 4, 5, 32)
        scale = torch.empty(3, 1, 64, dtype=x.dtype, device="meta")
        y = x[:, 0]
        assert kernel.ada_norm(y, scale, scale).shape == y.shape
        assert [t.shape for t in kernel.add_ada_norm(y, y, scale, scale, scale)] == [y.shape, y.shape]
        assert kernel.gated_add(y, y, scale).shape == y.shape
        assert kernel.apply_rotary_emb(y, (y, y)).shape == y.shape
        table = kernel.rope_3d_table(1, 1, 5, 64, device=torch.device("meta"))
        assert table.shape == (7, 10, 2)
        assert kernel.rope_3d(y, table, 1, 1, 5).shape == y.shape


def test_out_is_returned_and_bad_arguments_are_named(kernel: ModuleType) -> None:
    import torch

    x = torch.empty(2, 64, device="meta")
    out = torch.empty_like(x)
    assert kernel.rms_norm(x, None, out=out) is out
    if hasattr(kernel, "geglu"):
        with pytest.raises(ValueError, match="approximate must be 'none' or 'tanh', got 'sigmoid'"):
            kernel.geglu(x, "sigmoid")


def test_gradients_reach_input_and_weight(kernel: ModuleType) -> None:
    import torch

    x = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(64, device="meta", requires_grad=True)
    kernel.rms_norm(x, weight).sum().backward()
    assert (x.grad is not None, x.grad.shape, x.grad.dtype) == (True, x.shape, x.dtype)
    assert (weight.grad is not None, weight.grad.shape, weight.grad.dtype) == (
        True,
        weight.shape,
        weight.dtype,
    )
    if hasattr(kernel, "add_rms_norm"):
        residual = torch.empty(2, 3, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        out, summed = kernel.add_rms_norm(x, residual, weight)
        (out.sum() + summed.sum()).backward()
        assert residual.grad.shape == residual.shape


def test_references_agree_with_pytorch(kernel: ModuleType) -> None:
    import torch
    from torch.nn import functional

    reference = importlib.import_module(f"{kernel.__name__}.reference")
    x, residual = torch.randn(2, 2, 6, 48, dtype=torch.float64).unbind(0)
    weight = torch.randn(48, dtype=torch.float64)
    torch.testing.assert_close(reference.rms_norm(x, weight), functional.rms_norm(x, (48,), weight, 1e-6))
    torch.testing.assert_close(
        reference.eager_rms_norm(x.float(), weight.float()).double(),
        reference.rms_norm(x, weight),
        rtol=1e-5,
        atol=1e-5,
    )
    if hasattr(reference, "rope_3d_freqs"):
        table = kernel.rope_3d_table(1, 2, 3, 48)
        cos, sin = reference.rope_3d_freqs(table, 1, 2, 3, 48)
        assert cos.shape == sin.shape == (1, 6, 48)
        turned = reference.apply_rotary_emb(x, (cos, sin))
        torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))  # a turn keeps lengths
        torch.testing.assert_close(
            reference.eager_apply_rotary_emb(x.float(), (cos, sin)).double(), turned, rtol=1e-5, atol=1e-5
        )
        summed = reference.add_ada_norm(x, residual, weight, weight, weight)[1]
        torch.testing.assert_close(summed, residual + x * weight)


def test_compile_sees_one_graph(kernel: ModuleType) -> None:
    import torch

    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: kernel.rms_norm(x * 2, w) + 1, fullgraph=True, backend=backend)
    weight = torch.empty(64, device="meta")
    for rows in (2, 3, 5, 9, 100):
        assert compiled(torch.empty(rows, 64, device="meta"), weight).shape == (rows, 64)
    assert len(graphs) <= 2


def test_reports_are_what_the_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_reports", EXAMPLES / "reports" / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.make(tmp_path)
    made = sorted(tmp_path.iterdir())
    assert made
    for path in made:
        committed = (EXAMPLES / "reports" / path.name).read_text(encoding="utf-8")
        assert path.read_text(encoding="utf-8") == committed, "run python example_kernels/reports/make.py"


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="PyTorch is here: the tests above ran"
)
def test_with_pytorch() -> None:
    """The tests of this file that need PyTorch, in an environment that has it."""
    from clients import kernel_tester

    argv = [
        str(kernel_tester().python),
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--noconftest",
        __file__,
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "could not import" not in done.stdout
    assert len(re.findall(r"(\d+) passed", done.stdout)) == 1
