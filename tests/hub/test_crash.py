"""The Hub is killed amid uploads: what it acknowledged is there, what it did not is not half there."""

import contextlib
import hashlib
import json
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from trees import UNIVERSAL, python_package, write_variant

from kbuild.hub.plan import BranchPlan, RemoteFile, RepoType
from kbuild.hub.publish import Hub
from kbuild.hub.tree import content_file

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
REPO = "demo-org/relu"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class _Server:
    """A Hub in a process of its own that can be killed and started again where it was."""

    def __init__(self, root: Path) -> None:
        self.port = _free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._argv = [sys.executable, "-m", "kbuild", "localhub", "serve", "--root", str(root)]
        self._argv += ["--port", str(self.port), "--print-env"]
        self.environment: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.environment = json.loads(self._process.stdout.readline())["environment"]

    def kill(self) -> None:
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


def _upload(endpoint: str, seed: int, acknowledged: list[tuple[str, bytes]], stop: threading.Event) -> None:
    """Commit one LFS file after the other until the Hub fails."""
    hub = Hub(endpoint=endpoint, token="demo-token")
    number = 0
    while not stop.is_set():
        content = b"\0%d %d " % (seed, number) * 20_000
        file = content_file(f"{seed}/{number}.so", content)
        plan = BranchPlan(
            branch="main", parent=None, create=False, uploads=(file,), deletions=(), unchanged=()
        )
        try:
            hub.commit(REPO, RepoType.KERNEL, plan, title="t", pull_request=False)
        except Exception:
            # Which error a dying server causes is no matter here; that nothing acknowledged is lost is.
            return
        acknowledged.append((file.path, content))
        number += 1


def _listing(endpoint: str) -> dict[str, RemoteFile]:
    hub = Hub(endpoint=endpoint, token="demo-token")
    branches = hub.branches(REPO, RepoType.KERNEL)
    assert branches is not None
    return {file.path: file for file in hub.files(REPO, RepoType.KERNEL, branches["main"])}


def _check_state(root: Path, endpoint: str, acknowledged: list[tuple[str, bytes]]) -> None:
    database = sqlite3.connect(root / "hub.sqlite")
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    database.close()
    for blob in root.glob("blobs/*/*"):
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    there = _listing(endpoint)
    for path, content in acknowledged:
        assert there[path].sha256 == hashlib.sha256(content).hexdigest()
    for file in there.values():
        if file.sha256 is not None:
            assert (root / "blobs" / file.sha256[:2] / file.sha256).is_file()


@pytest.mark.parametrize("rounds", [2, pytest.param(15, marks=pytest.mark.heavy)])
def test_a_hub_killed_amid_uploads_loses_nothing_it_acknowledged(rounds: int, tmp_path: Path) -> None:
    root = tmp_path / "hub"
    server = _Server(root)
    acknowledged: list[tuple[str, bytes]] = []
    try:
        Hub(endpoint=server.endpoint, token="demo-token").create_repo(REPO, RepoType.KERNEL, private=False)
        for number in range(rounds):
            stop = threading.Event()
            threads = [
                threading.Thread(target=_upload, args=(server.endpoint, 10 * number + i, acknowledged, stop))
                for i in range(3)
            ]
            for thread in threads:
                thread.start()
            time.sleep(random.uniform(0.3, 1.2))
            server.kill()
            stop.set()
            server.start()
            for thread in threads:
                thread.join()
            _check_state(root, server.endpoint, acknowledged)
    finally:
        server.kill()
    assert acknowledged


def test_a_publisher_finishes_once_its_hub_is_back(tmp_path: Path) -> None:
    files = {**python_package(), **{f"data{i}.py": b"# %d\n" % i * 3_000_000 for i in range(3)}}
    write_variant(tmp_path / "build", UNIVERSAL, files)
    server = _Server(tmp_path / "hub")
    try:
        argv = [sys.executable, "-m", "kbuild", "publish", REPO, str(tmp_path)]
        # NB: only what a person would set; their own settings must not leak in.
        publisher = subprocess.Popen(
            argv, env={"PATH": "", **server.environment}, stderr=subprocess.PIPE, text=True
        )
        blobs, deadline = tmp_path / "hub" / "incoming", time.monotonic() + 60
        while not any(size > 2**20 for size in _sizes(blobs)):
            assert publisher.poll() is None
            assert time.monotonic() < deadline
        server.kill()
        publisher.kill()
        publisher.communicate()
        server.start()
        again = subprocess.run(
            argv, env={"PATH": "", **server.environment}, capture_output=True, text=True, check=False
        )
        assert again.returncode == 0, again.stderr
        _check_state(tmp_path / "hub", server.endpoint, [])
        third = subprocess.run(
            argv, env={"PATH": "", **server.environment}, capture_output=True, text=True, check=False
        )
        assert third.stdout.startswith("Nothing to do")
    finally:
        server.kill()


def _sizes(folder: Path) -> list[int]:
    """Of the files that lie there; what arrives whole is moved away at any moment."""
    sizes = []
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return sizes
