"""Run with a built variant loaded the way users load it: `kbuild test`, or LOCAL_KERNELS=demo-org/relu=<project>."""

import pytest
import torch
from kernels import get_kernel

relu = get_kernel("demo-org/relu", version=1, trust_remote_code=True)

DEVICES = ["cpu"] if not torch.cuda.is_available() else ["cuda"]
DTYPES = {
    "cpu": [torch.float32, torch.float64],
    "cuda": [torch.float32, torch.float16, torch.bfloat16],
}
CASES = [(device, dtype) for device in DEVICES for dtype in DTYPES[device]]


@pytest.mark.parametrize(("device", "dtype"), CASES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (127,), (4095,), (3, 1025), (64, 64, 64)])
def test_equals_torch(device, dtype, shape):
    x = torch.randn(shape, device=device, dtype=dtype)
    assert torch.equal(relu.relu(x), torch.relu(x))


@pytest.mark.parametrize(("device", "dtype"), CASES)
def test_writes_out_and_nothing_beside_it(device, dtype):
    x = torch.randn(1001, device=device, dtype=dtype)
    around = torch.full((1201,), 7.0, device=device, dtype=dtype)
    out = around[101:1102]  # misaligned on purpose: the scalar path
    assert relu.relu(x, out=out) is out
    assert torch.equal(out, torch.relu(x))
    assert (around[:101] == 7).all()
    assert (around[1102:] == 7).all()


@pytest.mark.parametrize(("device", "dtype"), CASES)
def test_special_values_and_strides(device, dtype):
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0, -1.0], device=device, dtype=dtype)
    assert torch.equal(torch.nan_to_num(relu.relu(x), nan=-5.0), torch.nan_to_num(torch.relu(x), nan=-5.0))
    wide = torch.randn(8, 33, device=device, dtype=dtype)
    assert torch.equal(relu.relu(wide[:, ::2]), torch.relu(wide[:, ::2]))


@pytest.mark.parametrize("device", DEVICES)
def test_compiles_without_a_graph_break(device):
    x = torch.randn(1024, device=device)
    compiled = torch.compile(lambda t: relu.relu(t) + 1, fullgraph=True)
    assert torch.equal(compiled(x), torch.relu(x) + 1)
    assert torch.equal(relu.layers.ReLU().to(device)(x), torch.relu(x))


@pytest.mark.parametrize("device", DEVICES)
def test_refuses_what_it_cannot_do(device):
    with pytest.raises(RuntimeError, match=r"relu: .* supported"):
        relu.relu(torch.ones(3, device=device, dtype=torch.int32))
    with pytest.raises(RuntimeError, match="shape"):
        relu.relu(torch.ones(3, device=device), out=torch.empty(4, device=device))
