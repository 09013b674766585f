"""Make the lock and the symbol lists anew, from whole wheels whose sha256 the index confirms. For maintainers."""

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kbuild import process
from kbuild.errors import HubError, MachineError, UsageError
from kbuild.text import did_you_mean
from kbuild.toolchain import index
from kbuild.toolchain.index import Found
from kbuild.toolchain.lock import LOCK_FILE, Lock, Tree, Wheel
from kbuild.toolchain.nar import nar_of
from kbuild.toolchain.recipes import Recipe, recipes
from kbuild.toolchain.symbols import (
    GLIBC,
    exported_symbols,
    format_symbols,
    symbol_file,
    without_libstdcxx,
)
from kbuild.toolchain.unpack import unpack_file

# What a kernel may link. libtorch_python is not among them: a kernel works without Python's ABI.
_TORCH_LIBRARIES = (
    "libc10",
    "libc10_cuda",
    "libtorch",
    "libtorch_cpu",
    "libtorch_cuda",
    "libtorch_cuda_linalg",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """New contents of files below `kbuild/data`, by name."""

    files: Mapping[str, bytes]

    def changed(self, data: Callable[[str], Path]) -> tuple[str, ...]:
        """The files that differ from what lies on disk."""
        return tuple(
            name
            for name, content in self.files.items()
            if not data(name).exists() or data(name).read_bytes() != content
        )


def keys() -> tuple[str, ...]:
    """Everything that can be refreshed: the trees, and glibc's symbol list."""
    return (*(recipe.key for recipe in recipes()), GLIBC)


def refresh(
    wanted: Sequence[str], lock: Lock, note: Callable[[str], None], *, run: index.Run = process.run
) -> Refreshed:
    """Resolve, download, verify and hash these keys (all if none); the rest of the lock stays as it is.

    Raises UsageError for an unknown key, HubError where the index fails, MachineError where this machine does.
    """
    for key in wanted:
        if key not in keys():
            raise UsageError(f"nothing to refresh is called {key!r}.{did_you_mean(key, keys())}")
    trees: dict[str, Tree] = {}
    files: dict[str, bytes] = {}
    resolved: dict[tuple[str, ...], tuple[Found, ...]] = {}
    for recipe in recipes():
        if wanted and recipe.key not in wanted:
            if recipe.key in lock.trees:
                trees[recipe.key] = lock.trees[recipe.key]
            continue
        found = _resolve(recipe, resolved, run)
        note(f"{recipe.key}: {found.file}")
        with _downloaded(found, run) as path:
            tree = _tree(recipe, found, path)
            if recipe.project == "torch":
                files[symbol_file(recipe.key)] = _torch_symbols(tree.wheel, path)
        trees[recipe.key] = tree
        note(f"{recipe.key}: {tree.files} files, {tree.nar_size / 1e6:.1f} MB, {tree.nar_hash}")
    if not wanted or GLIBC in wanted:
        note(f"{GLIBC}: letting zig write the stubs")
        files[symbol_file(GLIBC)] = _glibc_symbols(run)
    files[LOCK_FILE] = format_lock(Lock(trees=trees))
    return Refreshed(files=files)


def format_lock(lock: Lock) -> bytes:
    """The lock as it is written."""
    return (json.dumps(lock.as_json(), indent=2) + "\n").encode()


def _resolve(recipe: Recipe, resolved: dict[tuple[str, ...], tuple[Found, ...]], run: index.Run) -> Found:
    # The components of one toolkit are resolved together, once.
    if recipe.requirements not in resolved:
        resolved[recipe.requirements] = index.resolve(recipe.requirements, dependencies=recipe.meta, run=run)
    for found in resolved[recipe.requirements]:
        if found.project == recipe.project:
            if "+" in found.version:
                public = found.version.partition("+")[0]
                return index.resolve([f"{recipe.project}==={public}"], run=run)[0]
            return found
    raise HubError(f"pip resolves {' '.join(recipe.requirements)} without {recipe.project}")


@contextmanager
def _downloaded(found: Found, run: index.Run) -> Iterator[Path]:
    if found.sha256 is None:
        raise HubError(f"{found.url}: the index names no sha256, so there is nothing to pin")
    with TemporaryDirectory(prefix="kbuild-refresh-") as folder:
        wheel = Wheel(
            project=found.project, version=found.version, file=found.file, size=0, sha256=found.sha256
        )
        yield index.download_with_pip(wheel, Path(folder), run=run)


def _tree(recipe: Recipe, found: Found, path: Path) -> Tree:
    assert found.sha256 is not None
    wheel = Wheel(
        project=found.project,
        version=found.version,
        file=found.file,
        size=path.stat().st_size,
        sha256=found.sha256,
    )
    with TemporaryDirectory(prefix="kbuild-tree-") as folder:
        root = Path(folder)
        unhashed = Tree(
            key=recipe.key,
            store_name=recipe.store_name(found.version),
            nar_hash="",
            nar_size=0,
            files=0,
            wheel=wheel,
            keep=recipe.keep,
            strip=recipe.strip,
            executable=recipe.executable,
        )
        unpack_file(path, unhashed, root)
        nar = nar_of(root)
    return replace(unhashed, nar_hash=nar.hash, nar_size=nar.size, files=nar.files)


def _torch_symbols(wheel: Wheel, path: Path) -> bytes:
    with TemporaryDirectory(prefix="kbuild-symbols-") as folder, zipfile.ZipFile(path) as archive:
        libraries = [Path(archive.extract(f"torch/lib/{name}.so", folder)) for name in _TORCH_LIBRARIES]
        exports = dict(map(exported_symbols, libraries))
    return format_symbols(
        [f"torch {wheel.version}: {wheel.file}, sha256 {wheel.sha256}"], without_libstdcxx(exports)
    )


def _glibc_symbols(run: index.Run) -> bytes:
    [found] = index.resolve(["ziglang"], run=run)
    with _downloaded(found, run) as path:
        folder = path.parent
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        zig = folder / "ziglang" / "zig"
        zig.chmod(0o755)
        source = folder / "empty.c"
        source.write_text("int empty;\n")
        cache = folder / "cache"
        done = run(
            [
                "env",
                f"ZIG_LOCAL_CACHE_DIR={cache}",
                f"ZIG_GLOBAL_CACHE_DIR={cache}",
                str(zig),
                "cc",
                "-target",
                "x86_64-linux-gnu.2.28",
                "-shared",
                str(source),
                "-o",
                str(folder / "empty.so"),
            ]
        )
        if not done.ok:
            raise MachineError(f"zig cannot write glibc's stubs:\n{done.transcript()}")
        exports = dict(exported_symbols(stub) for stub in _stubs(cache))
    return format_symbols(
        [f"glibc 2.28, x86_64: stubs written by {found.file}, sha256 {found.sha256}"], exports
    )


def _stubs(cache: Path) -> Iterable[Path]:
    [libc] = cache.rglob("libc.so.6")
    return sorted(libc.parent.glob("lib*.so.*"))
