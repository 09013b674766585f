"""What must hold between the fields of a valid `build.toml`: one small function each."""

import posixpath
import re
from collections.abc import Callable

from kbuild.config.archs import CudaArchs
from kbuild.config.dependencies import PythonDepends
from kbuild.config.edits import remove_entry
from kbuild.config.flags import check_flags
from kbuild.config.model import Backend, Config, CudaKernel, KernelDependency, Torch, TorchNoarch
from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report

Rule = Callable[[Config, Source, Report], None]


def _kernel_backend_is_listed(config: Config, source: Source, report: Report) -> None:
    for kernel in config.kernels:
        if kernel.backend not in config.general.backends:
            report.warning(
                "unused-kernel",
                f"kernel {kernel.id!r} is for {kernel.backend}, which general.backends does not list: "
                "it is never built",
                source.value("kernel", kernel.id, "backend"),
                hint=f'add "{kernel.backend}" to general.backends, or remove the section',
            )


def _noarch_has_no_kernels(config: Config, source: Source, report: Report) -> None:
    if isinstance(config.framework, TorchNoarch):
        for kernel in config.kernels:
            report.error(
                "noarch-with-kernel",
                f"[torch-noarch] compiles nothing, but kernel {kernel.id!r} has sources to compile",
                source.key("kernel", kernel.id),
                hint="use [torch] with bindings in its src, or remove the section",
            )


def _compiled_framework_has_kernels(config: Config, source: Source, report: Report) -> None:
    if not isinstance(config.framework, TorchNoarch) and not config.kernels:
        report.warning(
            "no-kernel",
            f"[{config.framework.key}] has no [kernel.*] section: its bindings are not compiled, and every "
            "backend gets a Python-only variant",
            source.key(config.framework.key),
            hint="add a [kernel.<name>] section, or use [torch-noarch]",
        )


def _capabilities_exist(config: Config, source: Source, report: Report) -> None:
    archs = CudaArchs.load()
    for kernel in config.kernels:
        if not isinstance(kernel, CudaKernel):
            continue
        for index, capability in enumerate(kernel.capabilities):
            if not archs.toolkits_knowing(capability):
                report.error(
                    "unknown-capability",
                    f"no CUDA toolkit here compiles for capability {capability}",
                    source.value("kernel", kernel.id, "cuda-capabilities", index),
                    hint=f"known capabilities: {', '.join(str(known) for known in archs.all_known())}",
                )


def _ranges_are_not_empty(config: Config, source: Source, report: Report) -> None:
    cuda = config.general.cuda
    if cuda.minver is not None and cuda.maxver is not None and cuda.minver > cuda.maxver:
        report.error(
            "empty-range",
            f"general.cuda.minver {cuda.minver} is above maxver {cuda.maxver}: no toolkit is left",
            source.value("general", "cuda", "minver"),
        )
    torch = config.framework
    if not isinstance(torch, Torch) or torch.minver is None or torch.maxver is None:
        return
    if torch.minver > torch.maxver:
        report.error(
            "empty-range",
            f"torch.minver {torch.minver} is above maxver {torch.maxver}: no PyTorch is left",
            source.value("torch", "minver"),
        )


def _stable_abi_backends_are_listed(config: Config, source: Source, report: Report) -> None:
    """Allowed, so that a backend can be taken out for a while, but never silently."""
    if isinstance(config.framework, Torch):
        for backend, _ in config.framework.stable_abi_by_backend:
            if backend not in config.general.backends:
                report.warning(
                    "unused-stable-abi",
                    f"torch.stable-abi names {backend}, which general.backends does not list",
                    source.key("torch", "stable-abi", backend.value),
                )


_LIBRARY_BACKENDS = {
    "cutlass": (Backend.CUDA,),
    "sycl": (Backend.XPU,),
    "metal": (Backend.METAL,),
}


def _dependencies_fit_the_backend(config: Config, source: Source, report: Report) -> None:
    for kernel in config.kernels:
        for index, dependency in enumerate(kernel.depends):
            backends = next(
                (owners for prefix, owners in _LIBRARY_BACKENDS.items() if dependency.startswith(prefix)),
                None,
            )
            if backends is not None and kernel.backend not in backends:
                report.error(
                    "wrong-dependency",
                    f"{dependency} is for {backends[0]}; kernel {kernel.id!r} is for {kernel.backend}",
                    source.value("kernel", kernel.id, "depends", index),
                )


# What only some backends compile; to the others it would be a header.
_BACKENDS_OF_SUFFIX = {
    ".cu": (Backend.CUDA, Backend.ROCM),
    ".hip": (Backend.ROCM,),
    ".m": (Backend.METAL,),
    ".mm": (Backend.METAL,),
    ".metal": (Backend.METAL,),
}


def _sources_fit_the_backend(config: Config, source: Source, report: Report) -> None:
    for kernel in config.kernels:
        for index, file in enumerate(kernel.src):
            backends = _BACKENDS_OF_SUFFIX.get(posixpath.splitext(file)[1])
            if backends is not None and kernel.backend not in backends:
                report.error(
                    "wrong-source",
                    f"{file!r} is for {' and '.join(backends)}; kernel {kernel.id!r} is for {kernel.backend}",
                    source.value("kernel", kernel.id, "src", index),
                    hint=f'move it to a [kernel.*] section with backend = "{backends[0]}"',
                )
    if isinstance(config.framework, TorchNoarch):
        return
    compiled = {kernel.backend for kernel in config.kernels} & set(config.general.backends)
    for index, file in enumerate(config.framework.src):
        backends = _BACKENDS_OF_SUFFIX.get(posixpath.splitext(file)[1])
        others = sorted(compiled - set(backends)) if backends is not None else []
        if backends is not None and others:
            report.error(
                "wrong-source",
                f"{file!r} is for {' and '.join(backends)}, and bindings are compiled for {others[0]} too",
                source.value(config.framework.key, "src", index),
                hint=f'move it to a [kernel.*] section with backend = "{backends[0]}"',
            )


def _python_depends_are_known(config: Config, source: Source, report: Report) -> None:
    known = PythonDepends.load()
    general = config.general
    tables: list[tuple[Backend | None, tuple[str, ...]]] = [(None, general.python_depends)]
    tables += [(backend, general.for_backend(backend).python_depends) for backend in Backend]
    for backend, packages in tables:
        table = "general" if backend is None else f"general.{backend}"
        for index, package in enumerate(packages):
            if package in known.allowed(backend):
                continue
            home = known.home(package)
            allowed = ", ".join(known.allowed(backend)) or "none"
            report.error(
                "unknown-python-depends",
                f"{package!r} is no Python dependency that {table} may list: the loader would refuse the kernel",
                source.value(*table.split("."), "python-depends", index),
                hint=f"list it in {home}.python-depends" if home else f"allowed in {table}: {allowed}",
            )


def _backend_tables_are_used(config: Config, source: Source, report: Report) -> None:
    for backend in (Backend.CUDA, Backend.NEURON, Backend.TPU, Backend.XPU):
        if backend.value in source.data["general"] and backend not in config.general.backends:
            report.warning(
                "unused-backend-table",
                f"[general.{backend}] has settings for a backend that general.backends does not list",
                source.key("general", backend.value),
                hint=f'add "{backend}" to general.backends, or remove the table',
            )


def _entries_are_not_repeated(config: Config, source: Source, report: Report) -> None:
    arrays: list[Path] = [("general", "backends"), (config.framework.key, "src")]
    arrays += [("kernel", kernel.id, key) for kernel in config.kernels for key in ("src", "depends")]
    arrays += [("kernel", kernel.id, "cuda-capabilities") for kernel in config.kernels]
    for path in arrays:
        table = source.data
        for part in path[:-1]:
            table = table[str(part)]
        entries = table.get(str(path[-1]), [])
        # "./a.cu" and "a.cu" are one file.
        same = [posixpath.normpath(entry) for entry in entries] if path[-1] == "src" else entries
        for index, entry in enumerate(entries):
            if same[index] in same[:index]:
                report.warning(
                    "repeated-entry",
                    f"{entry!r} is listed twice in {'.'.join(map(str, path))}",
                    source.value(*path, index),
                    hint="remove one of the two",
                    fix=remove_entry(source, path, index),
                )


def _kernel_ids_are_plain(config: Config, source: Source, report: Report) -> None:
    for kernel in config.kernels:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", kernel.id) is None:
            report.error(
                "bad-kernel-id",
                f"{kernel.id!r} is no name for a kernel section: builds name files after it",
                source.key("kernel", kernel.id),
                hint="use letters, digits, _ and -, first a letter: [kernel.my_kernel]",
            )


def _kernel_depends_make_sense(config: Config, source: Source, report: Report) -> None:
    general = config.general
    tables: list[tuple[Path, tuple[KernelDependency, ...]]] = [(("general",), general.kernel_depends)]
    tables += [
        (("general", backend.value), general.for_backend(backend).kernel_depends) for backend in Backend
    ]
    for path, entries in tables:
        for index, entry in enumerate(entries):
            span = source.value(*path, "kernel-depends", index)
            if entry.repo_id == general.hub.repo_id:
                report.error("self-dependency", f"the kernel depends on itself, {entry.repo_id}", span)
            if any(entry.repo_id == other.repo_id for other in entries[:index]):
                report.error(
                    "many-versions",
                    f"{entry.repo_id} is listed twice: a kernel loads one version of another",
                    span,
                    hint="keep one of the two entries",
                )


def _capabilities_survive(config: Config, source: Source, report: Report) -> None:
    """Which toolkits drop a declared capability, and which are left with none at all."""
    archs, cuda = CudaArchs.load(), config.general.cuda
    for kernel in config.kernels:
        if not isinstance(kernel, CudaKernel):
            continue
        known = [capability for capability in kernel.capabilities if archs.toolkits_knowing(capability)]
        floors = [version for version in (cuda.minver, kernel.cuda_minver) if version is not None]
        lost = {}
        for toolkit in sorted(archs.known):
            if all(toolkit >= floor for floor in floors) and (cuda.maxver is None or toolkit <= cuda.maxver):
                lost[toolkit] = [entry for entry in known if entry.arch not in archs.known[toolkit]]
        span = source.key("kernel", kernel.id, "cuda-capabilities")
        empty = [str(toolkit) for toolkit, entries in lost.items() if known and entries == known]
        if empty:
            report.warning(
                "lost-toolkit",
                f"kernel {kernel.id!r} cannot be built with CUDA {', '.join(empty)}: "
                "no declared capability is known there",
                span,
                hint="say so with cuda-minver or general.cuda, or add a capability that those toolkits know",
            )
        partly = [
            f"{', '.join(map(str, entries))} with CUDA {toolkit}"
            for toolkit, entries in lost.items()
            if entries and entries != known
        ]
        if partly:
            report.note("lost-capability", f"kernel {kernel.id!r} is built without {'; '.join(partly)}", span)


RULES: tuple[Rule, ...] = (
    _kernel_backend_is_listed,
    _noarch_has_no_kernels,
    _compiled_framework_has_kernels,
    _capabilities_exist,
    _ranges_are_not_empty,
    _stable_abi_backends_are_listed,
    _dependencies_fit_the_backend,
    _sources_fit_the_backend,
    _python_depends_are_known,
    _backend_tables_are_used,
    _entries_are_not_repeated,
    _kernel_ids_are_plain,
    _kernel_depends_make_sense,
    _capabilities_survive,
    check_flags,
)


def check(config: Config, source: Source, report: Report) -> None:
    """Run every rule; rules only ever add to the report."""
    for rule in RULES:
        rule(config, source, report)
