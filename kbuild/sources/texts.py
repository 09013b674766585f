"""The files of one project, each read and scanned once."""

from pathlib import Path

from kbuild.sources.includes import Include, includes


class Texts:
    """Content and includes of files below `root`, kept for the rules that come after."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._texts: dict[str, str] = {}
        self._includes: dict[str, tuple[Include, ...]] = {}

    def text(self, path: str) -> str:
        """The content of a file, with U+FFFD for what is not UTF-8."""
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8", errors="replace")
        return self._texts[path]

    def includes(self, path: str) -> tuple[Include, ...]:
        """What the file includes, in order."""
        if path not in self._includes:
            self._includes[path] = includes(self.text(path))
        return self._includes[path]
