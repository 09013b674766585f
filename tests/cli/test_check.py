"""`kbuild check` and `kbuild variants` as whole processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def kbuild(*argv: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbuild", *map(str, argv)], cwd=cwd, capture_output=True, text=True, timeout=60
    )


def test_a_good_project(base_project: Path) -> None:
    result = kbuild("check", base_project)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == "rms-norm: no errors, no warnings\n"


def test_findings_go_to_stdout_and_the_summary_to_stderr(base_project: Path) -> None:
    config = base_project / "build.toml"
    config.write_text(
        config.read_text().replace("license", "licence").replace("depends = []", "dependz = []")
    )
    result = kbuild("check", cwd=base_project / "cuda")
    assert result.returncode == 1
    assert result.stdout.startswith("build.toml:1:1: error[missing-key]: required key 'license' is missing")
    assert "build.toml:5:1: error[unknown-key]: unknown key 'licence'" in result.stdout
    assert (
        "Did you mean 'license'?\n  5 | licence = \"apache-2.0\"\n    | ^^^^^^^\n  hint: known keys"
        in result.stdout
    )
    assert result.stderr.endswith("4 errors, no warnings\n")


def test_strict_fails_on_warnings(base_project: Path) -> None:
    (base_project / "torch-ext" / "more.cpp").write_text("")
    assert kbuild("check", base_project).returncode == 0
    assert kbuild("check", "--strict", base_project).returncode == 1


@pytest.mark.parametrize("option", [("--json",), ("--format", "json")])
def test_json(base_project: Path, option: tuple[str, ...]) -> None:
    (base_project / "build.toml").write_text("[general\n")
    result = kbuild("check", base_project, *option)
    assert result.returncode == 1
    answer = json.loads(result.stdout)
    assert (answer["version"], answer["ok"]) == (1, False)
    (diagnostic,) = answer["diagnostics"]
    assert set(diagnostic) == {"code", "severity", "message", "path", "line", "column", "hint"}


@pytest.mark.parametrize(
    ("form", "start"), [("sarif", '{\n  "$schema"'), ("github", "::error file=build.toml,")]
)
def test_formats_for_machines(base_project: Path, form: str, start: str) -> None:
    (base_project / "build.toml").write_text("[general\n")
    result = kbuild("check", base_project, "--format", form)
    assert (result.returncode, result.stdout.startswith(start)) == (1, True)


def test_fix_mends_what_is_safe(base_project: Path) -> None:
    config = base_project / "build.toml"
    text = config.read_text()
    text = text.replace('["cuda/norm.cu", "cuda/norm.cuh"]', '["cuda/norm.cu", "cuda/norm.cu"] # mine')
    text = text.replace("depends = []", 'depends = ["torch"]').replace(
        'depends = ["torch"]', "depends = []", 1
    )
    config.write_text(text)
    (base_project / "cuda" / "norm.cuh").write_text('#include "deep.cuh"\n')
    (base_project / "cuda" / "deep.cuh").write_text("")
    assert kbuild("check", base_project).returncode == 1
    result = kbuild("check", "--strict", "--fix", base_project)
    assert (result.returncode, result.stdout) == (0, "")
    assert "mended build.toml in" in result.stderr
    assert config.read_text().endswith(
        'depends = []\nsrc = ["cuda/norm.cuh", "cuda/deep.cuh", "cuda/norm.cu"] # mine\n'
    )
    assert 'depends = ["torch"]\nsrc = ["cpu/norm.cpp"]' in config.read_text()


def test_no_project_is_a_usage_error(tmp_path: Path) -> None:
    result = kbuild("check", tmp_path)
    assert result.returncode == 2
    assert "no build.toml" in result.stderr
    assert "Traceback" not in result.stderr


def test_variants_table_and_json(base_project: Path) -> None:
    result = kbuild("variants", base_project)
    assert result.returncode == 0
    assert "torch213-cxx11-cpu-x86_64-linux    builds\n" in result.stdout
    assert "skipped: no source for the CUDA 12.6 toolkit" in result.stdout
    answer = json.loads(kbuild("variants", "--json", base_project).stdout)
    by_name = {entry["variant"]: entry for entry in answer["variants"]}
    entry = by_name["torch213-cxx11-cu130-x86_64-linux"]
    assert (entry["builds"], entry["torch"], entry["cuda"]) == (True, "2.13", "13.0")
    assert entry["kernels"] == {"norm_cuda": entry["kernels"]["norm_cuda"]}
    assert by_name["torch213-cxx11-cu126-x86_64-linux"]["builds"] is False


def test_variants_of_a_broken_project(base_project: Path) -> None:
    (base_project / "build.toml").write_text("[general\n")
    result = kbuild("variants", base_project)
    assert (result.returncode, result.stdout) == (1, "")
    assert "toml-syntax" in result.stderr
