"""Device code: containers as nvcc makes them, as we write them by hand, and the verdict over them."""

import contextlib
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import abi_samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbuild.abi import elf, fatbin
from kbuild.abi.fatbin import BadFatbinError, Fatbin, Kind
from kbuild.abi.verify import context_for, verify_library
from kbuild.config.model import Capability
from kbuild.variants import parse

NVCC = abi_samples.nvcc() or "nvcc"
# The toolkit that comes from wheels keeps its libraries in lib, where its nvcc does not look.
LINK = ["-shared", "-cudart=shared", f"-L{Path(NVCC).resolve().parent.parent / 'lib'}"]
needs_nvcc = pytest.mark.skipif(
    abi_samples.nvcc() is None, reason="nvcc is neither on the path nor in the Nix store"
)

KERNEL = f"""
__global__ void scale(float *x, int n) {{ if (threadIdx.x < n) x[threadIdx.x] *= 2.f; }}
extern "C" void launch(float *x, int n) {{ scale<<<1, 256>>>(x, n); }}
extern "C" void *PyInit_{abi_samples.STEM}(void) {{ return 0; }}
"""


def archs_of(containers: Iterable[Fatbin], kind: Kind) -> set[str]:
    entries = [entry for container in containers for entry in container.entries]
    return {entry.capability.arch for entry in entries if entry.kind == kind and not entry.empty}


def entry(kind: int, arch: int, flags: int = 0, payload: bytes = b".text.k\0") -> bytes:
    head = (kind, 0x101, 64, len(payload), 0, 0, 8, 1, arch, 0, 0, flags, 0, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *head) + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def gencode(*archs: str) -> list[str]:
    flags = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        code = f"[sm_{number},compute_{number}]" if arch.endswith("+PTX") else f"sm_{number}"
        flags.append(f"-gencode=arch=compute_{number},code={code}")
    return flags


def compile_cuda(folder: Path, archs: Iterable[str], *options: str) -> Path:
    """Objects by nvcc, linked by g++ as kernels are, against the shared CUDA runtime."""
    folder.mkdir(exist_ok=True)
    (folder / "k.cu").write_text(KERNEL)
    abi_samples.cc(
        [NVCC, "-c", "-Xcompiler=-fPIC", *gencode(*archs), *options, folder / "k.cu", "-o", folder / "k.o"]
    )
    stub = abi_samples.make_stub("libcudart.so.13", folder)
    library = folder / abi_samples.NAME
    abi_samples.cc(["g++", "-shared", folder / "k.o", stub, "-o", library])
    return library


def broken(library: Path, archs: str, variant: str = "torch213-cxx11-cu130-x86_64-linux") -> list[str]:
    declared = tuple(Capability.parse(arch) for arch in archs.split())
    context = replace(context_for(parse(variant), archs=declared), path=library.name)
    return [v.message for v in verify_library(library, context).violations if v.code == "device-code"]


def test_the_header_states_kind_and_architecture_even_of_compressed_entries() -> None:
    section = container(
        entry(2, 80),
        entry(2, 90, 0x10_8011),
        entry(2, 100, 0x20_2011),
        entry(1, 120),
        entry(2, 103, 0x10_0011),
    )

    found = fatbin.parse(section)

    assert archs_of(found, Kind.SASS) == {"8.0", "9.0a", "10.0f", "10.3a"}
    assert archs_of(found, Kind.PTX) == {"12.0"}


def test_containers_follow_each_other_with_padding_between_them() -> None:
    section = bytes(8) + container(entry(2, 80)) + bytes(24) + container(entry(2, 90)) + bytes(4)

    assert [archs_of([c], Kind.SASS) for c in fatbin.parse(section)] == [{"8.0"}, {"9.0"}]


def test_an_image_without_code_does_not_count() -> None:
    assert archs_of(fatbin.parse(container(entry(2, 90, payload=bytes(64)))), Kind.SASS) == set()


@pytest.mark.parametrize("cut", [4, 20, 60, 90])
def test_a_container_cut_short_is_refused(cut: int) -> None:
    section = container(entry(2, 80), entry(2, 90))

    with pytest.raises(BadFatbinError):
        fatbin.parse(section[:-cut])


def test_a_search_passes_over_what_only_looks_like_a_container() -> None:
    content = b"\x50\xed\x55\xba junk" + container(entry(2, 80)) + b"\x50\xed\x55\xba"

    assert archs_of(fatbin.search(content), Kind.SASS) == {"8.0"}


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(before: bytes, after: bytes) -> None:
    content = before + container(entry(2, 80))[: len(after)] + after
    fatbin.search(content)
    with contextlib.suppress(BadFatbinError):
        fatbin.parse(content)


@needs_nvcc
@pytest.mark.parametrize("mode", ["none", "default", "size", "speed", "balance"])
def test_nvccs_own_output_is_read_with_every_compression(mode: str, tmp_path: Path) -> None:
    archs = ["8.0", "9.0a", "10.0f", "12.0+PTX"]
    library = compile_cuda(tmp_path / "k", archs, f"--compress-mode={mode}")
    facts = elf.read(library)

    assert archs_of(facts.fatbins, Kind.SASS) == {"8.0", "9.0a", "10.0f", "12.0"}
    assert archs_of(facts.fatbins, Kind.PTX) == {"12.0"}
    for copy in (abi_samples.stripped(library), abi_samples.without_sections(library)):
        assert elf.read(copy).fatbins == facts.fatbins
    assert broken(library, " ".join(archs)) == []


@needs_nvcc
def test_cuobjdump_agrees(tmp_path: Path) -> None:
    # NB: the wheel carries the program without its run bit.
    wheel = Path(sysconfig.get_path("platlib")) / "nvidia/cu13/bin/cuobjdump"
    if not wheel.is_file():
        pytest.skip("the wheel nvidia-cuda-cuobjdump is not installed")
    cuobjdump = tmp_path / "cuobjdump"
    shutil.copyfile(wheel, cuobjdump)
    cuobjdump.chmod(0o755)
    library = compile_cuda(tmp_path / "k", ["8.0", "9.0a", "12.0+PTX"])
    listing = subprocess.run(
        [cuobjdump, "--list-elf", "--list-ptx", library], check=True, capture_output=True, text=True
    ).stdout

    facts = elf.read(library)
    for suffix, kind in (("cubin", Kind.SASS), ("ptx", Kind.PTX)):
        names = [word.split(".")[-2] for word in listing.split() if word.endswith(suffix)]
        ours = {f"sm_{arch.replace('.', '')}" for arch in archs_of(facts.fatbins, kind)}
        assert ours == set(names)


@needs_nvcc
def test_declared_and_built_capabilities_must_be_the_same(tmp_path: Path) -> None:
    library = compile_cuda(tmp_path / "k", ["8.0", "9.0"])

    assert broken(library, "8.0 9.0") == []
    assert broken(library, "8.0 9.0 12.0") == ["lacks machine code (SASS) for 12.0"]
    assert broken(library, "8.0 9.0+PTX") == ["lacks PTX for 9.0"]
    assert broken(library, "8.0") == [
        "holds machine code (SASS) for 9.0, which metadata.json does not declare"
    ]
    assert broken(library, "8.0 9.0a") == [
        "lacks machine code (SASS) for 9.0a",
        "holds machine code (SASS) for 9.0, which metadata.json does not declare",
    ]


@needs_nvcc
def test_a_cpu_variant_holds_no_device_code(tmp_path: Path) -> None:
    library = compile_cuda(tmp_path / "k", ["8.0"])

    assert broken(library, "", "torch213-cxx11-cpu-x86_64-linux") == [
        "holds device code for 8.0 in a cpu variant"
    ]


@needs_nvcc
def test_the_stub_of_nvccs_own_link_step_does_not_hide_a_missing_architecture(tmp_path: Path) -> None:
    compile_cuda(tmp_path / "k", ["8.0"])
    library = tmp_path / abi_samples.NAME
    # The object has code for 8.0 alone, and the link step is told of 9.0 too.
    abi_samples.cc([NVCC, *LINK, *gencode("8.0", "9.0"), tmp_path / "k" / "k.o", "-o", library])

    assert broken(library, "8.0 9.0") == ["lacks machine code (SASS) for 9.0"]


@needs_nvcc
def test_relocatable_device_code_is_found_where_nvcc_puts_it(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text(KERNEL)
    library = tmp_path / abi_samples.NAME
    options = [*LINK, "-Xcompiler=-fPIC", "-rdc=true", *gencode("9.0a")]
    abi_samples.cc([NVCC, *options, tmp_path / "k.cu", "-o", library])

    assert broken(library, "9.0a") == []
