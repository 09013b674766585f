"""Opening a project: where it is found, what git says about it, and which files a build sees."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kbuild import process
from kbuild.errors import FindingsError, UsageError
from kbuild.project import Project, find_root

FIXTURES = Path(__file__).parents[1] / "fixtures" / "accepted" / "base"
BASE_FILES = (
    "CARD.md",
    "build.toml",
    "cpu/norm.cpp",
    "cuda/norm.cu",
    "cuda/norm.cuh",
    "tests/test_norm.py",
    "torch-ext/rms_norm/__init__.py",
    "torch-ext/torch_binding.cpp",
    "torch-ext/torch_binding.h",
)


def codes(project: Project) -> list[str]:
    return [diagnostic.code for diagnostic in project.report]


def git(root: Path, *argv: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *argv], cwd=root, check=True)


def test_the_folder_and_its_build_toml_are_the_same_project(base_project: Path) -> None:
    assert Project.open(base_project).root == Project.open(base_project / "build.toml").root == base_project


def test_a_subfolder_finds_the_project_above(base_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(base_project / "torch-ext" / "rms_norm")
    assert Project.open().root == base_project


def test_an_explicit_path_is_not_searched_upward_but_the_hint_knows(base_project: Path) -> None:
    with pytest.raises(UsageError, match="there is no build") as caught:
        find_root(base_project / "cuda")
    assert str(base_project) in str(caught.value.hint)


@pytest.mark.parametrize(("name", "message"), [("absent", "no folder"), ("CARD.md", "is a file")])
def test_paths_that_are_no_project(base_project: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        find_root(base_project / name)


def test_no_project_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="or any folder above"):
        find_root(None)


def test_a_symlinked_project_and_a_path_with_spaces(base_project: Path, tmp_path: Path) -> None:
    spaced = tmp_path / "my kernels" / "rms norm"
    shutil.copytree(base_project, spaced)
    link = tmp_path / "link"
    link.symlink_to(spaced)
    project = Project.open(link)
    assert (project.root, codes(project)) == (spaced, [])
    assert project.visible_files() == BASE_FILES


def test_visible_files_are_those_of_a_build_and_no_more(base_project: Path) -> None:
    extra = {
        "notes.txt": "no",
        "cuda/unlisted.cu": "no",
        "torch-ext/rms_norm/_ops.py": "no: every build makes its own",
        "torch-ext/rms_norm/__pycache__/x.pyc": "no",
        "torch-ext/rms_norm/data.json": "no: not in pyext",
        "torch-ext/rms_norm/layers/__init__.py": "yes",
        "benchmarks/bench.py": "yes",
        "flake.nix": "yes",
        "tests/data.bin": "no",
    }
    for name, text in extra.items():
        (base_project / name).parent.mkdir(parents=True, exist_ok=True)
        (base_project / name).write_text(text)
    wanted = {*BASE_FILES, *(name for name, text in extra.items() if text == "yes")}
    assert Project.open(base_project).visible_files() == tuple(sorted(wanted))


def test_a_path_may_be_written_in_a_roundabout_way(base_project: Path) -> None:
    config = base_project / "build.toml"
    text = config.read_text()
    for plain, written in (
        ("cpu/norm.cpp", "./cpu/norm.cpp"),
        ("cuda/norm.cu", "cuda/../cuda/norm.cu"),
        ("cuda/norm.cuh", "cuda//norm.cuh"),
    ):
        text = text.replace(f'"{plain}"', f'"{written}"')
    config.write_text(text)
    git(base_project, "init", "-q")
    git(base_project, "add", ".")
    git(base_project, "commit", "-q", "-m", "all")
    project = Project.open(base_project)
    assert (codes(project), project.visible_files()) == ([], BASE_FILES)
    config.write_text(text.replace('"./cpu/norm.cpp"', '"./cpu/norm.cpp", "cpu/norm.cpp", "cpu//norm.cpp"'))
    project = Project.open(base_project)
    assert [code for code in codes(project) if code != "uncommitted-changes"] == [
        "repeated-entry",
        "repeated-entry",
    ]


def test_git_hides_what_it_does_not_track(base_project: Path) -> None:
    git(base_project, "init", "-q")
    (base_project / "torch-ext" / "rms_norm" / "helpers.py").write_text("")
    (base_project / "benchmarks").mkdir()
    (base_project / "benchmarks" / "bench.py").write_text("")
    git(base_project, "add", "build.toml", "CARD.md", "cpu", "cuda/norm.cu", "tests", "torch-ext/*.*")
    git(base_project, "rm", "-q", "--cached", "torch-ext/rms_norm/helpers.py")
    project = Project.open(base_project)
    found = {(str(d.span), d.severity.value, d.code, d.hint) for d in project.report}
    assert found == {
        ("build.toml:22:24", "error", "untracked-source", "git add cuda/norm.cuh"),
        ("benchmarks/bench.py:1:1", "warning", "untracked-file", "git add benchmarks/bench.py"),
        (
            "torch-ext/rms_norm/helpers.py:1:1",
            "error",
            "untracked-file",
            "git add torch-ext/rms_norm/helpers.py",
        ),
    }
    assert "cuda/norm.cuh" not in project.visible_files()
    git(base_project, "add", ".")
    project = Project.open(base_project)
    assert codes(project) == []
    assert {*BASE_FILES, "benchmarks/bench.py"} < set(project.visible_files())


def test_ignored_files_and_submodules_have_their_own_way_out(base_project: Path) -> None:
    git(base_project, "init", "-q")
    git(base_project / "cuda", "init", "-q")
    (base_project / "benchmarks").mkdir()
    (base_project / "benchmarks" / "bench.py").write_text("")
    (base_project / "real").mkdir()
    (base_project / "benchmarks").rename(base_project / "real" / "benchmarks")
    (base_project / "benchmarks").symlink_to("real/benchmarks")
    (base_project / ".gitignore").write_text("norm.cpp\n_version.py\ncuda\n")
    (base_project / "torch-ext" / "rms_norm" / "_version.py").write_text("")
    git(base_project, "add", "build.toml", "CARD.md", "torch-ext", "tests", ".gitignore")
    found = {(d.severity.value, d.span.path, d.hint) for d in Project.open(base_project).report}
    assert found == {
        ("error", "build.toml", "git add -f cpu/norm.cpp (.gitignore leaves it out)"),
        ("error", "build.toml", "copy the files that the build needs into the project"),
        ("warning", "benchmarks", "replace the link benchmarks by the folder that it leads to"),
        (
            "warning",
            "torch-ext/rms_norm/_version.py",
            "git add -f torch-ext/rms_norm/_version.py (.gitignore leaves it out)",
        ),
    }


def test_git_tracks_nothing_behind_a_linked_folder(base_project: Path) -> None:
    (base_project / "cuda").rename(base_project / "real")
    (base_project / "cuda").symlink_to("real")
    (base_project / "torch-ext").rename(base_project / "ext")
    (base_project / "torch-ext").symlink_to("ext")
    git(base_project, "init", "-q")
    git(base_project, "add", ".")
    found = {(str(d.span), d.severity.value, d.code, d.hint) for d in Project.open(base_project).report}
    copy = "replace the link torch-ext by the folder that it leads to"
    assert found == {
        ("build.toml:10:5", "error", "untracked-source", copy),
        ("build.toml:11:5", "error", "untracked-source", copy),
        ("build.toml:22:8", "error", "untracked-source", 'write "real/norm.cu"'),
        ("build.toml:22:24", "error", "untracked-source", 'write "real/norm.cuh"'),
        ("torch-ext:1:1", "error", "untracked-file", copy),
    }


@pytest.mark.parametrize("target", ["inside", "outside"])
def test_a_linked_package(base_project: Path, target: str) -> None:
    package = base_project / "torch-ext" / "rms_norm"
    real = (base_project if target == "inside" else base_project.parent) / "rms_norm"
    package.rename(real)
    package.symlink_to(real)
    git(base_project, "init", "-q")
    git(base_project, "add", ".")
    (finding,) = Project.open(base_project).report
    assert (str(finding.span), finding.code) == ("torch-ext/rms_norm:1:1", "stray-link")
    assert finding.hint == "replace the link by a copy, or remove it"


def test_a_folder_of_the_project_that_lies_outside_of_it(base_project: Path) -> None:
    (base_project / "torch-ext" / "rms_norm").rename(base_project.parent / "ext")
    shutil.rmtree(base_project / "torch-ext")
    (base_project.parent / "torch-ext").mkdir()
    (base_project.parent / "ext").rename(base_project.parent / "torch-ext" / "rms_norm")
    (base_project / "torch-ext").symlink_to("../torch-ext")
    config = base_project / "build.toml"
    config.write_text(config.read_text().replace("torch-ext/torch_binding", "cpu/torch_binding"))
    for name in ("torch_binding.cpp", "torch_binding.h"):
        shutil.copy(FIXTURES / "torch-ext" / name, base_project / "cpu")
    found = [(str(d.span), d.code) for d in Project.open(base_project).report]
    assert found == [("torch-ext:1:1", "stray-link")]


def test_a_package_in_a_submodule(base_project: Path) -> None:
    git(base_project, "init", "-q")
    package = base_project / "torch-ext" / "rms_norm"
    git(package, "init", "-q")
    git(package, "add", ".")
    git(package, "commit", "-q", "-m", "all")
    git(base_project, "-c", "advice.addEmbeddedRepo=false", "add", ".")
    (finding,) = Project.open(base_project).report
    assert (finding.code, finding.severity.value) == ("untracked-file", "error")
    assert "submodule 'torch-ext/rms_norm'" in finding.message
    assert finding.hint == "copy the files that the build needs into the project"


def test_a_project_that_git_knows_nothing_of(base_project: Path) -> None:
    git(base_project, "init", "-q")
    assert codes(Project.open(base_project)) == ["untracked-project"]


def test_changes_since_the_commit_are_noted(base_project: Path) -> None:
    git(base_project.parent, "init", "-q")
    git(base_project.parent, "add", ".")
    git(base_project.parent, "commit", "-q", "-m", "all")
    (base_project / "notes.txt").write_text("not tracked, so no part of a build")
    (base_project / "CARD.md").touch()
    (base_project.parent / "elsewhere").write_text("")
    git(base_project.parent, "add", "elsewhere")
    assert codes(Project.open(base_project)) == []
    with (base_project / "cuda" / "norm.cu").open("a") as source:
        source.write("\n")
    (base_project / "tests" / "test_more.py").write_text("")
    git(base_project, "add", "tests")
    (note,) = Project.open(base_project).report
    assert (note.severity.value, note.code, note.span.path) == ("note", "uncommitted-changes", "cuda/norm.cu")
    assert note.message.startswith("cuda/norm.cu, tests/test_more.py: not as in the commit")


def test_a_project_below_the_top_of_the_work_tree(base_project: Path) -> None:
    git(base_project.parent, "init", "-q")
    git(base_project.parent, "add", ".")
    project = Project.open(base_project)
    assert (codes(project), project.visible_files()) == ([], BASE_FILES)


def test_git_is_asked_once_and_its_failure_is_said(base_project: Path) -> None:
    calls = []

    def runner(argv: Sequence[str], **_: Any) -> process.Completed:
        calls.append(tuple(argv))
        return process.Completed(
            argv=tuple(argv), returncode=128, stdout="", stderr="fatal: detected dubious ownership"
        )

    project = Project.open(base_project, runner=runner)
    assert codes(project) == ["git-failed"]
    assert len(calls) == 1
    assert project.visible_files() == BASE_FILES


def test_no_git_program_is_fine(base_project: Path) -> None:
    def runner(argv: Sequence[str], **_: Any) -> process.Completed:
        raise FileNotFoundError(argv[0])

    assert codes(Project.open(base_project, runner=runner)) == []


def test_a_broken_configuration_is_no_config(base_project: Path) -> None:
    (base_project / "build.toml").write_text("[general\n")
    project = Project.open(base_project)
    assert project.config is None
    with pytest.raises(FindingsError, match="toml-syntax"):
        project.visible_files()


def test_an_unknown_key_hides_nothing_else(base_project: Path) -> None:
    config = base_project / "build.toml"
    config.write_text(config.read_text().replace('"cuda/norm.cuh"', '"cuda/gone.cuh"') + "cuda-flag = []\n")
    project = Project.open(base_project)
    assert set(codes(project)) == {"unknown-key", "missing-source", "unlisted-header"}
    with pytest.raises(FindingsError, match="cuda-flag"):
        project.require_config()


def test_an_unknown_table_stops_before_what_it_may_have_meant(base_project: Path) -> None:
    config = base_project / "build.toml"
    config.write_text(config.read_text().replace("[kernel.norm_cuda]", "[kernels.norm_cuda]"))
    assert codes(Project.open(base_project)) == ["unknown-key"]
