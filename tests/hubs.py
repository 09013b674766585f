"""Loopback Hubs, the people on them, and the real clients; the fixtures of everything that publishes or loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients import Client, new_client, old_client

from kbuild.localhub.config import Config, Role, User
from kbuild.localhub.running import RunningHub, running_hub

CONFIG = Config(
    users=(
        User(name="ada", token="hf_ada", orgs=("acme", "trusty")),
        User(name="reader", token="hf_reader", orgs=("acme",), role=Role.READ),
        User(name="outsider", token="hf_outsider"),
    ),
    orgs=("acme", "trusty"),
    trusted_orgs=frozenset({"trusty"}),
)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[RunningHub]:
    """A fresh Hub; its own token is ada's, who may write to acme and trusty."""
    with running_hub(tmp_path / "hub", CONFIG) as running:
        assert running.environment["HF_ENDPOINT"].startswith("http://127.0.0.1:")
        yield running


@pytest.fixture(scope="session")
def new() -> Client:
    """huggingface_hub 2.4 and kernels 0.17.2."""
    return new_client()


@pytest.fixture(scope="session")
def old() -> Client:
    """huggingface_hub 1.33 and kernels 0.13.0."""
    return old_client()
