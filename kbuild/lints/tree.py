"""What every source rule looks at: the files of one project."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kbuild.config.model import Config
from kbuild.config.source import Source
from kbuild.diagnostics import Report
from kbuild.sources.includes import Include
from kbuild.sources.texts import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The files that a build sees, with the configuration that speaks of them; rules add to `report`."""

    config: Config
    source: Source
    files: frozenset[str]
    texts: Texts
    report: Report

    @property
    def root(self) -> Path:
        return self.texts.root

    def text(self, path: str) -> str:
        """The content of a file."""
        return self.texts.text(path)

    def includes(self, path: str) -> tuple[Include, ...]:
        """What a file includes."""
        return self.texts.includes(path)

    def below(self, folder: str, suffixes: str | tuple[str, ...]) -> Iterable[str]:
        """Files below a folder whose names end so, sorted."""
        return sorted(
            path for path in self.files if path.startswith(f"{folder}/") and path.endswith(suffixes)
        )

    @property
    def package(self) -> str:
        """The folder of the Python package."""
        return f"{self.config.framework.folder}/{self.config.general.python_name}"
