"""Run kernels' own tests on a GPU against published builds, and write down what ran where.

    python example_kernels/gpu_check.py HUB_FOLDER REPORT.json PROJECT...

HUB_FOLDER is the state of a loopback Hub that the projects were published to, on any machine (`kbuild localhub serve
--root HUB_FOLDER`, then `kbuild publish demo-org/...`). The Hub is started here, beside the GPU; the tests load from
it with `kernels.get_kernel`. REPORT.md is written next to REPORT.json.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kbuild.localhub.running import DEMO, running_hub


def machine() -> dict[str, str]:
    """What the results depend on."""
    import torch

    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "gpu": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "driver": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "kernels": importlib.metadata.version("kernels"),
        "huggingface_hub": importlib.metadata.version("huggingface_hub"),
        "python": sys.version.split()[0],
    }


def run_tests(project: Path, environment: dict[str, str]) -> dict[str, Any]:
    """One project's tests: counts, seconds and the names of what did not pass."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "junit.xml")
        argv = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", f"--rootdir={project}"]
        argv += ["-p", "no:cacheprovider", f"--junitxml={report}", str(project / "tests")]
        start = time.monotonic()
        done = subprocess.run(argv, env={**os.environ, **environment}, check=False)
        seconds = time.monotonic() - start
        suite = ElementTree.parse(report).getroot().find("testsuite")
        assert suite is not None
        bad = [f"{c.get('classname')}::{c.get('name')}" for c in suite.iter("testcase") if len(c) > 0]
        numbers = {key: int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")}
    return {
        "project": project.name,
        "exit": done.returncode,
        "seconds": round(seconds, 1),
        **numbers,
        "not_passed": bad,
    }


def loaded_variants(hub_home: str) -> list[str]:
    """The variants that the loader downloaded, from its cache."""
    return sorted({path.name for path in Path(hub_home).rglob("build/*") if path.is_dir()})


def markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    m = report["machine"]
    lines = [
        "# Kernels loaded and tested on a GPU",
        "",
        f"{m['gpu']} (capability {m['capability']}, driver {m['driver']}), torch {m['torch']}, CUDA {m['cuda']},",
        f"kernels {m['kernels']}, huggingface_hub {m['huggingface_hub']}, Python {m['python']}. The variants were",
        "built on a machine without a GPU and loaded with `get_kernel` from a Hub on loopback.",
        "",
        "| project | tests | passed | skipped | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for r in report["projects"]:
        passed = r["tests"] - r["failures"] - r["errors"] - r["skipped"]
        lines.append(f"| {r['project']} | {r['tests']} | {passed} | {r['skipped']} | {r['seconds']} |")
    lines += ["", "Loaded: " + ", ".join(f"`{name}`" for name in report["loaded"]) + "."]
    lines += ["", "Written by `example_kernels/gpu_check.py`."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("hub", type=Path)
    parser.add_argument("report", type=Path)
    parser.add_argument("projects", type=Path, nargs="+")
    arguments = parser.parse_args()
    with running_hub(arguments.hub, DEMO) as hub:
        environment = dict(hub.environment)
        results = [run_tests(project.resolve(), environment) for project in arguments.projects]
        loaded = loaded_variants(environment["HF_HOME"])
    report = {"version": 1, "machine": machine(), "projects": results, "loaded": loaded}
    arguments.report.write_text(json.dumps(report, indent=2) + "\n")
    arguments.report.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))
    sys.exit(any(result["exit"] != 0 for result in results))


main()
