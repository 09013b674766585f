"""Benchmark reports: read, judged, shown; and the run that makes them."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kbuild import bench
from kbuild.cli.bench import bench as command
from kbuild.config.model import Version
from kbuild.errors import BuildError, FindingsError, MachineError, UsageError
from kbuild.machine import InstalledTorch
from kbuild.process import Completed


def column(name: str, gpu: float | None, error: float = 1e-3) -> dict[str, Any]:
    timing = None if gpu is None else {"median": gpu, "low": gpu, "high": gpu}
    return {
        "name": name,
        "gpu_us": timing,
        "wall_us": timing,
        "error": None if gpu is None else error,
        "skipped": None if gpu is not None else "No module named 'liger_kernel'",
    }


def document(**changes: Any) -> dict[str, Any]:
    result = {
        "operation": "RMS <norm>",
        "shape": [2, 3, 4096],
        "dtype": "bfloat16",
        "bytes": 9_600_000,
        "tolerance": 5e-3,
        "columns": [
            column("copy", 4.0, 0.0),
            column("eager", 16.0),
            column("Liger", None),
            column("ours", 2.0),
        ],
    }
    environment = {
        "gpu": "NVIDIA H200",
        "driver": "580.1",
        "torch": "2.11.0",
        "cuda": "13.0",
        "python": "3.12.3",
        "packages": {"kernels": "0.17.2"},
        "variant": "torch211-cxx11-cu130-x86_64-linux",
    }
    return {"version": 1, "project": "my-kernel", "environment": environment, "results": [result], **changes}


def test_reads_ratios_and_verdicts() -> None:
    (result,) = bench.read(document()).results
    assert result.ratio("ours") == 0.5
    assert result.ratio("ours", to="eager") == 0.125
    assert result.ratio("Liger") is None
    assert result.ratio("nobody") is None
    assert not result.wrong


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ({"error": 6e-3}, "error 6.0e-03, 5.0e-03 allowed"),
        ({"error": float("nan")}, "error nan, 5.0e-03 allowed"),
        ({"error": None}, "there is no error to judge"),
        (
            {"wrong": "has the dtype float32, expected bfloat16 as eager has"},
            "has the dtype float32, expected ",
        ),
    ],
)
def test_a_wrong_result_says_what_is_wrong(column: dict[str, Any], said: str) -> None:
    doc = document()
    doc["results"][0]["columns"][-1] |= column
    (result,) = bench.read(doc).wrong
    assert (result.wrong or "").startswith(said)


def test_a_wrong_alternative_is_none_of_the_kernel_s_faults() -> None:
    doc = document()
    doc["results"][0]["columns"][1] |= {"wrong": "returns NoneType, expected tensors"}
    assert bench.read(doc).wrong == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "results": []}',
        '{"version": 1, "results": []}',
        '{"version": 1, "project": "k", "environment": {}, "results": [{"operation": "RMSNorm"}]}',
        "{}",
        "[]",
        "[general]",
        "\x00",
    ],
)
def test_refuses_other_documents(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(FindingsError, match=r"other\.json: not a benchmark report of version 1"):
        bench.load(tmp_path / "other.json")


def test_the_table_says_what_was_measured() -> None:
    text = bench.markdown(bench.read(document()))
    assert "NVIDIA H200, driver 580.1, PyTorch 2.11.0 (CUDA 13.0)" in text
    assert "| shape | copy | eager | Liger | ours | ours / copy | % of 4,800 GB/s | error |" in text
    # 9.6 MB in 2 µs are 4800 GB/s.
    assert "| 2×3×4096 | 4.0 | 16.0 (16) | – | 2.0 (2) | 0.50 | 100% | 1.0e-03 |" in text
    assert "0.50 of copy's, eager 8.00× slower." in text


def test_an_unknown_gpu_has_no_share_of_its_peak() -> None:
    doc = document()
    doc["environment"]["gpu"] = "Another GPU"
    assert "GB/s" not in bench.markdown(bench.read(doc))


def test_the_plot_is_sound_and_complete() -> None:
    root = ET.fromstring(bench.svg(bench.read(document())))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text for title in root.iter(f"{space}title")]
    assert "RMS <norm> 2×3×4096, ours: 200% of the copy's speed" in titles
    assert "RMS <norm> 2×3×4096, eager: 25% of the copy's speed" in titles
    width = float(root.attrib["width"])
    height = float(root.attrib["height"])
    for circle in root.iter(f"{space}circle"):
        assert 0 < float(circle.attrib["cx"]) < width
        assert 0 < float(circle.attrib["cy"]) < height


TORCH = InstalledTorch(torch=Version((2, 11)), cuda=Version((13, 0)), python="python3")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "rms_norm.py").write_text("def operations(kernel, reference): return []\n")
    (tmp_path / "benchmarks" / "_common.py").touch()
    variant = tmp_path / "build" / "torch211-cxx11-cu130-x86_64-linux"
    variant.mkdir(parents=True)
    (variant / "metadata.json").write_text("{}")
    return tmp_path


def answering(result: dict[str, Any] | None, seen: list[Any], code: int = 0) -> Any:
    def runner(argv: list[str], *, env: dict[str, str], on_stderr_line: Any, **_: Any) -> Completed:
        seen.append((argv, env))
        on_stderr_line("a line")
        if result is not None:
            Path(argv[3]).write_text(json.dumps(result))
        return Completed(argv=tuple(argv), returncode=code, stdout="", stderr="")

    return runner


def test_runs_the_harness_on_the_build(project: Path) -> None:
    seen: list[Any] = []
    story: list[str] = []
    measured = {key: value for key, value in document().items() if key in {"environment", "results"}}
    got = bench.run(
        project,
        "my-kernel",
        "org/my-kernel",
        wanted="norm",
        find_torch=lambda: TORCH,
        runner=answering(measured, seen),
        story=story.append,
    )
    assert got == document()
    (argv, env) = seen[0]
    assert argv[:3] == ["python3", "-m", "kbuild.harness"]
    assert argv[4:] == ["org/my-kernel", "norm", "measure", str(project / "benchmarks" / "rms_norm.py")]
    assert env["LOCAL_KERNELS"] == f"org/my-kernel={project / 'build'}"
    assert story == ["a line"]


def test_says_what_is_missing(project: Path) -> None:
    def run(**options: Any) -> Any:
        return bench.run(project, "my-kernel", "org/my-kernel", **options)

    with pytest.raises(MachineError, match="this environment has none"):
        run(find_torch=lambda: None)
    cpu = InstalledTorch(torch=Version((2, 11)), cuda=None, python="python3")
    with pytest.raises(MachineError, match="built for the CPU"):
        run(find_torch=lambda: cpu)
    with pytest.raises(MachineError, match="a GPU, and this machine has none"):
        run(find_torch=lambda: TORCH, runner=answering({"no gpu": None}, []))
    with pytest.raises(MachineError, match="no kernels") as caught:
        run(find_torch=lambda: TORCH, runner=answering({"missing": ["kernels"]}, []))
    assert caught.value.hint is not None
    with pytest.raises(BuildError, match=r"ended early, with status 1:\na line$"):
        run(find_torch=lambda: TORCH, runner=answering(None, [], code=1))
    with pytest.raises(UsageError, match="no operation has 'nothing' in its name; there are: a, b"):
        run(wanted="nothing", find_torch=lambda: TORCH, runner=answering({"unmatched": ["a", "b"]}, []))
    shutil.rmtree(project / "build")
    with pytest.raises(UsageError, match="nothing is built"):
        run(find_torch=lambda: TORCH)


def test_a_project_without_benchmarks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no benchmarks"):
        bench.find(tmp_path)


def test_shows_a_recorded_report_again(tmp_path: Path) -> None:
    recorded = tmp_path / "h200.json"
    recorded.write_text(json.dumps(document()))
    shown = CliRunner().invoke(command, ["--from", str(recorded)])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("# my-kernel\n")
    again = CliRunner().invoke(command, ["--from", str(recorded), "--json"])
    assert json.loads(again.stdout) == document()
    written = CliRunner().invoke(command, ["--from", str(recorded), "-o", str(tmp_path / "out")])
    assert written.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["h200.json", "h200.md", "h200.svg"]


def test_a_wrong_result_fails(tmp_path: Path) -> None:
    doc = document()
    doc["results"][0]["columns"][-1]["error"] = 1.0
    recorded = tmp_path / "wrong.json"
    recorded.write_text(json.dumps(doc))
    shown = CliRunner().invoke(command, ["--from", str(recorded)])
    assert shown.exit_code == 1
    assert "wrong: RMS <norm> at 2×3×4096: error 1.0e+00, 5.0e-03 allowed\n" in shown.stderr


def test_a_recorded_infinity_is_shown_as_json(tmp_path: Path) -> None:
    doc = document()
    doc["results"][0]["columns"][-1]["error"] = float("inf")
    recorded = tmp_path / "wrong.json"
    recorded.write_text(json.dumps(doc))
    shown = CliRunner().invoke(command, ["--from", str(recorded), "--json"])
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["results"][0]["columns"][-1]["error"] is None


def checked() -> dict[str, Any]:
    doc = document()
    doc["environment"]["gpu"] = None
    for one in doc["results"][0]["columns"]:
        one["gpu_us"] = one["wall_us"] = None
    return doc


def test_a_check_needs_no_gpu(project: Path) -> None:
    seen: list[Any] = []
    cpu = InstalledTorch(torch=Version((2, 11)), cuda=None, python="python3")
    measured = {key: value for key, value in checked().items() if key in {"environment", "results"}}
    got = bench.run(
        project,
        "my-kernel",
        "org/my-kernel",
        check=True,
        find_torch=lambda: cpu,
        runner=answering(measured, seen),
    )
    assert seen[0][0][6] == "check"
    text = bench.checks(bench.read(got))
    assert "on the CPU; nothing was timed" in text
    assert "1 of 1 shape compared.\n" in text
    assert "| RMS <norm> | bfloat16 | 2×3×4096 | 0.0e+00 | 1.0e-03 | – | 1.0e-03 | 5.0e-03 |" in text


def test_a_check_says_what_it_left_out() -> None:
    doc = checked()
    doc["left_out"] = [{"operation": "RMS <norm>", "shape": [8, rows, 4096]} for rows in (2048, 8192)]
    text = bench.checks(bench.read(doc))
    assert (
        "1 of 3 shapes compared; left out, large for a CPU: RMS <norm> 8×2048×4096, RMS <norm> 8×8192×4096.\n"
        in text
    )


def test_a_check_of_nothing_is_no_success(project: Path) -> None:
    nothing = {**checked(), "results": []}
    with pytest.raises(UsageError, match="nothing was compared: every shape is too large") as caught:
        bench.run(project, "k", "o/k", check=True, find_torch=lambda: TORCH, runner=answering(nothing, []))
    assert caught.value.hint == f"add a small one to {project / 'benchmarks' / 'rms_norm.py'}"


def test_a_check_writes_no_report(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="times nothing"):
        CliRunner().invoke(command, ["--check", "-o", str(tmp_path)], catch_exceptions=False)
