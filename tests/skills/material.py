"""The skills as shipped, and the code in their pages."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kbuild.resources import data_path

SKILL = data_path("skills/cuda-kernels")
TRITON = data_path("skills/triton-kernels")
PAGES = sorted(SKILL.rglob("*.md"))
REFERENCES = sorted((SKILL / "references").glob("*.md"))
SCRIPTS = sorted(path for path in (SKILL / "scripts").iterdir() if path.is_file())
TRITON_SCRIPTS = sorted(path for path in (TRITON / "scripts").iterdir() if path.is_file())


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block of a page; `source` is what its first line says it was taken from."""

    page: Path
    language: str
    text: str

    @property
    def source(self) -> str | None:
        found = re.match(r"(?://|#) from: (.*)\n", self.text)
        return None if found is None else found[1]

    @property
    def body(self) -> str:
        return self.text.partition("\n")[2]

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.splitlines()[0][:60]}"


def blocks(*languages: str, skill: Path = SKILL) -> Iterator[Block]:
    """Every fenced block in one of the languages, page by page."""
    for page in sorted(skill.rglob("*.md")):
        for language, text in re.findall(
            r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            if language in languages:
                yield Block(page=page, language=language, text=text)


def commands() -> Iterator[tuple[Path, str]]:
    """Every `kbuild …` command line in pages, without the variables before it."""
    for page in [*PAGES, *sorted(TRITON.rglob("*.md"))]:
        text = page.read_text()
        fenced = re.findall(r"^```bash\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in fenced for line in block.splitlines()]
        inline = re.findall(r"`(?:[A-Z_]+=\S+ )?(kbuild [^`]+)`", text)
        for line in [*lines, *inline]:
            for part in re.split(r"&&|\|\|", line):
                if part.strip().startswith("kbuild "):
                    yield page, part.strip().partition(" #")[0]
