"""Rules about bindings and device sources: what is registered, how, and which headers it is paid for with."""

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kbuild.config.edits import append_entry, remove_entry
from kbuild.config.model import CpuKernel, CudaKernel, Dependency, Kernel, Torch, TorchNoarch
from kbuild.diagnostics import Span
from kbuild.lints.python_rules import Module
from kbuild.lints.tree import Tree
from kbuild.sources.cxx import Bindings, Definition, bindings
from kbuild.sources.files import COMPILED, IMPLICIT_INCLUDE, inside, is_source
from kbuild.sources.includes import Include
from kbuild.sources.op_schema import Schema, SchemaError, parse_schema
from kbuild.sources.python import dotted, span_of
from kbuild.text import did_you_mean

_EXPANDED = "TORCH_EXTENSION_NAME"
_TORCH_HEADER = re.compile(r"(?:torch|ATen|c10)/|Python\.h$|pybind11/")
_WHOLE_TORCH = ("torch/all.h", "torch/torch.h", "torch/extension.h")
_STABLE_HEADER = re.compile(
    r"Python\.h$|torch/csrc/stable/|torch/headeronly/|torch/csrc/inductor/aoti_torch/c/"
)
_CUTLASS_HEADER = re.compile(r"(?:cutlass|cute)/")


def check_cxx(tree: Tree, modules: Iterable[Module]) -> None:
    """Run every rule on the listed sources; `modules` are the package's parsed files."""
    files = [path for path in map(inside, tree.config.listed_files) if path in tree.files and is_source(path)]
    found = {path: bindings(path, tree.text(path)) for path in files}
    for part in found.values():
        _namespaces(tree, part)
    _entry(tree, found.values())
    framework = tree.config.framework
    everything: dict[tuple[str, int], tuple[str, Include]] = {}
    stable: dict[tuple[str, int], tuple[str, Include]] = {}
    if not isinstance(framework, TorchNoarch):
        _operations(tree, tuple(found.values()), tuple(modules))
        reached = _by_place(_reached(tree, framework.src, framework.include))
        everything |= reached
        if tree.config.kernels and all(_is_stable(tree, kernel) for kernel in tree.config.kernels):
            stable |= reached
    for kernel in tree.config.kernels:
        reached = _by_place(_reached(tree, kernel.src, kernel.include))
        everything |= reached
        if _is_stable(tree, kernel):
            stable |= reached
        _headers_and_depends(tree, kernel, list(reached.values()))
    _extension_headers(tree, list(everything.values()))
    _whole_torch(tree, list(everything.values()))
    _stable_headers(tree, list(stable.values()))


def _namespaces(tree: Tree, part: Bindings) -> None:
    for library in part.libraries:
        if library.macro.endswith("_EXPAND") and library.namespace == _EXPANDED:
            continue
        wrapped = library.namespace == _EXPANDED
        tree.report.error(
            "fixed-namespace",
            f"{library.macro} does not expand {_EXPANDED}: it would register that very word as the namespace"
            if wrapped
            else f"{library.macro} registers in the fixed namespace {library.namespace!r}: two builds of the kernel "
            "could not be loaded together",
            library.span,
            hint=f'#include "registration.h", then {library.macro.removesuffix("_EXPAND")}_EXPAND({_EXPANDED}, ...)',
        )
    for definition in part.definitions:
        if "::" in definition.schema.partition("(")[0]:
            tree.report.error(
                "fixed-namespace",
                f"the schema names a namespace of its own: {definition.schema.partition('(')[0]}",
                definition.span,
                hint="name the operation alone: the block gives the namespace",
            )


def _entry(tree: Tree, parts: Iterable[Bindings]) -> None:
    """The library is a Python module only by REGISTER_EXTENSION, and importing it is what registers the rest."""
    mentions = [mention for part in parts for mention in part.mentions]
    libraries = [library for part in parts for library in part.libraries]
    for mention in mentions:
        match mention.name:
            case "REGISTER_EXTENSION" if mention.argument == _EXPANDED:
                continue
            case "REGISTER_EXTENSION":
                code, why = (
                    "fixed-namespace",
                    f"REGISTER_EXTENSION gives the module the fixed name {mention.argument!r}",
                )
            case "PYBIND11_MODULE" | "PYBIND11_EMBEDDED_MODULE":
                code, why = (
                    "pybind",
                    "pybind11 is not of Python's limited API: a build would serve one Python only",
                )
            case "RegisterOperators":
                code, why = "fixed-namespace", "RegisterOperators registers in a fixed namespace"
            case _:
                code, why = (
                    "hand-written-init",
                    f"REGISTER_EXTENSION writes {mention.name}; another clashes with it",
                )
        tree.report.error(
            code,
            why,
            mention.span,
            hint=f"register with TORCH_LIBRARY_EXPAND({_EXPANDED}, ...) and REGISTER_EXTENSION({_EXPANDED})",
        )
    if libraries and not mentions and isinstance(tree.config.framework, Torch):
        tree.report.error(
            "no-register-extension",
            "the bindings have no REGISTER_EXTENSION: Python could not import the library",
            libraries[0].span,
            hint=f'#include "registration.h", and REGISTER_EXTENSION({_EXPANDED}) after the operations',
        )


def _extension_headers(tree: Tree, reached: list[tuple[str, Include]]) -> None:
    for path, include in reached:
        if include.target == "torch/extension.h" or include.target.startswith("pybind11/"):
            add = tree.report.warning if include.conditional else tree.report.error
            add(
                "pybind-header",
                f"{include.target} brings in pybind11, which is not of Python's limited API",
                _include_span(path, include),
                hint="bindings need <torch/library.h>, sources <ATen/core/Tensor.h> or <torch/all.h>",
            )


def _operations(tree: Tree, parts: tuple[Bindings, ...], modules: tuple[Module, ...]) -> None:
    definitions = [definition for part in parts for definition in part.definitions]
    implementations = [implementation for part in parts for implementation in part.implementations]
    schemas = {id(definition): _schema(tree, definition) for definition in definitions}
    defined = {definition.name for definition in definitions}
    in_python = _named_in_python(modules)
    # What a macro or a function registers cannot be read: then nothing is said about what is missing.
    if any(part.computed for part in parts):
        return
    implemented = {_bare(implementation.name) for implementation in implementations}
    for definition in definitions:
        if not (
            definition.has_function or definition.name in implemented or definition.name in in_python.all
        ):
            tree.report.error(
                "def-without-impl",
                f"operation {definition.name!r} is defined and implemented nowhere: a call of it fails",
                definition.span,
                hint=f'ops.impl("{definition.name}", torch::kCUDA, &function)',
            )
    for implementation in implementations:
        name = _bare(implementation.name)
        if name not in defined:
            tree.report.error(
                "impl-without-def",
                f"operation {name!r} is implemented and defined nowhere.{did_you_mean(name, defined)}",
                implementation.span,
                hint=f'ops.def("{name}(...) -> ...")',
            )
    if defined:
        known = defined | in_python.defined
        _used_operations(tree, modules, known)
        for path, node, name in in_python.additions:
            if name not in known:
                _unknown_operation(tree, path, node, name, known)
    _fakes(tree, definitions, schemas, modules)


def _bare(name: str) -> str:
    """Without namespace and overload."""
    return name.rpartition("::")[2].partition(".")[0]


def _schema(tree: Tree, definition: Definition) -> Schema | None:
    if "(" not in definition.schema and definition.has_function:
        return None  # PyTorch infers it from the function
    try:
        return parse_schema(definition.schema)
    except SchemaError as error:
        tree.report.error(
            "bad-schema",
            f"PyTorch would refuse the schema: {error}, at {definition.schema[: error.position]!r}",
            definition.span,
            hint='for example "name(Tensor! out, Tensor input, float eps=1e-6) -> ()"',
        )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _PythonNames:
    """Operations that Python names under the kernel's namespace: those it may define, and what it adds to others."""

    defined: frozenset[str]
    additions: tuple[tuple[str, ast.Call, str], ...]

    @property
    def all(self) -> frozenset[str]:
        return self.defined | {name for _, _, name in self.additions}


# Functions that add to an operation which exists; every other use of a name may be what makes it exist.
_ADDITIONS = (
    "impl",
    "register_kernel",
    "register_fake",
    "impl_abstract",
    "register_autograd",
    "register_vmap",
    "register_autocast",
    "register_torch_dispatch",
)


def _named_in_python(modules: tuple[Module, ...]) -> _PythonNames:
    """A name that is an argument of any other call may be what defines the operation, or asks whether it exists."""
    defined: set[str] = set()
    additions: list[tuple[str, ast.Call, str]] = []
    for module in modules:
        adding: set[int] = set()
        for node in module.nodes:
            if not isinstance(node, ast.Call):
                continue
            if _called(node) in _ADDITIONS and node.args and isinstance(node.args[0], ast.Call):
                inner = node.args[0]
                if _called(inner) == "add_op_namespace_prefix":
                    adding.add(id(inner))
                    additions += [(module.path, inner, _bare(text)) for text in _texts(inner)]
            # NB: the walk meets a call before its arguments.
            if id(node) not in adding:
                defined |= {_bare(text) for text in _texts(node)}
    return _PythonNames(defined=frozenset(defined), additions=tuple(additions))


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return dotted(call.func).rpartition(".")[2]


def _texts(call: ast.Call) -> Iterator[str]:
    """The string arguments of a call, by place and by name."""
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    return (arg.value for arg in arguments if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def _used_operations(tree: Tree, modules: tuple[Module, ...], known: set[str]) -> None:
    for module in modules:
        if not _imports_ops(module):
            continue
        for node in module.nodes:
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "ops"
                and not node.attr.startswith("__")
                and node.attr not in known
            ):
                _unknown_operation(tree, module.path, node, node.attr, known)


def _unknown_operation(tree: Tree, path: str, node: ast.AST, name: str, known: set[str]) -> None:
    tree.report.error(
        "unknown-op",
        f"no binding defines operation {name!r}.{did_you_mean(name, known)}",
        span_of(path, node),
        hint=f"defined: {', '.join(sorted(known))}",
    )


def _imports_ops(module: Module) -> bool:
    return any(
        isinstance(node, ast.ImportFrom)
        and node.level > 0
        and (node.module or "").rpartition(".")[2] == "_ops"
        and any(alias.name == "ops" and alias.asname in (None, "ops") for alias in node.names)
        for node in module.nodes
    )


def _fakes(
    tree: Tree, definitions: list[Definition], schemas: dict[int, Schema | None], modules: tuple[Module, ...]
) -> None:
    """An author who registers one fake, or says can_torch_compile, means the others too."""
    faked: set[str] = set()
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Call) and _called(node) in _FAKES:
                calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
                faked |= {text for call in calls for text in _texts(call)}
    # Operations that only run inside of Python operations are never traced: those authors fake the latter.
    some_are_faked = any(definition.name in faked for definition in definitions)
    if not some_are_faked and not any(_says_it_compiles(module) for module in modules):
        return
    for definition in definitions:
        schema = schemas[id(definition)]
        if schema is not None and schema.returns and definition.name not in faked:
            tree.report.warning(
                "missing-fake",
                f"operation {definition.name!r} returns something and has no fake: torch.compile breaks the graph",
                definition.span,
                hint=f'@torch.library.register_fake(add_op_namespace_prefix("{definition.name}"))',
            )


_FAKES = ("register_fake", "impl_abstract", "impl")


def _says_it_compiles(module: Module) -> bool:
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == "can_torch_compile" for target in node.targets)
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
        for node in module.nodes
    )


def _headers_and_depends(tree: Tree, kernel: Kernel, reached: list[tuple[str, Include]]) -> None:
    """Compare what a section depends on with the headers that its files include."""
    torch = [(path, include) for path, include in reached if _TORCH_HEADER.match(include.target)]
    where = ("kernel", kernel.id, "depends")
    depends = Dependency.TORCH in kernel.depends
    complete = all(path in tree.files for path in map(inside, kernel.src)) and any(
        path.endswith(COMPILED) for path in kernel.src
    )
    if depends and not torch and complete and isinstance(kernel, CpuKernel | CudaKernel):
        tree.report.warning(
            "unneeded-torch",
            f"kernel {kernel.id!r} depends on torch, and no file of it includes a PyTorch header: without, it is "
            "compiled once per toolkit and not once per PyTorch",
            tree.source.value(*where, kernel.depends.index(Dependency.TORCH)),
            hint='take "torch" out of depends',
            fix=remove_entry(tree.source, where, kernel.depends.index(Dependency.TORCH)),
        )
    sure = next(((path, include) for path, include in torch if not include.conditional), None)
    if sure is not None and not depends:
        tree.report.error(
            "missing-depends",
            f"kernel {kernel.id!r} includes {sure[1].target} and does not depend on torch",
            _include_span(*sure),
            hint=f'add "torch" to kernel.{kernel.id}.depends',
            fix=append_entry(tree.source, where, "torch"),
        )
    cutlass = [(path, include) for path, include in reached if _CUTLASS_HEADER.match(include.target)]
    sure = next(((path, include) for path, include in cutlass if not include.conditional), None)
    if (
        sure is not None
        and isinstance(kernel, CudaKernel)
        and not any("cutlass" in name for name in kernel.depends)
    ):
        tree.report.error(
            "missing-depends",
            f"kernel {kernel.id!r} includes {sure[1].target} and depends on no CUTLASS",
            _include_span(*sure),
            hint=f'add a version of it to kernel.{kernel.id}.depends, for example "cutlass_4_5"',
        )


def _whole_torch(tree: Tree, reached: list[tuple[str, Include]]) -> None:
    for path, include in reached:
        if path.endswith(".cu") and include.target in _WHOLE_TORCH and not include.conditional:
            tree.report.note(
                "whole-torch",
                f"{include.target} in device code is all of PyTorch's C++ interface, read once per architecture: "
                "minutes, where the same kernel without it takes seconds",
                _include_span(path, include),
                hint="pass plain pointers from the bindings, or include <ATen/core/Tensor.h> and what you use",
            )


def _is_stable(tree: Tree, kernel: Kernel) -> bool:
    framework = tree.config.framework
    return isinstance(framework, Torch) and framework.stable_abi(kernel.backend) is not None


def _stable_headers(tree: Tree, reached: list[tuple[str, Include]]) -> None:
    """A build for the stable ABI sees only what is stable; what stands under a condition may be for other builds."""
    for path, include in reached:
        unstable = _TORCH_HEADER.match(include.target) and not _STABLE_HEADER.match(include.target)
        if unstable and not include.conditional:
            tree.report.error(
                "unstable-header",
                f"{include.target} is not of PyTorch's stable ABI, which torch.stable-abi asks for",
                _include_span(path, include),
                hint="include <torch/csrc/stable/...> and <torch/headeronly/...>, or remove torch.stable-abi",
            )


def _by_place(reached: list[tuple[str, Include]]) -> dict[tuple[str, int], tuple[str, Include]]:
    return {(path, include.line): (path, include) for path, include in reached}


def _reached(tree: Tree, src: Iterable[str], include_folders: Iterable[str]) -> list[tuple[str, Include]]:
    """Includes of what a section compiles, and of the project's headers below, that are none of its files."""
    folders = [folder for folder in map(inside, include_folders) if folder is not None]
    queue = [path for path in map(inside, src) if path in tree.files and path.endswith(COMPILED)]
    seen = set(queue)
    outside: list[tuple[str, Include]] = []
    while queue:
        path = queue.pop(0)
        for include in tree.includes(path):
            places = [*([posixpath.dirname(path)] if include.quoted else []), *folders, IMPLICIT_INCLUDE]
            targets = (inside(posixpath.join(place, include.target)) for place in places)
            target = next((name for name in targets if name is not None and name in tree.files), None)
            if target is None:
                outside.append((path, include))
            elif target not in seen:
                seen.add(target)
                queue.append(target)
    return outside


def _include_span(path: str, include: Include) -> Span:
    return Span(path=path, line=include.line, column=include.column, length=len(include.target))
