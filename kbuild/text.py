"""Small pieces of wording that several rooms share."""

from collections.abc import Iterable
from difflib import get_close_matches


def plural(count: int, word: str) -> str:
    """`"1 step"`, `"2 steps"`, `"no steps"`."""
    return f"{count} {word}" if count == 1 else f"{count or 'no'} {word}s"


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """`" Did you mean 'x'?"` with the one closest candidate, or an empty string."""
    matches = get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""
