"""Writes `data/abi/python-limited-api.json` anew: `python -m kbuild.abi.refresh`; needs the test extra."""

import json
from importlib.metadata import version

from kbuild.resources import data_path

NAME = "abi/python-limited-api.json"


def python_limited_api() -> str:
    """The text of the data file: every symbol of CPython's stable ABI and the version that it appeared in."""
    from abi3info import DATAS, FUNCTIONS

    symbols = {
        symbol.name: f"{entry.added.major}.{entry.added.minor}"
        for table in (FUNCTIONS, DATAS)
        for symbol, entry in table.items()
    }
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(symbols[name])}" for name in sorted(symbols))
    source = (
        f"functions and data of CPython's Misc/stable_abi.toml, as packaged in abi3info {version('abi3info')}"
    )
    return f'{{\n  "version": 1,\n  "sources": [{json.dumps(source)}],\n  "symbols": {{\n{lines}\n  }}\n}}\n'


if __name__ == "__main__":
    data_path(NAME).write_text(python_limited_api(), encoding="utf-8")
