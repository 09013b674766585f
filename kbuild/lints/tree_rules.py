"""Rules about which files lie in a project, whatever is in them."""

import re

from kbuild.diagnostics import Span
from kbuild.lints.tree import Tree
from kbuild.sources.cxx import span_at
from kbuild.sources.files import inside

_LARGE = 1_000_000
_BINARY = (".so", ".o", ".a", ".dll", ".dylib", ".pyd", ".cubin", ".fatbin", ".pyc")
_SECRETS = {
    "a Hub token": re.compile(r"\bhf_[A-Za-z0-9]{34,}\b"),
    "a private key": re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----"),
    "a GitHub token": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36,}\b"),
}


def check_tree(tree: Tree) -> None:
    """Run every rule over the files that a build sees."""
    _case_clashes(tree)
    for path in sorted(tree.files):
        if path.endswith(_BINARY):
            tree.report.warning(
                "binary-file",
                f"{path} is a build result, and would be published with the sources",
                Span(path=path),
                hint="remove it, and list its kind in .gitignore",
            )
        elif (tree.root / path).stat().st_size > _LARGE:
            tree.report.warning(
                "large-file",
                f"{path} is {(tree.root / path).stat().st_size / 1e6:.1f} MB, in every build and every download",
                Span(path=path),
                hint="keep data on the Hub, in a repository of its own",
            )
        else:
            _secrets(tree, path)
    for path in sorted({path for path in map(inside, tree.config.listed_files) if path in tree.files}):
        _null_bytes(tree, path)
    if (tree.root / "setup.py").is_file():
        tree.report.warning(
            "stray-setup",
            "setup.py is not read: a build goes by build.toml alone",
            Span(path="setup.py"),
            hint="remove it",
        )


def _case_clashes(tree: Tree) -> None:
    seen: dict[str, str] = {}
    for path in sorted(tree.files):
        other = seen.setdefault(path.lower(), path)
        if other != path:
            tree.report.error(
                "case-clash",
                f"{path} and {other} differ in case only: where case does not count, one replaces the other",
                Span(path=path),
                hint="rename one of the two",
            )


def _null_bytes(tree: Tree, path: str) -> None:
    """Nix refuses to read such a file as text, and compilers warn at best."""
    text = tree.text(path)
    start = text.find("\0")
    if start >= 0:
        tree.report.error(
            "null-byte",
            "the file has a null byte: it is no text, or a damaged one",
            span_at(path, text, start, start + 1),
            hint="remove the byte, or the file from src",
        )


def _secrets(tree: Tree, path: str) -> None:
    text = tree.text(path)
    for what, pattern in _SECRETS.items():
        match = pattern.search(text)
        if match is not None:
            start = match.start()
            tree.report.error(
                "secret",
                f"this looks like {what}, and a build is published",
                Span(
                    path=path,
                    line=text.count("\n", 0, start) + 1,
                    column=start - text.rfind("\n", 0, start),
                    length=8,
                ),
                hint="remove it, and revoke it where it was given out",
            )
