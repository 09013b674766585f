"""Build variants: their names, the matrix of what PyTorch is published for, and what a project builds of it.

Names follow the public loader's grammar. Everything here is pure: data in, values out.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Self, assert_never

from kbuild.config.archs import CudaArchs
from kbuild.config.model import (
    Backend,
    Capability,
    Config,
    CpuKernel,
    CudaKernel,
    Dependency,
    Kernel,
    Torch,
    TorchNoarch,
    TvmFfi,
    Version,
)
from kbuild.errors import UsageError
from kbuild.resources import data_json
from kbuild.text import did_you_mean

# What a section may depend on and the toolchain has.
_SOURCED = (Dependency.TORCH,)
_PLAIN_COMPUTES = (Backend.CPU, Backend.METAL, Backend.NEURON, Backend.TPU)
_VERSIONED_COMPUTES = {"cu": Backend.CUDA, "rocm": Backend.ROCM, "xpu": Backend.XPU, "cann": Backend.CANN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The compute part of a name: `cpu`, `cu130`, `rocm72`, `xpu20253`."""

    backend: Backend
    version: Version | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError where `text` is no compute part."""
        if text in _PLAIN_COMPUTES:
            return cls(backend=Backend(text))
        match = re.fullmatch(r"([a-z]+)(\d+)(\d)", text, re.ASCII)
        if match is None or match[1] not in _VERSIONED_COMPUTES:
            raise ValueError(f"{text!r} is not the compute part of a variant name")
        return cls(backend=_VERSIONED_COMPUTES[match[1]], version=Version((int(match[2]), int(match[3]))))

    def __str__(self) -> str:
        if self.version is None:
            return self.backend.value
        prefix = next(name for name, backend in _VERSIONED_COMPUTES.items() if backend is self.backend)
        return f"{prefix}{self.version.flat}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchVariant:
    """Bound to one PyTorch minor release; `cxx11` is None where the name has no ABI tag."""

    torch: Version
    compute: Compute
    arch: str
    os: str
    cxx11: bool | None = None

    def __str__(self) -> str:
        tag = "" if self.cxx11 is None else "-cxx11" if self.cxx11 else "-cxx98"
        return f"torch{self.torch.flat}{tag}-{self.compute}-{self.arch}-{self.os}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StableAbiVariant:
    """Serves every PyTorch from `torch` on."""

    torch: Version
    compute: Compute
    arch: str
    os: str

    def __str__(self) -> str:
        return f"torch-stable-abi{self.torch.flat}-{self.compute}-{self.arch}-{self.os}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TvmFfiVariant:
    """Bound to one tvm-ffi minor release."""

    tvm_ffi: Version
    compute: Compute
    arch: str
    os: str

    def __str__(self) -> str:
        return f"tvm-ffi{self.tvm_ffi.flat}-{self.compute}-{self.arch}-{self.os}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoarchVariant:
    """Python only: for one backend, or for all of them where `backend` is None (`torch-universal`)."""

    backend: Backend | None

    def __str__(self) -> str:
        if self.backend is None:
            return "torch-universal"
        # The loader looks for the device name that PyTorch gives to CANN.
        return f"torch-{'npu' if self.backend is Backend.CANN else self.backend.value}"


Variant = TorchVariant | StableAbiVariant | TvmFfiVariant | NoarchVariant

_ARCH_NAME = re.compile(
    r"(?:torch-stable-abi(?P<stable>\d\d+)|tvm-ffi(?P<tvm>\d\d+)|torch(?P<torch>\d\d+)(?:-(?P<tag>cxx11|cxx98))?)"
    r"-(?P<compute>[a-z0-9]+)-(?P<arch>[A-Za-z0-9_]+)-(?P<os>[a-z0-9_]+)",
    re.ASCII,
)


def parse(name: str) -> Variant:
    """The variant with that name; `str()` of the result is `name` again.

    Raises ValueError where it is no variant name.
    """
    if name == "torch-universal":
        return NoarchVariant(backend=None)
    if name == "torch-npu":
        return NoarchVariant(backend=Backend.CANN)
    if name.startswith("torch-") and name[6:] in set(Backend) - {Backend.CANN}:
        return NoarchVariant(backend=Backend(name[6:]))
    match = _ARCH_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not the name of a build variant")
    compute, arch, os = Compute.parse(match["compute"]), match["arch"], match["os"]
    # The first digit is the major version and the rest the minor: `torch213` is 2.13.
    digits = match["stable"] or match["tvm"] or match["torch"]
    version = Version((int(digits[0]), int(digits[1:])))
    variant: Variant
    if match["stable"]:
        variant = StableAbiVariant(torch=version, compute=compute, arch=arch, os=os)
    elif match["tvm"]:
        variant = TvmFfiVariant(tvm_ffi=version, compute=compute, arch=arch, os=os)
    else:
        cxx11 = None if match["tag"] is None else match["tag"] == "cxx11"
        variant = TorchVariant(torch=version, compute=compute, arch=arch, os=os, cxx11=cxx11)
    if str(variant) != name:
        raise ValueError(f"{name!r} is not the name of a build variant")
    return variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A CUDA toolkit: the source trees it is made of, or why there is none."""

    version: Version
    trees: tuple[str, ...]
    unavailable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One pair that PyTorch is published for."""

    variant: TorchVariant

    @property
    def compute(self) -> Compute:
        return self.variant.compute

    @property
    def torch(self) -> Version:
        return self.variant.torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """What can be built at all: rows in the order of the data, toolkits by CUDA version, trees by PyTorch."""

    rows: tuple[Row, ...]
    toolkits: Mapping[Version, Toolkit]
    torch_trees: Mapping[Version, str]
    archs: CudaArchs

    @classmethod
    @cache
    def load(cls) -> Self:
        """Read `data/matrix.json`. Raises ValueError where a row contradicts its own name."""
        raw = data_json("matrix.json")
        toolkits = [
            Toolkit(
                version=Version.parse(entry["cuda"]),
                trees=tuple(entry.get("trees", ())),
                unavailable=entry.get("unavailable"),
            )
            for entry in raw["toolkits"].values()
        ]
        rows = []
        for entry in raw["rows"]:
            variant = parse(entry["variant"])
            if (
                not isinstance(variant, TorchVariant)
                or variant.torch != Version.parse(entry["torch"])
                or str(variant.compute) != entry["compute"]
            ):
                raise ValueError(f"matrix.json: the name {entry['variant']} does not fit its row")
            rows.append(Row(variant=variant))
        return cls(
            rows=tuple(rows),
            toolkits={toolkit.version: toolkit for toolkit in toolkits},
            torch_trees={Version.parse(name): entry["tree"] for name, entry in raw["torch"].items()},
            archs=CudaArchs.load(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelBuild:
    """One `[kernel.<id>]` section as one variant compiles it; no `capabilities` unless it is CUDA."""

    id: str
    capabilities: tuple[Capability, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A variant that gets built, with all that the builder needs to know about it.

    `torch` is the release whose headers are used (for a stable-ABI build the lowest that has the ABI), None
    for noarch; `cuda` the toolkit's version; `trees` the keys of the toolchain lock; `kernels` the sections
    compiled into it.
    """

    variant: Variant
    backend: Backend
    torch: Version | None = None
    cuda: Version | None = None
    kernels: tuple[KernelBuild, ...] = ()
    trees: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return str(self.variant)

    @property
    def archs(self) -> tuple[Capability, ...]:
        """Every capability that some section is compiled for, in numeric order."""
        found = dict.fromkeys(capability for kernel in self.kernels for capability in kernel.capabilities)
        return tuple(sorted(found, key=lambda c: (c.major, c.minor, c.suffix, c.ptx)))


class Cause(StrEnum):
    """Who a skipped variant is owed to: the author's own filters, or what kbuild has no means for."""

    ASKED = "asked"
    MEANS = "means"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A variant that does not get built, and the reason. `name` may be a pattern, as in `torch*-rocm*`."""

    name: str
    backend: Backend
    reason: str
    cause: Cause = Cause.ASKED


Selection = tuple[Chosen | Skipped, ...]


def select(config: Config, matrix: Matrix) -> Selection:
    """Every variant that the project could have, in a stable order: chosen, or skipped with a reason."""
    result: list[Chosen | Skipped] = []
    for backend in dict.fromkeys([*(row.compute.backend for row in matrix.rows), *Backend]):
        rows = [row for row in matrix.rows if row.compute.backend is backend]
        if backend not in config.general.backends:
            reason = f"the project does not ask for {backend} (general.backends)"
            result += [Skipped(name=str(row.variant), backend=backend, reason=reason) for row in rows]
        elif not config.kernels_for(backend):
            result.append(Chosen(variant=NoarchVariant(backend=backend), backend=backend))
        elif not rows:
            reason = f"kbuild builds no compiled {backend} kernels: the matrix has no row for them"
            result.append(
                Skipped(name=f"torch*-{backend}*", backend=backend, reason=reason, cause=Cause.MEANS)
            )
        else:
            result += _select_compiled(config, matrix, backend, rows)
    return tuple(result)


def _select_compiled(
    config: Config, matrix: Matrix, backend: Backend, rows: list[Row]
) -> list[Chosen | Skipped]:
    match config.framework:
        case Torch() as torch:
            stable_abi = torch.stable_abi(backend)
            if stable_abi is not None:
                return _select_stable(config, torch, stable_abi, matrix, rows)
            return [_select_row(config, torch, matrix, row) for row in rows]
        case TvmFfi():
            name = f"tvm-ffi*-{backend}*"
            reason = "kbuild builds no tvm-ffi kernels: their toolchain is not pinned"
            return [Skipped(name=name, backend=backend, reason=reason, cause=Cause.MEANS)]
        case TorchNoarch():
            name = f"torch*-{backend}*"
            reason = "[torch-noarch] compiles nothing (remove its kernel sections)"
            return [Skipped(name=name, backend=backend, reason=reason)]
        case _:
            assert_never(config.framework)


def _select_row(config: Config, torch: Torch, matrix: Matrix, row: Row) -> Chosen | Skipped:
    reason = _torch_bounds(torch, row.torch)
    return (
        Skipped(name=str(row.variant), backend=row.compute.backend, reason=reason)
        if reason is not None
        else _choose(config, matrix, row.variant, row.torch)
    )


def _select_stable(
    config: Config, torch: Torch, stable_abi: Version, matrix: Matrix, rows: list[Row]
) -> list[Chosen | Skipped]:
    """One build per compute: against the lowest release that offers the ABI, whatever its own toolkits.

    Headers of a release do not depend on the CUDA version, so a compute that came later still uses them.
    """
    headers = min((release for release in matrix.torch_trees if release >= stable_abi), default=None)
    result: list[Chosen | Skipped] = []
    for compute in dict.fromkeys(row.compute for row in rows):
        same = [row for row in rows if row.compute == compute]
        example = same[0].variant
        variant = StableAbiVariant(torch=stable_abi, compute=compute, arch=example.arch, os=example.os)
        users = [row for row in same if row.torch >= stable_abi]
        reasons = [_torch_bounds(torch, row.torch) for row in users]
        if headers is None or not users:
            reason = f"no PyTorch from {stable_abi} on is published for {compute} (torch.stable-abi)"
            result.append(Skipped(name=str(variant), backend=compute.backend, reason=reason))
        elif all(reason is not None for reason in reasons):
            result.append(Skipped(name=str(variant), backend=compute.backend, reason=str(reasons[0])))
        else:
            result.append(_choose(config, matrix, variant, headers))
    return result


def _torch_bounds(torch: Torch, release: Version) -> str | None:
    if torch.minver is not None and release < torch.minver:
        return f"PyTorch {release} is below torch.minver {torch.minver}"
    if torch.maxver is not None and release > torch.maxver:
        return f"PyTorch {release} is above torch.maxver {torch.maxver}"
    return None


def _choose(
    config: Config, matrix: Matrix, variant: TorchVariant | StableAbiVariant, torch: Version
) -> Chosen | Skipped:
    """The build of one variant against the headers of `torch`, or why its toolkit cannot do it."""
    compute = variant.compute
    trees = [matrix.torch_trees[torch]]
    kernels: list[KernelBuild] = []
    if compute.version is not None:
        toolkit = matrix.toolkits[compute.version]
        reason = _cuda_bounds(config, toolkit)
        if reason is not None:
            return Skipped(name=str(variant), backend=compute.backend, reason=reason)
        if toolkit.unavailable is not None:
            return Skipped(
                name=str(variant), backend=compute.backend, reason=toolkit.unavailable, cause=Cause.MEANS
            )
        trees += toolkit.trees
    for kernel in config.kernels_for(compute.backend):
        if not _serves(kernel, compute):
            continue
        unsourced = next((name for name in kernel.depends if name not in _SOURCED), None)
        if unsourced is not None:
            reason = f"no source for {unsourced}, which kernel {kernel.id} depends on"
            return Skipped(name=str(variant), backend=compute.backend, reason=reason, cause=Cause.MEANS)
        match kernel:
            case CudaKernel():
                assert compute.version is not None
                capabilities = matrix.archs.effective(kernel.capabilities, compute.version)
                if not capabilities:
                    wanted = ", ".join(str(capability) for capability in kernel.capabilities)
                    reason = (
                        f"CUDA {compute.version} compiles for no capability of kernel {kernel.id}: {wanted}"
                    )
                    return Skipped(name=str(variant), backend=compute.backend, reason=reason)
                kernels.append(KernelBuild(id=kernel.id, capabilities=capabilities))
            case CpuKernel():
                kernels.append(KernelBuild(id=kernel.id))
            case _:
                raise AssertionError(f"no row can be for {kernel.backend}")
    if not kernels:
        reason = f"CUDA {compute.version} is below the cuda-minver of every cuda kernel"
        return Skipped(name=str(variant), backend=compute.backend, reason=reason)
    return Chosen(
        variant=variant,
        backend=compute.backend,
        torch=torch,
        cuda=compute.version,
        kernels=tuple(kernels),
        trees=tuple(trees),
    )


def _serves(kernel: Kernel, compute: Compute) -> bool:
    """Whether the section is for this compute at all."""
    floor = kernel.cuda_minver if isinstance(kernel, CudaKernel) else None
    return floor is None or compute.version is None or compute.version >= floor


def _cuda_bounds(config: Config, toolkit: Toolkit) -> str | None:
    cuda = config.general.cuda
    if cuda.minver is not None and toolkit.version < cuda.minver:
        return f"CUDA {toolkit.version} is below general.cuda.minver {cuda.minver}"
    if cuda.maxver is not None and toolkit.version > cuda.maxver:
        return f"CUDA {toolkit.version} is above general.cuda.maxver {cuda.maxver}"
    return None


def chosen(selection: Selection) -> tuple[Chosen, ...]:
    """The part of a selection that gets built."""
    return tuple(entry for entry in selection if isinstance(entry, Chosen))


def pick(selection: Selection, names: Iterable[str]) -> tuple[Chosen, ...]:
    """The chosen variants with these names, in their order, without repeats.

    Raises UsageError with the reason for a name that is skipped, or a suggestion for one that is unknown.
    """
    by_name = {entry.name: entry for entry in selection}
    result = []
    for name in dict.fromkeys(names):
        match by_name.get(name):
            case Chosen() as entry:
                result.append(entry)
            case Skipped(reason=reason):
                raise UsageError(f"variant {name} is not built for this project: {reason}")
            case None:
                raise UsageError(
                    f"there is no variant {name!r}.{did_you_mean(name, by_name)}",
                    hint="`kbuild variants` lists them",
                )
    return tuple(result)


def best_for_machine(
    candidates: Iterable[Chosen],
    *,
    torch: Version | None,
    cuda: Version | None,
    arch: str = "x86_64",
    os: str = "linux",
) -> Chosen | None:
    """The variant that the public loader (kernels 0.17) would take here, or None.

    `torch` is the installed PyTorch, `cuda` the CUDA version it was built with (None: a CPU build). Order of
    preference: stable ABI of the highest version, then this very PyTorch, each with the highest CUDA; then
    noarch.
    """
    backend = Backend.CPU if cuda is None else Backend.CUDA
    fitting = [
        entry
        for entry in candidates
        if entry.backend is backend and fits(entry.variant, torch=torch, cuda=cuda, arch=arch, os=os)
    ]
    return min(fitting, key=lambda entry: _preference(entry.variant), default=None)


def fits(
    variant: Variant,
    *,
    torch: Version | None,
    cuda: Version | None,
    arch: str = "x86_64",
    os: str = "linux",
) -> bool:
    """Whether a PyTorch (built with this CUDA; None: a CPU build) on such a machine can load the variant."""
    match variant:
        case NoarchVariant():
            return True
        case TvmFfiVariant():
            return False
        case TorchVariant() | StableAbiVariant():
            if torch is None or (variant.arch, variant.os) != (arch, os):
                return False
            minor = Version((torch.major, torch.minor))
            if isinstance(variant, StableAbiVariant):
                served = variant.torch <= minor
            else:
                served = variant.torch == minor and variant.cxx11 is not False
            built = variant.compute.version
            return served and (
                built is None
                or (cuda is not None and built.major == cuda.major and built.minor <= cuda.minor)
            )


def _preference(variant: Variant) -> tuple[int, int, int, int]:
    match variant:
        case StableAbiVariant():
            return (0, -variant.torch.major, -variant.torch.minor, _newest_first(variant.compute))
        case TorchVariant():
            return (1, 0, 0 if variant.cxx11 is None else 1, _newest_first(variant.compute))
        case TvmFfiVariant():
            return (2, 0, 0, _newest_first(variant.compute))
        case NoarchVariant():
            return (3, 0, 0, 1 if variant.backend is None else 0)


def _newest_first(compute: Compute) -> int:
    return 0 if compute.version is None else -compute.version.minor
