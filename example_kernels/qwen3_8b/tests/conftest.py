import pytest


@pytest.fixture(scope="session")
def kernel():
    """The kernel, loaded as its users load it; kbuild test puts the build here in the place of the published one."""
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("kernels")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return kernels.get_kernel("kbuild-dev/qwen3-8b", version=1, trust_remote_code=True)
