"""PyTorch's grammar for the schema of an operation: `name.overload(Tensor(a!) x, *, int n=1) -> Tensor`.

After `torch/csrc/jit/frontend/function_schema_parser.cpp` and `schema_type_parser.cpp`; a contract test compares it
with PyTorch's own parser.
"""

import re
from dataclasses import dataclass

# Types that stand for any type, as in `t[]`, are for PyTorch's own operations: `def` does not take them.
TYPES = frozenset(
    """Tensor int float bool str complex Scalar ScalarType Layout Device DeviceIndex MemoryFormat Generator Dimname
    Stream Storage QScheme SymInt SymBool SymFloat NoneType Capsule Any AnyEnumType AnyClassType PyObject
    ConstQuantizerPtr Quantizer""".split()  # noqa: SIM905 (a list of words reads best as words)
)
_CONSTANTS = (
    "True",
    "False",
    "None",
    "contiguous_format",
    "preserve_format",
    "channels_last",
    "strided",
    "Mean",
)
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<arrow>->) | (?P<dots>\.\.\.)
    | (?P<number>-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?j?)
    | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<name>[A-Za-z_]\w*)
    | (?P<punctuation>::|.)
    )""",
    re.VERBOSE | re.DOTALL,
)


class SchemaError(ValueError):
    """The text is no schema; `position` is an offset into it."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What kbuild needs of a schema: the name, and whether anything is returned."""

    namespace: str | None
    name: str
    overload: str
    arguments: tuple[str, ...]
    returns: int


def parse_schema(text: str) -> Schema:
    """Raises SchemaError where PyTorch would refuse the text."""
    return _Parser(text).schema()


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text.rstrip()):
            group = match.lastgroup or ""
            self._tokens.append((group, match[group], match.start(group)))
        self._end = len(text)
        self._at = 0

    def schema(self) -> Schema:
        name = self._name("an operation's name")
        namespace = None
        if self._take("::"):
            namespace, name = name, self._name("an operation's name")
        overload = self._name("an overload's name") if self._take(".") else ""
        self._expect("(")
        arguments = self._arguments()
        self._expect("->")
        returns = self._returns()
        if self._at < len(self._tokens):
            raise self._wrong("the end")
        return Schema(
            namespace=namespace, name=name, overload=overload, arguments=tuple(arguments), returns=returns
        )

    def _arguments(self) -> list[str]:
        names: list[str] = []
        keyword_only = False
        defaulted = False
        while not self._take(")"):
            if names or keyword_only:
                self._expect(",")
            if self._take("*"):
                if keyword_only:
                    raise self._wrong("only one *")
                keyword_only = True
                continue
            if self._take("..."):
                self._expect(")")
                return names
            self._type()
            name = self._name("an argument's name")
            names.append(name)
            if self._take("="):
                self._default()
                defaulted = True
            elif defaulted and not keyword_only:
                raise SchemaError(
                    f"argument {name!r} without a default follows one that has one",
                    self._tokens[self._at - 1][2],
                )
        return names

    def _returns(self) -> int:
        if self._take("..."):
            return 1
        if not self._take("("):
            self._return()
            return 1
        count = 0
        while not self._take(")"):
            if count:
                self._expect(",")
            if self._take("..."):
                self._expect(")")
                return count + 1
            self._return()
            count += 1
        return count

    def _return(self) -> None:
        self._type()
        if self._peek()[0] == "name":
            self._at += 1

    def _type(self) -> None:
        kind, name, position = self._peek()
        if kind != "name" and name != "(":
            raise self._wrong("a type")
        if name == "(":
            self._at += 1
            self._type()
            while self._take(","):
                self._type()
            self._expect(")")
        elif name in ("Dict", "Future", "Await", "RRef", "Tuple", "Union"):
            self._at += 1
            self._expect("(")
            self._type()
            while self._take(","):
                self._type()
            self._expect(")")
        elif name == "__torch__":
            self._at += 1
            while self._take("."):
                self._name("a class's name")
        elif name in TYPES:
            self._at += 1
        else:
            raise SchemaError(f"{name!r} is no type of a schema", position)
        self._suffixes()

    def _suffixes(self) -> None:
        self._mark()
        while True:
            if self._take("["):
                if self._peek()[0] == "number":
                    self._at += 1
                self._expect("]")
                self._mark()
            elif not self._take("?"):
                return

    def _mark(self) -> None:
        """What a call does to the value: `!` for a write, or an alias set in parentheses."""
        if not self._take("!") and self._peek()[1] == "(" and self._is_alias():
            self._alias()

    def _is_alias(self) -> bool:
        following = self._tokens[self._at + 1 : self._at + 2]
        return bool(following) and (following[0][0] == "name" or following[0][1] == "*")

    def _alias(self) -> None:
        self._expect("(")
        self._alias_set()
        self._take("!")
        if self._take("->"):
            self._alias_set()
        self._expect(")")

    def _alias_set(self) -> None:
        while True:
            if not self._take("*"):
                self._name("an alias")
            if not self._take("|"):
                return

    def _default(self) -> None:
        if self._take("["):
            while not self._take("]"):
                self._default()
                if not self._take(","):
                    self._expect("]")
                    return
            return
        kind, text, _ = self._peek()
        if kind in ("number", "string") or text in _CONSTANTS:
            self._at += 1
            return
        raise self._wrong("a default value")

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "", self._end)

    def _take(self, text: str) -> bool:
        kind, found, _ = self._peek()
        if found == text and kind not in ("string", "end"):
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(repr(text))

    def _name(self, what: str) -> str:
        kind, text, _ = self._peek()
        if kind != "name":
            raise self._wrong(what)
        self._at += 1
        return text

    def _wrong(self, wanted: str) -> SchemaError:
        _, found, position = self._peek()
        return SchemaError(
            f"{wanted} is expected, not {found!r}" if found else f"{wanted} is missing", position
        )
