"""metadata.json of one variant: written, read strictly, and its digest.

What is accepted is a subset of what the `kernels` loader (0.17) parses: what passes here is read there.
Refused here only: repeated keys it ignores, structs written as arrays, addresses with blanks or without host.

NB: standard library and `kbuild.errors` only. The Nix steps import this module under a bare Python 3.11.
"""

import base64
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from kbuild.errors import FindingsError

FILE_NAME = "metadata.json"
SIGNATURE_NAME = "metadata.json.sigstore"

_KERNEL_NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
_ID = re.compile(r"[A-Za-z0-9_]+")
_COMMIT = re.compile(r"[0-9a-fA-F]{40}|[0-9a-fA-F]{64}")
_MINVER = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}")
_GIT_URL = re.compile(
    r"(?:https?|git|ssh|git\+ssh|git\+https?)://(?:[^\s/@]+@)?[\w.-]+(?::[0-9]{1,4})?(?:/\S*)?", re.A
)
_GIT_SCP = re.compile(r"[\w.-]+@[\w.-]+:[^\s/]\S*", re.A)
_USIZE_MAX = 2**64 - 1

_T = TypeVar("_T")


class MetadataError(FindingsError):
    """A metadata.json that the loader would refuse; `problems` names each thing wrong with it."""

    def __init__(self, source: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"{source}: " + "; ".join(problems))
        self.problems = problems


class BackendType(StrEnum):
    """The backends the loader knows."""

    CANN = "cann"
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    NEURON = "neuron"
    ROCM = "rocm"
    TPU = "tpu"
    XPU = "xpu"


class Algorithm(StrEnum):
    """Digest algorithms the loader knows."""

    SHA256 = "sha256"
    SHA512 = "sha512"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """What the variant runs on; `archs` are capabilities such as `"9.0"`, None without device code."""

    type: BackendType
    archs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelDependency:
    """Another kernel, loaded first: by `version` (its branch `v<version>`) or by `revision`, exactly one."""

    repo_id: str
    version: int | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """Hashes of a variant's files: path relative to the variant, with `/` -> base64 of the raw hash."""

    algorithm: Algorithm
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GitStatus:
    """A commit (40 or 64 hex digits) and whether tracked files differed from it."""

    commit: str
    dirty: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuilderVersion:
    """The builder; `git` is None for a released one."""

    version: str
    git: GitStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What built the variant, from which sources; `kernel` is None outside a git repository."""

    kernel_builder: BuilderVersion
    kernel: GitStatus | None = None

    @property
    def dirty(self) -> bool:
        return any(git is not None and git.dirty for git in (self.kernel_builder.git, self.kernel))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Everything metadata.json says. `id` becomes a module name at load and must differ between variants."""

    id: str
    name: str
    version: int
    license: str
    backend: BackendInfo
    python_depends: tuple[str, ...] = ()
    kernel_depends: tuple[KernelDependency, ...] = ()
    kernels_minver: str | None = None
    upstream: str | None = None
    source: str | None = None
    digest: Digest | None = None
    provenance: Provenance | None = None

    @property
    def python_name(self) -> str:
        """The kernel's name as a Python package."""
        return self.name.replace("-", "_")

    def dumps(self) -> str:
        """The file's text: fixed key order, absent fields left out, a newline at the end.

        Raises MetadataError where the loader would refuse the result, or `id` would not do as a module name.
        """
        document: dict[str, Any] = {
            "name": self.name,
            "id": self.id,
            "version": self.version,
            "license": self.license,
            "upstream": self.upstream,
            "source": self.source,
            "python-depends": list(self.python_depends),
            "kernel-depends": [
                _present({"repo-id": d.repo_id, "version": d.version, "revision": d.revision})
                for d in self.kernel_depends
            ],
            "kernels-minver": self.kernels_minver,
            "backend": _present(
                {
                    "type": str(self.backend.type),
                    "archs": None if self.backend.archs is None else list(self.backend.archs),
                }
            ),
            "digest": self.digest
            and {
                "algorithm": str(self.digest.algorithm),
                "files": {path: self.digest.files[path] for path in sorted(self.digest.files)},
            },
            "provenance": self.provenance
            and _present(
                {
                    "kernel-builder": {
                        "version": self.provenance.kernel_builder.version,
                        **_git_json(self.provenance.kernel_builder.git),
                    },
                    "kernel": self.provenance.kernel and _git_json(self.provenance.kernel),
                }
            ),
        }
        text = json.dumps(_present(document), indent=2, ensure_ascii=False) + "\n"
        loads(text, source=FILE_NAME)
        if _ID.fullmatch(self.id) is None:
            raise MetadataError(
                FILE_NAME, (f"id {self.id!r} is not made of letters, digits and underscores only",)
            )
        return text

    def write(self, path: Path) -> None:
        """Write the file itself (not into a folder)."""
        path.write_bytes(self.dumps().encode())


def load(path: Path) -> Metadata:
    """Read a metadata.json. Raises MetadataError with every problem, OSError where it cannot be read."""
    # NB: reading a pipe would wait for ever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise MetadataError(str(path), ("is not a regular file",))
    return loads(path.read_bytes(), source=str(path))


def loads(content: str | bytes, *, source: str = FILE_NAME) -> Metadata:
    """Parse the content of a metadata.json; `source` names it in messages. Raises MetadataError."""
    problems: list[str] = []
    top = _Reader(_parse(content, source), problems)
    metadata = Metadata(
        id=top.need("id", _text, ""),
        name=top.need("name", _kernel_name, ""),
        version=top.need("version", _count, 0),
        license=top.need("license", _text, ""),
        backend=top.need("backend", _backend, BackendInfo(type=BackendType.CPU)),
        python_depends=top.need("python-depends", _texts, ()),
        kernel_depends=top.have("kernel-depends", _kernel_depends, ()),
        kernels_minver=top.maybe("kernels-minver", _minver),
        upstream=top.maybe("upstream", _git_url),
        source=top.maybe("source", _git_url),
        digest=top.maybe("digest", _digest),
        provenance=top.maybe("provenance", _provenance),
    )
    if problems:
        raise MetadataError(source, tuple(problems))
    return metadata


def digest_of(variant: Path, algorithm: Algorithm = Algorithm.SHA256) -> Digest:
    """Hash a variant's folder as the loader does.

    Left out: the top-level metadata.json and its signature, bytecode. Links to files count with what they
    point at, links to folders are not followed. Raises OSError for a broken link and MetadataError for a name
    that is not UTF-8.
    """
    files: dict[str, str] = {}
    for folder, subfolders, names in os.walk(variant, onerror=_reraise):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        here = Path(folder)
        for name in names:
            path = here / name
            relative = path.relative_to(variant)
            if str(relative) in (FILE_NAME, SIGNATURE_NAME) or path.suffix == ".pyc":
                continue
            if not stat.S_ISREG(path.stat().st_mode):
                continue
            key = relative.as_posix()
            if not _is_utf8(key):
                raise MetadataError(str(variant), (f"the file name {key!r} is not UTF-8",))
            with path.open("rb") as stream:
                raw = hashlib.file_digest(stream, str(algorithm)).digest()
            files[key] = base64.b64encode(raw).decode("ascii")
    return Digest(algorithm=algorithm, files=dict(sorted(files.items())))


def verify_digest(variant: Path) -> list[str]:
    """What differs between a variant's folder and the digest in its metadata.json; empty where nothing does.

    The loader does not check this when it loads. Raises MetadataError and OSError as `load` does.
    """
    expected = load(variant / FILE_NAME).digest
    if expected is None:
        return [f"{FILE_NAME} carries no digest"]
    actual = digest_of(variant, expected.algorithm).files
    problems = [
        f"{path} is in the digest but not in the variant" for path in sorted(expected.files.keys() - actual)
    ]
    problems += [
        f"{path} does not match its digest"
        for path in sorted(expected.files.keys() & actual)
        if expected.files[path] != actual[path]
    ]
    problems += [f"{path} is not in the digest" for path in sorted(actual.keys() - expected.files)]
    return problems


class _WrongError(Exception):
    """A value that does not fit; the text continues the name of the place it stands at."""


def _parse(content: str | bytes, source: str) -> dict[str, Any]:
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        if text.startswith("\ufeff"):
            raise MetadataError(source, ("starts with a byte order mark",))
        document = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_integer
        )
        # NB: "\ud800" parses and can be neither written nor hashed.
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise MetadataError(source, (f"is not UTF-8 (byte {error.start})",)) from error
    except UnicodeEncodeError as error:
        raise MetadataError(source, ("holds half of a surrogate pair",)) from error
    except json.JSONDecodeError as error:
        raise MetadataError(
            source, (f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",)
        ) from error
    except (_WrongError, RecursionError) as error:
        raise MetadataError(source, (str(error),)) from error
    if not isinstance(document, dict):
        raise MetadataError(source, (f"must be an object, not {_kind(document)}",))
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _WrongError(f"the key {key!r} appears twice in one object")
        found[key] = value
    return found


def _no_constant(word: str) -> Any:
    raise _WrongError(f"{word} is not JSON")


def _integer(digits: str) -> int | float:
    # As in the loader: -0 and what 64 bits cannot hold are no integers.
    return float(digits) if digits == "-0" or len(digits) > len(str(_USIZE_MAX)) else int(digits)


class _Reader:
    """Typed reads of the keys of one object; notes what is wrong and goes on with a stand-in."""

    def __init__(self, document: dict[str, Any], problems: list[str]) -> None:
        self._document = document
        self._problems = problems

    def need(self, key: str, parse: Callable[[Any], _T], stand_in: _T) -> _T:
        """A required value."""
        if key not in self._document:
            self._problems.append(f"{key} is missing")
        return self.have(key, parse, stand_in)

    def have(self, key: str, parse: Callable[[Any], _T], stand_in: _T) -> _T:
        """A value that may be absent but not null."""
        if key in self._document:
            try:
                return parse(self._document[key])
            except _WrongError as wrong:
                self._problems.append(f"{key}{wrong}")
        return stand_in

    def maybe(self, key: str, parse: Callable[[Any], _T]) -> _T | None:
        """A value that may be absent or null."""
        if self._document.get(key) is None:
            return None
        return self.have(key, parse, None)


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number with a fraction or exponent"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _WrongError(f" must be a string, not {_kind(value)}")
    return value


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _WrongError(f" must be a whole number, not {_kind(value)}")
    if not 0 <= value <= _USIZE_MAX:
        raise _WrongError(f" must lie between 0 and 2^64 - 1, not {value}")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _WrongError(f" must be true or false, not {_kind(value)}")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise _WrongError(f" must be a list, not {_kind(value)}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _WrongError(f" must be an object, not {_kind(value)}")
    return value


def _at(place: str, parse: Callable[[Any], _T], value: Any) -> _T:
    try:
        return parse(value)
    except _WrongError as wrong:
        raise _WrongError(f"{place}{wrong}") from wrong


def _member(holder: dict[str, Any], key: str, parse: Callable[[Any], _T]) -> _T:
    if key not in holder:
        raise _WrongError(f" lacks {key!r}")
    return _at(f".{key}", parse, holder[key])


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_at(f"[{index}]", _text, item) for index, item in enumerate(_list(value)))


def _matching(pattern: re.Pattern[str], wanted: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if pattern.fullmatch(_text(value)) is None:
            raise _WrongError(f" must be {wanted}, not {value!r}")
        return str(value)

    return parse


_kernel_name = _matching(
    _KERNEL_NAME, "at least two lower-case letters, digits and dashes, a letter first and no dash last"
)
_minver = _matching(_MINVER, "three numbers such as 0.17.2")
_git_url = _matching(
    re.compile(f"{_GIT_URL.pattern}|{_GIT_SCP.pattern}", re.A),
    "a git address with its scheme (https://…) or user@host:path",
)
_commit = _matching(_COMMIT, "40 or 64 hexadecimal digits")


def _one_of(words: type[StrEnum]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if _text(value) not in list(words):
            raise _WrongError(f" must be one of {', '.join(words)}, not {value!r}")
        return words(value)

    return parse


def _backend(value: Any) -> BackendInfo:
    holder = _object(value)
    archs = holder.get("archs")
    return BackendInfo(
        type=_member(holder, "type", _one_of(BackendType)),
        archs=None if archs is None else _at(".archs", _texts, archs),
    )


def _kernel_depends(value: Any) -> tuple[KernelDependency, ...]:
    return tuple(_at(f"[{index}]", _kernel_dependency, item) for index, item in enumerate(_list(value)))


def _kernel_dependency(value: Any) -> KernelDependency:
    holder = _object(value)
    for key in holder:
        if key not in ("repo-id", "version", "revision"):
            raise _WrongError(f" has an unknown key {key!r}")
    version, revision = holder.get("version"), holder.get("revision")
    if (version is None) == (revision is None):
        raise _WrongError(" needs either a version or a revision")
    return KernelDependency(
        repo_id=_member(holder, "repo-id", _text),
        version=None if version is None else _at(".version", _count, version),
        revision=None if revision is None else _at(".revision", _text, revision),
    )


def _digest(value: Any) -> Digest:
    holder = _object(value)
    files = _member(holder, "files", _object)
    return Digest(
        algorithm=_member(holder, "algorithm", _one_of(Algorithm)),
        files={path: _at(f".files[{path!r}]", _text, content) for path, content in files.items()},
    )


def _git_status(value: Any) -> GitStatus:
    holder = dict(_object(value))
    if "commit" in holder and "sha" in holder:
        raise _WrongError(" has both 'commit' and its old name 'sha'")
    if "sha" in holder:
        holder["commit"] = holder.pop("sha")
    return GitStatus(commit=_member(holder, "commit", _commit).lower(), dirty=_member(holder, "dirty", _flag))


def _builder_version(value: Any) -> BuilderVersion:
    holder = _object(value)
    git = _git_status(holder) if holder.keys() & {"commit", "sha", "dirty"} else None
    return BuilderVersion(version=_member(holder, "version", _text), git=git)


def _provenance(value: Any) -> Provenance:
    holder = _object(value)
    kernel = holder.get("kernel")
    return Provenance(
        kernel_builder=_member(holder, "kernel-builder", _builder_version),
        kernel=None if kernel is None else _at(".kernel", _git_status, kernel),
    )


def _git_json(git: GitStatus | None) -> dict[str, Any]:
    return {} if git is None else {"commit": git.commit, "dirty": git.dirty}


def _present(document: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in document.items() if value is not None}


def _reraise(error: OSError) -> None:
    raise error


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
