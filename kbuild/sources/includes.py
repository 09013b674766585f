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
    conditions: list[str | None] = []  # per open #if: the include guard's name, or None
    guard: str | None = None
    seen_directive = False
    for match in _TOKEN.finditer(text):
        directive, rest = match["directive"], match["rest"]
        match directive:
            case None:
                continue
            case "if" | "ifdef" | "ifndef":
                word = _WORD.match(rest)
                is_guard = directive == "ifndef" and not seen_directive and word is not None
                guard = word[1] if is_guard and word is not None else None
                conditions.append(guard)
            case "define":
                word = _WORD.match(rest)
                if guard is not None and (word is None or word[1] != guard):
                    conditions[-1] = None
                guard = None
            case "elif" | "elifdef" | "elifndef" | "else":
                if conditions:
                    conditions[-1] = None
            case "endif":
                if conditions:
                    conditions.pop()
            case "include" | "include_next" | "import":
                target = _TARGET.match(rest)
                if target is not None:
                    name = target["quoted"] or target["angled"]
                    start = match.start("rest") + target.start("quoted" if target["quoted"] else "angled")
                    found.append(
                        Include(
                            target=name,
                            quoted=target["quoted"] is not None,
                            line=text.count("\n", 0, start) + 1,
                            column=start - text.rfind("\n", 0, start),
                            conditional=any(condition is None for condition in conditions),
                        )
                    )
            case _:
                pass
        if directive != "pragma":
            seen_directive = True
    return tuple(found)
