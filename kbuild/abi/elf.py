"""The facts about one ELF shared library that the verdicts need, read as the dynamic loader reads them.

Containers (headers, segments, the dynamic section) come from pyelftools. The symbol and version tables are
unpacked here in bulk: a record at a time costs half a second for 30,000 symbols. The static symbol table is
never read.
"""

import io
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbuild.abi import fatbin
from kbuild.abi.fatbin import Fatbin

_SYMBOL = struct.Struct("<IBBHQQ")
_VERNEED = struct.Struct("<HHIII")
_VERNAUX = struct.Struct("<IHHII")

_STB_WEAK, _STB_GNU_UNIQUE = 2, 10
_SHN_UNDEF = 0
_STT_TLS = 6
_PF_X = 1
_VERSION_MASK = 0x7FFF  # bit 15 hides a version
_VERSION_RESERVED = 2  # 0 is local, 1 is global: neither names a version

# More than this is a corrupt count: libtorch_cpu.so has 75,000 symbols, and a version's number has 15 bits.
_MAX_SYMBOLS = 5_000_000
_MAX_VERSIONS = 1 << 15

_STORE_PATH = re.compile(rb"/nix/store/[0-9a-zA-Z+._?=-]*")
_FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")


class UnreadableElfError(Exception):
    """The file is no ELF shared library for 64-bit little-endian Linux, or it is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An undefined dynamic symbol. `version` and `library` are None where it carries no version."""

    name: str
    version: str | None = None
    library: str | None = None
    weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A defined dynamic symbol."""

    name: str
    unique: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeed:
    """A version that the loader will look for in `library`, whether or not a symbol asks for it."""

    library: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """What one shared library asks for and offers.

    `executable_stack` is None where the file has no GNU_STACK header, which the loader takes for yes.
    """

    path: Path
    machine: str
    soname: str | None
    needed: tuple[str, ...]
    search_paths: tuple[str, ...]
    imports: tuple[Import, ...]
    exports: tuple[Export, ...]
    version_needs: tuple[VersionNeed, ...]
    executable_stack: bool | None
    store_paths: tuple[str, ...]
    fatbins: tuple[Fatbin, ...]

    def exported(self, name: str) -> bool:
        return any(export.name == name for export in self.exports)


def read(path: Path) -> ElfFile:
    """Read one library. Raises UnreadableElfError, and OSError where it cannot be opened."""
    return parse(path.read_bytes(), path=path)


def parse(content: bytes, *, path: Path) -> ElfFile:
    """The facts in a library's bytes; `path` is only carried along. Raises UnreadableElfError."""
    if content[:4] != b"\x7fELF":
        raise UnreadableElfError("it does not begin with the ELF magic number")
    try:
        return _Reader(content, path).facts()
    except (UnreadableElfError, ImportError):
        raise
    except Exception as error:
        # NB: on damaged input pyelftools raises its own errors, but also AssertionError, AttributeError,
        # KeyError, UnicodeDecodeError and others; every one of them means the same to our user.
        detail = str(error) or type(error).__name__
        raise UnreadableElfError(f"its structure is damaged ({detail})") from error


class _Reader:
    def __init__(self, content: bytes, path: Path) -> None:
        from elftools.elf.elffile import ELFFile

        self._content = content
        self._path = path
        self._elf: Any = ELFFile(io.BytesIO(content))
        if self._elf.elfclass != 64 or not self._elf.little_endian:
            raise UnreadableElfError("it is not a 64-bit little-endian ELF file")
        if self._elf["e_type"] != "ET_DYN":
            raise UnreadableElfError(f"it is no shared library (its type is {self._elf['e_type']})")
        self._segments: list[Any] = list(self._elf.iter_segments())
        self._loads = [s for s in self._segments if s["p_type"] == "PT_LOAD"]

    def facts(self) -> ElfFile:
        dynamic = next((s for s in self._segments if s["p_type"] == "PT_DYNAMIC"), None)
        if dynamic is None:
            raise UnreadableElfError("it has no dynamic section")
        tags = list(dynamic.iter_tags())
        values: dict[str, int] = {tag.entry.d_tag: tag.entry.d_val for tag in tags}
        strings = self._offset(values["DT_STRTAB"])

        needed = [self._string(strings + t.entry.d_val) for t in tags if t.entry.d_tag == "DT_NEEDED"]
        paths = [
            self._string(strings + t.entry.d_val) for t in tags if t.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ]
        versions = self._version_needs(values, strings)
        imports, exports = self._symbols(values, strings, versions, dynamic)
        stack = next((s for s in self._segments if s["p_type"] == "PT_GNU_STACK"), None)
        return ElfFile(
            path=self._path,
            machine=str(self._elf["e_machine"]).removeprefix("EM_").lower(),
            soname=self._string(strings + values["DT_SONAME"]) if "DT_SONAME" in values else None,
            needed=tuple(needed),
            search_paths=tuple(part for path in paths for part in path.split(":")),
            imports=imports,
            exports=exports,
            version_needs=tuple(versions.values()),
            executable_stack=None if stack is None else bool(stack["p_flags"] & _PF_X),
            store_paths=tuple(sorted({m.decode() for m in _STORE_PATH.findall(self._content)})),
            fatbins=self._fatbins(),
        )

    def _offset(self, address: int) -> int:
        for load in self._loads:
            if load["p_vaddr"] <= address < load["p_vaddr"] + load["p_filesz"]:
                return int(address - load["p_vaddr"] + load["p_offset"])
        raise UnreadableElfError(f"address {address:#x} of its dynamic section lies in no segment")

    def _string(self, offset: int) -> str:
        end = self._content.find(b"\0", offset)
        if end < 0:
            raise UnreadableElfError("a name runs past the end of the file")
        return self._content[offset:end].decode("utf-8", "backslashreplace")

    def _version_needs(self, values: dict[str, int], strings: int) -> dict[int, VersionNeed]:
        found: dict[int, VersionNeed] = {}
        if "DT_VERNEED" not in values:
            return found
        at = self._offset(values["DT_VERNEED"])
        seen = 0
        for _ in range(values.get("DT_VERNEEDNUM", 0)):
            _, count, file, first, following = _VERNEED.unpack_from(self._content, at)
            seen += 1 + count
            if seen > _MAX_VERSIONS:
                raise UnreadableElfError("its table of needed versions has no end")
            library = self._string(strings + file)
            aux = at + first
            for _ in range(count):
                _, _, index, name, next_aux = _VERNAUX.unpack_from(self._content, aux)
                version = self._string(strings + name)
                found[index & _VERSION_MASK] = VersionNeed(library=library, version=version)
                if next_aux == 0:
                    break
                aux += next_aux
            if following == 0:
                break
            at += following
        return found

    def _symbols(
        self, values: dict[str, int], strings: int, versions: dict[int, VersionNeed], dynamic: Any
    ) -> tuple[tuple[Import, ...], tuple[Export, ...]]:
        if "DT_SYMTAB" not in values:
            return (), ()
        table = self._offset(values["DT_SYMTAB"])
        count = self._symbol_count(values["DT_SYMTAB"], dynamic)
        raw = self._content[table : table + count * _SYMBOL.size]
        if count > _MAX_SYMBOLS or len(raw) < count * _SYMBOL.size:
            raise UnreadableElfError("its dynamic symbol table runs past the end of the file")
        versym: tuple[int, ...] = (0,) * count
        if "DT_VERSYM" in values:
            versym = struct.unpack_from(f"<{count}H", self._content, self._offset(values["DT_VERSYM"]))

        imports: list[Import] = []
        exports: list[Export] = []
        for index, (name, info, _, section, _, _) in enumerate(_SYMBOL.iter_unpack(raw)):
            if name == 0:
                continue
            binding = info >> 4
            text = self._string(strings + name)
            if section != _SHN_UNDEF:
                exports.append(Export(name=text, unique=binding == _STB_GNU_UNIQUE))
                continue
            version = versym[index] & _VERSION_MASK
            need = versions.get(version)
            if need is None and version >= _VERSION_RESERVED:
                raise UnreadableElfError(
                    f"symbol {text} asks for version {version}, which the file does not define"
                )
            imports.append(
                Import(
                    name=text,
                    version=None if need is None else need.version,
                    library=None if need is None else need.library,
                    weak=binding == _STB_WEAK,
                )
            )
        return tuple(imports), tuple(exports)

    def _symbol_count(self, address: int, dynamic: Any) -> int:
        # The section header says it exactly. The hash tables, all that is left without section headers, do
        # not count undefined symbols where nothing is exported.
        for section in self._elf.iter_sections():
            if section["sh_type"] == "SHT_DYNSYM" and section["sh_addr"] == address:
                return int(section["sh_size"]) // _SYMBOL.size
        return int(dynamic.num_symbols())

    def _fatbins(self) -> tuple[Fatbin, ...]:
        sections = [s for s in self._elf.iter_sections() if s.name in _FATBIN_SECTIONS]
        if sections or self._elf.num_sections() > 0:
            return tuple(
                container
                for s in sections
                for container in fatbin.parse(self._content[s["sh_offset"] : s["sh_offset"] + s["sh_size"]])
            )
        return fatbin.search(self._content)
