"""Turn a list of exported symbols into link stubs: libraries with a soname, those symbols and no code.

The list (xz) has a line `library <soname>` for each library, followed by its symbols: `T <name>` a function,
`B <name> <size>` an object, `L <name> <size>` a thread-local object. A version follows the name as `@@VERSION`;
`@VERSION` marks one that the linker never binds to. `#` starts a comment.
"""

import json
import lzma
import os
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Symbol(NamedTuple):
    kind: str
    name: str
    size: int
    version: str | None


def read(path: Path) -> Iterator[tuple[str, list[Symbol]]]:
    """Each library's soname with its symbols."""
    soname = ""
    symbols: list[Symbol] = []
    for line in lzma.decompress(path.read_bytes()).decode().splitlines():
        match line.split():
            case []:
                pass
            case [comment, *_] if comment.startswith("#"):
                pass
            case ["library", name]:
                if soname:
                    yield soname, symbols
                soname, symbols = name, []
            case [("T" | "B" | "L") as kind, name, *size]:
                bare, separator, version = name.partition("@")
                if not separator or version.startswith("@"):
                    number = int(size[0]) if size else 0
                    symbols.append(Symbol(kind, bare, number, version.removeprefix("@") or None))
            case _:
                raise SystemExit(f"kbuild: {path.name}: cannot read the line {line!r}")
    if soname:
        yield soname, symbols


def write_stub(out: Path, soname: str, symbols: list[Symbol]) -> None:
    """Assemble and link `out/soname`; versions become a version script, so each name has one default version."""
    section = {"T": ".text", "B": ".bss", "L": '.section .tbss,"awT",@nobits'}
    kind = {"T": "@function", "B": "@object", "L": "@tls_object"}
    versions: dict[str, list[str]] = defaultdict(list)
    lines = ['.section .note.GNU-stack,"",@progbits']
    for s in symbols:
        lines += [section[s.kind], f".globl {s.name}", f".type {s.name},{kind[s.kind]}", f"{s.name}:"]
        if s.kind != "T":
            lines += [f".size {s.name},{s.size}", f".zero {max(s.size, 1)}"]
        if s.version:
            versions[s.version].append(s.name)
    stem = f"{soname}.stub"
    Path(f"{stem}.s").write_text("\n".join(lines) + "\n")
    script = "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in versions.items())
    Path(f"{stem}.map").write_text(script)
    subprocess.run(["as", "-o", f"{stem}.o", f"{stem}.s"], check=True)
    argv = ["ld", "-shared", "-soname", soname, "--build-id=none", "-o", str(out / soname), f"{stem}.o"]
    subprocess.run([*argv, f"--version-script={stem}.map"] if versions else argv, check=True)


def main() -> None:
    attrs = json.loads(Path(".attrs.json").read_text())
    os.environ["PATH"] = attrs["host"]["path"]
    out = Path(attrs["outputs"]["out"])
    out.mkdir()
    for soname, symbols in read(Path(attrs["inputs"]["symbols"])):
        write_stub(out, soname, symbols)


if __name__ == "__main__":
    main()
