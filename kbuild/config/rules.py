"""What must hold between the fields of a valid `build.toml`: one small function each."""

from collections.abc import Callable

from kbuild.config.archs import CudaArchs
from kbuild.config.model import Backend, Config, CudaKernel, Torch, TorchNoarch
from kbuild.config.source import Source
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


RULES: tuple[Rule, ...] = (
    _kernel_backend_is_listed,
    _noarch_has_no_kernels,
    _compiled_framework_has_kernels,
    _capabilities_exist,
    _ranges_are_not_empty,
    _stable_abi_backends_are_listed,
    _dependencies_fit_the_backend,
)


def check(config: Config, source: Source, report: Report) -> None:
    """Run every rule; rules only ever add to the report."""
    for rule in RULES:
        rule(config, source, report)
