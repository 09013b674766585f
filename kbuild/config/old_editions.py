"""The tables of editions 1 to 4 of `build.toml`, each on its own terms."""

from collections.abc import Mapping

from kbuild.config.kinds import (
    ABI_VERSION,
    TEXT,
    TEXTS,
    VERSION,
    Choice,
    Flag,
    Key,
    Kind,
    ListOf,
    MapOf,
    Natural,
    Table,
)
from kbuild.config.schema import (
    BACKEND,
    CXX_FLAGS,
    DEPENDS,
    GIT_URL,
    INCLUDE,
    KERNEL,
    NAME,
    PYEXT,
    REPO_ID,
    SRC,
    TORCH_NOARCH,
)

_NAME = Key(name="name", kind=NAME, required=True)
_BACKENDS = Key(
    name="backends",
    kind=ListOf(item=BACKEND, non_empty=True),
    required=True,
    doc='what to build for, for example backends = ["cpu", "cuda"]',
)
_HUB = Key(name="hub", kind=Table(keys=(Key(name="repo-id", kind=REPO_ID), Key(name="branch", kind=TEXT))))
_PYTHON_DEPENDS = Key(name="python-depends", kind=TEXTS)
_BOUNDS = (Key(name="minver", kind=VERSION), Key(name="maxver", kind=VERSION))
_BACKEND_TABLES = (
    Key(name="cuda", kind=Table(keys=(*_BOUNDS, _PYTHON_DEPENDS))),
    Key(name="neuron", kind=Table(keys=(_PYTHON_DEPENDS,))),
    Key(name="xpu", kind=Table(keys=(_PYTHON_DEPENDS,))),
)
_OPTIONAL_SRC = Key(name="src", kind=TEXTS)
_KERNELS = Key(name="kernel", kind=MapOf(value=KERNEL))
_UPSTREAM = Key(name="upstream", kind=GIT_URL)


def _build(general: tuple[Key, ...], frameworks: Mapping[str, Kind], kernels: Key = _KERNELS) -> Table:
    return Table(
        keys=(
            Key(name="general", kind=Table(keys=general), required=True),
            *(Key(name=name, kind=kind) for name, kind in frameworks.items()),
            kernels,
        )
    )


_EDITION_1 = _build(
    (_NAME,),
    {"torch": Table(keys=(INCLUDE, PYEXT, _OPTIONAL_SRC, Key(name="universal", kind=Flag())))},
    Key(
        name="kernel",
        kind=MapOf(
            value=Table(
                keys=(
                    Key(name="cuda-capabilities", kind=TEXTS),
                    Key(name="rocm-archs", kind=TEXTS),
                    Key(name="language", kind=Choice(values=("cuda", "cuda-hipify", "metal"))),
                    DEPENDS,
                    INCLUDE,
                    SRC,
                )
            )
        ),
    ),
)

_EDITION_2 = _build(
    (
        _NAME,
        Key(name="universal", kind=Flag()),
        Key(name="cuda-minver", kind=VERSION),
        Key(name="cuda-maxver", kind=VERSION),
        _HUB,
        Key(name="python-depends", kind=ListOf(item=Choice(values=("einops", "nvidia-cutlass-dsl")))),
    ),
    {"torch": Table(keys=(INCLUDE, *_BOUNDS, PYEXT, _OPTIONAL_SRC))},
)

_EDITION_3 = _build(
    (
        _NAME,
        Key(name="version", kind=Natural()),
        Key(name="license", kind=TEXT),
        _UPSTREAM,
        _BACKENDS,
        _HUB,
        _PYTHON_DEPENDS,
        *_BACKEND_TABLES,
    ),
    {
        "torch": Table(keys=(INCLUDE, *_BOUNDS, PYEXT, _OPTIONAL_SRC)),
        "tvm-ffi": Table(keys=(INCLUDE, PYEXT, SRC)),
    },
)

_EDITION_4 = _build(
    (
        _NAME,
        Key(name="version", kind=Natural(), required=True, doc="the major version, for example version = 1"),
        Key(
            name="license",
            kind=TEXT,
            required=True,
            doc='a Hub licence identifier, for example license = "apache-2.0"',
        ),
        _UPSTREAM,
        Key(name="source", kind=GIT_URL),
        _BACKENDS,
        _HUB,
        _PYTHON_DEPENDS,
        *_BACKEND_TABLES,
    ),
    {
        "torch": Table(
            keys=(
                INCLUDE,
                *_BOUNDS,
                PYEXT,
                _OPTIONAL_SRC,
                Key(name="stable-abi", kind=ABI_VERSION),
                CXX_FLAGS,
            )
        ),
        "tvm-ffi": Table(keys=(INCLUDE, PYEXT, SRC, CXX_FLAGS)),
        "torch-noarch": TORCH_NOARCH,
    },
)

OLD_EDITIONS: Mapping[int, Table] = {1: _EDITION_1, 2: _EDITION_2, 3: _EDITION_3, 4: _EDITION_4}
