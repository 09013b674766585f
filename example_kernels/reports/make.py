"""Makes the tables and plots of this folder from the JSON files in it: `python make.py [FOLDER]`."""

import json
import sys
from pathlib import Path

from kbuild import bench

HERE = Path(__file__).resolve().parent
ISOLATED = ("ltx-video", "qwen3-8b")
END_TO_END = {
    "end-to-end-ltx-video": (
        "The kernels published for this model before gained 1.06 for the whole generation, and 1.43 together with"
        " torch.compile, on an H100. With both the kernels gain little over either: what is left of the step is matrix"
        " products and attention. Without torch.compile a step launches more from Python, and a slower host shows:"
        " an earlier run, of AdaLN and RoPE a tenth slower, had 50.6 ms a step with the kernels, and 63.5 plain."
    ),
    "end-to-end-qwen3-8b": (
        "Prefill of 128 tokens and decode wait for the host: their quartiles lie up to a fifth apart, and an"
        " earlier run had 58 ms where this has 29. Under torch.compile the kernels lose 1.6 to 2.0 ms there, which"
        " would be 11 to 14 µs for each of their 145 calls; that run had a gain at decode, so one run does not"
        " settle it. Read the rows of 2048 and 8192 tokens, whose quartiles lie close. With random weights the"
        " logits of any two ways to compute differ by 6e-02 to 8e-02 (torch.compile against plain does too):"
        " bfloat16 rounding, amplified over 36 layers."
    ),
}


def end_to_end(document, note):
    env = document["environment"]
    rows = document["results"]
    columns = list(dict.fromkeys(row["column"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    found = {(row["case"], row["column"]): row for row in rows}
    yield f"# {document['model']}"
    yield ""
    yield (
        f"{document['parameters'] / 1e9:.1f} billion parameters; {env['gpu']}, PyTorch {env['torch']}"
        f" (CUDA {env['cuda']}), transformers {env['transformers']}, diffusers {env['diffusers']}."
    )
    yield ""
    yield (
        "Milliseconds: the median, and the quartiles in brackets. *bare* leaves the operations of the kernels out"
        " altogether: what is between it and *plain* is all that they could gain. *difference* is ‖out - plain‖ /"
        " ‖plain‖ of what the model returns."
    )
    yield ""
    yield "| | " + " | ".join(columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    for case in cases:
        yield (
            f"| {case} | " + " | ".join(map(_time, (found.get((case, column)) for column in columns))) + " |"
        )
    yield ""
    yield "| plain ÷ | " + " | ".join(columns[1:]) + " |"
    yield "| --- |" + " ---: |" * len(columns[1:])
    for case in cases:
        plain = found[case, "plain"]["median_ms"]
        ratios = [f"{plain / found[case, column]['median_ms']:.2f}" for column in columns[1:]]
        yield f"| {case} | " + " | ".join(ratios) + " |"
    yield ""
    yield "| difference | " + " | ".join(columns[1:]) + " |"
    yield "| --- |" + " ---: |" * len(columns[1:])
    for case in cases:
        differences = [found[case, column].get("difference") for column in columns[1:]]
        yield f"| {case} | " + " | ".join("–" if d is None else f"{d:.1e}" for d in differences) + " |"
    yield ""
    yield note


def _time(row):
    if row is None or "failed" in row:
        return "–"
    return f"{row['median_ms']:.1f} ({row['low_ms']:.1f} to {row['high_ms']:.1f})"


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in ISOLATED:
        report = bench.read(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))
        (folder / f"{name}.md").write_text(bench.markdown(report), encoding="utf-8")
        (folder / f"{name}.svg").write_text(bench.svg(report), encoding="utf-8")
    for name, note in END_TO_END.items():
        document = json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))
        (folder / f"{name}.md").write_text("\n".join(end_to_end(document, note)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
