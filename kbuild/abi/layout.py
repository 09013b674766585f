"""The verdicts over a variant's folder: its files, its metadata.json, and whether they fit its name."""

import ast
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kbuild import metadata
from kbuild.abi import policies
from kbuild.abi.verdict import Violation
from kbuild.config.model import Backend, Capability
from kbuild.metadata import Metadata, MetadataError
from kbuild.variants import NoarchVariant, TvmFfiVariant, Variant, parse

_BYTECODE = (".pyc", ".pyo")
_OPS = "_ops.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsModule:
    """What `_ops.py` says: the op namespace, and the extension module that it imports (None: none)."""

    namespace: str | None
    module: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The facts about one folder. Paths are relative to it, with `/`.

    `unfit` are links and special files that cannot be published, each with the reason. `metadata` is None where
    `metadata_problems` says why.
    """

    root: Path
    name: str
    variant: Variant | None
    files: tuple[str, ...]
    unfit: tuple[tuple[str, str], ...]
    metadata: Metadata | None
    metadata_problems: tuple[str, ...]
    digest_problems: tuple[str, ...]
    ops: OpsModule | None

    @property
    def libraries(self) -> tuple[str, ...]:
        return tuple(file for file in self.files if file.endswith(".so") or ".so." in file)

    @property
    def noarch(self) -> bool:
        return isinstance(self.variant, NoarchVariant)

    @property
    def backend(self) -> Backend | None:
        """The backend that the name states; None where it states none."""
        match self.variant:
            case None:
                return None
            case NoarchVariant(backend=backend):
                return backend
            case variant:
                return variant.compute.backend


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRule:
    """One verdict over a folder."""

    code: str
    title: str
    check: Callable[[Tree], list[Violation]]
    found: Callable[[Tree], str]
    missing: Callable[[Tree], str | None] = lambda _: None


def read_tree(root: Path, *, variant: Variant | None = None) -> Tree:
    """Read a folder; `variant` is what its name states unless given. Raises OSError."""
    if variant is None:
        try:
            variant = parse(root.resolve().name)
        except ValueError:
            variant = None
    files, unfit = _walk(root)
    loaded, problems, digest = None, tuple[str, ...](), tuple[str, ...]()
    try:
        loaded = metadata.load(root / metadata.FILE_NAME)
        digest = tuple(metadata.verify_digest(root))
    except MetadataError as error:
        problems = error.problems
    except FileNotFoundError:
        problems = ("is missing",) if loaded is None else ()
    except OSError as error:
        problems = (f"cannot be read ({error.strerror})",)
    return Tree(
        root=root,
        name=root.resolve().name,
        variant=variant,
        files=files,
        unfit=unfit,
        metadata=loaded,
        metadata_problems=problems,
        digest_problems=digest,
        ops=_read_ops(root / _OPS) if _OPS in files else None,
    )


def _walk(root: Path) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    files: list[str] = []
    unfit: list[tuple[str, str]] = []
    inside = root.resolve()
    for folder, subfolders, names in os.walk(root, onerror=_reraise):
        here = Path(folder)
        for name in [*subfolders, *names]:
            path = here / name
            relative = path.relative_to(root).as_posix()
            target = path.resolve()
            if path.is_symlink() and not target.exists():
                unfit.append((relative, "is a symbolic link to nothing"))
            elif path.is_symlink() and not target.is_relative_to(inside):
                unfit.append((relative, "is a symbolic link out of the variant"))
            elif path.is_symlink() and target.is_dir():
                unfit.append((relative, "is a symbolic link to a folder, which the digest leaves out"))
            elif not target.is_file() and not target.is_dir():
                unfit.append((relative, "is neither a file nor a folder"))
            if target.is_file():
                files.append(relative)
    return tuple(sorted(files)), tuple(sorted(unfit))


def _reraise(error: OSError) -> None:
    raise error


def _read_ops(path: Path) -> OpsModule:
    namespace = module = None
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return OpsModule(namespace=None, module=None)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=None, level=1, names=[ast.alias(name=name)]):
                module = name
            case ast.Attribute(value=ast.Attribute(value=ast.Name(id="torch"), attr="ops"), attr=name):
                namespace = name
            case _:
                pass
    return OpsModule(namespace=namespace, module=module)


def variant_name(tree: Tree) -> list[Violation]:
    """The folder is called as a variant, else no loader looks into it."""
    if tree.variant is not None and str(tree.variant) == tree.name:
        return []
    expected = None if tree.variant is None else str(tree.variant)
    return [
        Violation(
            code="variant-name",
            message=f"{tree.name!r} is not the name of a build variant"
            if expected is None
            else f"the folder is called {tree.name!r}, and the variant is {expected}",
            path=".",
            allowed=expected,
            hint="the loader passes over other names; they look like torch213-cxx11-cu130-x86_64-linux",
        )
    ]


def package(tree: Tree) -> list[Violation]:
    """A Python package, with exactly one extension module unless the variant is Python only."""
    violations = []
    inits = ["__init__.py"] + ([] if tree.metadata is None else [f"{tree.metadata.python_name}/__init__.py"])
    if not any(init in tree.files for init in inits):
        violations.append(
            Violation(
                code="package",
                message="has no __init__.py",
                path=".",
                hint="the loader imports the folder as a package",
            )
        )
    modules = [library for library in tree.libraries if "/" not in library]
    if tree.noarch and tree.libraries:
        violations += [
            Violation(
                code="package",
                message="is a library in a variant that is to run on every processor",
                path=library,
                hint="compiled code is built per PyTorch release: use [torch], not [torch-noarch]",
            )
            for library in tree.libraries
        ]
    elif tree.variant is not None and not tree.noarch and len(modules) != 1:
        listed = f" ({', '.join(modules)})" if modules else ""
        violations.append(
            Violation(
                code="package",
                message=f"has {len(modules)} extension modules{listed} instead of one",
                path=".",
                hint="a build links everything into one module, named after its op namespace",
            )
        )
    return violations


def stray(tree: Tree) -> list[Violation]:
    """No bytecode, nothing hidden, and nothing that a build leaves lying about."""
    leftovers = policies.layout().stray
    violations = []
    for file in tree.files:
        parts = file.split("/")
        suffix = Path(file).suffix.lower()
        if "__pycache__" in parts or suffix in _BYTECODE:
            message, hint = (
                "is bytecode",
                "remove it; set PYTHONDONTWRITEBYTECODE=1 when importing a built variant",
            )
        elif suffix in leftovers or any(part.startswith(".") for part in parts):
            message, hint = (
                "does not belong into a variant",
                "remove it, and its ending from pyext in build.toml",
            )
        else:
            continue
        violations.append(Violation(code="stray", message=message, path=file, hint=hint))
    return violations


def link(tree: Tree) -> list[Violation]:
    """Only files: symbolic links, if any, stay inside and point to one, and a repository stores that."""
    return [
        Violation(code="link", message=message, path=path, hint="put the file itself there")
        for path, message in tree.unfit
    ]


def metadata_file(tree: Tree) -> list[Violation]:
    """metadata.json is what the loader parses, and its id can be a module name."""
    problems = list(tree.metadata_problems)
    if tree.metadata is not None and re.fullmatch(r"[A-Za-z0-9_]+", tree.metadata.id) is None:
        problems.append(f"the id {tree.metadata.id!r} cannot be the name of a module")
    return [
        Violation(
            code="metadata",
            message=problem,
            path=metadata.FILE_NAME,
            hint="`kbuild build` writes this file; do not edit it by hand",
        )
        for problem in problems
    ]


def digest(tree: Tree) -> list[Violation]:
    """Every file is the one that was built. The loader does not check this itself."""
    return [
        Violation(
            code="digest",
            message=problem,
            path=metadata.FILE_NAME,
            hint="a built variant is not edited: change the sources and build it again",
        )
        for problem in tree.digest_problems
    ]


def agreement(tree: Tree) -> list[Violation]:
    """The name of the variant and metadata.json state one backend, with capabilities where it has GPUs."""
    meta = tree.metadata
    if meta is None or tree.variant is None:
        return []
    problems = []
    if tree.backend is not None and meta.backend.type.value != tree.backend.value:
        problems.append(f"backend.type is {meta.backend.type}, and the variant is for {tree.backend}")
    for text in meta.backend.archs or ():
        try:
            Capability.parse(text)
        except ValueError:
            if meta.backend.type.value == Backend.CUDA.value:
                problems.append(f"backend.archs names {text!r}, which is no compute capability")
    if meta.backend.type.value == Backend.CPU.value and meta.backend.archs:
        problems.append("backend.archs names capabilities in a variant for the CPU")
    return [
        Violation(
            code="agreement",
            message=problem,
            path=metadata.FILE_NAME,
            hint="the folder holds the build of another variant: build it again",
        )
        for problem in problems
    ]


def identity(tree: Tree) -> list[Violation]:
    """The id in metadata.json is made of this build's op namespace and this variant's name."""
    if tree.metadata is None or tree.ops is None or tree.ops.namespace is None:
        return []
    found, built_as = tree.metadata.id, _variant_in_id(tree)
    if found != tree.ops.namespace and not found.startswith(f"{tree.ops.namespace}_"):
        message = f"the id is {found!r}, and the op namespace is {tree.ops.namespace}"
    elif tree.variant is not None and built_as is not None and built_as != _as_id(tree.variant):
        message = f"the id says that this is the build of {built_as}, and the variant is {tree.variant}"
    else:
        return []
    return [
        Violation(
            code="identity",
            message=message,
            path=metadata.FILE_NAME,
            needed=built_as,
            allowed=None if tree.variant is None else _as_id(tree.variant),
            hint="the folder was renamed, or its metadata.json was edited: build the variant again",
        )
    ]


def _as_id(variant: Variant) -> str:
    return re.sub(r"\W", "_", str(variant))


def _variant_in_id(tree: Tree) -> str | None:
    """What follows the op namespace in the id; the public kernel-builder's ids are the namespace alone."""
    if tree.metadata is None or tree.ops is None or tree.ops.namespace is None:
        return None
    rest = tree.metadata.id.removeprefix(f"{tree.ops.namespace}_")
    return None if rest == tree.metadata.id else rest


def op_namespace(tree: Tree) -> list[Violation]:
    """`_ops.py`, the module's file name and the kernel's name state one namespace, unique to the build."""
    modules = [library for library in tree.libraries if "/" not in library]
    stem = modules[0].partition(".")[0] if len(modules) == 1 else None
    problems = []
    if tree.ops is None:
        if not tree.noarch:
            problems.append("is missing")
    else:
        namespace, imported = tree.ops.namespace, tree.ops.module
        if namespace is None:
            problems.append("names no torch.ops.<namespace>")
        if stem is not None and imported != stem:
            problems.append(f"imports {imported}, and the module is {stem}")
        if stem is not None and namespace not in (None, stem):
            problems.append(f"uses the namespace {namespace}, and the module is {stem}")
        if namespace is not None and tree.metadata is not None:
            prefix = f"_{tree.metadata.python_name}_"
            if not tree.noarch and tree.backend is not None:
                prefix += f"{tree.backend.value}_"
            if re.fullmatch(rf"{re.escape(prefix)}\w{{6,}}", namespace, re.ASCII) is None:
                problems.append(f"uses the namespace {namespace}, which is not {prefix}<hash>")
    return [
        Violation(
            code="op-namespace",
            message=problem,
            path=_OPS,
            hint="`kbuild build` writes this file; two builds in one process need different namespaces",
        )
        for problem in problems
    ]


def _archs(tree: Tree) -> str:
    if tree.metadata is None:
        return "unreadable"
    archs = " ".join(tree.metadata.backend.archs or ())
    return f"{tree.metadata.backend.type} {archs}".rstrip()


def _no_metadata(tree: Tree) -> str | None:
    return "metadata.json cannot be read" if tree.metadata is None else None


def _no_identity(tree: Tree) -> str | None:
    if tree.metadata is None or identity(tree):
        return _no_metadata(tree)
    if tree.variant is None:
        return "the variant is not known"
    return "the id names no variant" if _variant_in_id(tree) is None else None


def _no_ops(tree: Tree) -> str | None:
    if isinstance(tree.variant, TvmFfiVariant):
        return "a tvm-ffi variant registers no PyTorch ops"
    return "a variant without ops" if tree.noarch and tree.ops is None else None


TREE_RULES = (
    TreeRule(code="variant-name", title="variant", check=variant_name, found=lambda t: t.name),
    TreeRule(
        code="package",
        title="package",
        check=package,
        found=lambda t: f"{len(t.files)} files, {len(t.libraries)} libraries",
    ),
    TreeRule(code="stray", title="strays", check=stray, found=lambda t: str(len(stray(t)) or "none")),
    TreeRule(code="link", title="links", check=link, found=lambda t: str(len(t.unfit) or "none")),
    TreeRule(
        code="metadata",
        title="metadata.json",
        check=metadata_file,
        found=lambda t: (
            "unreadable" if t.metadata is None else f"{t.metadata.name} version {t.metadata.version}"
        ),
    ),
    TreeRule(
        code="digest",
        title="digest",
        check=digest,
        found=lambda t: f"{len(t.digest_problems)} differences" if t.digest_problems else "matches",
        missing=_no_metadata,
    ),
    TreeRule(code="agreement", title="built for", check=agreement, found=_archs, missing=_no_metadata),
    TreeRule(
        code="identity",
        title="id",
        check=identity,
        found=lambda t: "" if t.metadata is None else t.metadata.id,
        missing=_no_identity,
    ),
    TreeRule(
        code="op-namespace",
        title="op namespace",
        check=op_namespace,
        found=lambda t: (t.ops and t.ops.namespace) or "none",
        missing=_no_ops,
    ),
)
