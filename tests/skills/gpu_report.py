"""Write down what `gpu_try.sh run` did on a GPU: python gpu_report.py REPORTS REPORT.json [NOT_RUN...]

REPORTS has its output (gpu_try.log) and the benchmarks' JSON; NOT_RUN says in words what was left out, and why.
REPORT.md is written next to REPORT.json.
"""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kbuild import bench

COLUMNS = ("copy", "eager", "torch", "torch.compile", "ours")


def tries(log: str) -> Iterator[dict[str, Any]]:
    """What was begun and ended, in turn, with the number of the tests where it was a project's tests."""
    count = None
    for line in log.splitlines():
        if found := re.match(r"(\d+) passed\b", line):
            count = int(found[1])
        # A part of what check_try.py judges.
        if found := re.match(r"(\w+): ([\w ]+): (passed|FAILED)$", line):
            yield {"command": f"{found[1]}: {found[2]}", "passed": found[3] == "passed", "tests": None}
        if found := re.match(r"(passed|FAILED): (.*)", line):
            command = re.sub(r"(?<!\S)/\S*?([\w.-]+)/?(?=\s|$)", r"\1", found[2].partition(" -o ")[0])
            tests = count if command.startswith("kbuild test") else None
            yield {"command": command, "passed": found[1] == "passed", "tests": tests}
            count = None


def benchmarks(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.json")):
        report = bench.read(json.loads(path.read_text(encoding="utf-8")))
        for result in report.results:
            times = {column.name: column.gpu.median for column in result.columns if column.gpu is not None}
            ours = result.column("ours")
            yield {
                "project": path.stem,
                "variant": report.environment["variant"],
                "operation": result.operation,
                "shape": result.shape,
                "gpu_us": times,
                "error": None if ours is None else ours.error,
            }


def markdown(document: dict[str, Any]) -> Iterator[str]:
    env = document["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in env["packages"].items())
    yield "# Projects of `kbuild init` and of the skill's tasks on a GPU"
    yield ""
    yield f"{env['gpu']} (capability {env['capability']}, driver {env['driver']}), PyTorch {env['torch']}, {packages},"
    yield f"Python {env['python']}. The variants were built on a machine without a GPU."
    yield ""
    yield "| command | result |"
    yield "| --- | --- |"
    for one in document["tries"]:
        tests = "" if one["tests"] is None else f", {one['tests']} tests"
        yield f"| `{one['command']}` | {'passed' if one['passed'] else '**failed**'}{tests} |"
    yield ""
    if document["not_run"]:
        yield from ("Not run:", "", *(f"- {what}" for what in document["not_run"]), "")
    yield "GPU time in µs, bfloat16, caches cold; *copy* moves the same bytes, *error* is against float64."
    yield ""
    yield f"| project | operation | shape | {' | '.join(COLUMNS)} | ours / copy | error |"
    yield "| --- | --- | --- |" + " ---: |" * (len(COLUMNS) + 2)
    for row in document["benchmarks"]:
        times = row["gpu_us"]
        cells = [f"{times[name]:.1f}" if name in times else "" for name in COLUMNS]
        yield (
            f"| {row['project']} | {row['operation']} | {'×'.join(map(str, row['shape']))} | {' | '.join(cells)}"
            f" | {times['ours'] / times['copy']:.2f} | {row['error']:.1e} |"
        )
    yield ""
    yield "Written by `tests/skills/gpu_report.py` from the output of `tests/skills/gpu_try.sh run`."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reports", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("not_run", nargs="*")
    args = parser.parse_args()
    environments = [
        json.loads(path.read_text(encoding="utf-8"))["environment"] for path in args.reports.glob("*.json")
    ]
    machine = {key: value for key, value in environments[0].items() if key != "variant"}
    document = {
        "version": 1,
        "machine": machine,
        "tries": list(tries((args.reports / "gpu_try.log").read_text(encoding="utf-8"))),
        "not_run": args.not_run,
        "benchmarks": list(benchmarks(args.reports)),
    }
    args.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    args.output.with_suffix(".md").write_text("\n".join(markdown(document)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
