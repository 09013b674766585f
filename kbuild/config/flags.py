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
        code="split-flag",
        pattern=r"-{1,2}std",
        why="stands apart from its value, which g++ refuses and the build does not see",
        hint='write both as one: "-std=c++20"',
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
        code="device-link-flag",
        pattern=r"-rdc=true|--?relocatable-device-code(?:=true)?|-dc|--device-c|-dlink|--device-link|-fgpu-rdc",
        why="makes device code that a device linker has to finish, and a build has no such step",
        hint="remove it, and keep what a kernel calls in its own file or in headers",
    ),
    FlagRule(
        code="output-flag",
        pattern=r"-o|-E|-S|--?(?:output-file(?:=.*)?|preprocess|ptx|cubin|fatbin|optix-ir|dryrun)",
        why="says what the compiler writes and where, which the build does",
        hint="remove it",
    ),
    FlagRule(
        code="include-flag",
        pattern=r"-(?:I|isystem|iquote|include).*|--include-path.*",
        why="names a folder or file that a build does not see where it stands now",
        hint="list folders in include, and headers in src",
    ),
)


# Flags of nvcc that hand on what follows to the host compiler.
_HANDS_ON = ("-Xcompiler", "--compiler-options")
# Flags whose value may be an entry of its own, and what joins the two in one.
_JOINED = {"-D": "", "-U": "", "-rdc": "="}
_TAKES_VALUE = (*_HANDS_ON, *_JOINED)


def check_flags(config: Config, source: Source, report: Report) -> None:
    """Every flag against every rule, also those that nvcc hands on."""
    for path, flags in _arrays(config):
        for index, flag, whole in _parts(flags):
            for rule in FLAG_RULES:
                if re.fullmatch(rule.pattern, flag) is not None:
                    add = report.error if rule.severity is Severity.ERROR else report.warning
                    fix = remove_entry(source, path, index) if rule.idle and whole else ()
                    add(
                        rule.code, f"{flag!r} {rule.why}", source.value(*path, index), hint=rule.hint, fix=fix
                    )
        if flags and flags[-1] in _TAKES_VALUE:
            report.error(
                "dangling-flag",
                f"{flags[-1]!r} takes a value, and none follows",
                source.value(*path, len(flags) - 1),
                hint=f'write the value after it: "{flags[-1]}", "..."',
            )
    _host_flags_for_nvcc_only(config, source, report)


def _parts(flags: tuple[str, ...]) -> Iterator[tuple[int, str, bool]]:
    """Each flag that the array has, with the entry where it starts and whether it is that entry whole."""
    entries = iter(enumerate(flags))
    for index, flag in entries:
        name, equals, value = flag.partition("=")
        if flag in _TAKES_VALUE:
            at, value = next(entries, (index, ""))
            if flag in _JOINED and value:
                yield index, flag + _JOINED[flag] + value, False
            elif value:
                yield from ((at, part, False) for part in value.split(","))
        elif equals and name in _HANDS_ON:
            yield from ((index, part, False) for part in value.split(","))
        else:
            yield index, flag, True


def _host_flags_for_nvcc_only(config: Config, source: Source, report: Report) -> None:
    """-Xcompiler is nvcc's; where a cxx-flags array goes to the host compiler too, that refuses it."""
    arrays: list[tuple[Path, tuple[str, ...], tuple[str, ...]]] = []
    if not isinstance(config.framework, TorchNoarch):
        framework = config.framework
        arrays.append(((framework.key, "cxx-flags"), framework.cxx_flags, framework.src))
    arrays += [
        (("kernel", kernel.id, "cxx-flags"), kernel.cxx_flags, kernel.src) for kernel in config.kernels
    ]
    for path, flags, src in arrays:
        compiled = next((file for file in src if file.endswith((".c", ".cc", ".cpp", ".cxx"))), None)
        for index, flag in enumerate(flags if compiled is not None else ()):
            if flag.partition("=")[0] in _HANDS_ON:
                report.error(
                    "nvcc-flag",
                    f"{flag!r} is a flag of nvcc, and {compiled} is compiled without it",
                    source.value(*path, index),
                    hint="put it into cuda-flags, or write what follows it alone",
                )


def _arrays(config: Config) -> list[tuple[Path, tuple[str, ...]]]:
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
    return arrays
