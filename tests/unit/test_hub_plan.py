"""What publishing would change, and what it refuses to publish."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild.errors import FindingsError, UsageError
from kbuild.hub.plan import (
    BranchPlan,
    Plan,
    RemoteBranch,
    RemoteFile,
    RepoType,
    newest_version,
    plan_build,
    plan_card,
)
from kbuild.hub.tree import LocalFile, content_file, read_build

ATTRIBUTES = RemoteFile(path=".gitattributes", git_oid="0" * 40, sha256=None)


def _remote(file: LocalFile, *, lfs: bool = False) -> RemoteFile:
    if lfs:
        return RemoteFile(path=file.path, git_oid="1" * 40, sha256=file.sha256)
    return RemoteFile(path=file.path, git_oid=file.git_oid, sha256=None)


def _applied(plan: BranchPlan, before: list[RemoteFile]) -> list[RemoteFile]:
    after = {file.path: file for file in before if file.path not in plan.deletions}
    after |= {file.path: _remote(file, lfs=bool(file.size % 2)) for file in plan.uploads}
    return list(after.values())


_variants = st.sampled_from(["torch-cpu", "torch-universal", "torch-c"])
_contents = st.dictionaries(
    st.tuples(_variants, st.sampled_from(["a.py", "sub/b.py", "c.so"])).map(lambda p: f"build/{p[0]}/{p[1]}"),
    st.sampled_from([b"", b"x", b"yy", b"zzz"]),
    max_size=6,
)


@given(local=_contents.filter(bool), remote=_contents, pristine=st.booleans())
def test_a_plan_settles_what_it_is_for_and_leaves_the_rest(
    local: dict[str, bytes], remote: dict[str, bytes], *, pristine: bool
) -> None:
    files = [content_file(path, content) for path, content in local.items()]
    strangers = [content_file("README.md", b"r"), content_file("benchmarks/b.py", b"b")]
    before = [
        ATTRIBUTES,
        *map(_remote, (content_file(p, c) for p, c in remote.items())),
        *map(_remote, strangers),
    ]
    branch = RemoteBranch(name="v1", commit="c" * 40, files=tuple(before), pristine=pristine)

    plan = plan_build("v1", files, branch, create=False)
    after = _applied(plan, before)

    by_path = {file.path: file for file in after}
    assert all(by_path[file.path].holds(file) for file in files)
    published = {path.split("/")[1] for path in local}
    for file in before:
        if file.path in local or file.path == ".gitattributes":
            continue
        inside = file.path.startswith("build/") and file.path.split("/")[1] in published
        assert (file.path in by_path) == (not inside and not pristine)
    assert ".gitattributes" in by_path
    assert {file.path for file in plan.uploads} | set(plan.unchanged) == set(local)

    again = plan_build(
        "v1", files, RemoteBranch(name="v1", commit="d" * 40, files=tuple(after)), create=False
    )
    assert not again.changes


def test_a_branch_to_be_created_has_no_parent_and_starts_with_what_is_published_only() -> None:
    file = content_file("build/torch-cpu/a.py", b"a")
    old = _remote(content_file("build/torch-universal/a.py", b"a"))
    base = RemoteBranch(name="main", commit="c" * 40, files=(ATTRIBUTES, old))
    plan = plan_build("v1", [file], base, create=True)
    assert (plan.parent, plan.create) == (None, True)
    assert plan.deletions == ("build/torch-universal/a.py",)
    assert plan.uploads == (file,)


def test_a_folder_whose_name_starts_like_a_published_one_is_left_alone() -> None:
    neighbour = _remote(content_file("build/torch-cpu2/a.py", b"a"))
    branch = RemoteBranch(name="v1", commit="c" * 40, files=(neighbour,))
    assert (
        plan_build("v1", [content_file("build/torch-cpu/a.py", b"a")], branch, create=False).deletions == ()
    )


def test_the_card_deletes_nothing_and_is_sent_only_where_it_differs() -> None:
    card = content_file("README.md", b"# hello")
    main = RemoteBranch(name="main", commit="c" * 40, files=(ATTRIBUTES,))
    plan = plan_card(card, main)
    assert (plan.parent, plan.uploads, plan.deletions) == ("c" * 40, (card,), ())
    there = RemoteBranch(name="main", commit="d" * 40, files=(ATTRIBUTES, _remote(card)))
    assert not plan_card(card, there).changes


@pytest.mark.parametrize(
    ("branches", "newest"),
    [
        (["main"], None),
        (["v1", "main", "v10", "v9"], 10),
        (["v0"], 0),
        (["v1-rc", "version2", "v", "v-1", "v٣"], None),
    ],
)
def test_versions_are_read_from_branches_as_the_loader_does(branches: list[str], newest: int | None) -> None:
    assert newest_version(branches) == newest


def test_the_text_of_a_plan_names_every_file_and_who_can_load() -> None:
    gone = _remote(content_file("build/torch-cpu/old.py", b"o"))
    branch = RemoteBranch(name="v1", commit="c" * 40, files=(gone,))
    new = content_file("build/torch-cpu/a.so", b"a" * 1234567)
    plan = Plan(
        repo_id="acme/relu",
        repo_type=RepoType.MODEL,
        create_repo=True,
        private=True,
        pull_request=True,
        branches=(plan_build("v1", [new], branch, create=False),),
        notes=("the card is left alone",),
    )
    assert plan.as_text().splitlines() == [
        "model repository acme/relu (only `kernels` before 0.14 loads from it)",
        "  create it, private",
        "branch v1 in a pull request",
        "  upload  build/torch-cpu/a.so (1.2 MB)",
        "  delete  build/torch-cpu/old.py",
        "note: the card is left alone",
    ]
    assert plan.as_json()["branches"][0]["deletions"] == ["build/torch-cpu/old.py"]


VERIFIED: dict[str, tuple[str, ...]] = {CPU: (), UNIVERSAL: ()}


@pytest.fixture
def build(tmp_path: Path) -> Path:
    folder = tmp_path / "build"
    write_variant(folder, CPU, native_package())
    write_variant(folder, UNIVERSAL, python_package())
    return folder


def test_a_build_tree_is_read_with_the_hashes_a_hub_knows(build: Path) -> None:
    (build / ".incoming").mkdir()
    (build / "CARD.md").touch()
    read = read_build(build, violations=VERIFIED)
    assert [variant.name for variant in read.variants] == [UNIVERSAL, CPU]
    assert read.branch == "v1"
    for file in read.files:
        assert isinstance(file.source, Path)
        again = content_file(file.path, file.source.read_bytes())
        assert (again.sha256, again.git_oid, again.size) == (file.sha256, file.git_oid, file.size)
    empty = next(file for file in read.files if file.path == f"build/{UNIVERSAL}/layers.py")
    # What git itself calls an empty file.
    assert empty.git_oid == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def _refusal(
    build: Path, *, allow_dirty: bool = False, violations: dict[str, tuple[str, ...]] = VERIFIED
) -> str:
    with pytest.raises(FindingsError) as caught:
        read_build(build, violations=violations, allow_dirty=allow_dirty)
    return caught.value.message


def test_what_the_verification_found_is_refused(build: Path) -> None:
    assert f"{CPU}: bad symbol" in _refusal(build, violations={**VERIFIED, CPU: ("bad symbol",)})


def test_what_was_not_verified_is_refused(build: Path) -> None:
    assert f"{CPU}: was not verified" in _refusal(build, violations={UNIVERSAL: ()})


def test_mixed_versions_are_refused(build: Path) -> None:
    write_variant(build, UNIVERSAL, python_package(), version=2)
    assert f"more than one version: 2 in {UNIVERSAL}, 1 in {CPU}" in _refusal(build)


def test_two_kernels_in_one_tree_are_refused(build: Path) -> None:
    write_variant(build, UNIVERSAL, python_package(), kernel="gelu")
    assert f"more than one name: gelu in {UNIVERSAL}, relu in {CPU}" in _refusal(build)


def test_equal_ids_are_refused(build: Path) -> None:
    for name in (CPU, UNIVERSAL):
        write_variant(build, name, {}, identity="same")
    assert f"{CPU}: has the same id as {UNIVERSAL}" in _refusal(build)


def test_uncommitted_changes_are_refused_unless_allowed(build: Path) -> None:
    write_variant(build, UNIVERSAL, python_package(), dirty=True)
    assert f"{UNIVERSAL}: was built from uncommitted changes" in _refusal(build)
    assert read_build(build, violations=VERIFIED, allow_dirty=True)


@pytest.mark.parametrize("name", ["__pycache__/x.cpython-311.pyc", "sub/x.pyc", "x.pyo"])
def test_bytecode_is_refused(build: Path, name: str) -> None:
    path = build / UNIVERSAL / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert "bytecode" in _refusal(build)


def test_a_changed_file_is_refused(build: Path) -> None:
    (build / UNIVERSAL / "layers.py").write_text("changed")
    assert f"{UNIVERSAL}: layers.py does not match its digest" in _refusal(build)


def test_links_and_special_files_are_refused(build: Path) -> None:
    folder = build / UNIVERSAL
    (folder / "sub").symlink_to(build / CPU)
    os.mkfifo(folder / "pipe")
    message = _refusal(build)
    assert "sub is a link to a folder" in message
    assert "pipe is not a regular file" in message
    (folder / "gone").symlink_to("nowhere")
    assert f"cannot read {folder / 'gone'}: No such file" in _refusal(build)


def test_metadata_that_is_missing_or_wrong_is_refused(build: Path) -> None:
    (build / CPU / "metadata.json").unlink()
    (build / UNIVERSAL / "metadata.json").write_text("{}")
    message = _refusal(build)
    assert f"cannot read {build / CPU / 'metadata.json'}" in message
    assert f"{UNIVERSAL}: metadata.json: id is missing" in message


def test_nothing_to_publish_is_said(build: Path) -> None:
    shutil.rmtree(build)
    with pytest.raises(UsageError, match=f"Cannot read {build}: No such file"):
        read_build(build, violations={})
    (build / ".incoming").mkdir(parents=True)
    with pytest.raises(UsageError, match=f"no variants in {build}") as caught:
        read_build(build, violations={})
    assert "kbuild build" in str(caught.value.hint)
