"""The model card, made or filled in."""

from pathlib import Path

import pytest
import yaml
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild.errors import FindingsError
from kbuild.hub import card
from kbuild.hub.plan import RepoType
from kbuild.hub.tree import LocalBuild, read_build


@pytest.fixture
def build(tmp_path: Path) -> LocalBuild:
    write_variant(tmp_path / "build", CPU, native_package())
    write_variant(tmp_path / "build", UNIVERSAL, python_package())
    return read_build(tmp_path / "build", violations={CPU: (), UNIVERSAL: ()})


def _front_matter(text: str) -> object:
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n")[1])


def test_a_generated_card(tmp_path: Path, build: LocalBuild) -> None:
    package = tmp_path / "torch-ext" / "relu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        'from . import layers\n__all__ = ["relu", "layers"]\nraise SystemExit\n'
    )
    (package / "layers.py").write_text("class ReLU(Module): ...\n")
    text = card.render(
        tmp_path,
        build,
        repo_id="acme/relu",
        repo_type=RepoType.KERNEL,
        others=["torch-stable-abi212-cu130-x86_64-linux"],
    )
    assert _front_matter(text) == {"library_name": "kernels", "license": "apache-2.0", "tags": ["kernel"]}
    assert 'relu = get_kernel("acme/relu", version=1, trust_remote_code=True)' in text
    assert "## Functions\n\n- `relu`\n\n## Layers\n\n- `ReLU`\n\n## Variants\n" in text
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        "| `torch-stable-abi212-cu130-x86_64-linux` | 2.12 and later | cu130 | x86_64-linux |  |",
        "| `torch-universal` | any | any | any |  |",
        "| `torch213-cxx11-cpu-x86_64-linux` | 2.13 | cpu | x86_64-linux |  |",
    ]
    assert text.endswith(f"- commit: `{'a' * 40}`\n")
    assert text == card.render(
        tmp_path,
        build,
        repo_id="acme/relu",
        repo_type=RepoType.KERNEL,
        others=["torch-stable-abi212-cu130-x86_64-linux"],
    )


def test_a_card_for_old_loaders_names_no_argument_that_they_lack(tmp_path: Path, build: LocalBuild) -> None:
    text = card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.MODEL)
    assert 'get_kernel("acme/relu", version=1)' in text
    assert "trust_remote_code" not in text
    assert "only `kernels` before 0.14" in text


def test_the_projects_template_is_filled_in(tmp_path: Path, build: LocalBuild) -> None:
    (tmp_path / "CARD.md").write_text(
        "---\nlicense: {{ license }}\n---\n{% if functions %}\nfunctions\n{% else %}\nnone\n{% endif %}\n"
        "{{ repo_id }} {{ version }} {{ unknown }}<b>\n"
    )
    text = card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)
    assert text == "---\nlicense: apache-2.0\n---\nnone\nacme/relu 1 <b>\n"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("a\n{% if %}\n", r"CARD\.md:2: Expected an expression"),
        (
            "{{ ''.__class__.__mro__ }}",
            r"CARD\.md: access to attribute '__class__' of 'str' object is unsafe",
        ),
        (b"\xff", r"CARD\.md is not UTF-8"),
    ],
)
def test_a_template_that_is_none_is_named(
    tmp_path: Path, build: LocalBuild, template: str | bytes, message: str
) -> None:
    content = template if isinstance(template, bytes) else template.encode()
    (tmp_path / "CARD.md").write_bytes(content)
    with pytest.raises(FindingsError, match=message):
        card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)
