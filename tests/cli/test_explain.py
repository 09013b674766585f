"""`kbuild explain` as a whole process."""

import json
import subprocess
import sys

from kbuild.explain import explanations


def kbuild(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kbuild", *argv], capture_output=True, text=True)


def test_one_code_and_all_of_them() -> None:
    page = kbuild("explain", "unlisted-header").stdout
    assert page.startswith("unlisted-header: A header is included and is in no src.\n\nWhy: ")
    assert "\n\nFix: " in page
    listed = [line.split()[0] for line in kbuild("explain").stdout.splitlines()]
    assert listed == list(explanations())
    answer = json.loads(kbuild("explain", "secret", "--json").stdout)
    assert [rule["code"] for rule in answer["rules"]] == ["secret"]


def test_an_unknown_code_gets_a_candidate() -> None:
    result = kbuild("explain", "unlisted-headr")
    assert (result.returncode, result.stdout) == (2, "")
    assert "Did you mean 'unlisted-header'?" in result.stderr
