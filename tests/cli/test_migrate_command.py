"""`kbuild migrate` as a whole process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


def kbuild(*argv: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kbuild", *map(str, argv)], capture_output=True, text=True)


@pytest.fixture
def old_project(base_project: Path) -> Path:
    config = base_project / "build.toml"
    config.write_text(config.read_text().replace("edition = 5\n", ""))
    config.chmod(0o640)
    return base_project


def test_it_writes_in_place_and_check_is_clean(old_project: Path) -> None:
    config = old_project / "build.toml"
    result = kbuild("migrate", old_project)
    assert (result.returncode, result.stdout) == (0, "")
    assert "took edition 4 to 5" in result.stderr
    assert config.read_text().count("edition = 5") == 1
    assert config.stat().st_mode & 0o777 == 0o640
    assert kbuild("check", "--strict", old_project).returncode == 0
    before = config.read_bytes()
    assert "already" in kbuild("migrate", old_project).stderr
    assert config.read_bytes() == before
    assert [path.name for path in old_project.glob("*build.toml*")] == ["build.toml"]


@pytest.mark.parametrize(("option", "code"), [("--diff", 0), ("--check", 1), ("--json", 0)])
def test_what_it_says(old_project: Path, option: str, code: int) -> None:
    before = (old_project / "build.toml").read_bytes()
    result = kbuild("migrate", option, old_project)
    assert result.returncode == code
    if option == "--diff":
        assert "\n+edition = 5\n" in result.stdout
    if option == "--json":
        answer = json.loads(result.stdout)
        assert (answer["version"], answer["edition"], answer["changed"]) == (1, 4, True)
        assert answer["steps"] == ["4 to 5: general.edition = 5"]
    else:
        assert (old_project / "build.toml").read_bytes() == before


def test_a_refusal_writes_nothing(base_project: Path) -> None:
    config = base_project / "build.toml"
    config.write_text('[general]\nname = "ab"\nbackends = ["cpu"]\n')
    result = kbuild("migrate", base_project)
    assert (result.returncode, result.stdout) == (1, "")
    assert "no general.license" in result.stderr
    assert "hint: kbuild migrate --license" in result.stderr
    assert "edition" not in config.read_text()
    assert kbuild("migrate", "--license", "mit", base_project).returncode == 0


def test_check_names_the_command(old_project: Path) -> None:
    assert "hint: run `kbuild migrate`" in kbuild("check", old_project).stdout
