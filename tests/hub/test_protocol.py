"""The real Hub clients make every call they know of the loopback Hub."""

from dataclasses import replace
from pathlib import Path

import pytest
from hubs import CONFIG

from kbuild.localhub.config import Config
from kbuild.localhub.running import running_hub

SCRIPT = (Path(__file__).parents[1] / "fixtures" / "clients" / "protocol.py").read_text()
# Clients then page through every listing, and send parts of every larger file.
SMALL = replace(CONFIG, page_size=2, part_size=2**20)


@pytest.mark.parametrize(
    ("generation", "kind", "config"),
    [
        ("new", "kernel", SMALL),
        ("old", "model", CONFIG),
        pytest.param("new", "model", CONFIG, marks=pytest.mark.heavy),
        pytest.param("new", "kernel", CONFIG, marks=pytest.mark.heavy),
        pytest.param("old", "model", SMALL, marks=pytest.mark.heavy),
    ],
)
def test_every_call(
    generation: str, kind: str, config: Config, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client = request.getfixturevalue(generation)
    with running_hub(tmp_path / "hub", config) as hub:
        assert client.check(SCRIPT, kind, "acme/", environment=hub.environment) == "complete\n"
