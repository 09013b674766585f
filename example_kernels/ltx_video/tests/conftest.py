import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kernel():
    """The built kernel, loaded as users load it, from KERNEL_PATH or from this project's build folder."""
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("kernels")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    root = Path(os.environ.get("KERNEL_PATH", Path(__file__).resolve().parent.parent))
    return kernels.get_local_kernel(root)
