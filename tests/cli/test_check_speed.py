"""The promises about time, by processor time, so that a busy machine does not decide."""

import shutil
from pathlib import Path

from corpus.speed import BASE, best, many_headers


def test_an_ordinary_project(tmp_path: Path) -> None:
    root = tmp_path / "ordinary"
    shutil.copytree(BASE, root)
    assert best(root, times=3)[1] < 0.3


def test_400_headers(tmp_path: Path) -> None:
    assert best(many_headers(tmp_path / "many", 400), times=2)[1] < 2.0
