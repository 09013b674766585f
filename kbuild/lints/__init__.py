"""Rules about the author's C++, CUDA and Python files: what a loader, a compiler or a user would trip over."""

import gc

from kbuild.lints.cxx_rules import check_cxx
from kbuild.lints.python_rules import check_python
from kbuild.lints.tree import Tree
from kbuild.lints.tree_rules import check_tree

__all__ = ["Tree", "check_sources"]


def check_sources(tree: Tree) -> None:
    """Run every source rule; they only ever add to the report."""
    check_tree(tree)
    # Syntax trees are large, live to the end and hold no cycles worth finding: collecting doubles the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        check_cxx(tree, check_python(tree))
    finally:
        if collecting:
            gc.enable()
