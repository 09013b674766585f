"""Filling in a card's template: the part of Jinja that always ends, and quickly.

A template shows values, with `if`, `for` and a few filters. Left out is what can fail or grow without bounds:
arithmetic, calls, variables of its own, macros. So whatever somebody's CARD.md says costs no more than its size allows.
"""

import traceback
from collections.abc import Mapping

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.sandbox import SandboxedEnvironment

HINT = (
    "A card shows values, with `if`, `for` and simple filters. Write {% raw %} … {% endraw %} around text with braces "
    "that is none of it."
)

_ALLOWED = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem,
    nodes.Slice, nodes.Neg, nodes.Tuple, nodes.List, nodes.For, nodes.If, nodes.CondExpr, nodes.Not, nodes.And,
    nodes.Or, nodes.Compare, nodes.Operand, nodes.Test, nodes.Filter,
)  # fmt: skip
_GROWING = frozenset({"join", "replace"})
_FILTERS = _GROWING | {
    "capitalize", "count", "d", "default", "e", "escape", "first", "last", "length", "lower", "reverse", "safe", "sort",
    "title", "trim", "unique", "upper",
}  # fmt: skip
_LOOPS = 2


class TemplateProblemError(Exception):
    """The template cannot be filled in; `line` is None where no line is to blame."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


def fill(text: str, values: Mapping[str, object]) -> str:
    """The template with its values. Raises TemplateProblemError."""
    # NB: a template is somebody's file, so it gets no Python.
    environment = SandboxedEnvironment(trim_blocks=True, keep_trailing_newline=True)
    try:
        template = environment.parse(text)
        _check(template, loops=0)
        return environment.from_string(template).render(values)
    except TemplateProblemError:
        raise
    except TemplateSyntaxError as error:
        raise TemplateProblemError(error.message or "is no template", error.lineno) from error
    except Exception as error:
        # What is left are values that do not go with what is done to them, in as many kinds as Python has, and nesting
        # that is too deep.
        message = error.message if isinstance(error, TemplateError) else None
        raise TemplateProblemError(message or str(error) or type(error).__name__, _line(error)) from error


def _check(node: nodes.Node, *, loops: int) -> None:
    if not isinstance(node, _ALLOWED):
        raise TemplateProblemError(f"a card has no {type(node).__name__.lower()}", node.lineno)
    if isinstance(node, nodes.For):
        loops += 1
        if loops > _LOOPS or node.recursive:
            raise TemplateProblemError(f"a card has no loops more than {_LOOPS} deep", node.lineno)
    if isinstance(node, nodes.Filter):
        if node.name not in _FILTERS:
            raise TemplateProblemError(f"a card has no filter {node.name!r}", node.lineno)
        if node.name in _GROWING and any(inner.name in _GROWING for inner in node.find_all(nodes.Filter)):
            raise TemplateProblemError(
                f"a card has no {node.name!r} of what was joined or replaced", node.lineno
            )
    for child in node.iter_child_nodes():
        _check(child, loops=loops)


def _line(error: Exception) -> int | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return frames[-1].lineno if frames else None
