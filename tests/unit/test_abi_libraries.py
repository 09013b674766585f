"""Every rule over a library, on libraries that gcc really makes, as they are and after strip."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import abi_samples
import pytest
from abi_samples import SAMPLES, Sample

from kbuild.abi import policies
from kbuild.abi.checks import RULES
from kbuild.abi.verdict import Context, Verdict
from kbuild.abi.verify import context_for, verify_library
from kbuild.variants import parse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the path")

CPU = context_for(parse("torch213-cxx11-cpu-x86_64-linux"))
CUDA = context_for(parse("torch213-cxx11-cu130-x86_64-linux"), archs=())
STABLE = context_for(parse("torch-stable-abi213-cpu-x86_64-linux"))

Build = Callable[[str], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds the sample of a name, once."""
    root = tmp_path_factory.mktemp("samples")
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            sample = next(sample for sample in SAMPLES if sample.name == name)
            built[name] = abi_samples.build(sample, root / name)
        return built[name]

    return build


def judge(library: Path, context: Context = CPU) -> Verdict:
    return verify_library(library, replace(context, path=library.name))


def codes(verdict: Verdict) -> set[str]:
    return {violation.code for violation in verdict.violations}


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_each_sample_breaks_what_it_should_and_nothing_else(sample: Sample, build: Build) -> None:
    verdict = judge(build(sample.name))

    assert codes(verdict) == sample.broken, [v.message for v in verdict.violations]
    assert verdict.ok == (not sample.broken)
    if sample.symbol is not None:
        assert sample.symbol in {violation.symbol for violation in verdict.violations}
    assert all(violation.hint for violation in verdict.violations)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_the_verdict_is_the_same_after_strip_and_without_section_headers(
    sample: Sample, build: Build
) -> None:
    library = build(sample.name)
    before = judge(library)

    assert judge(abi_samples.stripped(library)).results == before.results
    assert judge(abi_samples.without_sections(library)).results == before.results


def test_every_rule_is_broken_by_some_sample(build: Build) -> None:
    elsewhere = {"machine", "device-code"}

    assert {code for s in SAMPLES for code in s.broken} | elsewhere == {rule.code for rule in RULES}


def test_a_symbol_that_is_too_new_is_named_with_both_versions(build: Build) -> None:
    (violation,) = judge(build("glibc-too-new")).violations

    assert violation.needed == "GLIBC_2.34"
    assert violation.allowed == "GLIBC_2.28"
    assert violation.path == abi_samples.NAME
    assert violation.message == (
        "pthread_create needs GLIBC_2.34 of libc.so.6; manylinux_2_28 has at most GLIBC_2.28"
    )


def test_a_version_need_without_a_symbol_counts(build: Build) -> None:
    (violation,) = judge(build("relative-relocations-packed")).violations

    assert violation.needed == "GLIBC_ABI_DT_RELR"
    assert violation.symbol is None


def test_torch_symbols_are_shown_as_a_person_writes_them(build: Build) -> None:
    (violation,) = judge(build("torch-symbol-missing")).violations

    assert "at::no_such_function(int) is in no library of PyTorch 2.13" in violation.message


def test_a_symbol_of_torchs_cuda_libraries_is_fine_in_a_cuda_variant(build: Build) -> None:
    assert judge(build("torch-symbol-of-cuda"), CUDA).ok


def test_a_cuda_variant_may_need_cuda_of_its_own_major_version_only(build: Build) -> None:
    library = build("library-of-cuda")

    assert judge(library, CUDA).ok
    (violation,) = judge(
        library, context_for(parse("torch213-cxx11-cu126-x86_64-linux"), archs=())
    ).violations
    assert violation.code == "needed"
    assert violation.allowed == "libcudart.so.12"


def test_the_processor_must_be_the_variants(build: Build) -> None:
    context = context_for(parse("torch213-cxx11-cpu-aarch64-linux"))

    (violation,) = judge(build("good"), context).violations

    assert (violation.code, violation.needed, violation.allowed) == ("machine", "x86_64", "aarch64")


def test_a_missing_stack_header_counts_as_an_executable_stack(build: Build, tmp_path: Path) -> None:
    content = build("good").read_bytes()
    gnu_stack, null = (0x6474E551).to_bytes(4, "little"), bytes(4)
    library = tmp_path / abi_samples.NAME
    library.write_bytes(content.replace(gnu_stack, null, 1))

    (violation,) = judge(library).violations

    assert violation.code == "executable-stack"
    assert "no GNU_STACK header" in violation.message


@pytest.mark.parametrize(
    ("declaration", "call", "ok"),
    [
        ('extern "C" int aoti_torch_get_dim(void *, long *);', "aoti_torch_get_dim(p, 0);", True),
        ('extern "C" int aoti_torch_no_such_shim(void *);', "aoti_torch_no_such_shim(p);", False),
        ("namespace at { int get_num_threads(); }", "at::get_num_threads();", False),
    ],
    ids=["shim", "shim-unknown", "c++"],
)
def test_a_stable_build_may_import_the_c_shims_alone(
    declaration: str, call: str, ok: bool, tmp_path: Path
) -> None:
    source = f"{declaration}\nvoid go(void *p) {{ {call} }}"
    sample = Sample(name="stable", cxx=True, source=source, stubs=("libtorch_cpu.so",))

    verdict = judge(abi_samples.build(sample, tmp_path / "stable"), STABLE)

    assert codes(verdict) == (set() if ok else {"torch-symbol"})


def test_rules_that_lack_what_they_need_say_so(build: Build) -> None:
    skipped = {
        result.code: result.skipped
        for result in judge(build("good"), Context(path="")).results
        if result.skipped
    }

    assert skipped.keys() == {"machine", "string-abi", "torch-symbol", "unresolved-symbol", "device-code"}
    assert "PyTorch release" in (skipped["torch-symbol"] or "")


def test_an_unknown_pytorch_release_is_a_reason_not_a_verdict(build: Build) -> None:
    verdict = judge(build("torch-symbol-missing"), context_for(parse("torch299-cxx11-cpu-x86_64-linux")))

    reason = next(result.skipped for result in verdict.results if result.code == "torch-symbol")
    assert reason is not None
    assert "2.99" in reason


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_kernel_abi_check_agrees(sample: Sample, build: Build) -> None:
    kernel_abi_check = pytest.importorskip("kernel_abi_check")
    library = build(sample.name)
    other = kernel_abi_check.ObjectFile(library)
    ours = judge(library).violations

    # It looks at symbols only, so a version that no symbol asks for escapes it.
    assert {(v.symbol, v.needed) for v in ours if v.code == "manylinux" and v.symbol} == {
        (v.name, f"{v.dep}_{v.version}") for v in other.check_manylinux("manylinux_2_28")
    }
    assert {v.symbol for v in ours if v.code == "python-abi"} == {
        v.name for v in other.check_python_abi("3.9")
    }


def test_a_shim_younger_than_the_floor_of_a_stable_build_is_named_with_the_release_that_lacks_it(
    tmp_path: Path,
) -> None:
    oldest, *_, newest = [
        release for r in policies.torch_releases() if (release := policies.torch_release(r))
    ]
    young = sorted(newest.symbols(cuda=False) - oldest.symbols(cuda=False))
    shim = next(name for name in young if name.startswith("aoti_torch_"))
    source = f'extern "C" void {shim}(); void go() {{ {shim}(); }}'
    sample = Sample(name="young", cxx=True, source=source, stubs=("libtorch_cpu.so",))
    library = abi_samples.build(sample, tmp_path / "young")

    def stable(release: str) -> Verdict:
        flat = release.replace(".", "")
        return judge(library, context_for(parse(f"torch-stable-abi{flat}-cpu-x86_64-linux")))

    assert stable(newest.release).ok
    (violation,) = stable(oldest.release).violations
    assert (violation.code, violation.symbol, violation.needed) == ("torch-symbol", shim, oldest.release)
    assert violation.message == (
        f"PyTorch {oldest.release} has no {shim}, and this is a build for {oldest.release} and later"
    )
