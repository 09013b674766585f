"""What a project builds of the matrix, why the rest is skipped, and which build a machine would load."""

import pytest

from kbuild.config.model import Backend, Config, Version
from kbuild.config.schema import read_config
from kbuild.config.source import Source
from kbuild.diagnostics import Report
from kbuild.errors import UsageError
from kbuild.variants import (
    Cause,
    Chosen,
    Matrix,
    NoarchVariant,
    Skipped,
    best_for_machine,
    chosen,
    parse,
    pick,
    select,
)

HEAD = """[general]
name = "relu"
version = 1
edition = 5
license = "apache-2.0"
backends = ["cpu", "cuda"]
"""
TORCH = '[torch]\nsrc = ["b.cpp"]\n'
CPU = '[kernel.c]\nbackend = "cpu"\ndepends = []\nsrc = ["c.cpp"]\n'
CUDA = '[kernel.g]\nbackend = "cuda"\ndepends = []\nsrc = ["g.cu"]\n'


def config(*parts: str) -> Config:
    report = Report()
    source = Source.parse("build.toml", "".join(parts), report)
    assert source is not None
    read = read_config(source, report)
    assert read is not None, report.as_text()
    return read


def outcome(*parts: str) -> dict[str, Chosen | Skipped]:
    return {entry.name: entry for entry in select(config(*parts), Matrix.load())}


def reason(entry: Chosen | Skipped) -> str:
    assert isinstance(entry, Skipped)
    return entry.reason


def test_every_row_is_chosen_or_skipped_once() -> None:
    matrix = Matrix.load()
    entries = select(config(HEAD, TORCH, CPU, CUDA), matrix)
    assert sorted(entry.name for entry in entries) == sorted(str(row.variant) for row in matrix.rows)
    assert len({entry.name for entry in entries}) == len(entries) == len(matrix.rows)


def test_a_chosen_row_says_what_the_builder_needs() -> None:
    entry = outcome(HEAD, TORCH, CPU, CUDA)["torch213-cxx11-cu130-x86_64-linux"]
    assert isinstance(entry, Chosen)
    assert (entry.torch, entry.cuda, entry.backend) == (
        Version.parse("2.13"),
        Version.parse("13.0"),
        Backend.CUDA,
    )
    assert [kernel.id for kernel in entry.kernels] == ["g"]
    assert entry.kernels[0].capabilities == Matrix.load().archs.default[Version.parse("13.0")]
    assert entry.trees[0] == "torch-2.13"
    assert set(entry.trees[1:]) == set(Matrix.load().toolkits[Version.parse("13.0")].trees)
    cpu = outcome(HEAD, TORCH, CPU, CUDA)["torch213-cxx11-cpu-x86_64-linux"]
    assert isinstance(cpu, Chosen)
    assert (cpu.cuda, cpu.trees, cpu.archs) == (None, ("torch-2.13",), ())


def test_backend_not_asked_for() -> None:
    entries = outcome(HEAD.replace(', "cuda"', ""), TORCH, CPU, CUDA)
    assert "does not ask for cuda" in reason(entries["torch213-cxx11-cu130-x86_64-linux"])


def test_torch_bounds() -> None:
    entries = outcome(HEAD, TORCH, 'minver = "2.10"\nmaxver = "2.12"\n', CPU, CUDA)
    assert "below torch.minver 2.10" in reason(entries["torch29-cxx11-cpu-x86_64-linux"])
    assert "above torch.maxver 2.12" in reason(entries["torch213-cxx11-cpu-x86_64-linux"])
    assert isinstance(entries["torch210-cxx11-cpu-x86_64-linux"], Chosen)
    assert isinstance(entries["torch212-cxx11-cpu-x86_64-linux"], Chosen)


@pytest.mark.parametrize(
    ("written", "built"), [("2.13", True), ("2.13.0", True), ("2.13.1", True), ("2", True), ("2.14", False)]
)
def test_bounds_count_major_and_minor_alone(written: str, built: bool) -> None:
    entries = outcome(HEAD, TORCH, f'minver = "{written}"\n', CPU, CUDA)
    assert isinstance(entries["torch213-cxx11-cpu-x86_64-linux"], Chosen) is built
    entries = outcome(HEAD, TORCH, f'maxver = "{written}"\n', CPU, CUDA)
    assert isinstance(entries["torch213-cxx11-cpu-x86_64-linux"], Chosen) is (written != "2")


def test_a_dependency_that_kbuild_has_no_source_for_skips_only_its_backend() -> None:
    entries = outcome(HEAD, TORCH, CPU, CUDA.replace("[]", '["torch", "cutlass_4_0"]'))
    assert isinstance(entries["torch213-cxx11-cpu-x86_64-linux"], Chosen)
    entry = entries["torch213-cxx11-cu130-x86_64-linux"]
    assert reason(entry) == "no source for cutlass_4_0, which kernel g depends on"
    assert isinstance(entry, Skipped)
    assert entry.cause is Cause.MEANS


def test_a_dependency_of_a_section_above_the_toolkit_does_not_count() -> None:
    new = CUDA.replace("kernel.g", "kernel.new").replace("[]", '["cutlass_4_0"]') + 'cuda-minver = "13.2"\n'
    entries = outcome(HEAD, TORCH, CUDA, new)
    assert isinstance(entries["torch213-cxx11-cu130-x86_64-linux"], Chosen)
    assert "which kernel new depends on" in reason(entries["torch213-cxx11-cu132-x86_64-linux"])


@pytest.mark.parametrize("written", ["13", "13.0", "13.0.2"])
def test_cuda_bounds_count_major_and_minor_alone(written: str) -> None:
    bounds = f'[general.cuda]\nminver = "{written}"\nmaxver = "{written}"\n'
    entries = outcome(HEAD, bounds, TORCH, CPU, CUDA, f'cuda-minver = "{written}"\n')
    built = {entry.cuda for entry in entries.values() if isinstance(entry, Chosen)}
    assert built == {None, Version.parse("13.0")}


def test_the_name_of_a_stable_abi_has_major_and_minor_alone() -> None:
    entries = outcome(HEAD, TORCH, 'stable-abi = "2.10.0"\n', CPU, CUDA)
    assert isinstance(entries["torch-stable-abi210-cpu-x86_64-linux"], Chosen)


def test_cuda_bounds_and_missing_toolkits() -> None:
    bounds = '[general.cuda]\nminver = "12.8"\nmaxver = "13.0"\n'
    entries = outcome(HEAD, bounds, TORCH, CPU, CUDA)
    assert "below general.cuda.minver 12.8" in reason(entries["torch211-cxx11-cu126-x86_64-linux"])
    assert "above general.cuda.maxver 13.0" in reason(entries["torch213-cxx11-cu132-x86_64-linux"])
    assert "no source for the CUDA 12.8" in reason(entries["torch211-cxx11-cu128-x86_64-linux"])
    assert isinstance(entries["torch213-cxx11-cpu-x86_64-linux"], Chosen)


def test_capabilities_are_intersected_and_never_fall_back() -> None:
    entries = outcome(HEAD, TORCH, CPU, CUDA, 'cuda-capabilities = ["7.0", "9.0a", "10.3+PTX", "9.0a"]\n')
    entry = entries["torch213-cxx11-cu130-x86_64-linux"]
    assert isinstance(entry, Chosen)
    assert [str(capability) for capability in entry.archs] == ["9.0a", "10.3+PTX"]
    entries = outcome(HEAD, TORCH, CPU, CUDA, 'cuda-capabilities = ["7.0"]\n')
    assert "no capability of kernel g: 7.0" in reason(entries["torch213-cxx11-cu130-x86_64-linux"])


def test_sections_above_the_toolkit_are_left_out() -> None:
    new = CUDA.replace("kernel.g", "kernel.new") + 'cuda-minver = "13.2"\n'
    entries = outcome(HEAD, TORCH, CUDA, new)
    ids = {
        name: [kernel.id for kernel in entry.kernels]
        for name, entry in entries.items()
        if isinstance(entry, Chosen)
    }
    assert ids["torch213-cxx11-cu130-x86_64-linux"] == ["g"]
    assert ids["torch213-cxx11-cu132-x86_64-linux"] == ["g", "new"]
    entries = outcome(HEAD, TORCH, new)
    assert "cuda-minver of every cuda kernel" in reason(entries["torch213-cxx11-cu130-x86_64-linux"])


def test_stable_abi_builds_once_per_compute_with_its_own_headers() -> None:
    entries = outcome(HEAD, TORCH, 'stable-abi = "2.11"\n', CPU, CUDA)
    built = {name: entry for name, entry in entries.items() if isinstance(entry, Chosen)}
    assert set(built) == {
        "torch-stable-abi211-cpu-x86_64-linux",
        "torch-stable-abi211-cu130-x86_64-linux",
        "torch-stable-abi211-cu132-x86_64-linux",
    }
    assert {entry.torch for entry in built.values()} == {Version.parse("2.11")}
    # cu132 came with PyTorch 2.12, whose users a 2.11 build serves too.
    assert built["torch-stable-abi211-cu132-x86_64-linux"].trees[0] == "torch-2.11"


def test_stable_abi_per_backend_and_without_users() -> None:
    entries = outcome(HEAD, TORCH, '[torch.stable-abi]\ncuda = "2.12"\n', CPU, CUDA)
    assert isinstance(entries["torch212-cxx11-cpu-x86_64-linux"], Chosen)
    assert "no PyTorch from 2.12 on is published for cu128" in reason(
        entries["torch-stable-abi212-cu128-x86_64-linux"]
    )
    assert isinstance(entries["torch-stable-abi212-cu130-x86_64-linux"], Chosen)


def test_an_abi_older_than_the_matrix_uses_the_oldest_headers() -> None:
    entry = outcome(HEAD, TORCH, 'stable-abi = "2.8"\n', CPU)["torch-stable-abi28-cpu-x86_64-linux"]
    assert isinstance(entry, Chosen)
    assert entry.torch == Version.parse("2.9")


def test_noarch_is_one_variant_per_backend() -> None:
    text = HEAD.replace('"cuda"', '"cuda", "xpu", "cann"')
    built = [entry.name for entry in chosen(select(config(text, "[torch-noarch]\n"), Matrix.load()))]
    assert sorted(built) == ["torch-cpu", "torch-cuda", "torch-npu", "torch-xpu"]


def test_a_backend_without_sources_is_noarch_beside_compiled_ones() -> None:
    entries = outcome(HEAD, TORCH, CUDA)
    assert isinstance(entries["torch-cpu"], Chosen)
    assert "torch213-cxx11-cpu-x86_64-linux" not in entries


def test_backends_that_the_matrix_lacks() -> None:
    rocm = CUDA.replace("kernel.g", "kernel.r").replace('"cuda"', '"rocm"')
    entries = outcome(HEAD.replace('"cuda"', '"cuda", "rocm"'), TORCH, CPU, CUDA, rocm)
    assert "no row" in reason(entries["torch*-rocm*"])


def test_tvm_ffi_is_skipped_with_its_reason() -> None:
    entries = outcome(HEAD, TORCH.replace("torch", "tvm-ffi"), CPU, CUDA)
    assert "tvm-ffi" in reason(entries["tvm-ffi*-cuda*"])


def test_pick_names_the_reason_or_a_candidate() -> None:
    selection = select(config(HEAD, TORCH, CPU, CUDA), Matrix.load())
    name = "torch213-cxx11-cpu-x86_64-linux"
    assert [entry.name for entry in pick(selection, [name, name])] == [name]
    with pytest.raises(UsageError, match="no source for the CUDA"):
        pick(selection, ["torch213-cxx11-cu126-x86_64-linux"])
    with pytest.raises(UsageError, match="Did you mean 'torch213-cxx11-cu130-x86_64-linux'"):
        pick(selection, ["torch213-cxx11-cu130-x86-linux"])


def build_of(name: str) -> Chosen:
    variant = parse(name)
    if isinstance(variant, NoarchVariant):
        assert variant.backend is not None
        return Chosen(variant=variant, backend=variant.backend)
    return Chosen(variant=variant, backend=variant.compute.backend, cuda=variant.compute.version)


@pytest.mark.parametrize(
    ("torch", "cuda", "best"),
    [
        ("2.13.1", "13.2", "torch213-cxx11-cu132-x86_64-linux"),
        ("2.13", "13.1", "torch213-cxx11-cu130-x86_64-linux"),
        ("2.13", None, "torch213-cxx11-cpu-x86_64-linux"),
        ("2.13", "12.6", "torch-cuda"),
        ("2.14", "13.0", "torch-stable-abi214-cu130-x86_64-linux"),
        ("2.15", "13.0", "torch-stable-abi214-cu130-x86_64-linux"),
        ("2.12", None, None),
        (None, None, None),
    ],
)
def test_best_for_machine(torch: str | None, cuda: str | None, best: str | None) -> None:
    names = [
        "torch-cuda",
        "torch213-cxx11-cu130-x86_64-linux",
        "torch213-cxx11-cu132-x86_64-linux",
        "torch213-cxx11-cpu-x86_64-linux",
        "torch214-cxx11-cu130-x86_64-linux",
        "torch-stable-abi214-cu130-x86_64-linux",
        "torch213-cxx11-cu130-aarch64-linux",
    ]
    found = best_for_machine(
        [build_of(name) for name in names],
        torch=None if torch is None else Version.parse(torch),
        cuda=None if cuda is None else Version.parse(cuda),
    )
    assert (None if found is None else found.name) == best


@pytest.mark.parametrize(
    "name",
    [
        "",
        "torch",
        "torch-",
        "torch-gpu",
        "torch2-cpu-x86_64-linux",
        "torch213-cxx12-cpu-x86_64-linux",
        "torch213-cxx11-cud130-x86_64-linux",
        "torch-cann",
        "torch213-cxx11-cpu-x86_64-linux-musl",
        "torch-ext",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not"):
        parse(name)


def test_versions_compare_by_number() -> None:
    v = Version.parse
    assert v("2.9") < v("2.10") < v("2.13.1")
    assert v("2.0") == v("2")
    assert hash(v("2.0")) == hash(v("2"))
