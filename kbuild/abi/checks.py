"""The verdicts over one library: independent pure functions, listed in RULES at the end."""

import re
from typing import assert_never

from kbuild.abi import policies
from kbuild.abi.elf import ElfFile, Import
from kbuild.abi.fatbin import Kind
from kbuild.abi.policies import TorchRelease, version_key
from kbuild.abi.symbols import demangle, uses_old_string
from kbuild.abi.verdict import Context, Rule, StableAbi, Violation
from kbuild.config.model import Backend, Capability

_STABLE_SHIMS = ("aoti_torch_", "torch_")
# A mangled name in one of PyTorch's namespaces, its vtables and type infos included.
_TORCH_CXX = re.compile(r"_Z(?:T[A-Z]|GV)?NK?(?:2at|3c10|5torch|6caffe2)")
_MODULE_SUFFIX = ".abi3.so"
_MODULE_INIT = "PyInit_"


def manylinux(elf: ElfFile, context: Context) -> list[Violation]:
    """Every symbol version exists on the oldest Linux that the policy serves."""
    policy = policies.manylinux()
    asked = [(i.version, i.library, i.name) for i in elf.imports if i.version is not None]
    # NB: some needs have no symbol: GLIBC_ABI_DT_RELR is a version by which a linker demands a newer loader.
    by_symbol = {(version, library) for version, library, _ in asked}
    bare = [
        (n.version, n.library, None) for n in elf.version_needs if (n.version, n.library) not in by_symbol
    ]
    violations = []
    for version, library, symbol in [*asked, *bare]:
        if policy.allows(version):
            continue
        family, _ = policy.family(version) or (version, "")
        allowed = f"{family}_{policy.ceilings[family]}"
        what = f"{demangle(symbol)} needs {version}" if symbol is not None else f"needs {version}"
        violations.append(
            Violation(
                code="manylinux",
                message=f"{what} of {library}; {policy.name} has at most {allowed}",
                path=context.path,
                symbol=symbol,
                needed=version,
                allowed=allowed,
                hint=f"link against {policy.name} libraries, as `kbuild build` does, not this machine's",
            )
        )
    return violations


def manylinux_found(elf: ElfFile, _: Context) -> str:
    policy = policies.manylinux()
    highest: dict[str, str] = {}
    for need in elf.version_needs:
        split = policy.family(need.version)
        if split is None or split[1][:1] not in "0123456789" or need.version in policy.named:
            continue
        family, version = split
        highest[family] = max(highest.get(family, version), version, key=version_key)
    return ", ".join(f"{family} {highest[family]} <= {policy.ceilings[family]}" for family in sorted(highest))


def python_abi(elf: ElfFile, context: Context) -> list[Violation]:
    """Only symbols of the limited API, as old as the floor."""
    added = policies.python_limited_api().added
    violations = []
    for symbol in _python_imports(elf):
        since = added.get(symbol)
        if since is None:
            message = f"{symbol} is not part of Python's limited API"
            hint = "compile with Py_LIMITED_API, and keep pybind11 and torch/extension.h out of the bindings"
        elif version_key(since) > version_key(context.python_floor):
            message = f"{symbol} appeared in Python {since}; the floor is {context.python_floor}"
            hint = f"compile with Py_LIMITED_API set to the floor, {context.python_floor}"
        else:
            continue
        violations.append(
            Violation(
                code="python-abi",
                message=message,
                path=context.path,
                symbol=symbol,
                needed=since,
                allowed=context.python_floor,
                hint=hint,
            )
        )
    return violations


def python_abi_found(elf: ElfFile, context: Context) -> str:
    added = policies.python_limited_api().added
    versions = [added[symbol] for symbol in _python_imports(elf) if symbol in added]
    if not versions:
        return "no Python symbols"
    newest = max(versions, key=version_key)
    return f"Python {newest} <= {context.python_floor}, {len(versions)} symbols"


def machine(elf: ElfFile, context: Context) -> list[Violation]:
    """The file is for the processor that the variant names."""
    if elf.machine == context.machine:
        return []
    return [
        Violation(
            code="machine",
            message=f"is built for {elf.machine}, not for {context.machine}",
            path=context.path,
            needed=elf.machine,
            allowed=context.machine,
            hint="the name of the variant and the compiler's target must agree",
        )
    ]


def needed(elf: ElfFile, context: Context) -> list[Violation]:
    """Only libraries that PyTorch brings, or that every Linux of the policy has."""
    policy = policies.needed()
    allowed = _allowed_libraries(context)
    violations = []
    for library in elf.needed:
        if library in allowed:
            continue
        stem = library.partition(".so")[0] + ".so"
        other_version = next((name for name in allowed if name.startswith(f"{stem}.")), None)
        if not _may_use_cuda(context) and library in policy.is_cuda:
            hint = "a cpu variant must run where there is no CUDA: keep CUDA sources and libraries out of it"
        elif other_version is not None:
            hint = f"this variant is to be linked against {other_version}"
        elif library.startswith("libpython"):
            hint = "leave Python's symbols undefined: the interpreter that loads the module provides them"
        else:
            hint = "link it statically, or do without it: nobody installs it for the user of a kernel"
        violations.append(
            Violation(
                code="needed",
                message=f"needs {library}, which {_kind_of_variant(context)} may not",
                path=context.path,
                needed=library,
                allowed=other_version,
                hint=hint,
            )
        )
    return violations


def needed_found(elf: ElfFile, _: Context) -> str:
    system = policies.needed().system
    beyond = [library for library in elf.needed if library not in system]
    return ", ".join(beyond) if beyond else "system libraries only"


def search_path(elf: ElfFile, context: Context) -> list[Violation]:
    """Libraries are looked for beside the file or where the system keeps them, nowhere else."""
    return [
        Violation(
            code="search-path",
            message=f"looks for libraries in {part!r} (RPATH or RUNPATH)",
            path=context.path,
            needed=part,
            allowed="$ORIGIN",
            hint="link without -rpath: PyTorch has loaded its libraries when the kernel is imported",
        )
        for part in elf.search_paths
        if part.split("/")[0] not in ("$ORIGIN", "${ORIGIN}")
    ]


def search_path_found(elf: ElfFile, _: Context) -> str:
    return ":".join(elf.search_paths) or "none"


def store_path(elf: ElfFile, context: Context) -> list[Violation]:
    """No Nix store path anywhere: it exists on no user's machine, and ties the bytes to a builder's store."""
    return [
        Violation(
            code="store-path",
            message=f"contains {path}",
            path=context.path,
            needed=path,
            hint="strip the file, and map such paths away with -ffile-prefix-map",
        )
        for path in elf.store_paths
    ]


def store_path_found(elf: ElfFile, _: Context) -> str:
    return f"{len(elf.store_paths)} paths" if elf.store_paths else "none"


def executable_stack(elf: ElfFile, context: Context) -> list[Violation]:
    """The stack stays non-executable: glibc 2.41 and hardened kernels refuse to load what asks otherwise."""
    match elf.executable_stack:
        case False:
            return []
        case True:
            message = "asks for an executable stack"
        case None:
            message = "has no GNU_STACK header, which the loader takes for a wish for an executable stack"
    return [
        Violation(
            code="executable-stack",
            message=message,
            path=context.path,
            hint="link with -z noexecstack; give assembler sources a .note.GNU-stack section",
        )
    ]


def executable_stack_found(elf: ElfFile, _: Context) -> str:
    return {False: "not executable", True: "executable", None: "not stated"}[elf.executable_stack]


def unique_symbol(elf: ElfFile, context: Context) -> list[Violation]:
    """No GNU_UNIQUE symbols: the loader merges them over the process, so two builds would share state."""
    return [
        Violation(
            code="unique-symbol",
            message=f"{demangle(export.name)} is a GNU_UNIQUE symbol",
            path=context.path,
            symbol=export.name,
            hint="compile with -fno-gnu-unique, or with -fvisibility=hidden",
        )
        for export in elf.exports
        if export.unique
    ]


def unique_symbol_found(elf: ElfFile, _: Context) -> str:
    count = sum(export.unique for export in elf.exports)
    return f"{count} of {len(elf.exports)} exported" if count else "none"


def string_abi(elf: ElfFile, context: Context) -> list[Violation]:
    """`std::string` is the one that the variant, and so its PyTorch, was compiled with."""
    wrong = [i for i in elf.imports if _string_is_cxx11(i.name) not in (None, context.cxx11)]
    wanted = "C++11" if context.cxx11 else "pre-C++11"
    return [
        Violation(
            code="string-abi",
            message=f"{demangle(symbol.name)} uses another std::string than the {wanted} one of the variant",
            path=context.path,
            symbol=symbol.name,
            hint=f"compile every source with -D_GLIBCXX_USE_CXX11_ABI={int(bool(context.cxx11))}",
        )
        for symbol in wrong
    ]


def string_abi_found(elf: ElfFile, _: Context) -> str:
    kinds = {_string_is_cxx11(i.name) for i in elf.imports}
    return (
        ", ".join(name for kind, name in ((True, "C++11"), (False, "pre-C++11")) if kind in kinds)
        or "no strings"
    )


def torch_symbol(elf: ElfFile, context: Context) -> list[Violation]:
    """Every imported symbol of PyTorch exists in the release, or in all releases of a stable build."""
    torch = context.torch
    match torch:
        case TorchRelease():
            cuda = _may_use_cuda(context)
            return [
                Violation(
                    code="torch-symbol",
                    message=f"{demangle(symbol.name)} is in no library of PyTorch {torch.release} that "
                    f"{_kind_of_variant(context)} may link",
                    path=context.path,
                    symbol=symbol.name,
                    allowed=torch.release,
                    hint=f"build against the headers of PyTorch {torch.release}, without torch/extension.h"
                    + ("" if _may_use_cuda(context) else ", and keep CUDA code out of cpu variants"),
                )
                for symbol in _loose_imports(elf)
                if _is_torch(symbol.name) and not torch.has(symbol.name, cuda=cuda)
            ]
        case StableAbi():
            return [v for symbol in _loose_imports(elf) for v in _stable_symbol(symbol, torch, context)]
        case None:
            return []
    assert_never(torch)


def _stable_symbol(symbol: Import, torch: StableAbi, context: Context) -> list[Violation]:
    if not _is_torch(symbol.name):
        return []
    floor = torch.releases[0].release
    cuda = _may_use_cuda(context)
    if not symbol.name.startswith(_STABLE_SHIMS):
        message = f"{demangle(symbol.name)} is not part of PyTorch's stable ABI"
        hint = "include only torch/csrc/stable and torch/headeronly, and register with STABLE_TORCH_LIBRARY"
        lacking = None
    else:
        lacking = next((r.release for r in torch.releases if not r.has(symbol.name, cuda=cuda)), None)
        if lacking is None:
            return []
        message = f"PyTorch {lacking} has no {symbol.name}, and this is a build for {floor} and later"
        hint = f"compile with TORCH_TARGET_VERSION set to {floor}, or raise torch.stable-abi"
    return [
        Violation(
            code="torch-symbol",
            message=message,
            path=context.path,
            symbol=symbol.name,
            needed=lacking,
            allowed=floor,
            hint=hint,
        )
    ]


def torch_symbol_found(elf: ElfFile, context: Context) -> str:
    count = sum(_is_torch(symbol.name) for symbol in _loose_imports(elf))
    match context.torch:
        case TorchRelease(release=release):
            return f"{count} symbols of PyTorch {release}"
        case StableAbi(releases=releases):
            return f"{count} symbols of PyTorch {releases[0].release} to {releases[-1].release}"
        case None:
            return f"{count} symbols of PyTorch"


def unresolved(elf: ElfFile, context: Context) -> list[Violation]:
    """Nothing is left to a library that nobody provides: the usual trace of a source missing in the build."""
    prefixes = tuple(prefix for names in _allowed_libraries(context).values() for prefix in names)
    violations = [
        Violation(
            code="unresolved-symbol",
            message=f"{demangle(symbol.name)} is defined nowhere",
            path=context.path,
            symbol=symbol.name,
            hint="add the source that defines it to a src list of build.toml, or link its library statically",
        )
        for symbol in _loose_imports(elf)
        if not _is_torch(symbol.name)
        and not symbol.name.startswith(prefixes)
        and not _torch_has(symbol.name, context)
    ]
    brought = policies.needed().torch.keys() | policies.needed().torch_cuda.keys()
    if not brought.intersection(elf.needed) and any(_is_torch(symbol.name) for symbol in _loose_imports(elf)):
        violations.append(
            Violation(
                code="unresolved-symbol",
                message="imports symbols of PyTorch but needs none of its libraries, so they stay undefined",
                path=context.path,
                hint="link with -ltorch_cpu -lc10, and with --no-as-needed where the linker drops them",
            )
        )
    return violations


def unresolved_found(elf: ElfFile, _: Context) -> str:
    versioned = sum(symbol.version is not None for symbol in elf.imports)
    return f"{len(elf.imports)} imported, {versioned} of them with a version"


def device_code(elf: ElfFile, context: Context) -> list[Violation]:
    """Every declared capability is there as machine code, with `+PTX` as PTX too, and nothing undeclared."""
    sass, ptx = _images(elf)
    if not _may_use_cuda(context):
        if not sass | ptx:
            return []
        return [
            Violation(
                code="device-code",
                message=f"holds device code for {_listed(sass | ptx)} in a cpu variant",
                path=context.path,
                hint="keep CUDA sources out of cpu variants",
            )
        ]
    declared = context.archs or ()
    as_sass = {capability.arch for capability in declared}
    as_ptx = {capability.arch for capability in declared if capability.ptx}
    wrong = [(arch, f"lacks machine code (SASS) for {arch}") for arch in _ordered(as_sass - sass)]
    wrong += [(arch, f"lacks PTX for {arch}") for arch in _ordered(as_ptx - ptx)]
    wrong += [
        (arch, f"holds machine code (SASS) for {arch}, which metadata.json does not declare")
        for arch in _ordered(sass - as_sass)
    ]
    return [
        Violation(
            code="device-code",
            message=message,
            path=context.path,
            needed=arch,
            allowed=" ".join(map(str, declared)) or None,
            hint="build for the declared capabilities: by metadata.json the loader tells which GPUs fit",
        )
        for arch, message in wrong
    ]


def device_code_found(elf: ElfFile, _: Context) -> str:
    sass, ptx = _images(elf)
    parts = [f"SASS {_listed(sass)}"] if sass else []
    parts += [f"PTX {_listed(ptx)}"] if ptx else []
    return ", ".join(parts) or "no device code"


def module(elf: ElfFile, context: Context) -> list[Violation]:
    """The file is a Python extension module under its own name, for any Python."""
    name = context.path.rpartition("/")[2]
    if not name.endswith(_MODULE_SUFFIX):
        return [
            Violation(
                code="module",
                message=f"is not named <module>{_MODULE_SUFFIX}",
                path=context.path,
                allowed=_MODULE_SUFFIX,
                hint="the name says that one file serves every Python; no other library is loaded",
            )
        ]
    wanted = _MODULE_INIT + name.removesuffix(_MODULE_SUFFIX)
    if elf.exported(wanted):
        return []
    inits = [export.name for export in elf.exports if export.name.startswith(_MODULE_INIT)]
    return [
        Violation(
            code="module",
            message=f"does not export {wanted}" + (f" but {', '.join(inits)}" if inits else ""),
            path=context.path,
            symbol=wanted,
            hint="put REGISTER_EXTENSION(TORCH_EXTENSION_NAME) at the end of the bindings",
        )
    ]


def module_found(elf: ElfFile, _: Context) -> str:
    return ", ".join(e.name for e in elf.exports if e.name.startswith(_MODULE_INIT)) or "no module"


def _python_imports(elf: ElfFile) -> list[str]:
    return [symbol.name for symbol in elf.imports if symbol.name.startswith(("Py", "_Py"))]


def _loose_imports(elf: ElfFile) -> list[Import]:
    """What the loader must find in some library or give up: undefined, not weak, no version, not Python's."""
    return [
        symbol
        for symbol in elf.imports
        if not symbol.weak and symbol.version is None and not symbol.name.startswith(("Py", "_Py"))
    ]


def _is_torch(symbol: str) -> bool:
    return symbol.startswith(_STABLE_SHIMS) or _TORCH_CXX.match(symbol) is not None


def _torch_has(symbol: str, context: Context) -> bool:
    cuda = _may_use_cuda(context)
    match context.torch:
        case TorchRelease() as release:
            return release.has(symbol, cuda=cuda)
        case StableAbi(releases=releases):
            return releases[0].has(symbol, cuda=cuda)
        case None:
            return False


def _may_use_cuda(context: Context) -> bool:
    return context.compute is None or context.compute.backend is Backend.CUDA


def _kind_of_variant(context: Context) -> str:
    return "a kernel" if context.compute is None else f"a {context.compute} variant"


def _allowed_libraries(context: Context) -> dict[str, tuple[str, ...]]:
    policy = policies.needed()
    if context.compute is not None:
        version = context.compute.version
        return dict(policy.allowed(cuda=None if version is None else version.major))
    return {name: prefixes for major in policy.cuda for name, prefixes in policy.allowed(cuda=major).items()}


def _string_is_cxx11(symbol: str) -> bool | None:
    if uses_old_string(symbol):
        return False
    return True if "NSt7__cxx1112basic_string" in symbol else None


def _images(elf: ElfFile) -> tuple[set[str], set[str]]:
    entries = [entry for container in elf.fatbins for entry in container.entries if not entry.empty]
    return (
        {entry.capability.arch for entry in entries if entry.kind == Kind.SASS},
        {entry.capability.arch for entry in entries if entry.kind == Kind.PTX},
    )


def _ordered(archs: set[str]) -> list[str]:
    capabilities = [Capability.parse(arch) for arch in archs]
    return [c.arch for c in sorted(capabilities, key=lambda c: (c.major, c.minor, c.suffix))]


def _listed(archs: set[str]) -> str:
    return " ".join(_ordered(archs))


def _no_machine(context: Context) -> str | None:
    return "the processor is not known" if context.machine is None else None


def _no_torch(context: Context) -> str | None:
    return context.no_torch if context.torch is None else None


def _no_strings(context: Context) -> str | None:
    return "the string ABI of the variant is not known" if context.cxx11 is None else None


def _no_policy(context: Context) -> str | None:
    if context.compute is None or context.compute.backend in (Backend.CPU, Backend.CUDA):
        return None
    return f"there is no policy for {context.compute.backend}"


def _no_symbols(context: Context) -> str | None:
    return _no_torch(context) or _no_policy(context)


def _no_archs(context: Context) -> str | None:
    if context.compute is None:
        return "the backend is not known"
    if context.compute.backend is Backend.CUDA and context.archs is None:
        return "no capabilities are declared"
    return _no_policy(context)


RULES = (
    Rule(code="manylinux", title="manylinux_2_28", check=manylinux, found=manylinux_found),
    Rule(code="python-abi", title="Python limited API", check=python_abi, found=python_abi_found),
    Rule(
        code="machine",
        title="processor",
        check=machine,
        found=lambda elf, _: elf.machine,
        missing=_no_machine,
    ),
    Rule(code="needed", title="libraries", check=needed, found=needed_found, missing=_no_policy),
    Rule(code="search-path", title="search paths", check=search_path, found=search_path_found),
    Rule(code="store-path", title="store paths", check=store_path, found=store_path_found),
    Rule(code="executable-stack", title="stack", check=executable_stack, found=executable_stack_found),
    Rule(code="unique-symbol", title="GNU_UNIQUE symbols", check=unique_symbol, found=unique_symbol_found),
    Rule(
        code="string-abi",
        title="std::string",
        check=string_abi,
        found=string_abi_found,
        missing=_no_strings,
    ),
    Rule(
        code="torch-symbol",
        title="PyTorch symbols",
        check=torch_symbol,
        found=torch_symbol_found,
        missing=_no_symbols,
    ),
    Rule(
        code="unresolved-symbol",
        title="other symbols",
        check=unresolved,
        found=unresolved_found,
        missing=_no_symbols,
    ),
    Rule(
        code="device-code", title="device code", check=device_code, found=device_code_found, missing=_no_archs
    ),
    Rule(code="module", title="Python module", check=module, found=module_found),
)
