"""Compiler flags that a published kernel must not have, as data: a pattern, and what is wrong with it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kbuild.config.edits import remove_entry
from kbuild.config.model import Config, CudaKernel, RocmKernel, TorchNoarch, XpuKernel
from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRule:
    """`pattern` must match the whole flag; an `idle` one does nothing, so that it can go without asking."""

    code: str
    pattern: str
    why: str
    hint: str
    severity: Severity = Severity.ERROR
    idle: bool = False


FLAG_RULES = (
    FlagRule(
        code="native-flag",
        pattern=r"-m(?:arch|cpu|tune)=native|-x[Hh]ost",
        why="compiles for the processor of the machine that builds, which users do not have",
        hint="name the instruction sets, for example -mavx2, and choose between them at run time",
    ),
    FlagRule(
        code="abi-flag",
        pattern=r"-D_GLIBCXX_USE_CXX11_ABI=.*|-fabi-version=.*|-stdlib=.*|-fgnu-unique",
        why="changes the C++ ABI, and PyTorch's symbols would not be found",
        hint="remove it: the build sets the ABI of each variant",
    ),
    FlagRule(
        code="old-standard",
        pattern=r"-{1,2}std=(?:c|gnu)\+\+(?:98|03|0x|11|1y|14|1z)",
        why="is a C++ standard that PyTorch's headers no longer compile with",
        hint="remove it, or use -std=c++17 or later",
    ),
    FlagRule(
        code="arch-flag",
        pattern=r"-arch(?:=.*)?|--gpu-(?:architecture|code)=.*|-gencode(?:=.*)?|--generate-code=.*|-code=.*"
        r"|--offload-arch=.*",
        why="chooses architectures behind the builder's back, and metadata.json would be wrong",
        hint="list them in cuda-capabilities or rocm-archs",
    ),
    FlagRule(
        code="visibility-flag",
        pattern=r"-fvisibility(?:-inlines-hidden|=.*)",
        why="changes which symbols the library exports, which the build decides",
        hint="remove it",
        severity=Severity.WARNING,
    ),
    FlagRule(
        code="link-flag",
        pattern=r"-l(?!ineinfo$).+|-L.*|-Wl,.*|-shared|-static.*|-rdynamic|-Xlinker.*",
        why="is for the linker and does nothing here",
        hint="remove it: a kernel links to PyTorch, its CUDA libraries and the C++ runtime only",
        severity=Severity.WARNING,
        idle=True,
    ),
    FlagRule(
        code="include-flag",
        pattern=r"-(?:I|isystem|iquote|include).*|--include-path.*",
        why="names a folder or file that a build does not see where it stands now",
        hint="list folders in include, and headers in src",
    ),
)


def check_flags(config: Config, source: Source, report: Report) -> None:
    """Every flag against every rule."""
    for path, flag in _flags(config):
        for rule in FLAG_RULES:
            if re.fullmatch(rule.pattern, flag) is not None:
                add = report.error if rule.severity is Severity.ERROR else report.warning
                fix = remove_entry(source, path[:-1], int(path[-1])) if rule.idle else ()
                add(rule.code, f"{flag!r} {rule.why}", source.value(*path), hint=rule.hint, fix=fix)


def _flags(config: Config) -> Iterator[tuple[Path, str]]:
    arrays: list[tuple[Path, tuple[str, ...]]] = []
    if not isinstance(config.framework, TorchNoarch):
        arrays.append(((config.framework.key, "cxx-flags"), config.framework.cxx_flags))
    for kernel in config.kernels:
        arrays.append((("kernel", kernel.id, "cxx-flags"), kernel.cxx_flags))
        match kernel:
            case CudaKernel():
                arrays.append((("kernel", kernel.id, "cuda-flags"), kernel.cuda_flags))
            case RocmKernel():
                arrays.append((("kernel", kernel.id, "hip-flags"), kernel.hip_flags))
            case XpuKernel():
                arrays.append((("kernel", kernel.id, "sycl-flags"), kernel.sycl_flags))
            case _:
                pass
    for path, flags in arrays:
        yield from (((*path, index), flag) for index, flag in enumerate(flags))
