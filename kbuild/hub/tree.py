"""A build tree as it lies on disk: variants, their files with content hashes, and what forbids publishing them."""

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kbuild import metadata as md
from kbuild.config.model import Backend, Config
from kbuild.errors import FindingsError, UsageError
from kbuild.metadata import Metadata
from kbuild.variants import NoarchVariant, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file to publish as `path`, with the two hashes a Hub may know it by; `source` is where its bytes are."""

    path: str
    size: int
    sha256: str
    git_oid: str
    source: Path | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalVariant:
    """One variant's folder; paths of `files` start with `build/<name>/`."""

    name: str
    metadata: Metadata
    files: tuple[LocalFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalBuild:
    """The variants of one kernel in one version; at least one."""

    variants: tuple[LocalVariant, ...]

    @property
    def metadata(self) -> Metadata:
        """Of the first variant: name, version and license are the same for all."""
        return self.variants[0].metadata

    @property
    def files(self) -> tuple[LocalFile, ...]:
        return tuple(file for variant in self.variants for file in variant.files)

    @property
    def branch(self) -> str:
        """Where the loader looks for this version."""
        return f"v{self.metadata.version}"


def variant_folders(build: Path) -> tuple[Path, ...]:
    """The folders of a build tree that hold variants, by name.

    Raises UsageError where there are none, FindingsError where something else lies among them.
    """
    try:
        entries = sorted(path for path in build.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise UsageError(
            f"Cannot read {build}: {error.strerror}", hint="`kbuild build` makes it: run that first."
        ) from error
    # NB: files of other names are no variants of anybody's; the public kernel-builder puts its card there.
    strays = [path for path in entries if path.is_symlink() or (not path.is_dir() and _names_variant(path))]
    if strays:
        raise FindingsError(
            "\n".join(
                f"{path} is {'a link' if path.is_symlink() else 'a file'}, no folder" for path in strays
            ),
            hint="Remove that; if it stands for a variant, build the variant again.",
        )
    found = tuple(path for path in entries if path.is_dir())
    if not found:
        raise UsageError(
            f"There are no variants in {build}", hint="`kbuild build` makes them: run that first."
        )
    return found


def _names_variant(path: Path) -> bool:
    try:
        parse(path.name)
    except ValueError:
        return False
    return True


def read_build(
    build: Path,
    *,
    violations: Mapping[str, tuple[str, ...]],
    config: Config | None = None,
    allow_dirty: bool = False,
    allow_mixed: bool = False,
) -> LocalBuild:
    """Read a build tree for publishing.

    `violations` are what the verification found, by variant; one that is missing there was not verified. `config` is
    what the project says now. Raises FindingsError with everything that forbids publishing, UsageError where there is
    nothing to publish.
    """
    problems: list[str] = []
    variants: list[LocalVariant] = []
    for folder in variant_folders(build):
        found = [*violations.get(folder.name, ("was not verified",))]
        try:
            metadata = md.load(folder / md.FILE_NAME)
            files = tuple(_files(folder, f"build/{folder.name}", found))
            found += [] if found else md.verify_digest(folder)
            variants.append(LocalVariant(name=folder.name, metadata=metadata, files=files))
        except md.MetadataError as error:
            found += [f"{md.FILE_NAME}: {problem}" for problem in error.problems]
        except OSError as error:
            found.append(f"cannot read {error.filename}: {error.strerror}")
        problems += [f"{folder.name}: {problem}" for problem in dict.fromkeys(found)]
    if config is not None:
        for variant in variants:
            problems += [f"{variant.name}: {problem}" for problem in _outdated(variant.metadata, config)]
    problems += _across(variants, allow_dirty=allow_dirty, allow_mixed=allow_mixed)
    if problems:
        raise FindingsError(
            f"{build} is not fit to be published:\n" + "\n".join(f"  {problem}" for problem in problems),
            hint="`kbuild build` makes verified variants; delete what it did not make from the folder.",
        )
    return LocalBuild(variants=tuple(variants))


def commits_of(variants: Iterable[LocalVariant]) -> dict[str, list[str]]:
    """The kernel's commits that variants were built from, each with the names of these."""
    commits: dict[str, list[str]] = {}
    for variant in variants:
        provenance = variant.metadata.provenance
        git = None if provenance is None else provenance.kernel
        commits.setdefault("an unknown commit" if git is None else git.commit, []).append(variant.name)
    return commits


def unbuilt(build: LocalBuild, config: Config) -> tuple[Backend, ...]:
    """The project's backends that no variant is for."""
    if any(parse(variant.name) == NoarchVariant(backend=None) for variant in build.variants):
        return ()
    built = {variant.metadata.backend.type.value for variant in build.variants}
    return tuple(backend for backend in config.general.backends if backend.value not in built)


def content_file(path: str, content: bytes) -> LocalFile:
    """A file that lies nowhere yet."""
    return LocalFile(
        path=path,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        git_oid=_git_hash(len(content), [content]),
        source=content,
    )


def _outdated(metadata: Metadata, config: Config) -> Iterator[str]:
    """Where metadata.json says something else than build.toml; the digest does not cover that file."""
    general = config.general
    backend = Backend(metadata.backend.type.value)
    for what, built, wanted in (
        ("name", metadata.name, general.name),
        ("version", metadata.version, general.version),
        ("license", metadata.license.lower(), general.license.lower()),
        ("upstream", metadata.upstream, general.upstream),
        ("source", metadata.source, general.source),
        (
            "python-depends",
            sorted(metadata.python_depends),
            sorted(general.all_python_depends(backend)),
        ),
        (
            "kernel-depends",
            sorted(f"{d.repo_id}@{d.version or d.revision}" for d in metadata.kernel_depends),
            sorted(f"{d.repo_id}@{d.version or d.revision}" for d in general.all_kernel_depends(backend)),
        ),
    ):
        if built != wanted:
            yield (
                f"{md.FILE_NAME} says {what} {_words(built)}, and build.toml {_words(wanted)}: build the variant again"
            )


def _words(value: object) -> str:
    match value:
        case None | []:
            return "none"
        case list():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _across(variants: list[LocalVariant], *, allow_dirty: bool, allow_mixed: bool) -> Iterator[str]:
    for what in ("version", "name", "license"):
        values = {str(getattr(variant.metadata, what)): variant.name for variant in variants}
        if len(values) > 1:
            yield f"more than one {what}: " + ", ".join(
                f"{value} in {name}" for value, name in values.items()
            )
    by_id: dict[str, str] = {}
    for variant in variants:
        other = by_id.setdefault(variant.metadata.id, variant.name)
        if other != variant.name:
            yield f"{variant.name}: has the same id as {other}, so a process cannot load both"
    commits = commits_of(variants)
    if len(commits) > 1 and not allow_mixed:
        listed = "; ".join(f"{', '.join(names)} from {commit}" for commit, names in commits.items())
        yield f"built from different commits, so not of one source: {listed}; build them again, or say --allow-mixed"
    if not allow_dirty:
        for variant in variants:
            provenance = variant.metadata.provenance
            if provenance is not None and provenance.dirty:
                yield (
                    f"{variant.name}: was built from uncommitted changes, so nobody can rebuild it; commit and "
                    "build again, or say --allow-dirty"
                )


def _files(folder: Path, name: str, problems: list[str]) -> Iterator[LocalFile]:
    for parent, subfolders, names in os.walk(folder, onerror=_reraise):
        subfolders.sort()
        here = Path(parent)
        problems += [
            f"{(here / name).relative_to(folder)} is a link to a folder"
            for name in subfolders
            if (here / name).is_symlink()
        ]
        if "__pycache__" in subfolders:
            subfolders.remove("__pycache__")
            problems.append(f"{(here / '__pycache__').relative_to(folder)} holds bytecode")
        for entry in sorted(names):
            path = here / entry
            relative = path.relative_to(folder).as_posix()
            if path.suffix in (".pyc", ".pyo"):
                problems.append(f"{relative} is bytecode")
            elif not relative.isprintable() or "\\" in relative:
                problems.append(f"{relative!r} has characters in its name that no repository takes")
            elif not stat.S_ISREG(path.stat().st_mode):
                problems.append(f"{relative} is not a regular file")
            else:
                yield hashed(path, f"{name}/{relative}")


def hashed(source: Path, path: str) -> LocalFile:
    """A file on disk, to be published as `path`."""
    size = source.stat().st_size
    sha256 = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        with source.open("rb") as stream:
            while chunk := stream.read(2**20):
                sha256.update(chunk)
                yield chunk

    git_oid = _git_hash(size, chunks())
    return LocalFile(path=path, size=size, sha256=sha256.hexdigest(), git_oid=git_oid, source=source)


def _git_hash(size: int, chunks: Iterator[bytes] | list[bytes]) -> str:
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def _reraise(error: OSError) -> None:
    raise error
