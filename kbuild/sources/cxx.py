"""The tokens of a C++ or CUDA file, and what its bindings register with PyTorch.

A tokenizer and not a grammar: bindings live in macros (`TORCH_LIBRARY_EXPAND(...) { ... }`), which a C++ grammar
without the preprocessor reads as errors. Every branch of a conditional is read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from kbuild.diagnostics import Span


class Kind(StrEnum):
    """What a token is."""

    NAME = "name"
    NUMBER = "number"
    STRING = "string"
    CHARACTER = "character"
    PUNCTUATION = "punctuation"


_TOKEN = re.compile(
    r"""
      (?P<skip>\s+ | //(?:[^\\\n]|\\.|\\$)* | /\*.*?(?:\*/|\Z) | \\\n)
    | (?P<directive>^[ \t]*\#(?:[^\\\n/]|\\.|/(?![/*])|/\*.*?\*/)*)
    | (?P<raw>(?:u8|u|U|L)?R"(?P<fence>[^()\\\s"]{0,16})\((?P<body>.*?)\)(?P=fence)")
    | (?P<string>(?:u8|u|U|L)?"(?:[^"\\\n]|\\.)*")
    | (?P<number>[0-9](?:'?[\w.])*)
    | (?P<character>(?:u8|u|U|L)?'(?:[^'\\\n]|\\.)*')
    | (?P<name>[A-Za-z_$]\w*)
    | (?P<punctuation>::|->|.)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """`text` is the source, except for a string, where it is the value; `start` and `end` are offsets."""

    kind: Kind
    text: str
    start: int
    end: int


def tokens(text: str) -> Iterator[Token]:
    """Every token but comments, blanks and preprocessor lines."""
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        match match.lastgroup:
            case "raw" | "fence" | "body":
                yield Token(kind=Kind.STRING, text=match["body"], start=start, end=end)
            case "string":
                yield Token(
                    kind=Kind.STRING, text=_unescape(match[0].partition('"')[2][:-1]), start=start, end=end
                )
            case "skip" | "directive" | None:
                continue
            case group:
                yield Token(kind=Kind(group), text=match[0], start=start, end=end)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), text, flags=re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """One `TORCH_LIBRARY...` block: the macro, its namespace argument as written, and the name of its variable."""

    macro: str
    namespace: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """`m.def("schema")`; `has_function` where the implementation is given in the same call."""

    schema: str
    span: Span
    has_function: bool

    @property
    def name(self) -> str:
        """The operation's name, without namespace, overload and arguments."""
        return self.schema.partition("(")[0].rpartition("::")[2].partition(".")[0].strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """`m.impl("name", ...)`."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """A name that matters wherever it stands, such as `PYBIND11_MODULE`; `argument` is the first one as written."""

    name: str
    span: Span
    argument: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bindings:
    """All that one file registers or mentions; `computed` where some of it cannot be read off the text."""

    libraries: tuple[Library, ...] = ()
    definitions: tuple[Definition, ...] = ()
    implementations: tuple[Implementation, ...] = ()
    mentions: tuple[Mention, ...] = ()
    computed: bool = False


_LIBRARY = re.compile(r"(?:STABLE_)?TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?(?:_EXPAND)?")
_MENTIONS = re.compile(
    r"REGISTER_EXTENSION|PYBIND11_MODULE|PYBIND11_EMBEDDED_MODULE|PyInit_\w+|PyMODINIT_FUNC|RegisterOperators"
)


def bindings(path: str, text: str) -> Bindings:
    """What the file at `path` registers with PyTorch."""
    if "TORCH_LIBRARY" not in text and _MENTIONS.search(text) is None:
        return Bindings()
    return _Reader(path, text).read()


class _Reader:
    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._tokens = list(tokens(text))
        self._libraries: list[Library] = []
        self._definitions: list[Definition] = []
        self._implementations: list[Implementation] = []
        self._mentions: list[Mention] = []
        self._computed = False

    def read(self) -> Bindings:
        for index, token in enumerate(self._tokens):
            if token.kind is not Kind.NAME:
                continue
            if _LIBRARY.fullmatch(token.text):
                self._library(index)
            elif _MENTIONS.fullmatch(token.text):
                arguments, _ = self._call(index + 1)
                argument = "".join(part.text for part in arguments[0]) if arguments else ""
                self._mentions.append(Mention(name=token.text, span=self._span(token), argument=argument))
        return Bindings(
            libraries=tuple(self._libraries),
            definitions=tuple(self._definitions),
            implementations=tuple(self._implementations),
            mentions=tuple(self._mentions),
            computed=self._computed,
        )

    def _library(self, index: int) -> None:
        arguments, after = self._call(index + 1)
        if len(arguments) < 2 or not all(arguments):
            return
        macro = self._tokens[index].text
        self._libraries.append(
            Library(
                macro=macro,
                namespace="".join(token.text for token in arguments[0]),
                span=self._span(arguments[0][0]),
            )
        )
        variable = arguments[-1][-1].text
        for at in range(max(after, 2), min(self._block_end(after), len(self._tokens) - 1)):
            before, name, following = (token.text for token in self._tokens[at - 1 : at + 2])
            if before == "." and name in ("def", "impl") and self._tokens[at - 2].text in (variable, ")"):
                self._registration(at)
            elif (
                before in (";", "{", "}")
                and following == "("
                and name not in ("if", "for", "while", "switch")
            ):
                # A macro or a function that may register more.
                self._computed = True

    def _registration(self, index: int) -> None:
        arguments, _ = self._call(index + 1)
        if not arguments or not arguments[0] or any(token.kind is not Kind.STRING for token in arguments[0]):
            self._computed = True
            return
        text = "".join(token.text for token in arguments[0])
        span = self._span(arguments[0][0])
        if self._tokens[index].text == "def":
            # A second argument that is a list of tags is no function.
            functions = [argument for argument in arguments[1:] if argument and argument[0].text != "{"]
            self._definitions.append(Definition(schema=text, span=span, has_function=bool(functions)))
        else:
            self._implementations.append(Implementation(name=text, span=span))

    def _call(self, index: int) -> tuple[list[list[Token]], int]:
        """The arguments of a call whose `(` is at `index`, and the index behind its `)`."""
        if index >= len(self._tokens) or self._tokens[index].text != "(":
            return [], index
        arguments: list[list[Token]] = [[]]
        depth = 0
        for at in range(index, len(self._tokens)):
            token = self._tokens[at]
            plain = token.kind is Kind.PUNCTUATION
            if plain and token.text in "([{":
                depth += 1
            elif plain and token.text in ")]}":
                depth -= 1
                if depth == 0:
                    return arguments, at + 1
            if plain and token.text == "," and depth == 1:
                arguments.append([])
            elif depth > 1 or token.text != "(" or at != index:
                arguments[-1].append(token)
        return [], len(self._tokens)

    def _block_end(self, index: int) -> int:
        depth = 0
        for at in range(index, len(self._tokens)):
            if self._tokens[at].kind is Kind.PUNCTUATION:
                depth += {"{": 1, "}": -1}.get(self._tokens[at].text, 0)
                if depth == 0:
                    return at
        return len(self._tokens)

    def _span(self, token: Token) -> Span:
        return span_at(self._path, self._text, token.start, token.end)


def span_at(path: str, text: str, start: int, end: int) -> Span:
    """The place of a piece of text that lies on one line, or the first line of it."""
    line_end = text.find("\n", start)
    end = min(end, len(text) if line_end < 0 else line_end)
    return Span(
        path=path,
        line=text.count("\n", 0, start) + 1,
        column=start - text.rfind("\n", 0, start),
        length=max(1, end - start),
    )
