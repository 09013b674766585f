"""How long `kbuild check` takes, as whole processes: best of five, wall time and processor time.

    python tests/corpus/speed.py [CHECKOUT...]

Without arguments an ordinary project and one with 400 headers, both made here; each CHECKOUT is a folder with kernel
projects, checked by two processes side by side.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BASE = Path(__file__).parents[1] / "fixtures" / "accepted" / "base"
HEADER = """#pragma once
#include <cuda_fp16.h>
{includes}
// A header of a usual size: about 150 lines of device code.
namespace part{number} {{
{body}
}}
"""
BODY = "\n".join(
    f'__device__ inline float f{line}(float x) {{ return x * {line}.5f + 1\'000; }}  // "no" #include /* here */'
    for line in range(150)
)


def many_headers(root: Path, count: int) -> Path:
    """A project whose one source reaches `count` headers, each including the next two."""
    shutil.copytree(BASE, root)
    names = [f"cuda/part{number}.cuh" for number in range(count)]
    for number in range(count):
        following = [f'#include "part{n}.cuh"' for n in (number + 1, number + 2) if n < count]
        text = HEADER.format(includes="\n".join(following), number=number, body=BODY)
        (root / names[number]).write_text(text)
    (root / "cuda" / "norm.cu").write_text('#include "norm.cuh"\n#include "part0.cuh"\n')
    config = root / "build.toml"
    listed = ", ".join(f'"{name}"' for name in ["cuda/norm.cu", "cuda/norm.cuh", *names])
    config.write_text(config.read_text().replace('"cuda/norm.cu", "cuda/norm.cuh"', listed))
    return root


def check(root: Path) -> None:
    """One whole process; its findings do not matter here."""
    subprocess.run([sys.executable, "-m", "kbuild", "check", root], capture_output=True, check=False)


def best(root: Path, times: int = 5) -> tuple[float, float]:
    """(wall, processor) seconds of the fastest of some runs."""
    found = []
    for _ in range(times):
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        check(root)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        found.append((wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return min(wall for wall, _ in found), min(processor for _, processor in found)


def main(checkouts: list[Path]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ordinary, many = Path(folder) / "ordinary", Path(folder) / "many"
        shutil.copytree(BASE, ordinary)
        many_headers(many, 400)
        for name, root, promise in (("ordinary project", ordinary, 0.3), ("400 headers", many, 2.0)):
            wall, processor = best(root)
            print(f"{name:18} {wall:6.2f} s  ({processor:.2f} s of processor; promise {promise} s)")
    for checkout in checkouts:
        roots = [path.parent for path in checkout.rglob("build.toml")]
        start = time.perf_counter()
        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(check, roots))
        print(
            f"{checkout.name:18} {time.perf_counter() - start:6.2f} s  ({len(roots)} projects; promise 10 s)"
        )


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
