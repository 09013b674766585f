"""The real Hub clients make every call they know of the loopback Hub."""

from dataclasses import replace
from pathlib import Path

import pytest
from clients import Client
from hubs import CONFIG

from kbuild.localhub.running import RunningHub, running_hub

SCRIPT = (Path(__file__).parents[1] / "fixtures" / "clients" / "protocol.py").read_text()


@pytest.mark.parametrize("kind", ["kernel", "model"])
def test_the_current_client(new: Client, hub: RunningHub, kind: str) -> None:
    assert new.check(SCRIPT, kind, "acme/", environment=hub.environment) == "complete\n"


def test_the_old_client(old: Client, hub: RunningHub) -> None:
    assert old.check(SCRIPT, "model", "acme/", environment=hub.environment) == "complete\n"


@pytest.mark.parametrize("generation", ["new", "old"])
def test_with_small_pages_and_parts(generation: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    client: Client = request.getfixturevalue(generation)
    with running_hub(tmp_path / "hub", replace(CONFIG, page_size=2, part_size=2**20)) as hub:
        assert client.check(SCRIPT, "model", "acme/", environment=hub.environment) == "complete\n"
