"""Small changes to arrays of `build.toml`, as edits of the text that leave every other character alone."""

import json
import re

from kbuild.config.source import Path, Source
from kbuild.diagnostics import Edit


def append_entry(source: Source, path: Path, entry: str) -> tuple[Edit, ...]:
    """Put a string into an array, just before its last element, so that comments stay with their elements."""
    where, text = source.values.get(path), source.text
    if where is None:
        return ()
    last = max((span for key, span in source.values.items() if key[:-1] == path), default=None)
    value = json.dumps(entry, ensure_ascii=False)
    if last is None:
        return (Edit(path=source.path, start=where[0] + 1, end=where[0] + 1, text=value),)
    blank = re.search(r"\s*$", text[where[0] + 1 : last[0]])
    separator = blank[0] if blank is not None and "\n" in blank[0] else " "
    return (Edit(path=source.path, start=last[0], end=last[0], text=f"{value},{separator}"),)


def remove_entry(source: Source, path: Path, index: int) -> tuple[Edit, ...]:
    """Take one element out of an array; nothing where a comment stands in the way."""
    spans = {key[-1]: span for key, span in source.values.items() if key[:-1] == path}
    if index not in spans:
        return ()
    start, end = spans[index]
    if index + 1 in spans:
        end = spans[index + 1][0]
    elif index:
        start = spans[index - 1][1]
    if "#" in source.text[start:end].replace(source.text[slice(*spans[index])], ""):
        return ()
    return (Edit(path=source.path, start=start, end=end, text=""),)


def apply_edits(text: str, edits: tuple[Edit, ...]) -> str:
    """All edits of one text at once; of two that overlap, only the first in the text is done."""
    result, at = [], 0
    for edit in sorted(dict.fromkeys(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.start >= at:
            result += [text[at : edit.start], edit.text]
            at = edit.end
    return "".join([*result, text[at:]])
