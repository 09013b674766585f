"""build/: results appear whole or not at all."""

import json
from pathlib import Path

import pytest

from kbuild.errors import MachineError, UsageError
from kbuild.workspace import build_folder, builder_inputs, same_content, workspace


def result(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_text(text)
    (folder / "metadata.json").chmod(0o444)
    folder.chmod(0o555)
    return folder


def test_a_result_replaces_the_one_before(tmp_path: Path) -> None:
    for text in ("one", "two"):
        source = result(tmp_path / "store" / text, text)
        with build_folder(tmp_path) as folder:
            folder.accept("v", folder.incoming("v", source))
        assert same_content(tmp_path / "build" / "v", source)
        assert (tmp_path / "build" / "v" / "metadata.json").stat().st_mode & 0o777 == 0o644
    assert [p.name for p in (tmp_path / "build").iterdir()] == ["v"]


def test_a_discarded_result_leaves_nothing(tmp_path: Path) -> None:
    with build_folder(tmp_path) as folder:
        folder.discard(folder.incoming("v", result(tmp_path / "store", "one")))
    assert not (tmp_path / "build").exists()


def test_leftovers_of_an_interrupted_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / "build" / ".incoming" / "v").mkdir(parents=True)
    with build_folder(tmp_path):
        pass
    assert not (tmp_path / "build").exists()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with build_folder(tmp_path), pytest.raises(UsageError, match="another kbuild"), build_folder(tmp_path):
        pass


def test_build_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "build").touch()
    with pytest.raises(UsageError, match="not a folder"), build_folder(tmp_path):
        pass


def test_a_missing_result_is_a_clear_error(tmp_path: Path) -> None:
    with build_folder(tmp_path) as folder, pytest.raises(MachineError, match="cannot write"):
        folder.incoming("v", tmp_path / "nowhere")
    assert not (tmp_path / "build").exists()


def test_the_snapshot_has_exactly_the_named_files(tmp_path: Path) -> None:
    root = tmp_path / "a project"
    (root / "src").mkdir(parents=True)
    for name in ("build.toml", "src/a.cu", "secret.txt"):
        (root / name).write_text(name)
    with workspace(root, ["build.toml", "src/a.cu"], {"provenance": None}) as place:
        files = sorted(
            p.relative_to(place.project).as_posix() for p in place.project.rglob("*") if p.is_file()
        )
        assert files == ["build.toml", "flake.nix", "src/a.cu"]
        assert place.generated_flake
        assert json.loads((place.builder / "session.json").read_text()) == {"provenance": None}
        kept = place.project
    assert not kept.exists()


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"kbuild": "path:../.."}, ["kbuild"]),
        ({"kernel-builder": "github:huggingface/kernels"}, ["kernel-builder"]),
        ({"nixpkgs": "github:NixOS/nixpkgs", "b": "github:huggingface/kernel-builder"}, ["b"]),
    ],
)
def test_the_input_that_stands_for_the_builder(inputs: dict[str, str], expected: list[str]) -> None:
    assert builder_inputs(inputs) == expected


def test_no_input_stands_for_the_builder() -> None:
    with pytest.raises(UsageError, match="nixpkgs"):
        builder_inputs({"nixpkgs": "github:NixOS/nixpkgs"})
