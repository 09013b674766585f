"""Exported symbols of the libraries that kernels link: read from ELF files, kept as data.

A list is text under xz, made to be read by a few lines of standard library:

    # provenance, one or more lines
    library libc10.so
    T _ZN3c104warnE…
    B _ZTVN3c105ErrorE 48

`library` opens a block with the soname; below it `T` is a function, `B` an object and `L` a thread-local
object, the latter two with their size in bytes. In versioned libraries the name carries its version as the
linker writes it: `memcpy@@GLIBC_2.14` is the default, `memcpy@GLIBC_2.2.5` is not. Lines are sorted.

PyTorch's lists are those of the CUDA wheels, without libstdc++. Compared for 2.13.0, the CPU wheel exports
the same but for 138 symbols of libtorch_cpu, all of libkineto's CUDA profiler, which no header of PyTorch
declares to kernels; sizes and kinds agree throughout.
"""

import lzma
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kbuild.resources import data_bytes

GLIBC = "glibc-2.28"


class Kind(StrEnum):
    """What a symbol stands for, by the letter it has in a list."""

    FUNCTION = "T"
    OBJECT = "B"
    TLS = "L"


class Symbol(NamedTuple):
    """One exported symbol. `size` is in bytes, 0 for functions; `name` holds no version.

    A named tuple, not a dataclass: a PyTorch release has 98,000 of them.
    """

    name: str
    kind: Kind
    size: int = 0
    version: str | None = None
    default: bool = True

    def __str__(self) -> str:
        version = "" if self.version is None else f"{'@@' if self.default else '@'}{self.version}"
        size = "" if self.kind is Kind.FUNCTION else f" {self.size}"
        return f"{self.kind.value} {self.name}{version}{size}"


Exports = Mapping[str, frozenset[Symbol]]


def torch_symbols(minor: str) -> Exports:
    """By soname, what the libraries of a PyTorch release (`"2.13"`) export."""
    return _load(f"torch-{minor}")


def glibc_symbols() -> Exports:
    """By soname, what glibc 2.28 exports: the floor of manylinux_2_28."""
    return _load(GLIBC)


@cache
def torch_exports(minor: str) -> frozenset[str]:
    """The names alone, over all libraries of a PyTorch release."""
    lines = _text(f"torch-{minor}").splitlines()
    return frozenset(line.split(" ", 2)[1] for line in lines if line[:2] in ("T ", "B ", "L "))


def _text(name: str) -> str:
    return lzma.decompress(data_bytes(symbol_file(name))).decode()


def symbol_file(name: str) -> str:
    """The data file of a list, below `kbuild/data`."""
    return f"abi/{name}.symbols.xz"


@cache
def _load(name: str) -> Exports:
    return parse_symbols(_text(name))


def parse_symbols(text: str) -> Exports:
    """Read a list. Raises ValueError for a line that is none."""
    libraries: dict[str, set[Symbol]] = {}
    block: set[Symbol] = set()
    for line in text.splitlines():
        match line.split(" "):
            case ["#", *_]:
                pass
            case ["library", soname]:
                block = libraries.setdefault(soname, set())
            case ["T" | "B" | "L" as kind, name, *size]:
                bare, at, version = name.partition("@")
                block.add(
                    Symbol(
                        bare,
                        Kind(kind),
                        int(size[0]) if size else 0,
                        version.lstrip("@") if at else None,
                        not at or version.startswith("@"),
                    )
                )
            case _:
                raise ValueError(f"not a line of a symbol list: {line!r}")
    return MappingProxyType({soname: frozenset(symbols) for soname, symbols in libraries.items()})


def format_symbols(provenance: Iterable[str], exports: Exports) -> bytes:
    """Write a list; the same symbols give the same bytes."""
    lines = [f"# {line}" for line in provenance]
    for soname in sorted(exports):
        lines.append(f"library {soname}")
        lines.extend(sorted(map(str, exports[soname])))
    text = "\n".join(lines) + "\n"
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def without_libstdcxx(exports: Exports) -> Exports:
    """Drop what a library exports of namespace `std` only because it was instantiated there.

    NB: the CUDA wheels carry a newer libstdc++ in part (`std::ios_base_library_init` of GCC 13, say), the CPU
    wheels do not. A kernel that took such a symbol from a link stub would fail to load beside a CPU build.
    Specialisations for PyTorch's own types stay.
    """
    return MappingProxyType(
        {
            soname: frozenset(
                symbol for symbol in symbols if not _STD.match(symbol.name) or _PYTORCH.search(symbol.name)
            )
            for soname, symbols in exports.items()
        }
    )


# Itanium C++ ABI, 5.1: vtables, type information, guards and local names of something in `std`, or itself.
_STD = re.compile(r"_Z(?:T[VTISC]|G[VR]|Z)*(?:N[VKRO]*)?S[tabsiod]")
_PYTORCH = re.compile(r"3c10|4c10d|2at|5torch|6caffe2")


def exported_symbols(library: Path) -> tuple[str, frozenset[Symbol]]:
    """The soname of an ELF library, and every symbol that others can bind to."""
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerSymSection
    from elftools.elf.sections import SymbolTableSection

    with library.open("rb") as stream:
        elf = ELFFile(stream)
        soname = library.name
        symbols: set[Symbol] = set()
        versions: dict[int, str] = {}
        version_of: GNUVerSymSection | None = None
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                soname = next((_soname(tag) for tag in section.iter_tags("DT_SONAME")), soname)
            elif isinstance(section, GNUVerSymSection):
                version_of = section
            elif isinstance(section, GNUVerDefSection):
                for definition, names in section.iter_versions():
                    versions[definition["vd_ndx"]] = next(iter(names)).name
        table = elf.get_section_by_name(".dynsym")
        if not isinstance(table, SymbolTableSection):
            raise ValueError(f"{library}: no dynamic symbols")  # noqa: TRY004  (the file is wrong, no argument)
        for index, entry in enumerate(table.iter_symbols()):
            kind = _KINDS.get(entry["st_info"]["type"])
            if (
                kind is None
                or entry["st_shndx"] in ("SHN_UNDEF", "SHN_ABS")
                or entry["st_info"]["bind"] == "STB_LOCAL"
                or entry["st_other"]["visibility"] not in ("STV_DEFAULT", "STV_PROTECTED")
                or entry.name in _LINKER_MADE
            ):
                continue
            version, default = None, True
            if version_of is not None:
                number = version_of.get_symbol(index)["ndx"]
                if isinstance(number, int):
                    version, default = versions.get(number & 0x7FFF), not number & 0x8000
            size = 0 if kind is Kind.FUNCTION else entry["st_size"]
            symbols.add(Symbol(entry.name, kind, size, version, default))
    return soname, frozenset(symbols)


def _soname(tag: Any) -> str:
    # pyelftools sets this attribute on the tags that have one, which its types do not say.
    return str(tag.soname)


# Hand-written assembler often leaves its functions untyped.
_KINDS = {
    "STT_FUNC": Kind.FUNCTION,
    "STT_NOTYPE": Kind.FUNCTION,
    "STT_GNU_IFUNC": Kind.FUNCTION,
    "STT_LOOS": Kind.FUNCTION,
    "STT_OBJECT": Kind.OBJECT,
    "STT_TLS": Kind.TLS,
}
_LINKER_MADE = frozenset({"_init", "_fini", "_edata", "_end", "__bss_start"})
