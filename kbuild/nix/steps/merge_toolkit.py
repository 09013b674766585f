"""Merge the trees of several CUDA wheels into one toolkit of links; the tools that find their neighbours by their
own path are copied."""

import json
import os
import shutil
from pathlib import Path

# nvcc reads nvcc.profile beside itself and derives the toolkit's root from there.
COPIED = {"bin/nvcc", "bin/nvcc.profile"}


def main() -> None:
    attrs = json.loads(Path(".attrs.json").read_text())
    out = Path(attrs["outputs"]["out"])
    for tree in map(Path, attrs["inputs"]["trees"]):
        for folder, _, files in os.walk(tree):
            relative = Path(folder).relative_to(tree)
            (out / relative).mkdir(parents=True, exist_ok=True)
            for name in files:
                source, target = Path(folder) / name, out / relative / name
                if target.exists():
                    if target.read_bytes() != source.read_bytes():
                        raise SystemExit(f"kbuild: {relative / name} differs between two CUDA wheels")
                elif str(relative / name) in COPIED:
                    shutil.copy(source, target)
                else:
                    target.symlink_to(source)
    library = out / "lib" / "libcudart.so"
    if not library.exists():
        versioned = sorted((out / "lib").glob("libcudart.so.*"))
        library.symlink_to(versioned[-1].name)


main()
