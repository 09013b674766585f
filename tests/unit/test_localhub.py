"""The loopback Hub by itself: git's ids, durability, paths, signed addresses."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hubs import CONFIG
from hypothesis import given
from hypothesis import strategies as st

from kbuild.errors import HubError
from kbuild.localhub.blobs import Blobs
from kbuild.localhub.config import Config, User
from kbuild.localhub.gitids import File, blob_oid, commit_oid, pointer, tree_oids
from kbuild.localhub.running import RunningHub, running_hub
from kbuild.localhub.store import Kind, Message, Put, RefusalError, Remove, Store, changed, check_path


def _file(content: bytes) -> File:
    return File(
        oid=blob_oid(content), size=len(content), sha256=hashlib.sha256(content).hexdigest(), lfs=False
    )


def test_ids_are_gits(tmp_path: Path) -> None:
    contents = {
        "README.md": b"hello\n",
        "a-b/x": b"1",
        "a/x": b"2",
        "a.b": b"3",
        "a/b/c/d.so": pointer("0" * 64, 12),
        "empty": b"",
        "naïve/ü": b"4",
    }
    for path, content in contents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
    env = {
        **os.environ,
        "GIT_AUTHOR_NAME": "ada",
        "GIT_AUTHOR_EMAIL": "ada@localhost",
        "GIT_COMMITTER_NAME": "ada",
        "GIT_COMMITTER_EMAIL": "ada@localhost",
        "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
        "GIT_CONFIG_GLOBAL": "/dev/null",
    }

    def git(*argv: str) -> str:
        return subprocess.run(
            ["git", *argv], cwd=tmp_path, env=env, check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "--cleanup=verbatim", "-m", "title\n\nbody")
    files = {path: _file(content) for path, content in contents.items()}
    oids = tree_oids(files)
    for folder in ("", "a", "a/b/c", "naïve"):
        assert oids[folder] == git("rev-parse", f"HEAD:{folder}")
    first = commit_oid(tree=oids[""], parents=(), author="ada", time=1700000000, message="title\n\nbody\n")
    assert first == git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "--cleanup=verbatim", "-m", "again")
    second = commit_oid(tree=oids[""], parents=(first,), author="ada", time=1700000000, message="again\n")
    assert second == git("rev-parse", "HEAD")


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "a/../b",
        "..",
        ".git/config",
        "a/.GIT/b",
        "a\\b",
        "a\nb",
        "a\0",
        "a" * 4097,
    ],
)
def test_paths_that_no_repository_takes(path: str) -> None:
    with pytest.raises(RefusalError) as caught:
        check_path(path)
    assert caught.value.status == 400


_paths = st.lists(st.sampled_from(["a", "b", "c.so", "dir"]), min_size=1, max_size=3).map("/".join)


@given(st.lists(st.tuples(_paths, st.booleans()), max_size=8))
def test_a_tree_never_has_a_file_that_is_a_folder(changes: list[tuple[str, bool]]) -> None:
    files: dict[str, File] = {}
    for path, remove in changes:
        try:
            files = changed(files, [Remove(path=path) if remove else Put(path=path, file=_file(b"x"))])
        except RefusalError:
            continue
    assert set(files).isdisjoint(tree_oids(files))


def test_a_store_keeps_what_it_acknowledged_and_lets_one_of_many_win(tmp_path: Path) -> None:
    store = Store(tmp_path, clock=time.time)
    message = Message(author="ada", title="t")
    repo = store.create_repo(Kind.KERNEL, "acme/relu", private=False, initial=[], message=message)
    tip = store.resolve(repo, "main").oid
    results: list[int] = []
    barrier = threading.Barrier(8)

    def commit(number: int, parent: str | None) -> None:
        barrier.wait()
        try:
            store.commit(repo, "main", [Put(path=f"f{number}", file=_file(b"x"))], message, parent=parent)
            results.append(200)
        except RefusalError as refusal:
            results.append(refusal.status)

    def race(parent: str | None, first: int) -> None:
        threads = [threading.Thread(target=commit, args=(first + i, parent)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    race(tip, 0)
    assert sorted(results) == [200] + [412] * 7
    race(None, 100)
    assert results.count(200) == 9
    store.close()

    again = Store(tmp_path, clock=time.time)
    files = again.resolve(again.repo(Kind.KERNEL, "acme/relu"), "main").files
    assert {f"f{100 + i}" for i in range(8)} < set(files)
    assert len(list(again.history(repo, "main"))) == 10
    again.close()


def test_a_blob_appears_under_its_hash_or_not_at_all(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    sha256 = blobs.put(b"hello")
    assert blobs.path(sha256).read_bytes() == b"hello"
    with blobs.receive() as incoming:
        incoming.write(b"half")
        half = incoming.sha256
    assert not blobs.has(half)
    assert list((tmp_path / "incoming").iterdir()) == []
    (tmp_path / "incoming" / "left over").touch()
    Blobs(tmp_path)
    assert list((tmp_path / "incoming").iterdir()) == []
    with pytest.raises(ValueError, match="secret"):
        blobs.path("../secret")


# Over HTTP


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    """A Hub that no test changes; it has the model repository acme/r."""
    with running_hub(tmp_path_factory.mktemp("standing"), CONFIG) as running:
        body = {"name": "r", "organization": "acme"}
        assert _ask(f"{running.endpoint}/api/repos/create", method="POST", body=body)[0] == 200
        yield running


def _ask(
    url: str,
    *,
    method: str = "GET",
    token: str | None = "hf_ada",
    body: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any, bytes]:
    content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=content, method=method, headers=headers or {})
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def _upload_address(hub: RunningHub, content: bytes) -> str:
    oid = hashlib.sha256(content).hexdigest()
    _ask(f"{hub.endpoint}/api/repos/create", method="POST", body={"name": "r", "organization": "acme"})
    status, _, answer = _ask(
        f"{hub.endpoint}/acme/r.git/info/lfs/objects/batch",
        method="POST",
        body={
            "operation": "upload",
            "transfers": ["basic"],
            "objects": [{"oid": oid, "size": len(content)}],
            "ref": {"name": "main"},
        },
    )
    assert status == 200
    return str(json.loads(answer)["objects"][0]["actions"]["upload"]["href"])


def test_uploads_go_to_signed_addresses_only(hub: RunningHub, tmp_path: Path) -> None:
    content = b"\0" * 1000
    address = _upload_address(hub, content)
    for wrong in (
        address.partition("?")[0],
        address[:-1] + ("0" if address[-1] != "0" else "1"),
        address.replace("size=1000", "size=999"),
    ):
        status, headers, _ = _ask(wrong, method="PUT", body=content, token=None)
        assert status == 403
        assert "signed" in headers["X-Error-Message"]
    for bad in (content[:-1], content + b"x", b"\1" * 1000):
        assert _ask(address, method="PUT", body=bad, token=None)[0] == 400
    assert list((tmp_path / "hub" / "incoming").iterdir()) == []
    assert _ask(address, method="PUT", body=content, token=None)[0] == 200
    blob = (
        tmp_path
        / "hub"
        / "blobs"
        / hashlib.sha256(content).hexdigest()[:2]
        / hashlib.sha256(content).hexdigest()
    )
    assert blob.read_bytes() == content


def test_an_address_expires(tmp_path: Path) -> None:
    now = [1_000_000.0]
    with running_hub(tmp_path / "hub", CONFIG, clock=lambda: now[0]) as hub:
        address = _upload_address(hub, b"x")
        now[0] += 3601
        status, headers, _ = _ask(address, method="PUT", body=b"x", token=None)
    assert (status, headers["X-Error-Message"]) == (403, "The upload address has expired")


def _commit(hub: RunningHub, path: str, content: str, **header: str) -> tuple[int, bytes]:
    lines = [
        {"key": "header", "value": {"summary": "s", **header}},
        {"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}},
    ]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    status, _, answer = _ask(f"{hub.endpoint}/api/models/acme/r/commit/main", method="POST", body=body)
    return status, answer


def test_files_are_served_in_ranges_with_the_headers_that_clients_need(hub: RunningHub) -> None:
    _ask(f"{hub.endpoint}/api/repos/create", method="POST", body={"name": "r", "organization": "acme"})
    assert _commit(hub, "f.txt", "aGVsbG8=")[0] == 200
    url = f"{hub.endpoint}/acme/r/resolve/main/f.txt"
    status, headers, body = _ask(url, headers={"Range": "bytes=2-"})
    assert (status, body) == (206, b"llo")
    status, headers, body = _ask(url, method="HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "5")
    assert headers["ETag"] == f'"{blob_oid(b"hello")}"'
    assert len(headers["X-Repo-Commit"]) == 40
    status, headers, _ = _ask(f"{hub.endpoint}/acme/r/resolve/main/none")
    assert (status, headers["X-Error-Code"]) == (404, "EntryNotFound")
    assert len(headers["X-Repo-Commit"]) == 40


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/", None, 404),
        ("GET", "/api/models/acme/none", None, 404),
        ("GET", "/api/models/acme/r/tree/main/none", None, 404),
        ("GET", "/api/datasets/acme/r", None, 404),
        ("POST", "/api/models/acme/r/commit/main", b"not json", 400),
        ("POST", "/api/models/acme/r/commit/main", b'{"key": "file", "value": {}}', 400),
        ("POST", "/api/models/acme/r/commit/main", b"", 400),
        ("POST", "/api/models/acme/r/preupload/main", [], 400),
        ("POST", "/api/models/acme/r/preupload/main", {"files": [1]}, 400),
        (
            "POST",
            "/api/models/acme/r/preupload/main",
            {"files": [{"path": "a", "size": 1, "sample": "?"}]},
            400,
        ),
        ("POST", "/api/models/acme/r/preupload/main", {"files": [{"path": "a", "size": "1"}]}, 400),
        ("POST", "/acme/r.git/info/lfs/objects/batch", {"operation": "download"}, 400),
        ("POST", "/datasets/acme/r.git/info/lfs/objects/batch", {}, 404),
        ("POST", "/api/repos/create", {"name": "x", "type": "space"}, 400),
        ("POST", "/api/repos/create", {"name": "a--b"}, 400),
        ("POST", "/api/repos/create", {"name": "x", "organization": "api"}, 404),
        ("GET", "/api/models/acme/r/tree/main?cursor=x", None, 400),
        ("PUT", "/lfs/x", b"x", 403),
        ("POST", "/lfs/x/complete", {}, 403),
    ],
)
def test_odd_requests_are_refused_in_json(
    standing: RunningHub, method: str, path: str, body: Any, status: int
) -> None:
    got, _, answer = _ask(f"{standing.endpoint}{path}", method=method, body=body)
    assert got == status
    assert json.loads(answer)["error"]


def test_path_traversal_reaches_nothing(hub: RunningHub) -> None:
    _ask(f"{hub.endpoint}/api/repos/create", method="POST", body={"name": "r", "organization": "acme"})
    for path in ("../../hub.sqlite", "..%2F..%2Fhub.sqlite", "%2e%2e/%2e%2e/hub.sqlite", "/etc/passwd"):
        assert _ask(f"{hub.endpoint}/acme/r/resolve/main/{path}")[0] == 404
    assert _commit(hub, "../x", "aGVsbG8=")[0] == 400


def test_names_that_are_part_of_addresses_are_no_users(tmp_path: Path) -> None:
    with (
        pytest.raises(HubError, match="'kernels' cannot be"),
        running_hub(tmp_path, Config(users=(User(name="kernels", token="t"),))),
    ):
        pass


# As a command


@contextmanager
def _served(root: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    command = [sys.executable, "-m", "kbuild", "localhub", "serve", "--root", str(root), "--print-env", *argv]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["environment"]
        finally:
            process.kill()


def test_the_command_says_where_it_listens_and_survives_a_kill(tmp_path: Path) -> None:
    people = ("--org", "acme", "--trusted-org", "good", "--user", "ada", "--token", "hf_ada")
    with _served(tmp_path / "hub", *people) as (process, environment):
        hub = RunningHub(endpoint=environment["HF_ENDPOINT"], token="hf_ada", environment=environment)
        assert environment["HF_TOKEN"] == "hf_ada"
        _ask(f"{hub.endpoint}/api/repos/create", method="POST", body={"name": "r", "organization": "acme"})
        acknowledged = [_commit(hub, f"f{i}", "aGVsbG8=")[0] for i in range(5)]
        process.send_signal(signal.SIGKILL)
    assert acknowledged == [200] * 5
    with _served(tmp_path / "hub", *people) as (process, environment):
        _, _, answer = _ask(f"{environment['HF_ENDPOINT']}/api/models/acme/r/tree/main")
        overview = json.loads(_ask(f"{environment['HF_ENDPOINT']}/api/organizations/good/overview")[2])
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    assert [entry["path"] for entry in json.loads(answer)] == [".gitattributes", *(f"f{i}" for i in range(5))]
    assert overview["trustedKernelPublisher"] is True


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kbuild", "localhub", "serve", "--root", str(tmp_path / "hub")]
    finished = subprocess.run([*command, "--user", "x"], capture_output=True, text=True, check=False)
    assert finished.returncode == 2
    assert "Each --user takes one --token" in finished.stderr
    with running_hub(tmp_path / "other") as hub:
        port = hub.endpoint.rpartition(":")[2]
        finished = subprocess.run([*command, "--port", port], capture_output=True, text=True, check=False)
    assert finished.returncode == 3
    assert f"Cannot listen on 127.0.0.1:{port}" in finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (lambda root: root.write_text("mine"), "File exists"),
        (lambda root: (root / "incoming").mkdir(parents=True) or (root / "notes.txt").touch(), "something else"),
        (lambda root: root.mkdir() or (root / "hub.sqlite").write_text("not a database" * 99), "not a database"),
        (lambda root: root.mkdir() or (root / "hub.sqlite").mkdir(), "unable to open database file"),
    ],
)  # fmt: skip
def test_a_root_that_can_hold_no_hub_is_refused(
    tmp_path: Path, state: Callable[[Path], object], message: str
) -> None:
    root = tmp_path / "root"
    state(root)
    command = [sys.executable, "-m", "kbuild", "localhub", "serve", "--root", str(root)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 2
    assert f"Cannot keep a Hub in {root}: " in result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_root_without_its_path_gives_settings_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with _served(Path("hub")) as (_, environment):
        assert environment["HF_HOME"] == str(tmp_path / "hub" / "client-home")
