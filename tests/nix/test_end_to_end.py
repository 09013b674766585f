"""check -> build -> publish -> get_kernel -> the right numbers, for both generations of the clients."""

import json
import shutil
from pathlib import Path

import pytest
from clients import Client
from runs import kbuild

from kbuild.localhub.running import RunningHub

pytestmark = pytest.mark.nix

RELU = Path(__file__).parents[2] / "example_kernels" / "relu"
STABLE = Path(__file__).parents[1] / "fixtures" / "projects" / "relu_stable"
CPU = "torch213-cxx11-cpu-x86_64-linux"
CUDA = "torch213-cxx11-cu130-x86_64-linux"

LOAD = """
import json, sys, torch
from kernels import get_kernel
name, options = sys.argv[1], json.loads(sys.argv[2])
kernel = get_kernel(name, backend="cpu", **options)
for shape in [(1,), (7,), (3, 1025)]:
    x = torch.randn(shape)
    assert torch.equal(kernel.relu(x), torch.relu(x))
print(json.dumps(kernel.__file__))
"""


@pytest.fixture(scope="module")
def relu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("projects") / "relu"
    shutil.copytree(RELU, root, ignore=shutil.ignore_patterns("build", "__pycache__"))
    assert kbuild("check", root).code == 0
    built = kbuild("build", root, "--variant", CPU, "--variant", CUDA)
    assert built.code == 0, built.stderr
    return root


def test_kernel_repository_with_the_current_clients(relu: Path, hub: RunningHub, new: Client) -> None:
    published = kbuild("publish", "acme/relu", relu, env=hub.environment)
    assert published.code == 0, published.stderr
    options = json.dumps({"version": 1, "trust_remote_code": True})
    where = json.loads(new.check(LOAD, "acme/relu", options, environment=hub.environment))
    assert f"/build/{CPU}/" in where


def test_model_repository_with_the_clients_before_kernel_repositories(
    relu: Path, hub: RunningHub, old: Client
) -> None:
    published = kbuild("publish", "acme/relu", relu, "--repo-type", "model", env=hub.environment)
    assert published.code == 0, published.stderr
    options = json.dumps({"version": 1})
    where = json.loads(old.check(LOAD, "acme/relu", options, environment=hub.environment))
    assert f"/build/{CPU}/" in where


def test_a_stable_abi_build_serves_a_later_pytorch(tmp_path: Path, hub: RunningHub, new: Client) -> None:
    root = tmp_path / "relu_stable"
    shutil.copytree(STABLE, root, ignore=shutil.ignore_patterns("build"))
    variant = "torch-stable-abi210-cpu-x86_64-linux"
    assert kbuild("build", root, "--variant", variant).code == 0
    assert kbuild("publish", "acme/relu-stable", root, env=hub.environment).code == 0
    options = json.dumps({"version": 1, "trust_remote_code": True})
    where = json.loads(new.check(LOAD, "acme/relu-stable", options, environment=hub.environment))
    assert f"/build/{variant}/" in where


def test_a_build_that_fails_verification_is_not_published(
    relu: Path, tmp_path: Path, hub: RunningHub
) -> None:
    root = tmp_path / "relu"
    shutil.copytree(relu, root)
    (root / "build" / CPU / "functional.py").write_text("# changed after the build\n")
    refused = kbuild("publish", "acme/relu", root, env=hub.environment)
    assert refused.code == 1
    assert "functional.py" in refused.stderr + refused.stdout
