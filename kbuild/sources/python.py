"""Facts about a Python file, read off its syntax tree; nothing is imported or run."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from kbuild.diagnostics import Span


class Guard(StrEnum):
    """What stands around an import."""

    NONE = "none"
    FUNCTION = "function"
    OPTIONAL = "optional"
    TYPING = "typing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module, absolute (`level` 0) or relative."""

    module: str
    level: int
    names: tuple[str, ...]
    guard: Guard
    span: Span

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


def span_of(path: str, node: ast.AST) -> Span:
    """The place of a node."""
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    end = (
        getattr(node, "end_col_offset", column + 1)
        if getattr(node, "end_lineno", line) == line
        else column + 1
    )
    return Span(path=path, line=line, column=column + 1, length=max(1, (end or column + 1) - column))


def imports(path: str, tree: ast.AST) -> Iterator[Import]:
    """Every import at any depth, with what guards it."""
    # NB: no recursion, for each `elif` of a chain is nested in the one before it.
    left = [(tree, Guard.NONE)]
    while left:
        node, guard = left.pop()
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(module=alias.name, level=0, names=(), guard=guard, span=span_of(path, node))
            case ast.ImportFrom(module=module, names=names, level=level):
                yield Import(
                    module=module or "",
                    level=level,
                    names=tuple(alias.name for alias in names),
                    guard=guard,
                    span=span_of(path, node),
                )
            case _:
                left += reversed(list(_statements(node, guard)))


def _statements(node: ast.AST, guard: Guard) -> Iterator[tuple[ast.AST, Guard]]:
    """The statements directly inside of a node, each with the guard that holds for it; the strongest wins."""
    match node:
        case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
            inner = guard
            if guard is not Guard.TYPING and any(map(_catches_imports, handlers)):
                inner = Guard.OPTIONAL
            parts = [(part, inner) for part in (*body, *handlers, *orelse)]
            yield from (*parts, *((part, guard) for part in final))
        case ast.If(test=test, body=body, orelse=orelse):
            # A condition is the author asking whether something is there.
            inner = Guard.OPTIONAL if guard is Guard.NONE else guard
            yield from ((part, Guard.TYPING if _mentions(test, "TYPE_CHECKING") else inner) for part in body)
            yield from ((part, inner) for part in orelse)
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            yield from ((part, Guard.FUNCTION if guard is Guard.NONE else guard) for part in body)
        case _:
            for field in ("body", "handlers", "orelse", "finalbody", "cases"):
                parts_of = getattr(node, field, None)
                if isinstance(parts_of, list):
                    yield from ((part, guard) for part in parts_of)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    names = (
        {name.id for name in ast.walk(handler.type) if isinstance(name, ast.Name)} if handler.type else None
    )
    return names is None or bool(names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"})


def _mentions(test: ast.expr, name: str) -> bool:
    return name in {
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(test)
        if isinstance(node, ast.Name | ast.Attribute)
    }


def dotted(node: ast.AST) -> str:
    """`torch.library.define` for such an expression, an empty string for any other."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def aliases(nodes: Iterable[ast.AST]) -> dict[str, str]:
    """Local name -> absolute dotted name, for every absolute import among the nodes."""
    found = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    found[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


def absolute(node: ast.AST, names: dict[str, str]) -> str:
    """The dotted name of an expression with import aliases undone."""
    name = dotted(node)
    head, dot, rest = name.partition(".")
    return names.get(head, head) + dot + rest


def evaluated_unions(tree: ast.Module) -> Iterator[ast.AST]:
    """Unions such as `int | None` in annotations that Python evaluates, where only Python 3.10 can."""
    if any(map(_postpones_annotations, tree.body)):
        return
    left: list[tuple[ast.AST, bool]] = [(tree, False)]
    while left:
        node, in_function = left.pop()
        match node:
            case (
                ast.FunctionDef(args=args, returns=returns) | ast.AsyncFunctionDef(args=args, returns=returns)
            ):
                every = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
                yield from _unions([*(arg.annotation for arg in every if arg is not None), returns])
                in_function = True
            case ast.ClassDef():
                in_function = False
            case ast.AnnAssign(annotation=annotation) if not in_function:
                yield from _unions([annotation])
            case ast.If(test=test) if _mentions(test, "TYPE_CHECKING") or _mentions(test, "version_info"):
                continue
            case _:
                pass
        left += reversed([(child, in_function) for child, _ in _statements(node, Guard.NONE)])


def _unions(annotations: Iterable[ast.expr | None]) -> Iterator[ast.AST]:
    """The outermost union of each annotation that has one."""
    for annotation in annotations:
        nodes = () if annotation is None else ast.walk(annotation)
        yield from islice((n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr)), 1)


def _postpones_annotations(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
    )


def newer_than_floor(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Syntax that Python 3.9 does not have, and what it is called."""
    for node in nodes:
        match node:
            case ast.Match():
                yield node, "match is of Python 3.10"
            case ast.TryStar():
                yield node, "except* is of Python 3.11"
            case _:
                if type(node).__name__ in ("TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple"):
                    yield node, "type parameters are of Python 3.12"
