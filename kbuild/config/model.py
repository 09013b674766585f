"""The typed content of a `build.toml` of edition 5. Values only; positions stay with `config.source`."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import total_ordering
from typing import ClassVar, Self

CURRENT_EDITION = 5


class Backend(StrEnum):
    """What a kernel computes on."""

    CANN = "cann"
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    NEURON = "neuron"
    ROCM = "rocm"
    TPU = "tpu"
    XPU = "xpu"


class Dependency(StrEnum):
    """What `kernel.<id>.depends` may name."""

    TORCH = "torch"
    CUTLASS_2_10 = "cutlass_2_10"
    CUTLASS_3_5 = "cutlass_3_5"
    CUTLASS_3_6 = "cutlass_3_6"
    CUTLASS_3_8 = "cutlass_3_8"
    CUTLASS_3_9 = "cutlass_3_9"
    CUTLASS_4_0 = "cutlass_4_0"
    CUTLASS_4_4 = "cutlass_4_4"
    CUTLASS_4_5 = "cutlass_4_5"
    SYCL_TLA = "sycl_tla"
    METAL_CPP = "metal-cpp"


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """Dotted numbers such as `2.13`; trailing zeros do not count in comparisons."""

    parts: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError where `text` is not numbers joined by dots."""
        if re.fullmatch(r"\d+(\.\d+)*", text, re.ASCII) is None:
            raise ValueError(f"{text!r} is not a version")
        return cls(tuple(int(part) for part in text.split(".")))

    def _key(self) -> tuple[int, ...]:
        end = len(self.parts)
        while end and self.parts[end - 1] == 0:
            end -= 1
        return self.parts[:end]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key() == other._key()

    def __lt__(self, other: "Version") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __str__(self) -> str:
        return ".".join(str(part) for part in self.parts)

    @property
    def major(self) -> int:
        return self.parts[0]

    @property
    def minor(self) -> int:
        return self.parts[1] if len(self.parts) > 1 else 0

    @property
    def minor_release(self) -> Self:
        """Major and minor, which alone tell releases apart here: `13` and `13.0.2` are `13.0`."""
        return type(self)((self.major, self.minor))

    @property
    def flat(self) -> str:
        """Major and minor written together, as variant names do: `13.0` is `130`."""
        return f"{self.major}{self.minor}"


@dataclass(frozen=True, slots=True)
class Capability:
    """One CUDA compute capability as `build.toml` writes it: `8.0`, `9.0a`, `10.0f`, `12.0+PTX`."""

    major: int
    minor: int
    suffix: str = ""
    ptx: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError where `text` is not of that form."""
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not a compute capability")
        return cls(int(match[1]), int(match[2]), match[3], match[4] is not None)

    @property
    def arch(self) -> str:
        """Without the PTX mark: `12.0+PTX` is `12.0`."""
        return f"{self.major}.{self.minor}{self.suffix}"

    def __str__(self) -> str:
        return f"{self.arch}+PTX" if self.ptx else self.arch


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDependency:
    """Another Hub kernel that this one loads; exactly one of `version` and `revision` is set."""

    repo_id: str
    version: int | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """`[general.hub]`: where the kernel is published."""

    repo_id: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendGeneral:
    """`[general.neuron]`, `[general.tpu]`, `[general.xpu]`: dependencies of one backend."""

    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[KernelDependency, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaGeneral(BackendGeneral):
    """`[general.cuda]`: dependencies and the range of CUDA toolkits."""

    minver: Version | None = None
    maxver: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class General:
    """`[general]`."""

    name: str
    version: int
    license: str
    backends: tuple[Backend, ...]
    upstream: str | None = None
    source: str | None = None
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[KernelDependency, ...] = ()
    hub: Hub = Hub()
    cuda: CudaGeneral = CudaGeneral()
    neuron: BackendGeneral = BackendGeneral()
    tpu: BackendGeneral = BackendGeneral()
    xpu: BackendGeneral = BackendGeneral()

    @property
    def python_name(self) -> str:
        """The name of the Python package."""
        return self.name.replace("-", "_")

    def for_backend(self, backend: Backend) -> BackendGeneral:
        """The settings of one backend; empty ones where its table cannot exist."""
        match backend:
            case Backend.CUDA:
                return self.cuda
            case Backend.NEURON:
                return self.neuron
            case Backend.TPU:
                return self.tpu
            case Backend.XPU:
                return self.xpu
            case _:
                return BackendGeneral()

    def all_python_depends(self, backend: Backend) -> tuple[str, ...]:
        """General and backend-specific Python dependencies, in that order."""
        return self.python_depends + self.for_backend(backend).python_depends

    def all_kernel_depends(self, backend: Backend) -> tuple[KernelDependency, ...]:
        """General and backend-specific kernel dependencies, in that order."""
        return self.kernel_depends + self.for_backend(backend).kernel_depends


DEFAULT_PYEXT = ("py", "pyi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Torch:
    """`[torch]`: bindings compiled ahead of time against PyTorch."""

    key: ClassVar[str] = "torch"
    folder: ClassVar[str] = "torch-ext"

    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    pyext: tuple[str, ...] = DEFAULT_PYEXT
    minver: Version | None = None
    maxver: Version | None = None
    stable_abi_all: Version | None = None
    stable_abi_by_backend: tuple[tuple[Backend, Version], ...] = ()
    cxx_flags: tuple[str, ...] = ()

    def stable_abi(self, backend: Backend) -> Version | None:
        """The PyTorch whose stable ABI this backend is built against; None for an ordinary build."""
        return dict(self.stable_abi_by_backend).get(backend, self.stable_abi_all)


@dataclass(frozen=True, slots=True, kw_only=True)
class TvmFfi:
    """`[tvm-ffi]`: bindings compiled ahead of time against tvm-ffi."""

    key: ClassVar[str] = "tvm-ffi"
    folder: ClassVar[str] = "tvm-ffi-ext"

    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    pyext: tuple[str, ...] = DEFAULT_PYEXT
    cxx_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchNoarch:
    """`[torch-noarch]`: Python (and Triton) only; the capabilities are for `metadata.json` alone."""

    key: ClassVar[str] = "torch-noarch"
    folder: ClassVar[str] = "torch-ext"

    pyext: tuple[str, ...] = DEFAULT_PYEXT
    cuda_capabilities: tuple[Capability, ...] = ()
    rocm_archs: tuple[str, ...] = ()


Framework = Torch | TvmFfi | TorchNoarch


@dataclass(frozen=True, slots=True, kw_only=True)
class _KernelBase:
    id: str
    depends: tuple[Dependency, ...]
    src: tuple[str, ...]
    include: tuple[str, ...] = ()
    cxx_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuKernel(_KernelBase):
    """`[kernel.<id>]` with `backend = "cpu"`."""

    backend: ClassVar[Backend] = Backend.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaKernel(_KernelBase):
    """`[kernel.<id>]` with `backend = "cuda"`. No `capabilities` means the default set of the toolkit."""

    backend: ClassVar[Backend] = Backend.CUDA

    capabilities: tuple[Capability, ...] = ()
    cuda_flags: tuple[str, ...] = ()
    cuda_minver: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetalKernel(_KernelBase):
    """`[kernel.<id>]` with `backend = "metal"`."""

    backend: ClassVar[Backend] = Backend.METAL


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmKernel(_KernelBase):
    """`[kernel.<id>]` with `backend = "rocm"`."""

    backend: ClassVar[Backend] = Backend.ROCM

    archs: tuple[str, ...] = ()
    hip_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class XpuKernel(_KernelBase):
    """`[kernel.<id>]` with `backend = "xpu"`."""

    backend: ClassVar[Backend] = Backend.XPU

    sycl_flags: tuple[str, ...] = ()


Kernel = CpuKernel | CudaKernel | MetalKernel | RocmKernel | XpuKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole, valid `build.toml`; kernels in the order of the file."""

    general: General
    framework: Framework
    kernels: tuple[Kernel, ...] = ()

    def kernels_for(self, backend: Backend) -> tuple[Kernel, ...]:
        """The compiled sections of one backend."""
        return tuple(kernel for kernel in self.kernels if kernel.backend is backend)

    @property
    def listed_files(self) -> tuple[str, ...]:
        """Everything that any `src` names, as written, in the order of the file, without repeats."""
        framework_src = () if isinstance(self.framework, TorchNoarch) else self.framework.src
        return tuple(dict.fromkeys([*framework_src, *(path for k in self.kernels for path in k.src)]))
