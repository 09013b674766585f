"""Reading mangled C++ names: as a person would, and for the one detail a verdict hangs on."""

import ctypes
import re
from functools import cache

# Pieces of a mangled name (Itanium C++ ABI, chapter 5.1) that matter when looking for the substitution `Ss`:
# those that carry digits or letters which would otherwise be misread.
_PIECE = re.compile(
    r"""
      (?P<literal> L[a-z]n?[0-9]+E )
    | (?P<index> [ST][0-9A-Z]*_ )
    | (?P<bound> (?:A|Dv)[0-9]+_ )
    | (?P<closure> E[0-9]+_ )
    | (?P<name> [0-9]+ )
    | (?P<old> Ss | SbIwSt11char_traitsIwE )
    | S[abiodt]
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


def uses_old_string(name: str) -> bool:
    """Whether a mangled name mentions the `std::string` from before C++11 (`Ss`, not `std::__cxx11`)."""
    if not name.startswith("_Z"):
        return False
    at = 2
    while (piece := _PIECE.match(name, at)) is not None:
        if piece.lastgroup == "old":
            return True
        at = piece.end()
        if piece.lastgroup == "name":
            at += int(piece[0][:6])
    return False


def demangle(name: str) -> str:
    """The C++ declaration behind a mangled name; the name itself where that cannot be done."""
    demangler = _demangler()
    if demangler is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    pointer = demangler(name.encode("utf-8", "replace"), None, None, ctypes.byref(status))
    if status.value != 0 or not pointer:
        return name
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        _free()(pointer)


@cache
def _demangler() -> "ctypes._NamedFuncPointer | None":
    try:
        function = ctypes.CDLL("libstdc++.so.6")["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    function.restype = ctypes.c_void_p
    return function


@cache
def _free() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None)["free"]
    function.argtypes = [ctypes.c_void_p]
    function.restype = None
    return function
