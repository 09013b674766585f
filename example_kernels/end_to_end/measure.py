"""What the end-to-end scripts share: arguments, timing, comparison, the report."""

import argparse
import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch


def arguments(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--kernel", type=Path, required=True, help="the built kernel: a project or its build folder"
    )
    parser.add_argument("--output", type=Path, required=True, help="where the report goes, as JSON")
    parser.add_argument("--tiny", action="store_true", help="a model of toy size, to try the script itself")
    return parser.parse_args()


def environment():
    import diffusers
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "gpu": device,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "diffusers": diffusers.__version__,
    }


def synchronize():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times(run, *, repeats, warmups=3):
    """Milliseconds of single runs, a synchronize on both sides: the median and the quartiles."""
    for _ in range(warmups):
        run()
    measured = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        measured.append((time.perf_counter() - start) * 1e3)
    low, median, high = statistics.quantiles(measured, n=4)
    return {
        "median_ms": round(median, 3),
        "low_ms": round(low, 3),
        "high_ms": round(high, 3),
        "repeats": repeats,
    }


def relative_difference(actual, expected):
    """‖actual - expected‖ / ‖expected‖."""
    difference = torch.linalg.vector_norm(actual.double() - expected.double())
    return float(difference / torch.linalg.vector_norm(expected.double()))


class Results:
    """Rows of a report; one that fails says so and does not stop the others."""

    def __init__(self, output, **about):
        self.output = output
        self.document = {"version": 1, **about, "environment": environment(), "results": []}

    def add(self, case, column, measure):
        row = {"case": case, "column": column}
        try:
            row.update(measure())
        except Exception as error:
            traceback.print_exc()
            row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
        self.document["results"].append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        self.output.write_text(
            json.dumps(self.document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )
