"""From the members of a wheel to a tree on disk."""

import os
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kbuild.toolchain.lock import Tree

_CHUNK = 1 << 18
_SMALL = 1 << 18
_LOCAL_HEADER = struct.Struct("<4s22xHH")


class CorruptMemberError(Exception):
    """A member's bytes contradict the directory of the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file to keep: `path` inside the tree; its bytes in the wheel lie in [`start`, `end`)."""

    path: str
    executable: bool
    start: int
    end: int
    compressed: int
    size: int
    crc: int
    stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Neighbouring members that one request brings."""

    members: tuple[Member, ...]

    @property
    def start(self) -> int:
        return self.members[0].start

    @property
    def end(self) -> int:
        return self.members[-1].end


class Source(Protocol):
    """A forward reader over the bytes of a wheel."""

    def read_exactly(self, count: int) -> bytes: ...
    def skip_to(self, offset: int) -> None: ...


def members_of(tree: Tree, wheel: zipfile.ZipFile) -> tuple[Member, ...]:
    """What a tree keeps, in the order of the file. Raises CorruptMemberError for what cannot be kept."""
    infos = sorted(wheel.infolist(), key=lambda info: info.header_offset)
    ends = [info.header_offset for info in infos[1:]] + [wheel.start_dir]
    members: list[Member] = []
    for info, end in zip(infos, ends, strict=True):
        try:
            path = tree.kept(info.filename)
        except ValueError as error:
            raise CorruptMemberError(str(error)) from error
        if path is None:
            continue
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CorruptMemberError(f"{info.filename}: compression method {info.compress_type} is not known")
        members.append(
            Member(
                path=path,
                executable=tree.is_executable(path),
                start=info.header_offset,
                end=end,
                compressed=info.compress_size,
                size=info.file_size,
                crc=info.CRC,
                stored=info.compress_type == zipfile.ZIP_STORED,
            )
        )
    return tuple(members)


def plan_spans(members: Iterable[Member], *, gap: int, length: int) -> tuple[Span, ...]:
    """Join members at most `gap` bytes apart into spans of at most `length` bytes, or of one member."""
    groups: list[list[Member]] = []
    for member in members:
        if groups and member.start - groups[-1][-1].end <= gap and member.end - groups[-1][0].start <= length:
            groups[-1].append(member)
        else:
            groups.append([member])
    return tuple(Span(members=tuple(group)) for group in groups)


def is_unpacked(member: Member, root: Path) -> bool:
    """Whether an earlier, interrupted run wrote this member to its end (names appear only then)."""
    path = root / member.path
    return path.is_file() and path.stat().st_size == member.size


def unpack(member: Member, source: Source, root: Path) -> None:
    """Write one member below `root`, its checksum proven. Raises CorruptMemberError, EOFError, OSError."""
    source.skip_to(member.start)
    path = root / member.path
    if member.end - member.start <= _SMALL:
        # Headers come by the ten thousand: one read and one write each.
        data = source.read_exactly(member.end - member.start)
        offset = _content_offset(member, data)
        content = b"".join(_inflated(member, [data[offset : offset + member.compressed]]))
        _check(member, len(content), zlib.crc32(content))
        try:
            _write(path, content, member)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, content, member)
        return

    header = source.read_exactly(_LOCAL_HEADER.size)
    source.read_exactly(_content_offset(member, header) - len(header))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    crc = size = 0
    with partial.open("wb") as file:
        for chunk in _inflated(member, _chunks(source, member.compressed)):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
            file.write(chunk)
    _check(member, size, crc)
    partial.chmod(_mode(member))
    partial.replace(path)


def _content_offset(member: Member, data: bytes) -> int:
    """How far after its beginning the content of a member begins: its local header has names of its own."""
    signature, name_length, extra_length = _LOCAL_HEADER.unpack_from(data)
    if signature != b"PK\x03\x04":
        raise CorruptMemberError(f"{member.path}: no zip header at byte {member.start}")
    return _LOCAL_HEADER.size + int(name_length) + int(extra_length)


def _chunks(source: Source, count: int) -> Iterator[bytes]:
    while count:
        chunk = source.read_exactly(min(count, _CHUNK))
        count -= len(chunk)
        yield chunk


def _inflated(member: Member, chunks: Iterable[bytes]) -> Iterator[bytes]:
    if member.stored:
        yield from chunks
        return
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        for chunk in chunks:
            yield inflate.decompress(chunk)
        yield inflate.flush()
    except zlib.error as error:
        raise CorruptMemberError(f"{member.path}: {error}") from error


def _check(member: Member, size: int, crc: int) -> None:
    if (crc, size) != (member.crc, member.size):
        raise CorruptMemberError(
            f"{member.path}: expected {member.size} bytes with CRC {member.crc:08x}, "
            f"got {size} with CRC {crc:08x}"
        )


def _write(path: Path, content: bytes, member: Member) -> None:
    # A name stands for a whole file (`is_unpacked`); one cut short by a crash has another size.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _mode(member))
    with open(file, "wb") as stream:  # noqa: PTH123  (a descriptor, no path)
        stream.write(content)


def _mode(member: Member) -> int:
    return 0o755 if member.executable else 0o644


class FileSource:
    """A wheel on this machine."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")

    def close(self) -> None:
        self._file.close()

    def skip_to(self, offset: int) -> None:
        self._file.seek(offset)

    def read_exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise EOFError(f"{self._file.name}: ends {count - len(data)} bytes early")
        return data


def unpack_file(wheel: Path, tree: Tree, root: Path) -> None:
    """Unpack what a tree keeps of a wheel on disk. Raises CorruptMemberError, EOFError, BadZipFile."""
    with zipfile.ZipFile(wheel) as archive:
        members = members_of(tree, archive)
    prune(root, members)
    source = FileSource(wheel)
    try:
        for member in members:
            if not is_unpacked(member, root):
                unpack(member, source, root)
    finally:
        source.close()


def prune(root: Path, members: Sequence[Member]) -> None:
    """Remove what an interrupted run left besides whole members, so that it cannot get into the hash."""
    wanted = {member.path for member in members}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if str(path.relative_to(root)) not in wanted:
                path.unlink()
