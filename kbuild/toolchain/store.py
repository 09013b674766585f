"""The Nix store, as far as trees need it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbuild import process
from kbuild.errors import MachineError
from kbuild.nix_errors import explain
from kbuild.toolchain.lock import Tree, store_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """One store, reached through `nix-store`. `options` go to every call, e.g. `("--store", "/mnt/nix")`."""

    options: tuple[str, ...] = ()
    program: str = "nix-store"
    run: Callable[[Sequence[str]], process.Completed] = process.run

    def missing(self, trees: Iterable[Tree]) -> tuple[Tree, ...]:
        """Those of the trees that the store does not hold. Raises MachineError."""
        trees = tuple(trees)
        if not trees:
            return ()
        done = self._call("--check-validity", "--print-invalid", *(store_path(tree) for tree in trees))
        invalid = set(done.stdout.split())
        return tuple(tree for tree in trees if store_path(tree) in invalid)

    def add(self, folder: Path, tree: Tree) -> str:
        """Copy a verified tree into the store, under the folder's name. Raises MachineError."""
        done = self._call("--add-fixed", "--recursive", "sha256", str(folder))
        path = done.stdout.strip()
        if path != store_path(tree):
            raise MachineError(
                f"{tree.store_name}: the Nix store filed the tree as {path}, expected {store_path(tree)}.",
                hint="A store under another prefix than /nix/store is not supported.",
            )
        return path

    def keep(self, path: str, root: Path) -> None:
        """Register `root` as a garbage-collector root of a path; a store that has none is left without."""
        if root.is_symlink() and root.readlink() == Path(path):
            return
        root.parent.mkdir(parents=True, exist_ok=True)
        self.run([self.program, *self.options, "--realise", path, "--add-root", str(root), "--indirect"])

    def _call(self, *arguments: str) -> process.Completed:
        try:
            done = self.run([self.program, *self.options, *arguments])
        except FileNotFoundError:
            raise MachineError(
                "Nix is not installed (no nix-store on PATH).",
                hint="`kbuild doctor` says how to install it.",
            ) from None
        if done.ok:
            return done
        raise explain(done.stderr, "the Nix store refused")
