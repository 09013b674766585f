"""Publishing to a Hub and loading back with the clients that users have."""

import hashlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clients import Client
from hubs import CONFIG
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild.errors import ExitCode, HubError, UsageError
from kbuild.hub import card
from kbuild.hub.loadback import State, load_back
from kbuild.hub.plan import RemoteBranch, RepoType, plan_build, plan_card
from kbuild.hub.publish import Hub, Outcome, Request, make_plan, publish
from kbuild.hub.tree import content_file, read_build
from kbuild.localhub.blobs import Blobs
from kbuild.localhub.gitids import File, blob_oid
from kbuild.localhub.running import RunningHub, running_hub
from kbuild.localhub.store import Kind, Message, Put, Store

REPO = "acme/relu"

# The Hub's client uploads with an argument that its HTTP library calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one native and one Python variant built."""
    write_variant(tmp_path / "project" / "build", CPU, native_package())
    write_variant(tmp_path / "project" / "build", UNIVERSAL, python_package())
    return tmp_path / "project"


def request_for(project: Path, *, allow_mixed: bool = False, **options: object) -> Request:
    """What `kbuild publish` would ask for, with every variant taken as verified."""
    names = [folder.name for folder in (project / "build").iterdir()]
    build = read_build(project / "build", violations=dict.fromkeys(names, ()), allow_mixed=allow_mixed)
    request = Request(
        repo_id=REPO,
        build=build,
        card=lambda kind, others: card.render(project, build, repo_id=REPO, repo_type=kind, others=others),
    )
    return replace(request, **options)  # type: ignore[arg-type]


def publish_to(hub: RunningHub, request: Request, *, token: str = "hf_ada") -> tuple[Outcome, list[str]]:
    story: list[str] = []
    return publish(Hub(endpoint=hub.endpoint, token=token), request, tell=story.append), story


def files_on(hub: RunningHub, branch: str, kind: RepoType = RepoType.KERNEL) -> dict[str, str]:
    """Path -> hash of the content as the Hub lists it."""
    client = Hub(endpoint=hub.endpoint, token="hf_ada")
    branches = client.branches(REPO, kind)
    assert branches is not None
    return {f.path: f.sha256 or f.git_oid for f in client.files(REPO, kind, branches[branch])}


def _content(hub: RunningHub, branch: str, path: str, kind: RepoType = RepoType.KERNEL) -> bytes:
    prefix = "kernels/" if kind is RepoType.KERNEL else ""
    with urllib.request.urlopen(f"{hub.endpoint}/{prefix}{REPO}/resolve/{branch}/{path}") as response:
        return bytes(response.read())


LOAD = """
import sys, torch
from kernels import get_kernel
for repo in sys.argv[1:]:
    trust = {"trust_remote_code": True} if repo.endswith("!") else {}
    try:
        module = get_kernel(repo.rstrip("!"), version=1, **trust)
    except ValueError as error:
        print("refused:", error)
        continue
    assert torch.equal(module.relu(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
    print(module.answer, module.__file__)
"""


def test_a_kernel_repository_is_loaded_by_the_current_loader(
    new: Client, hub: RunningHub, project: Path
) -> None:
    outcome, story = publish_to(hub, request_for(project))
    assert outcome.plan.repo_type is RepoType.KERNEL
    assert [commit.branch for commit in outcome.commits] == ["v1", "main"]
    assert "Creating the kernel repository acme/relu: `kernels` 0.14 and later load from it" in story
    publish_to(hub, request_for(project, repo_id="trusty/relu"))
    # With a word, without, and from an organisation that needs none.
    printed = new.check(LOAD, f"{REPO}!", REPO, "trusty/relu", environment=hub.environment).splitlines()
    assert printed[0].startswith("42 ")
    assert f"/build/{CPU}/" in printed[0]
    assert "not from a trusted publisher" in printed[1]
    assert printed[2].startswith("42 ")


def test_a_model_repository_is_loaded_by_the_old_loader(old: Client, hub: RunningHub, project: Path) -> None:
    outcome, story = publish_to(hub, request_for(project, repo_type=RepoType.MODEL))
    assert outcome.plan.repo_type is RepoType.MODEL
    assert "Creating the model repository acme/relu: only `kernels` before 0.14 loads from it" in story
    printed = old.check(LOAD, REPO, environment=hub.environment)
    assert printed.startswith("42 ")
    assert f"/build/{CPU}/" in printed


def test_load_back_says_what_was_loaded_and_why_not(
    new: Client, old: Client, hub: RunningHub, project: Path
) -> None:
    publish_to(hub, request_for(project))
    settings = {**os.environ, **hub.environment}

    def load(client: Client, revision: str = "v1", **extra: str) -> tuple[State, str]:
        result = load_back(
            REPO, RepoType.KERNEL, revision, python=str(client.python), environment={**settings, **extra}
        )
        return result.state, result.text

    assert load(new) == (State.LOADED, CPU)
    state, text = load(old)
    assert (state, text) == (State.SKIPPED, "kernels 0.13.0 does not load from kernel repositories")
    assert load(new, DO_NOT_TRACK="1")[0] is State.SKIPPED
    here = load_back(REPO, RepoType.KERNEL, "v1", environment=settings)
    assert (here.state, here.text) == (State.SKIPPED, "this Python has no torch")

    # What the loader does not notice, because it compares no digest.
    new.check(
        "import sys; from huggingface_hub import *\n"
        "operations = [CommitOperationAdd(sys.argv[2], b'answer = 0\\n')]\n"
        "HfApi().create_commit(sys.argv[1], operations, commit_message='x', revision='v1', repo_type='kernel')",
        REPO,
        f"build/{CPU}/__init__.py",
        environment=hub.environment,
    )
    assert load(new) == (State.FAILED, f"{CPU}: __init__.py does not match its digest")


def test_publishing_again_commits_nothing(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project))
    before = Hub(endpoint=hub.endpoint, token="hf_ada").branches(REPO, RepoType.KERNEL)
    outcome, story = publish_to(hub, request_for(project))
    assert outcome.commits == ()
    assert story == [
        "v1: nothing to commit, 6 file(s) are there already",
        "main: nothing to commit, 1 file(s) are there already",
    ]
    assert not outcome.plan.changes
    assert Hub(endpoint=hub.endpoint, token="hf_ada").branches(REPO, RepoType.KERNEL) == before


def test_a_fresh_version_branch_holds_what_is_published_and_nothing_else(
    hub: RunningHub, project: Path
) -> None:
    publish_to(hub, request_for(project))
    files = files_on(hub, "v1")
    assert set(files) == {".gitattributes", *(file.path for file in request_for(project).build.files)}
    assert (
        files[f"build/{CPU}/_tiny.abi3.so"] == hashlib.sha256(native_package()["_tiny.abi3.so"]).hexdigest()
    )
    assert set(files_on(hub, "main")) == {".gitattributes", "README.md"}
    assert b'get_kernel("acme/relu", version=1' in _content(hub, "main", "README.md")


def test_stale_files_of_published_variants_go_and_other_variants_stay(hub: RunningHub, project: Path) -> None:
    write_variant(project / "build", UNIVERSAL, {"old.py": b"", "sub/old.py": b""})
    publish_to(hub, request_for(project))
    # Rebuilt without its old files, and the native variant not built at all this time.
    for folder in (project / "build").iterdir():
        subprocess.run(["rm", "-r", folder], check=True)
    write_variant(project / "build", UNIVERSAL, python_package(answer=43))
    request = request_for(project)
    plan = make_plan(Hub(endpoint=hub.endpoint, token="hf_ada"), request)
    assert plan.branches[0].deletions == (f"build/{UNIVERSAL}/old.py", f"build/{UNIVERSAL}/sub/old.py")
    publish_to(hub, request)
    kept = {f"build/{CPU}/{name}" for name in ("__init__.py", "_tiny.abi3.so", "metadata.json")}
    assert set(files_on(hub, "v1")) == {".gitattributes", *kept, *(f.path for f in request.build.files)}
    # The card still lists the variant that stayed.
    assert CPU.encode() in _content(hub, "main", "README.md")


def test_what_a_card_says_of_variants_on_the_hub_stays(hub: RunningHub, project: Path) -> None:
    cuda = "torch213-cxx11-cu130-x86_64-linux"
    write_variant(project / "build", cuda, native_package(), archs=("8.0", "9.0+PTX"), commit="b" * 40)
    publish_to(hub, request_for(project, allow_mixed=True))
    before = _content(hub, "main", "README.md")
    assert b"| cu130 | x86_64-linux | 8.0, 9.0+PTX |" in before
    subprocess.run(["rm", "-r", project / "build" / cuda], check=True)
    outcome, _ = publish_to(hub, request_for(project))
    assert outcome.commits == ()
    assert _content(hub, "main", "README.md") == before


def test_a_variant_on_the_hub_without_readable_metadata_stays_in_the_card(
    hub: RunningHub, project: Path
) -> None:
    publish_to(hub, request_for(project))
    client = Hub(endpoint=hub.endpoint, token="hf_ada")
    theirs = [content_file("build/torch-cuda/metadata.json", b"{"), content_file("build/torch-tpu/a.py", b"")]
    branches = client.branches(REPO, RepoType.KERNEL)
    assert branches is not None
    remote = RemoteBranch(name="v1", commit=branches["v1"], files=())
    plan = plan_build("v1", theirs, remote, create=False)
    client.commit(REPO, RepoType.KERNEL, plan, title="x", pull_request=False)
    publish_to(hub, request_for(project))
    text = _content(hub, "main", "README.md")
    assert b"| `torch-cuda` | any | cuda | any | not recorded |" in text
    assert b"| `torch-tpu` | any | tpu | any | not recorded |" in text
    assert b"- commit: not recorded (torch-cuda, torch-tpu)" in text


def test_a_dry_run_changes_nothing(hub: RunningHub, project: Path) -> None:
    client = Hub(endpoint=hub.endpoint, token="hf_ada")
    plan = make_plan(client, request_for(project))
    assert plan.create_repo
    assert [(branch.branch, branch.create) for branch in plan.branches] == [("v1", True), ("main", False)]
    assert client.branches(REPO, RepoType.KERNEL) is None


def test_a_new_version_goes_to_its_own_branch_and_an_old_one_leaves_the_card(
    hub: RunningHub, project: Path
) -> None:
    publish_to(hub, request_for(project))
    for name in (CPU, UNIVERSAL):
        write_variant(project / "build", name, {}, version=2)
    outcome, _ = publish_to(hub, request_for(project))
    assert [commit.branch for commit in outcome.commits] == ["v2", "main"]
    assert b"version=2" in _content(hub, "main", "README.md")
    for name in (CPU, UNIVERSAL):
        write_variant(project / "build", name, {}, version=1)
    write_variant(project / "build", UNIVERSAL, python_package(answer=41), version=1)
    outcome, story = publish_to(hub, request_for(project))
    assert [commit.branch for commit in outcome.commits] == ["v1"]
    assert "note: the card is left alone: v2 is newer than v1" in story
    assert b"version=2" in _content(hub, "main", "README.md")


def test_another_branch(hub: RunningHub, project: Path) -> None:
    outcome, story = publish_to(hub, request_for(project, branch="staging"))
    assert [commit.branch for commit in outcome.commits] == ["staging"]
    assert "note: the card is left alone: staging is not where loaders look for v1" in story
    outcome, _ = publish_to(hub, request_for(project, branch="main"))
    assert [commit.branch for commit in outcome.commits] == ["main"]
    assert {"README.md", f"build/{CPU}/__init__.py"} < set(files_on(hub, "main"))


def test_pull_requests_by_somebody_who_may_not_write(hub: RunningHub, project: Path) -> None:
    with pytest.raises(HubError, match="no repository acme/relu to open a pull request against"):
        publish_to(hub, request_for(project, pull_request=True))
    publish_to(hub, request_for(project))
    before = files_on(hub, "v1")
    write_variant(project / "build", UNIVERSAL, python_package(answer=43))
    outcome, _ = publish_to(hub, request_for(project, pull_request=True), token="hf_outsider")
    assert [commit.pull_request for commit in outcome.commits] == [
        f"{hub.endpoint}/kernels/{REPO}/discussions/1"
    ]
    assert outcome.revision == "refs/pr/1"
    again, story = publish_to(hub, request_for(project, pull_request=True), token="hf_outsider")
    assert (again.commits, again.revision) == (outcome.commits, "refs/pr/1")
    assert f"v1: {outcome.commits[0].pull_request} proposes this already" in story[0]
    assert files_on(hub, "v1") == before
    changed = f"build/{UNIVERSAL}/__init__.py"
    assert b"43" in _content(hub, "refs%2Fpr%2F1", changed)


def test_another_proposal_is_another_pull_request(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project))
    for answer, number in ((43, 1), (44, 2), (43, 1)):
        write_variant(project / "build", UNIVERSAL, python_package(answer=answer))
        outcome, _ = publish_to(hub, request_for(project, pull_request=True))
        assert outcome.revision == f"refs/pr/{number}"
    # What was merged and overtaken is proposed anew.
    publish_to(hub, request_for(project))
    write_variant(project / "build", UNIVERSAL, python_package(answer=44))
    assert publish_to(hub, request_for(project, pull_request=True))[0].revision == "refs/pr/3"


def test_an_existing_model_repository_is_used(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project, repo_type=RepoType.MODEL))
    outcome, _ = publish_to(hub, request_for(project))
    assert (outcome.plan.repo_type, outcome.commits) == (RepoType.MODEL, ())


def test_private_repositories(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project, private=True))
    assert Hub(endpoint=hub.endpoint, token="hf_outsider").branches(REPO, RepoType.KERNEL) is None
    assert publish_to(hub, request_for(project, private=True))[0].commits == ()


def test_many_small_files_go_up_in_one_commit(hub: RunningHub, project: Path) -> None:
    write_variant(project / "build", UNIVERSAL, {f"data/{i % 50}/{i}.py": b"%d" % i for i in range(1500)})
    outcome, _ = publish_to(hub, request_for(project))
    assert len(outcome.commits) == 2
    assert len(files_on(hub, "v1")) == 1500 + 7
    assert publish_to(hub, request_for(project))[0].commits == ()


# What can go wrong


@contextmanager
def _tapped(root: Path, tap: Callable[[HttpRequest], Response | None]) -> Iterator[RunningHub]:
    """A Hub whose requests pass through `tap` first, which may answer in its place."""

    def wrap(app: ASGIApp) -> ASGIApp:
        async def tapped(scope: Scope, receive: Receive, send: Send) -> None:
            answer = tap(HttpRequest(scope)) if scope["type"] == "http" else None
            await (app if answer is None else answer)(scope, receive, send)

        return tapped

    with running_hub(root, CONFIG, wrap=wrap) as running:
        yield running


def test_somebody_else_commits_meanwhile(tmp_path: Path, project: Path) -> None:
    intruders = ["torch-cpu", "torch-cuda"]

    def tap(request: HttpRequest) -> None:
        if "/commit/v1" in request.url.path and intruders:
            content = b"theirs"
            sha256 = Blobs(tmp_path / "hub").put(content)
            file = File(oid=blob_oid(content), size=len(content), sha256=sha256, lfs=False)
            store = Store(tmp_path / "hub", clock=time.time)
            change = Put(path=f"build/{intruders.pop()}/theirs.py", file=file)
            message = Message(author="grace", title="meanwhile")
            store.commit(store.repo(Kind.KERNEL, REPO), "v1", [change], message, parent=None)
            store.close()

    with _tapped(tmp_path / "hub", tap) as hub:
        _, story = publish_to(hub, request_for(project))
        assert story.count("v1: somebody else committed meanwhile; looking again") == 2
        theirs = {"build/torch-cpu/theirs.py", "build/torch-cuda/theirs.py"}
        ours = {file.path for file in request_for(project).build.files}
        assert set(files_on(hub, "v1")) == {".gitattributes"} | theirs | ours


def test_a_branch_that_never_rests(tmp_path: Path, project: Path) -> None:
    def tap(request: HttpRequest) -> Response | None:
        return Response(status_code=412) if "/commit/" in request.url.path else None

    with (
        _tapped(tmp_path / "hub", tap) as hub,
        pytest.raises(HubError, match="The branch v1 of acme/relu kept moving: 5 attempts"),
    ):
        publish_to(hub, request_for(project))


def test_a_listing_that_fails_is_not_taken_for_an_empty_one(tmp_path: Path, project: Path) -> None:
    broken = ""

    def tap(request: HttpRequest) -> Response | None:
        return Response(status_code=501) if broken and broken in request.url.path else None

    with _tapped(tmp_path / "hub", tap) as hub:
        publish_to(hub, request_for(project))
        before = files_on(hub, "v1")
        write_variant(project / "build", UNIVERSAL, python_package(answer=43))
        for broken in ("/refs", "/tree/"):  # noqa: B007 - read by tap
            with pytest.raises(
                HubError, match=r"Cannot list the (branches|files) of acme/relu: .*501"
            ) as caught:
                publish_to(hub, request_for(project))
            assert "Running the command again is safe" in str(caught.value.hint)
        broken = ""
        assert files_on(hub, "v1") == before


@pytest.mark.parametrize(
    ("token", "options", "message", "hint"),
    [
        ("hf_wrong", {}, "Invalid credentials in Authorization header", "The Hub takes no token, or not this one"),
        ("hf_reader", {}, "a token with write permission", "The token may only read"),
        ("hf_outsider", {}, "permissions to write", "belongs to outsider, a member of no organisation"),
        ("hf_ada", {"repo_id": "nowhere/relu"}, "'nowhere' does not exist", "a member of acme, trusty, and 'nowhere'"),
    ],
)  # fmt: skip
def test_who_may_not_is_told_why(
    hub: RunningHub, project: Path, token: str, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(HubError, match=message) as caught:
        publish_to(hub, request_for(project, **options), token=token)
    assert hint in str(caught.value.hint)
    assert token not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.exit_code is ExitCode.HUB


def test_no_write_right_to_a_repository_that_exists(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project))
    write_variant(project / "build", UNIVERSAL, python_package(answer=43))
    with pytest.raises(HubError, match="Cannot commit to v1 of acme/relu: You don't have the required"):
        publish_to(hub, request_for(project), token="hf_outsider")


def test_a_hub_that_refuses_kernel_repositories(tmp_path: Path, project: Path) -> None:
    with running_hub(tmp_path / "hub", replace(CONFIG, allow_kernels=False)) as hub:
        with pytest.raises(
            HubError, match="Cannot create the kernel repository acme/relu: You are not allowed"
        ) as caught:
            publish_to(hub, request_for(project))
        assert "--repo-type model" in str(caught.value.hint)
        assert "only `kernels` before 0.14 loads from it" in str(caught.value.hint)
        outcome, _ = publish_to(hub, request_for(project, repo_type=RepoType.MODEL))
        assert outcome.plan.repo_type is RepoType.MODEL


def test_a_repository_that_this_token_may_not_see(hub: RunningHub, project: Path) -> None:
    publish_to(hub, request_for(project, private=True))
    with pytest.raises(HubError, match="Cannot create the kernel repository"):
        publish_to(hub, request_for(project), token="hf_outsider")


def test_nobody_listens(project: Path) -> None:
    with pytest.raises(HubError, match=r"http://127\.0\.0\.1:9 did not answer") as caught:
        publish(Hub(endpoint="http://127.0.0.1:9", token="x"), request_for(project), tell=print)
    assert "HF_ENDPOINT" in str(caught.value.hint)


@pytest.mark.parametrize("endpoint", ["localhost", "http://", "ftp://127.0.0.1:1"])
def test_an_endpoint_that_is_no_address(project: Path, endpoint: str) -> None:
    with pytest.raises(HubError, match="did not answer"):
        publish(Hub(endpoint=endpoint, token="x"), request_for(project), tell=print)


def test_a_name_that_no_repository_can_have(hub: RunningHub, project: Path) -> None:
    with pytest.raises(UsageError, match="'acme/a--b' cannot be the name"):
        publish_to(hub, request_for(project, repo_id="acme/a--b"))


def test_a_file_that_changes_while_it_is_published(hub: RunningHub, project: Path) -> None:
    request = request_for(project)
    (project / "build" / CPU / "__init__.py").write_text("changed\n")
    with pytest.raises(HubError, match=f"build/{CPU}/__init__.py changed while"):
        publish_to(hub, request)
    assert set(files_on(hub, "v1")) == {".gitattributes"}


def test_a_branch_left_empty_by_a_run_that_was_cut_short_starts_clean(hub: RunningHub, project: Path) -> None:
    client = Hub(endpoint=hub.endpoint, token="hf_ada")
    client.create_repo(REPO, RepoType.KERNEL, private=False)
    readme = plan_card(content_file("README.md", b"x"), None)
    client.commit(REPO, RepoType.KERNEL, readme, title="x", pull_request=False)
    client.create_branch(REPO, RepoType.KERNEL, "v1", "main")
    publish_to(hub, request_for(project))
    assert "README.md" not in files_on(hub, "v1")


# Killed


class _Assassin:
    """Kills its victim as the request of that number arrives."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.victim: subprocess.Popen[bytes] | None = None

    def __call__(self, _: HttpRequest) -> None:
        if self.victim is not None:
            self._left -= 1
            if self._left == 0:
                self.victim.kill()


def _kill_at(number: int, tmp_path: Path, project: Path) -> bool:
    """Publish in a process that is killed as its request `number` arrives; whether it came that far."""
    assassin = _Assassin(number)
    with _tapped(tmp_path / "hub", assassin) as hub:
        argv = [sys.executable, "-m", "kbuild", "publish", REPO, str(project)]
        assassin.victim = subprocess.Popen(
            argv, env={**os.environ, **hub.environment}, stderr=subprocess.PIPE
        )
        _, stderr = assassin.victim.communicate(timeout=60)
        killed = assassin.victim.returncode == -signal.SIGKILL
        assert killed or assassin.victim.returncode == 0, stderr.decode()
        assassin.victim = None
        branches = Hub(endpoint=hub.endpoint, token="hf_ada").branches(REPO, RepoType.KERNEL) or {}
        expected = {file.path for file in request_for(project).build.files}
        if "v1" in branches:
            assert set(files_on(hub, "v1")) in ({".gitattributes"}, {".gitattributes"} | expected)
        publish_to(hub, request_for(project))
        assert set(files_on(hub, "v1")) == {".gitattributes"} | expected
        assert set(files_on(hub, "main")) == {".gitattributes", "README.md"}
        assert publish_to(hub, request_for(project))[0].commits == ()
    return killed


@pytest.fixture
def pure(tmp_path: Path) -> Path:
    """A project that passes the verification of the command: Python only, one file large enough for LFS."""
    files = {**python_package(), "data.py": b"#" * (10 * 2**20)}
    write_variant(tmp_path / "pure" / "build", UNIVERSAL, files)
    return tmp_path / "pure"


# A run makes about 20 requests; these are spread over creation, upload and commit.
@pytest.mark.parametrize("number", [4, 9, 13])
def test_a_publisher_killed_midway(number: int, tmp_path: Path, pure: Path) -> None:
    assert _kill_at(number, tmp_path, pure)


@pytest.mark.heavy
def test_a_publisher_killed_at_every_request(tmp_path: Path, pure: Path) -> None:
    number = 1
    while _kill_at(number, tmp_path / str(number), pure):
        number += 1
    assert number > 12
