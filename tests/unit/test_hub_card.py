"""The model card, made or filled in."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from trees import CPU, UNIVERSAL, native_package, python_package, write_variant

from kbuild.errors import FindingsError
from kbuild.hub import card
from kbuild.hub.plan import RepoType
from kbuild.hub.tree import LocalBuild, read_build
from kbuild.metadata import BackendInfo, BackendType, BuilderVersion, GitStatus, Metadata, Provenance


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
    others = {
        "torch-stable-abi212-cu130-x86_64-linux": None,
        "torch213-cxx11-cu130-x86_64-linux": Metadata(
            id="_relu_cuda_1",
            name="relu",
            version=1,
            license="Apache-2.0",
            backend=BackendInfo(type=BackendType.CUDA, archs=("9.0", "10.0")),
            provenance=Provenance(
                kernel_builder=BuilderVersion(version="0.0.9"), kernel=GitStatus(commit="b" * 40, dirty=True)
            ),
        ),
    }
    text = card.render(
        tmp_path,
        build,
        repo_id="acme/relu",
        repo_type=RepoType.KERNEL,
        others=others,
    )
    assert _front_matter(text) == {"library_name": "kernels", "license": "apache-2.0", "tags": ["kernel"]}
    assert 'relu = get_kernel("acme/relu", version=1, trust_remote_code=True)' in text
    assert "## Functions\n\n- `relu`\n\n## Layers\n\n- `ReLU`\n\n## Variants\n" in text
    assert [line for line in text.splitlines() if line.startswith("| `")] == [
        "| `torch-stable-abi212-cu130-x86_64-linux` | 2.12 and later | cu130 | x86_64-linux | not recorded |",
        "| `torch-universal` | any | any | any |  |",
        "| `torch213-cxx11-cpu-x86_64-linux` | 2.13 | cpu | x86_64-linux |  |",
        "| `torch213-cxx11-cu130-x86_64-linux` | 2.13 | cu130 | x86_64-linux | 9.0, 10.0 |",
    ]
    assert text.endswith(
        "## Provenance\n\n- builder: 0.0.9\n- builder: 0.1.0\n"
        "- commit: not recorded (torch-stable-abi212-cu130-x86_64-linux)\n"
        f"- commit: `{'a' * 40}` (torch-universal, torch213-cxx11-cpu-x86_64-linux)\n"
        f"- commit: `{'b' * 40}`, with changes (torch213-cxx11-cu130-x86_64-linux)\n"
    )
    assert text == card.render(
        tmp_path,
        build,
        repo_id="acme/relu",
        repo_type=RepoType.KERNEL,
        others=others,
    )


def test_a_card_for_old_loaders_names_no_argument_that_they_lack(tmp_path: Path, build: LocalBuild) -> None:
    text = card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.MODEL)
    assert 'get_kernel("acme/relu", version=1)' in text
    assert "trust_remote_code" not in text
    assert "only `kernels` before 0.14" in text
    assert text.endswith(f"- builder: 0.1.0\n- commit: `{'a' * 40}`\n")


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
            r"CARD\.md:1: access to attribute '__class__' of 'str' object is unsafe",
        ),
        ("a\nb\n{{ 1/0 }}", r"CARD\.md:3: a card has no div"),
        ("{{ 10**9999999 }}", r"CARD\.md:1: a card has no pow"),
        ("{{ 'a' * 9999999999 }}", r"CARD\.md:1: a card has no mul"),
        ("{% for a in range(100000) %}{% endfor %}", r"CARD\.md:1: a card has no call"),
        ("{% set a = 'b' ~ 'c' %}", r"CARD\.md:1: a card has no assign"),
        ("{% macro a() %}{% endmacro %}", r"CARD\.md:1: a card has no macro"),
        ("\n{% include '/etc/passwd' %}", r"CARD\.md:2: a card has no include"),
        ("\n{{ name | center(9999999999) }}", r"CARD\.md:2: a card has no filter 'center'"),
        ("{{ 'aa'|join('aa')|join('aa') }}", r"CARD\.md:1: a card has no 'join' of what was joined"),
        ("{{ 'aa'|join('aa'|replace('a','bb')) }}", r"CARD\.md:1: a card has no 'join' of what was joined"),
        (
            "{% for a in name %}\n{% for b in name %}\n{% for c in name %}{% endfor %}{% endfor %}{% endfor %}",
            r"CARD\.md:3: a card has no loops more than 2 deep",
        ),
        ("a\n{{ version < name }}", r"CARD\.md:2: '<' not supported between"),
        ("a\n{{ unknown.thing }}", r"CARD\.md:2: 'unknown' is undefined"),
        ("a\n{{ version | first }}", r"CARD\.md:2: 'int' object is not iterable"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", r"CARD\.md: maximum recursion depth exceeded"),
        ("{% if name %}" * 150 + "{% endif %}" * 150, r"CARD\.md:.*too many"),
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


def test_the_card_of_the_public_builder_is_filled_in(tmp_path: Path, build: LocalBuild) -> None:
    (tmp_path / "CARD.md").write_text(
        "{% if functions %}\n{{ functions[0] }} = module.{{ functions[0] }}\n{% for func in functions %}\n"
        "- `{{ func }}`{% if not loop.last %};{% endif %}\n\n{% endfor %}\n{% endif %}\n"
        "{{ functions[:1] | join(', ') }} {{ upstream or 'none' }} {{ source | default('-', true) }}\n"
    )
    package = tmp_path / "torch-ext" / "relu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__all__ = ["relu", "gelu"]\n')
    text = card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)
    assert text == "relu = module.relu\n- `relu`;\n- `gelu`\nrelu none -\n"


@pytest.mark.parametrize(
    "make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")], ids=["folder", "pipe", "link"]
)
def test_a_template_that_is_no_file_is_not_passed_over(
    tmp_path: Path, build: LocalBuild, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "CARD.md")
    with pytest.raises(FindingsError, match=r"CARD\.md is not a file"):
        card.render(tmp_path, build, repo_id="acme/relu", repo_type=RepoType.KERNEL)


def test_a_package_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "__init__.py")
    assert card.exports(tmp_path) == ([], [])
