"""Edition 5 of `build.toml`: its tables as data, and the way from a document to the model."""

from typing import Any

from kbuild.config.kinds import (
    ABI_VERSION,
    CAPABILITY,
    TEXT,
    TEXTS,
    VERSION,
    Choice,
    Key,
    ListOf,
    MapOf,
    Natural,
    Table,
    Tagged,
    Text,
    TextOrTable,
    read,
)
from kbuild.config.model import (
    CURRENT_EDITION,
    DEFAULT_PYEXT,
    Backend,
    BackendGeneral,
    Config,
    CpuKernel,
    CudaGeneral,
    CudaKernel,
    Dependency,
    Framework,
    General,
    Hub,
    Kernel,
    KernelDependency,
    MetalKernel,
    RocmKernel,
    Torch,
    TorchNoarch,
    TvmFfi,
    Version,
    XpuKernel,
)
from kbuild.config.source import Path, Source
from kbuild.diagnostics import Report

BACKEND = Choice(values=tuple(backend.value for backend in Backend))

NAME = Text(
    what="a kernel name: lower-case letters, digits and dashes, first a letter, last no dash, two or more",
    pattern=r"^[a-z][-a-z0-9]*[a-z0-9]$(?!\n)",
    code="bad-name",
    example='"relu", "rms-norm" or "rope3d"',
)
# What huggingface_hub refuses (`validate_repo_id`) and, as ever here, what does not begin with a letter or digit.
REPO_ID_RULE = (
    "letters, digits, '.', '_' and '-', 96 of them at most, first a letter or digit, last no '.' or '-', "
    "nowhere '--' or '..', and no '.git' at the end"
)
_REPO_ID_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
REPO_ID = Text(
    what=f"a Hub repository: organisation/name, in each {REPO_ID_RULE}",
    pattern=rf"^(?!.*(?:--|\.\.|\.git$)){_REPO_ID_PART}/{_REPO_ID_PART}$(?!\n)",
    code="bad-repo-id",
    example='"my-org/my-kernel"',
)
GIT_URL = Text(
    what="a URL that git can clone",
    pattern=r"^(?:(?:https?|git|ssh|git\+ssh|git\+https?)://[^/\s]+\S*|[^/:\s@]+@[^/:\s]+:[^/\s]\S*)$(?!\n)",
    code="bad-git-url",
    example='"https://example.org/org/repo.git" or "git@example.org:org/repo.git"',
)
_EXTENSION = Text(
    what="a file extension without its dot", pattern=r"^[^./\\\s]+$(?!\n)", example='"py" or "json"'
)

_KERNEL_DEPENDS = ListOf(
    item=Table(
        keys=(
            Key(name="repo-id", kind=REPO_ID, required=True, doc='the Hub repository, as "org/name"'),
            Key(name="version", kind=Natural(), doc="the major version; either this or revision"),
            Key(name="revision", kind=TEXT, doc="a branch, tag or commit; either this or version"),
        )
    )
)
_BACKEND_DEPENDS = (
    Key(name="python-depends", kind=TEXTS, doc="Python packages that this backend needs"),
    Key(name="kernel-depends", kind=_KERNEL_DEPENDS, doc="other Hub kernels that this backend loads"),
)

GENERAL = Table(
    doc="what the kernel is",
    keys=(
        Key(name="name", kind=NAME, required=True, doc='the kernel\'s name, for example name = "rms-norm"'),
        Key(name="version", kind=Natural(), required=True, doc="the major version, for example version = 1"),
        Key(
            name="edition",
            kind=Natural(only=CURRENT_EDITION),
            required=True,
            doc=f"the edition of this file's format: edition = {CURRENT_EDITION}",
        ),
        Key(
            name="license",
            kind=TEXT,
            required=True,
            doc='a Hub licence identifier, for example license = "apache-2.0"',
        ),
        Key(
            name="backends",
            kind=ListOf(item=BACKEND, non_empty=True),
            required=True,
            doc='what to build for, for example backends = ["cpu", "cuda"]',
        ),
        Key(name="upstream", kind=GIT_URL, doc="where the kernel's code comes from"),
        Key(name="source", kind=GIT_URL, doc="the repository of this project"),
        Key(name="python-depends", kind=TEXTS, doc="Python packages that every backend needs"),
        Key(name="kernel-depends", kind=_KERNEL_DEPENDS, doc="other Hub kernels that this one loads"),
        Key(
            name="hub",
            doc="where the kernel is published",
            kind=Table(
                keys=(
                    Key(name="repo-id", kind=REPO_ID, doc="the Hub repository"),
                    Key(name="branch", kind=TEXT, doc="the branch to upload to"),
                )
            ),
        ),
        Key(
            name="cuda",
            doc="settings of the cuda backend",
            kind=Table(
                keys=(
                    Key(name="minver", kind=VERSION, doc="the lowest CUDA toolkit that can build this"),
                    Key(name="maxver", kind=VERSION, doc="the highest CUDA toolkit that can build this"),
                    *_BACKEND_DEPENDS,
                )
            ),
        ),
        Key(name="neuron", doc="settings of the neuron backend", kind=Table(keys=_BACKEND_DEPENDS)),
        Key(name="tpu", doc="settings of the tpu backend", kind=Table(keys=_BACKEND_DEPENDS)),
        Key(name="xpu", doc="settings of the xpu backend", kind=Table(keys=_BACKEND_DEPENDS)),
    ),
)

SRC = Key(name="src", kind=TEXTS, required=True, doc='source files and headers, for example src = ["a.cu"]')
INCLUDE = Key(name="include", kind=TEXTS, doc="include folders, relative to the project")
PYEXT = Key(
    name="pyext",
    kind=ListOf(item=_EXTENSION),
    doc='extensions of the Python package\'s files; default ["py", "pyi"]',
)
CXX_FLAGS = Key(name="cxx-flags", kind=TEXTS, doc="more flags for the C++ compiler")

TORCH = Table(
    doc="bindings compiled ahead of time against PyTorch",
    keys=(
        SRC,
        INCLUDE,
        PYEXT,
        Key(name="minver", kind=VERSION, doc="build for this PyTorch and later"),
        Key(name="maxver", kind=VERSION, doc="build for this PyTorch and earlier"),
        Key(
            name="stable-abi",
            doc="the PyTorch whose stable ABI is used: one version, or one per backend",
            kind=TextOrTable(
                text=ABI_VERSION,
                table=Table(keys=tuple(Key(name=backend.value, kind=ABI_VERSION) for backend in Backend)),
            ),
        ),
        CXX_FLAGS,
    ),
)
TVM_FFI = Table(doc="bindings compiled ahead of time against tvm-ffi", keys=(SRC, INCLUDE, PYEXT, CXX_FLAGS))
TORCH_NOARCH = Table(
    doc="Python only, nothing is compiled ahead of time",
    keys=(
        PYEXT,
        # Documented with dashes, read with underscores by the public builder: both mean the same.
        Key(
            name="cuda-capabilities",
            kind=ListOf(item=CAPABILITY),
            doc="CUDA capabilities that the kernel supports",
            aliases=("cuda_capabilities",),
        ),
        Key(
            name="rocm-archs",
            kind=TEXTS,
            doc="ROCm architectures that the kernel supports",
            aliases=("rocm_archs",),
        ),
    ),
)
FRAMEWORKS = {Torch.key: TORCH, TvmFfi.key: TVM_FFI, TorchNoarch.key: TORCH_NOARCH}

DEPENDS = Key(
    name="depends",
    kind=ListOf(item=Choice(values=tuple(dependency.value for dependency in Dependency))),
    required=True,
    doc='libraries whose headers the section needs: depends = ["torch"], or [] for none',
)
_KERNEL_KEYS = (
    Key(name="backend", kind=BACKEND, required=True, doc="what this section is compiled for"),
    DEPENDS,
    SRC,
    INCLUDE,
    CXX_FLAGS,
)
KERNEL = Tagged(
    tag="backend",
    doc="one group of sources, compiled for one backend",
    tables={
        Backend.CPU.value: Table(keys=_KERNEL_KEYS),
        Backend.CUDA.value: Table(
            keys=(
                *_KERNEL_KEYS,
                Key(
                    name="cuda-capabilities",
                    kind=ListOf(item=CAPABILITY, non_empty=True),
                    doc="compile for these capabilities only",
                ),
                Key(name="cuda-flags", kind=TEXTS, doc="more flags for nvcc"),
                Key(
                    name="cuda-minver",
                    kind=VERSION,
                    doc="leave the section out of builds with an older toolkit",
                ),
            )
        ),
        Backend.METAL.value: Table(keys=_KERNEL_KEYS),
        Backend.ROCM.value: Table(
            keys=(
                *_KERNEL_KEYS,
                Key(name="rocm-archs", kind=TEXTS, doc="compile for these architectures only"),
                Key(name="hip-flags", kind=TEXTS, doc="more flags for hipcc"),
            )
        ),
        Backend.XPU.value: Table(
            keys=(*_KERNEL_KEYS, Key(name="sycl-flags", kind=TEXTS, doc="more flags for the SYCL compiler"))
        ),
    },
)

BUILD = Table(
    keys=(
        Key(name="general", kind=GENERAL, required=True, doc="add a [general] table"),
        *(Key(name=name, kind=table, doc=table.doc) for name, table in FRAMEWORKS.items()),
        Key(name="kernel", kind=MapOf(value=KERNEL), doc="the sources to compile, one table per group"),
    )
)


def read_config(source: Source, report: Report, *, table: Table = BUILD) -> Config | None:
    """The model, or None where `report` received an error from here; an unknown key in a known table is left out of it.

    `table` is the edition to validate by: the current one, or edition 4, which means the same without its
    number.
    """
    before = report.errors
    tree = read(table, source.data, (), source, report)
    frameworks = [name for name in source.data if name in FRAMEWORKS]
    if len(frameworks) != 1:
        _wrong_frameworks(frameworks, source, report)
    _check_kernel_depends(source, report)
    tables = {spelling for key in table.keys for spelling in (key.name, *key.aliases)}
    found = [error for error in report.errors if error not in before]
    if any(error.code != "unknown-key" for error in found) or not tables.issuperset(source.data):
        return None
    return Config(
        general=_general(tree["general"]),
        framework=_framework(frameworks[0], tree[frameworks[0]]),
        kernels=tuple(_kernel(name, table) for name, table in tree.get("kernel", {}).items()),
    )


def _wrong_frameworks(found: list[str], source: Source, report: Report) -> None:
    if not found:
        report.error(
            "missing-framework",
            "no framework table: one of [torch], [tvm-ffi] and [torch-noarch] is required",
            source.key("general"),
            hint="add [torch] with its src for compiled bindings, or [torch-noarch] for a Python kernel",
        )
    for name in found[1:]:
        report.error(
            "many-frameworks",
            f"[{name}] and [{found[0]}] exclude each other: a kernel has one framework",
            source.key(name),
            hint="keep one of the two tables",
        )


def _check_kernel_depends(source: Source, report: Report) -> None:
    general = source.data.get("general")
    if not isinstance(general, dict):
        return
    owners: list[tuple[Path, object]] = [(("general",), general)]
    owners += [(("general", name), table) for name, table in general.items()]
    for path, table in owners:
        entries = table.get("kernel-depends") if isinstance(table, dict) else None
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            if isinstance(entry, dict) and ("version" in entry) == ("revision" in entry):
                both = "version" in entry
                report.error(
                    "bad-kernel-depends",
                    f"a kernel dependency needs exactly one of version and revision, not "
                    f"{'both' if both else 'neither'}",
                    source.value(*path, "kernel-depends", index),
                    hint="keep version = N to follow a published major version, or revision to pin a commit",
                )


def _general(tree: dict[str, Any]) -> General:
    cuda = tree.get("cuda", {})
    return General(
        name=tree["name"],
        version=tree["version"],
        license=tree["license"],
        backends=tuple(dict.fromkeys(Backend(name) for name in tree["backends"])),
        upstream=tree.get("upstream"),
        source=tree.get("source"),
        python_depends=tuple(tree.get("python-depends", ())),
        kernel_depends=_kernel_depends(tree),
        hub=Hub(repo_id=tree.get("hub", {}).get("repo-id"), branch=tree.get("hub", {}).get("branch")),
        cuda=CudaGeneral(
            python_depends=tuple(cuda.get("python-depends", ())),
            kernel_depends=_kernel_depends(cuda),
            minver=cuda.get("minver"),
            maxver=cuda.get("maxver"),
        ),
        neuron=_backend_general(tree.get("neuron", {})),
        tpu=_backend_general(tree.get("tpu", {})),
        xpu=_backend_general(tree.get("xpu", {})),
    )


def _backend_general(tree: dict[str, Any]) -> BackendGeneral:
    return BackendGeneral(
        python_depends=tuple(tree.get("python-depends", ())), kernel_depends=_kernel_depends(tree)
    )


def _kernel_depends(tree: dict[str, Any]) -> tuple[KernelDependency, ...]:
    return tuple(
        KernelDependency(
            repo_id=entry["repo-id"], version=entry.get("version"), revision=entry.get("revision")
        )
        for entry in tree.get("kernel-depends", ())
    )


def _framework(name: str, tree: dict[str, Any]) -> Framework:
    pyext = tuple(tree.get("pyext", DEFAULT_PYEXT))
    if name == TorchNoarch.key:
        return TorchNoarch(
            pyext=pyext,
            cuda_capabilities=tuple(tree.get("cuda-capabilities", ())),
            rocm_archs=tuple(tree.get("rocm-archs", ())),
        )
    src, include = tuple(tree.get("src", ())), tuple(tree.get("include", ()))
    cxx_flags = tuple(tree.get("cxx-flags", ()))
    if name == TvmFfi.key:
        return TvmFfi(src=src, include=include, pyext=pyext, cxx_flags=cxx_flags)
    abi = tree.get("stable-abi")
    return Torch(
        src=src,
        include=include,
        pyext=pyext,
        cxx_flags=cxx_flags,
        minver=tree.get("minver"),
        maxver=tree.get("maxver"),
        stable_abi_all=abi if isinstance(abi, Version) else None,
        stable_abi_by_backend=(
            tuple((Backend(key), version) for key, version in abi.items()) if isinstance(abi, dict) else ()
        ),
    )


def _kernel(name: str, tree: dict[str, Any]) -> Kernel:
    depends = tuple(Dependency(value) for value in tree["depends"])
    src, include = tuple(tree["src"]), tuple(tree.get("include", ()))
    cxx_flags = tuple(tree.get("cxx-flags", ()))
    match Backend(tree["backend"]):
        case Backend.CUDA:
            return CudaKernel(
                id=name,
                depends=depends,
                src=src,
                include=include,
                cxx_flags=cxx_flags,
                capabilities=tuple(tree.get("cuda-capabilities", ())),
                cuda_flags=tuple(tree.get("cuda-flags", ())),
                cuda_minver=tree.get("cuda-minver"),
            )
        case Backend.METAL:
            return MetalKernel(id=name, depends=depends, src=src, include=include, cxx_flags=cxx_flags)
        case Backend.ROCM:
            return RocmKernel(
                id=name,
                depends=depends,
                src=src,
                include=include,
                cxx_flags=cxx_flags,
                archs=tuple(tree.get("rocm-archs", ())),
                hip_flags=tuple(tree.get("hip-flags", ())),
            )
        case Backend.XPU:
            return XpuKernel(
                id=name,
                depends=depends,
                src=src,
                include=include,
                cxx_flags=cxx_flags,
                sycl_flags=tuple(tree.get("sycl-flags", ())),
            )
        case _:
            return CpuKernel(id=name, depends=depends, src=src, include=include, cxx_flags=cxx_flags)
