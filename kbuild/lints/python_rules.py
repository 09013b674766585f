"""Rules about the Python package: what the loader requires, and what breaks two kernels in one process."""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from kbuild.config.dependencies import PythonDepends
from kbuild.config.model import Backend, TvmFfi
from kbuild.diagnostics import Span
from kbuild.lints.tree import Tree
from kbuild.resources import data_json
from kbuild.sources.python import (
    Guard,
    Import,
    absolute,
    aliases,
    evaluated_unions,
    imports,
    newer_than_floor,
    span_of,
)

# Functions of torch.library whose first argument names an operation (or, for Library, a namespace).
_REGISTERS = (
    "custom_op",
    "triton_op",
    "define",
    "impl",
    "register_fake",
    "impl_abstract",
    "register_kernel",
    "register_autograd",
    "register_vmap",
    "register_autocast",
    "register_torch_dispatch",
)
_PREFIX = "add_op_namespace_prefix"
# What comes along with PyTorch itself; with the loader; and with the PyTorch builds of some backends.
_COMES_WITH_TORCH = frozenset(("torch", "triton"))
_COMES_WITH_THE_LOADER = frozenset(("kernels", "huggingface_hub", "packaging", "numpy"))
_COMES_WITH_BACKEND = {
    Backend.CANN: ("torch_npu",),
    Backend.NEURON: ("nki", "neuronxcc", "torch_neuronx"),
    Backend.TPU: ("torch_tpu", "jax", "jaxlib"),
}
# Namespaces of PyTorch itself, which a kernel may use.
_TORCH_NAMESPACES = (
    "aten",
    "prims",
    "prim",
    "c10d",
    "_c10d_functional",
    "quantized",
    "higher_order",
    "inductor",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file of the package."""

    path: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    aliases: dict[str, str]


def check_python(tree: Tree) -> tuple[Module, ...]:
    """Run every rule; the parsed modules are for rules that compare Python with C++."""
    modules = tuple(_parse(tree, tree.package))
    loaded = _loaded_with_the_package(tree, modules)
    for module in modules:
        _floor(tree, module)
        _imports(tree, module, loaded)
        _imports_by_call(tree, module)
        _namespaces(tree, module)
        _prefix_is_not_wrapped(tree, module)
    _annotations(tree, modules)
    _layers(tree, modules)
    _exports(tree, modules)
    _tests(tree)
    return modules


def _parse(tree: Tree, folder: str) -> Iterator[Module]:
    for path in tree.below(folder, ".py"):
        try:
            parsed = ast.parse(tree.text(path), path)
        except SyntaxError as error:
            tree.report.error(
                "python-syntax",
                f"not valid Python: {error.msg}",
                Span(path=path, line=error.lineno or 1, column=max(1, error.offset or 1)),
            )
        except (ValueError, RecursionError, MemoryError) as error:  # a null byte; endless nesting
            tree.report.error("python-syntax", f"not readable as Python: {error}", Span(path=path))
        else:
            nodes = tuple(ast.walk(parsed))
            yield Module(path=path, tree=parsed, nodes=nodes, aliases=aliases(nodes))


def _floor(tree: Tree, module: Module) -> None:
    for node, what in newer_than_floor(module.nodes):
        tree.report.warning(
            "python-floor",
            f"{what}, and a kernel must run with 3.9",
            span_of(module.path, node),
            hint="write it as Python 3.9 does",
        )


def _annotations(tree: Tree, modules: tuple[Module, ...]) -> None:
    """One finding for the package: where there are some, there are many."""
    unions = [(module, node) for module in modules for node in evaluated_unions(module.tree)]
    if not unions:
        return
    module, node = unions[0]
    more = f" (one of {len(unions)} in the package)" if len(unions) > 1 else ""
    tree.report.warning(
        "python-floor",
        f"an annotation with | that is evaluated{more} needs Python 3.10, and a kernel must run with 3.9",
        span_of(module.path, node),
        hint="add at the top of the file: from __future__ import annotations",
    )


def _imports(tree: Tree, module: Module, loaded: frozenset[str]) -> None:
    """What the package imports when it is loaded must be there; elsewhere it is a warning."""
    name = tree.config.general.python_name
    declared = _declared_modules(tree)
    for entry in imports(module.path, module.tree):
        if entry.level or entry.guard is Guard.TYPING or not entry.module:
            continue
        if entry.top == name:
            instead = f"from . import ..., not from {entry.module} import ..."
            _self_import(tree, entry.module, entry.span, instead)
        elif entry.top not in declared and entry.guard is not Guard.OPTIONAL:
            fatal = (
                entry.guard is Guard.NONE
                and module.path in loaded
                and entry.top not in _COMES_WITH_THE_LOADER
            )
            add = tree.report.error if fatal else tree.report.warning
            add(
                "foreign-import",
                f"{entry.top!r} is not in the standard library, PyTorch or general.python-depends",
                entry.span,
                hint=_import_hint(entry.top),
            )


def _imports_by_call(tree: Tree, module: Module) -> None:
    name = tree.config.general.python_name
    for node in module.nodes:
        if isinstance(node, ast.Call) and node.args:
            function = absolute(node.func, module.aliases)
            target = _literal(node.args[0]) if function in ("importlib.import_module", "__import__") else None
            if target is not None and target.partition(".")[0] == name:
                _self_import(tree, target, span_of(module.path, node), "import_module(..., __package__)")


def _self_import(tree: Tree, target: str, span: Span, instead: str) -> None:
    tree.report.error(
        "absolute-self-import",
        f"the package imports itself by name, and a loaded kernel has no fixed name: {target}",
        span,
        hint=f"use a relative import: {instead}",
    )


def _loaded_with_the_package(tree: Tree, modules: tuple[Module, ...]) -> frozenset[str]:
    """The files that importing the package imports, by relative imports outside of functions and conditions."""
    by_path = {module.path: module for module in modules}
    queue = [f"{tree.package}/__init__.py"]
    found: set[str] = set()
    while queue:
        path = queue.pop()
        if path in found or path not in by_path:
            continue
        found.add(path)
        for entry in imports(path, by_path[path].tree):
            if entry.level and entry.guard is Guard.NONE:
                queue += _targets(path, entry)
    return frozenset(found)


def _targets(path: str, entry: Import) -> Iterator[str]:
    """The files that one relative import may load: the module, its parents, and names that are modules."""
    folder = path.split("/")[: -entry.level]
    parts = [part for part in entry.module.split(".") if part]
    for end in range(len(parts) + 1):
        base = "/".join([*folder, *parts[:end]])
        yield from (f"{base}/__init__.py", f"{base}.py")
    yield from (f"{base}/{name}{end}" for name in entry.names for end in (".py", "/__init__.py"))


def _import_hint(module: str) -> str:
    known = PythonDepends.load()
    for packages in (known.general, *known.backends.values()):
        for package, imported in packages.items():
            if imported == module:
                return f'add "{package}" to {known.home(package)}.python-depends'
    return (
        "copy what you need into the package, or import it in try/except ImportError with a way to do without"
    )


def _declared_modules(tree: Tree) -> frozenset[str]:
    general, known = tree.config.general, PythonDepends.load()
    packages = {name for backend in general.backends for name in general.all_python_depends(backend)}
    declared = {module for package in packages for module in known.modules(package)}
    declared |= {module for backend in general.backends for module in _COMES_WITH_BACKEND.get(backend, ())}
    if isinstance(tree.config.framework, TvmFfi):
        declared.add("tvm_ffi")
    return frozenset(sys.stdlib_module_names) | _COMES_WITH_TORCH | declared


def _namespaces(tree: Tree, module: Module) -> None:
    constants = _constants(module)
    for node in module.nodes:
        if isinstance(node, ast.Call):
            first = _first_argument(node)
            text = _beginning(first, constants)
            problem = None if text is None else _names_a_namespace(absolute(node.func, module.aliases), text)
            if problem is not None:
                _fixed(tree, module, first, problem)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            name = absolute(node.value, module.aliases)
            if name == f"torch.ops.{tree.config.general.python_name}":
                _fixed(tree, module, node, f"{name}.{node.attr} is in a fixed namespace")


def _names_a_namespace(function: str, text: str) -> str | None:
    """What is wrong with a call of `function` whose first argument begins with `text`."""
    parent, _, called = function.rpartition(".")
    namespace, colons, _ = text.partition("::")
    if called == _PREFIX and colons:
        return f"{_PREFIX} adds the namespace to {text!r}, which has one"
    if namespace in _TORCH_NAMESPACES:
        return None
    if parent == "torch.library" and called in _REGISTERS and colons:
        return f"{called} names {text!r} in a fixed namespace"
    if function == "torch.library.Library":
        return f"Library opens the fixed namespace {text!r}"
    return None


def _first_argument(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    names = ("name", "qualname", "op", "op_name", "ns")
    return next((keyword.value for keyword in call.keywords if keyword.arg in names), None)


def _constants(module: Module) -> dict[str, str]:
    """Names at the top of the file that are bound to a string and never again."""
    bound = [
        node.id for node in module.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    return {
        target.id: node.value.value
        for node in module.tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and bound.count(target.id) == 1
    }


def _beginning(node: ast.expr | None, constants: dict[str, str]) -> str | None:
    """How a string begins, as far as the file says; None where it says nothing."""
    operands: list[ast.expr] = []
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mod):
        operands.append(node.right)
        node = node.left
    parts: list[ast.expr] = [] if node is None else [node, *reversed(operands)]
    if isinstance(node, ast.JoinedStr):
        parts = [*node.values, *parts[1:]]
    text = ""
    for part in parts:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        match inner:
            case ast.Constant(value=str() as literal):
                text += literal
            case ast.Name(id=name) if name in constants:
                text += constants[name]
            case _:
                break
    return text or None


def _literal(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _fixed(tree: Tree, module: Module, node: ast.AST | None, message: str) -> None:
    tree.report.error(
        "fixed-namespace",
        f"{message}: two builds of the kernel could not be loaded together",
        span_of(module.path, node or module.tree),
        hint=f'from ._ops import {_PREFIX}, ops; then {_PREFIX}("name") and ops.name',
    )


def _prefix_is_not_wrapped(tree: Tree, module: Module) -> None:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef) and node.name == _PREFIX:
            tree.report.error(
                "wrapped-prefix",
                f"the package defines its own {_PREFIX}: where the import of the real one fails, "
                "operations silently get a fixed namespace",
                span_of(module.path, node),
                hint=f"use from ._ops import {_PREFIX}, without a fall-back",
            )


def _layers_module(tree: Tree, modules: tuple[Module, ...]) -> Module | None:
    paths = (f"{tree.package}/layers.py", f"{tree.package}/layers/__init__.py")
    return next((module for module in modules if module.path in paths), None)


def _layers(tree: Tree, modules: tuple[Module, ...]) -> None:
    """Layers are what `kernelize` finds in the package's `layers`: defined there, or imported from beside it."""
    home = _layers_module(tree, modules)
    if home is None:
        return
    _pure(tree, home, None)
    for entry in imports(home.path, home.tree):
        if entry.level:
            targets = set(_targets(home.path, entry))
            for module in modules:
                if module.path in targets and module is not home:
                    _pure(tree, module, None if "*" in entry.names else frozenset(entry.names))


def _pure(tree: Tree, module: Module, names: frozenset[str] | None) -> None:
    allowed = {"has_backward", "can_torch_compile", *_module_members()}
    for node in _layer_classes(module):
        if names is not None and node.name not in names:
            continue
        for part in node.body:
            for name, place in _members(part):
                if name in allowed or (name.startswith("__") and name.endswith("__") and name != "__init__"):
                    continue
                what = "a constructor" if name == "__init__" else f"a member {name!r}"
                tree.report.error(
                    "impure-layer",
                    f"layer {node.name} has {what}, and kernelize takes layers without state only",
                    span_of(module.path, place),
                    hint="keep forward alone (and has_backward, can_torch_compile); make the rest functions",
                )


def _layer_classes(module: Module) -> Iterator[ast.ClassDef]:
    """Public module classes at the top of a file."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            names = {absolute(base, module.aliases) for base in node.bases}
            if not names.isdisjoint(_MODULE_NAMES):
                yield node


_MODULE_NAMES = ("torch.nn.Module", "torch.nn.modules.module.Module", "nn.Module")


@cache
def _module_members() -> frozenset[str]:
    return frozenset(data_json("torch_python.json")["nn_module_members"])


def _members(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node
        case ast.Assign(targets=targets):
            yield from ((target.id, target) for target in targets if isinstance(target, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name) as target, value=value) if value is not None:
            yield name, target
        case _:
            pass


def _exports(tree: Tree, modules: tuple[Module, ...]) -> None:
    init = next((module for module in modules if module.path == f"{tree.package}/__init__.py"), None)
    if init is None:
        return
    bound = _bound_names(init)
    exported = next((node for node in init.tree.body if _assigns_all(node)), None)
    if exported is not None and "*" not in bound:
        for element in ast.walk(exported):
            text = _literal(element) if isinstance(element, ast.Constant) else None
            if text is not None and text not in bound and not _is_submodule(tree, text):
                tree.report.warning(
                    "bad-all",
                    f"__all__ names {text!r}, which the package does not define",
                    span_of(init.path, element),
                    hint="import or define it in __init__.py, or take it out of __all__",
                )
    home = _layers_module(tree, modules)
    if home is not None and next(_layer_classes(home), None) and "layers" not in bound and "*" not in bound:
        tree.report.warning(
            "unexported-layers",
            "the package has layers and does not import them: kernelize would not find them",
            Span(path=init.path),
            hint="add to __init__.py: from . import layers",
        )


def _tests(tree: Tree) -> None:
    """Tests that import the package by name test what lies in the folder, not what users load."""
    name = tree.config.general.python_name
    for module in _parse(tree, "tests"):
        for entry in imports(module.path, module.tree):
            if not entry.level and entry.top == name and entry.guard in (Guard.NONE, Guard.FUNCTION):
                tree.report.warning(
                    "direct-test-import",
                    f"the test imports {entry.module} and not what the loader loads",
                    entry.span,
                    hint=f'{name} = kernels.get_kernel("org/{tree.config.general.name}", version=...)',
                )
                break


def _assigns_all(node: ast.stmt) -> bool:
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _bound_names(module: Module) -> frozenset[str]:
    """Every name that the module could bind, wherever; `*` for a star import."""
    names: set[str] = set()
    for node in module.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Import(names=aliases_) | ast.ImportFrom(names=aliases_):
                names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases_}
            case _:
                pass
    if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in module.tree.body):
        names.add("*")
    return frozenset(names)


def _is_submodule(tree: Tree, name: str) -> bool:
    return f"{tree.package}/{name}.py" in tree.files or f"{tree.package}/{name}/__init__.py" in tree.files
