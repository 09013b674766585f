"""What is allowed, as typed records made from `data/abi`; each file names its sources and is checked."""

import lzma
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kbuild.resources import data_bytes, data_json, data_path

PYTHON_FLOOR = "3.9"

_NUMERIC = re.compile(r"[0-9]+(?:\.[0-9]+)*")


def version_key(version: str) -> tuple[int, ...]:
    """`"2.28"` -> `(2, 28)`. Raises ValueError for anything but dotted numbers."""
    if _NUMERIC.fullmatch(version) is None:
        raise ValueError(f"{version!r} is no dotted version")
    return tuple(int(part) for part in version.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manylinux:
    """A manylinux policy: the highest version allowed per family, and the allowed ones without a number."""

    name: str
    ceilings: Mapping[str, str]
    named: frozenset[str]

    def family(self, version: str) -> tuple[str, str] | None:
        """`"GLIBC_2.34"` -> `("GLIBC", "2.34")`; None for a version that this policy does not rule."""
        family, _, rest = version.partition("_")
        return (family, rest) if family in self.ceilings else None

    def allows(self, version: str) -> bool:
        split = self.family(version)
        if split is None or version in self.named:
            return True
        family, rest = split
        if _NUMERIC.fullmatch(rest) is None:
            return False  # GLIBC_PRIVATE, GLIBC_ABI_DT_RELR and the like: new or not for us
        return version_key(rest) <= version_key(self.ceilings[family])


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonLimitedApi:
    """The symbols of CPython's stable ABI, each with the version that it appeared in."""

    added: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """Which libraries a kernel may depend on: soname -> how the C functions that it brings are called."""

    system: Mapping[str, tuple[str, ...]]
    torch: Mapping[str, tuple[str, ...]]
    torch_cuda: Mapping[str, tuple[str, ...]]
    cuda: Mapping[int, Mapping[str, tuple[str, ...]]]

    def allowed(self, *, cuda: int | None) -> Mapping[str, tuple[str, ...]]:
        """For a cpu variant (`cuda` is None) or one of that CUDA major version."""
        if cuda is None:
            return {**self.system, **self.torch}
        return {**self.system, **self.torch, **self.torch_cuda, **self.cuda.get(cuda, {})}

    @property
    def is_cuda(self) -> frozenset[str]:
        """Every library that only a cuda variant may need, whatever its CUDA version."""
        return frozenset(self.torch_cuda).union(*self.cuda.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Endings of files that have no business in a variant's folder."""

    stray: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchRelease:
    """The symbols that the libraries of one PyTorch release define, per soname."""

    release: str
    libraries: Mapping[str, frozenset[str]]

    def seen(self, *, cuda: bool) -> tuple[frozenset[str], ...]:
        """The symbols there at run time, by library: a cpu variant meets a PyTorch without its CUDA libraries."""
        cuda_only = needed().torch_cuda
        return tuple(names for soname, names in self.libraries.items() if cuda or soname not in cuda_only)

    def has(self, symbol: str, *, cuda: bool) -> bool:
        return any(symbol in names for names in self.seen(cuda=cuda))

    def symbols(self, *, cuda: bool) -> frozenset[str]:
        """All of them as one set; `has` is the cheaper question."""
        return frozenset().union(*self.seen(cuda=cuda))


@cache
def manylinux() -> Manylinux:
    data = data_json("abi/manylinux_2_28.json")
    policy = Manylinux(name=data["name"], ceilings=data["ceilings"], named=frozenset(data["named"]))
    for ceiling in policy.ceilings.values():
        version_key(ceiling)
    assert all(policy.family(named) is not None for named in policy.named), "a named version of no family"
    return policy


@cache
def python_limited_api() -> PythonLimitedApi:
    added = data_json("abi/python-limited-api.json")["symbols"]
    for version in set(added.values()):
        version_key(version)
    return PythonLimitedApi(added=added)


@cache
def needed() -> Needed:
    data = data_json("abi/needed.json")

    def libraries(table: dict[str, Any]) -> dict[str, tuple[str, ...]]:
        return {soname: tuple(prefixes) for soname, prefixes in table.items()}

    policy = Needed(
        system=libraries(data["system"]),
        torch=libraries(data["torch"]),
        torch_cuda=libraries(data["torch-cuda"]),
        cuda={int(major): libraries(table) for major, table in data["cuda"].items()},
    )
    assert not policy.is_cuda & policy.allowed(cuda=None).keys(), "a CUDA library is allowed on cpu"
    return policy


@cache
def layout() -> Layout:
    data = data_json("abi/layout.json")
    return Layout(stray=frozenset(data["stray"]))


def torch_releases() -> list[str]:
    """The PyTorch releases whose symbols are known, oldest first."""
    files = data_path("abi").glob("torch-*.symbols.xz")
    return sorted((f.name.removeprefix("torch-").removesuffix(".symbols.xz") for f in files), key=version_key)


@cache
def torch_release(release: str) -> TorchRelease | None:
    """The symbols of one release (`"2.13"`), None where they are not known."""
    if release not in torch_releases():
        return None
    text = lzma.decompress(data_bytes(f"abi/torch-{release}.symbols.xz")).decode()
    libraries = {soname: frozenset(names) for soname, names in _blocks(text)}
    assert "libtorch_cpu.so" in libraries, f"the symbols of PyTorch {release} lack libtorch_cpu.so"
    return TorchRelease(release=release, libraries=libraries)


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    # The format is described in kbuild.toolchain.symbols, whose reader makes a record per symbol and takes
    # several times as long; sizes and kinds are of no interest here.
    soname, names = "", list[str]()
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "library":
            if soname:
                yield soname, names
            soname, names = rest, []
        elif kind != "#":
            names.append(rest.partition(" ")[0])
    if soname:
        yield soname, names
