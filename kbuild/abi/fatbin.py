"""The device code inside a library: which architectures, as machine code (SASS) or as PTX.

NVIDIA does not document the container. This layout was read off files made by nvcc 13.0.88 with every
`--compress-mode`, and compared with `cuobjdump --list-elf --list-ptx`: a 16-byte container header, then
entries, each a 64-byte header (longer where it says so) before its payload. Kind, architecture and flags stand
in the header, so a compressed payload need not be unpacked.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

from kbuild.config.model import Capability

_MAGIC = b"\x50\xed\x55\xba"
_CONTAINER = struct.Struct("<IHHQ")
# kind, version, header size, payload size, compressed size, -, PTX minor, major, architecture, name at,
# name size, flags, -, uncompressed size
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_CONTAINER_VERSION = 1

_FLAG_LZ4 = 0x2000
_FLAG_ZSTD = 0x8000
_FLAG_ARCH_SPECIFIC = 0x10_0000  # the "a" of 9.0a
_FLAG_FAMILY = 0x20_0000  # the "f" of 10.0f


class BadFatbinError(ValueError):
    """A container's headers contradict its size."""


class Kind(IntEnum):
    """What an entry holds; other numbers exist (NVVM IR) and are of no interest here."""

    PTX = 1
    SASS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One image for one architecture. `empty` is True where the image is known to hold no code."""

    kind: int
    capability: Capability
    empty: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fatbin:
    """One container: what nvcc made of one translation unit, or of one device link."""

    entries: tuple[Entry, ...]


def parse(section: bytes) -> tuple[Fatbin, ...]:
    """The containers of a fatbin section, which may be padded. Raises BadFatbinError."""
    found: list[Fatbin] = []
    at = section.find(_MAGIC)
    while at >= 0:
        container, at = _container(section, at)
        found.append(container)
        at = section.find(_MAGIC, at)
    return tuple(found)


def search(content: bytes) -> tuple[Fatbin, ...]:
    """The containers anywhere in a file without section headers; what only looks like one is passed over."""
    found: list[Fatbin] = []
    at = content.find(_MAGIC)
    while at >= 0:
        try:
            container, at = _container(content, at)
            found.append(container)
        except BadFatbinError:
            at += len(_MAGIC)
        at = content.find(_MAGIC, at)
    return tuple(found)


def _container(data: bytes, start: int) -> tuple[Fatbin, int]:
    try:
        _, version, header, size = _CONTAINER.unpack_from(data, start)
    except struct.error as error:
        raise BadFatbinError("the device code ends inside a container header") from error
    at, end = start + header, start + header + size
    if version != _CONTAINER_VERSION or header < _CONTAINER.size or end > len(data):
        raise BadFatbinError("a container of device code has a header that cannot be read")
    entries: list[Entry] = []
    while at < end:
        if end - at < _ENTRY.size:
            raise BadFatbinError("the device code ends inside an entry header")
        fields = _ENTRY.unpack_from(data, at)
        kind, header, size, arch, flags = fields[0], fields[2], fields[3], fields[8], fields[11]
        payload = at + header
        if header < _ENTRY.size or payload + size > end:
            raise BadFatbinError("an entry of device code runs past its container")
        entries.append(
            Entry(
                kind=kind,
                capability=_capability(arch, flags),
                empty=kind == Kind.SASS and _without_code(data, payload, size, flags),
            )
        )
        at = payload + size
    return Fatbin(entries=tuple(entries)), end


def _capability(arch: int, flags: int) -> Capability:
    suffix = "a" if flags & _FLAG_ARCH_SPECIFIC else "f" if flags & _FLAG_FAMILY else ""
    return Capability(arch // 10, arch % 10, suffix)


def _without_code(data: bytes, payload: int, size: int, flags: int) -> bool:
    # `nvcc -shared` links a stub that names every architecture of the link and holds no code. Counting it
    # would hide an architecture for which nothing was compiled. Only --compress-mode=size compresses it.
    if flags & (_FLAG_LZ4 | _FLAG_ZSTD):
        return False
    return data.find(b".text.", payload, payload + size) < 0
