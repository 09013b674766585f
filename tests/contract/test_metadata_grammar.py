"""Values that end up in metadata.json: what kbuild accepts in build.toml, the loader's strict reader accepts there.

Where the two differ, the difference is listed here with who is right.
"""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels._rust import Metadata

from kbuild.config.schema import GIT_URL, NAME


def loader_reads(**changes: Any) -> bool:
    document = {
        "id": "x",
        "name": "relu",
        "version": 1,
        "license": "mit",
        "python-depends": [],
        "backend": {"type": "cpu"},
        **changes,
    }
    try:
        Metadata.from_bytes(json.dumps(document).encode())
    except ValueError:
        return False
    return True


def we_read(pattern: str | None, text: str) -> bool:
    assert pattern is not None
    return re.search(pattern, text) is not None


@given(st.text(alphabet="aZ09-_. \né", max_size=6))
def test_names(name: str) -> None:
    assert we_read(NAME.pattern, name) == loader_reads(name=name)


URLS = [
    "https://example.org/org/repo",
    "https://example.org/org/repo.git",
    "http://user@example.org:8080/repo",
    "git://example.org/repo",
    "ssh://git@example.org/org/repo.git",
    "git+ssh://git@example.org/org/repo.git",
    "git+https://example.org/org/repo",
    "git@example.org:org/repo.git",
    "host:path",
    "example.org/org/repo",
    "ftp://example.org/repo",
    "file:///home/x",
    "https://",
    "https:///path",
    "",
    "not a url",
    "git@example.org:/absolute",
    ":path",
    "C:\\repo",
]
# The loader's reader tolerates a missing host; git cannot clone that, and kbuild says so early.
OURS_IS_STRICTER = {"https:///path"}


@pytest.mark.parametrize("url", URLS)
def test_git_urls(url: str) -> None:
    ours, theirs = we_read(GIT_URL.pattern, url), loader_reads(upstream=url)
    if url in OURS_IS_STRICTER:
        assert (ours, theirs) == (False, True)
    else:
        assert ours == theirs
