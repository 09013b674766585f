"""What each code of `kbuild check` means, from `data/rules.toml`."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kbuild.resources import data_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One code: what was found, why it matters, and how to mend it."""

    code: str
    what: str
    why: str
    fix: str


@cache
def explanations() -> Mapping[str, Explanation]:
    """Every code, in the order of the data. Raises TypeError where an entry lacks a field."""
    raw = tomllib.loads(data_bytes("rules.toml").decode("utf-8"))
    return {code: Explanation(code=code, **entry) for code, entry in raw.items()}
