"""The `#include` lines of a C++ or CUDA file, with comments, strings and conditionals understood.

This is the preprocessor's view of the text, and no more of the language than that takes.
"""

import re
from dataclasses import dataclass

# One token that could hide or be a directive; everything else is skipped. Numbers are tokens because of
# digit separators (`1'000`), whose quote starts no character literal.
_TOKEN = re.compile(
    r"""
      //(?:[^\\\n]|\\.|\\$)*
    | /\*.*?(?:\*/|\Z)
    | (?:\b(?:u8|u|U|L)?R)"(?P<fence>[^()\\\s"]{0,16})\(.*?\)(?P=fence)"
    | "(?:[^"\\\n]|\\.)*"
    | \b[0-9](?:'?[\w.])*
    | '(?:[^'\\\n]|\\.)*'
    | ^[ \t]*\#[ \t]*(?P<directive>[a-z_]+)(?P<rest>(?:[^\\\n/]|\\.|/(?![/*]))*)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_TARGET = re.compile(r'\s*(?:"(?P<quoted>[^"\n]+)"|<(?P<angled>[^>\n]+)>)')
_WORD = re.compile(r"\s*(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Include:
    """One include directive; `line` and `column` (counted from 1) are those of its target.

    `conditional` is true below an `#if` that is not the file's include guard.
    """

    target: str
    quoted: bool
    line: int
    column: int
    conditional: bool


def includes(text: str) -> tuple[Include, ...]:
    """Every include of the file, in order; includes whose target is a macro are left out."""
    found: list[Include] = []
    conditions: list[bool] = []  # per open #if: whether it is a real condition, no include guard
    guard: str | None = None  # the name that an #ifndef just above may be about to define
    first = True
    for match in _TOKEN.finditer(text):
        directive, rest = match["directive"], match["rest"]
        if directive is None or directive == "pragma":
            continue
        word = _WORD.match(rest)
        name = None if word is None else word[1]
        if guard is not None and (directive, name) == ("define", guard):
            conditions[-1] = False
        guard = None
        match directive:
            case "if" | "ifdef" | "ifndef":
                guard = name if first and directive == "ifndef" else None
                conditions.append(True)
            case "elif" | "elifdef" | "elifndef" | "else":
                conditions[-1:] = [True] if conditions else []
            case "endif":
                del conditions[-1:]
            case "include" | "include_next" | "import":
                target = _TARGET.match(rest)
                if target is not None:
                    group = "quoted" if target["quoted"] is not None else "angled"
                    start = match.start("rest") + target.start(group)
                    found.append(
                        Include(
                            target=target[group],
                            quoted=group == "quoted",
                            line=text.count("\n", 0, start) + 1,
                            column=start - text.rfind("\n", 0, start),
                            conditional=any(conditions),
                        )
                    )
            case _:
                pass
        first = False
    return tuple(found)
