"""Every name that kbuild can give a variant is read by the public loader's own parser, to the same meaning."""

import pytest
from kernels.backends import CPU, CUDA
from kernels.variants import ArchVariant, _resolve_variant_for_system, parse_variant
from packaging.version import Version as TheirVersion

from kbuild.config.model import Backend, Version
from kbuild.variants import (
    Chosen,
    Compute,
    Matrix,
    NoarchVariant,
    StableAbiVariant,
    TorchVariant,
    Variant,
    best_for_machine,
    parse,
)

_COMPUTES = tuple(dict.fromkeys(row.compute for row in Matrix.load().rows))
_TORCHES = tuple(Matrix.load().torch_trees)
ALL: tuple[Variant, ...] = (
    *(row.variant for row in Matrix.load().rows),
    *(
        StableAbiVariant(torch=torch, compute=compute, arch="x86_64", os="linux")
        for torch in _TORCHES
        for compute in _COMPUTES
    ),
    *(NoarchVariant(backend=backend) for backend in Backend),
    NoarchVariant(backend=None),
)


@pytest.mark.parametrize("variant", ALL, ids=str)
def test_the_loader_reads_the_name(variant: Variant) -> None:
    name = str(variant)
    assert parse(name) == variant
    theirs = parse_variant(name)
    assert theirs.variant_str == name
    if isinstance(variant, TorchVariant | StableAbiVariant):
        assert isinstance(theirs, ArchVariant)
        assert Version.parse(str(theirs.framework.version)) == variant.torch
        assert theirs.arch.backend.name == variant.compute.backend.value
        assert (theirs.arch.platform, theirs.arch.os) == (variant.arch, variant.os)
        if variant.compute.version is not None:
            assert Version.parse(str(theirs.arch.backend.version)) == variant.compute.version


@pytest.mark.parametrize("text", ["cpu", "metal", "cu126", "cu130", "rocm72", "xpu20253", "cann82"])
def test_computes_round_trip(text: str) -> None:
    assert str(Compute.parse(text)) == text


def _chosen(variant: Variant) -> Chosen:
    match variant:
        case NoarchVariant(backend=backend):
            return Chosen(variant=variant, backend=backend or Backend.CPU)
        case _:
            return Chosen(variant=variant, backend=variant.compute.backend, cuda=variant.compute.version)


@pytest.mark.parametrize("torch", ["2.8", "2.9", "2.11", "2.13", "2.14", "2.15"])
@pytest.mark.parametrize("cuda", [None, "12.6", "12.8", "13.0", "13.1", "13.2", "14.0"])
@pytest.mark.parametrize("offer", ["all", "no stable ABI", "old stable ABI", "noarch"])
def test_the_best_for_a_machine_is_what_the_loader_takes(torch: str, cuda: str | None, offer: str) -> None:
    offered = [variant for variant in ALL if variant != NoarchVariant(backend=None)]
    match offer:
        case "no stable ABI":
            offered = [variant for variant in offered if not isinstance(variant, StableAbiVariant)]
        case "old stable ABI":
            old = Version.parse("2.10")
            offered = [v for v in offered if not isinstance(v, StableAbiVariant) or v.torch <= old]
        case "noarch":
            offered = [variant for variant in offered if isinstance(variant, NoarchVariant)]
    theirs, _ = _resolve_variant_for_system(
        [parse_variant(str(variant)) for variant in offered],
        CPU() if cuda is None else CUDA(version=TheirVersion(cuda)),
        "x86_64",
        "linux",
        TheirVersion(torch),
        True,
        None,
    )
    ours = best_for_machine(
        [_chosen(variant) for variant in offered],
        torch=Version.parse(torch),
        cuda=None if cuda is None else Version.parse(cuda),
    )
    assert (None if ours is None else ours.name) == (theirs[0].variant_str if theirs else None)
