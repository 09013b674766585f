"""Check every public kernel project of a local checkout, and write the table of verdicts.

    python tests/corpus/run.py CHECKOUT... > tests/corpus/RESULTS.md

CHECKOUT is a folder with kernel projects below it, such as the examples of huggingface/kernels or the whole of
huggingface/kernels-community. Nothing of them is kept here. `truth.toml` says of each kind of finding in each
project whether it is true, by someone who read the file; what it does not speak of is marked as unread.
"""

import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from kbuild.diagnostics import Diagnostic, Severity
from kbuild.project import Project


def check(root: Path) -> tuple[Path, list[Diagnostic]]:
    return root, Project.open(root).report.sorted()


def main(checkouts: list[Path]) -> int:
    truth = tomllib.loads((Path(__file__).parent / "truth.toml").read_text(encoding="utf-8"))
    roots = sorted(path.parent for checkout in checkouts for path in checkout.rglob("build.toml"))
    start = time.perf_counter()
    with ProcessPoolExecutor(max_workers=2) as pool:
        results = list(pool.map(check, roots))
    print(f"{len(roots)} projects in {time.perf_counter() - start:.1f} s on two processes", file=sys.stderr)
    print("# The public corpus\n\nWritten by `tests/corpus/run.py`; notes are left out.\n")
    print(
        "| project | verdict | finding | times | first place | true? |\n| --- | --- | --- | --- | --- | --- |"
    )
    unread = 0
    for root, found in results:
        shown = [entry for entry in found if entry.severity is not Severity.NOTE]
        errors = sum(entry.severity is Severity.ERROR for entry in shown)
        verdict = f"{errors} errors" if errors else "warnings" if shown else "clean"
        groups = Counter((entry.severity.value, entry.code) for entry in shown)
        if not groups:
            print(f"| {root.name} | {verdict} | | | | |")
        for (severity, code), times in sorted(groups.items()):
            first = next(entry for entry in shown if entry.code == code and entry.severity.value == severity)
            note = truth.get(root.name, {}).get(code) or truth.get("everywhere", {}).get(code)
            unread += note is None
            print(
                f"| {root.name} | {verdict} | {severity}[{code}] | {times} | {first.span} | {note or 'unread'} |"
            )
            verdict = ""
    return 1 if unread else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))
