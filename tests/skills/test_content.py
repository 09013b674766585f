"""What the skill says is so: its size, its links, its excerpts, its commands, the limits of GPUs."""

import ast
import contextlib
import re
import shlex
import warnings
from pathlib import Path

import click
import pytest
import yaml
from skills.material import REFERENCES, SCRIPTS, SKILL, TRITON, TRITON_SCRIPTS, Block, blocks, commands

from kbuild.cli import cli
from kbuild.resources import data_json, package_path
from kbuild.scaffold import Backend, Op, Scaffold, render

MOST_TOKENS = 600
EVERY_SKILL = pytest.mark.parametrize("skill", [SKILL, TRITON], ids=lambda skill: skill.name)


def test_no_skill_is_without_these_tests() -> None:
    assert {path.parent for path in SKILL.parent.glob("*/SKILL.md")} == {SKILL, TRITON}


def front_matter(text: str) -> tuple[dict[str, str], str]:
    _, head, body = text.split("---\n", 2)
    return yaml.safe_load(head), body


@EVERY_SKILL
@pytest.mark.parametrize("tokenizer", ["o200k_base", "cl100k_base"])
def test_the_body_is_short(skill: Path, tokenizer: str) -> None:
    """Counted as GPT-4o (o200k_base) and GPT-4 (cl100k_base) count."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # it reads its data by a call that Python deprecated
        import bpe_openai
    _, body = front_matter((skill / "SKILL.md").read_text())
    assert len(bpe_openai.get_encoding(tokenizer).encode(body)) <= MOST_TOKENS


@EVERY_SKILL
def test_front_matter_is_valid_for_every_agent(skill: Path) -> None:
    """The strictest of them: https://agentskills.io/specification and https://opencode.ai/docs/skills."""
    fields, _ = front_matter((skill / "SKILL.md").read_text())
    assert set(fields) <= {"name", "description", "license", "compatibility", "metadata"}
    assert fields["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", fields["name"])
    assert len(fields["name"]) <= 64
    assert 1 <= len(fields["description"]) <= 1024
    assert "Use when" in fields["description"]


@EVERY_SKILL
def test_every_file_is_linked_and_every_link_leads_somewhere(skill: Path) -> None:
    text = "\n".join(page.read_text() for page in skill.rglob("*.md"))
    references = {path.name for path in (skill / "references").iterdir()}
    scripts = {path.name for path in (SCRIPTS if skill == SKILL else TRITON_SCRIPTS)}
    elsewhere = re.findall(r"`([\w-]+\.md)` of the skill `cuda-kernels`", text)
    assert set(elsewhere) <= {path.name for path in REFERENCES}
    known = references | scripts | set(elsewhere)
    front = (skill / "SKILL.md").read_text()
    assert references <= set(re.findall(r"`([\w-]+\.md)`", front))
    assert scripts <= set(re.findall(r"scripts/([\w.]+)", text))
    for name in re.findall(r"`(?:references/)?([\w-]+\.md)`", text):
        assert name in known | {"CARD.md", "README.md"}
    for name in re.findall(r"scripts/([\w.]+\w)", text):
        assert name in known


EXCERPTS = [
    block
    for skill in (SKILL, TRITON)
    for block in blocks("cpp", "python", skill=skill)
    if block.source is not None
]


@pytest.mark.parametrize("block", EXCERPTS, ids=str)
def test_excerpts_are_what_they_are_taken_from(block: Block) -> None:
    assert block.source is not None
    if block.source.startswith("scripts/"):
        assert block.body in (SKILL / block.source).read_text()
        return
    found = re.fullmatch(r"(\S+) \((\w+)(?:, (stable|noarch))?\)", block.source)
    assert found is not None, block.source
    op = Op(found[2])
    name = {Op.RMSNORM: "my-norm", Op.ELEMENTWISE: "my-silu"}[op]
    backends = (Backend.CUDA, Backend.CPU)
    scaffold = Scaffold(
        org="my-org",
        name=name,
        backends=backends,
        op=op,
        stable_abi=found[3] == "stable",
        noarch=found[3] == "noarch",
    )
    assert block.body in render(scaffold)[found[1]]


def test_no_cpp_is_without_a_test() -> None:
    """Excerpts are compiled with the templates that they are from, whole files by test_code.py."""
    loose = [
        block for block in blocks("cpp") if block.source is None and not block.text.startswith("// file: ")
    ]
    assert [str(block) for block in loose] == []


COMMANDS = list(commands())


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page.name}: {line}" for page, line in COMMANDS])
def test_commands_parse(page: Path, line: str) -> None:
    arguments = shlex.split(line.replace("|", " "))[1:]
    context: click.Context = cli.make_context("kbuild", arguments[:1], resilient_parsing=True)
    command = cli.get_command(context, arguments[0])
    assert command is not None
    rest = arguments[1:]
    while isinstance(command, click.Group):
        command = command.get_command(context, rest.pop(0))
        assert command is not None
    with contextlib.suppress(click.MissingParameter):  # prose names commands without their arguments
        command.make_context(command.name, rest)


@EVERY_SKILL
def test_codes_of_findings_exist(skill: Path) -> None:
    section = (skill / "references" / "troubleshooting.md").read_text().partition("## kbuild check")[2]
    codes = re.findall(r"^\| (`[^|]*`) \|", section.partition("\n## ")[0], re.MULTILINE)
    sources = "\n".join(path.read_text() for path in package_path().rglob("*.py"))
    for code in re.findall(r"`([\w-]+)`", " ".join(codes)):
        assert f'"{code}"' in sources, code
    assert len(codes) > 2


def test_scripts_parse_and_say_what_they_do() -> None:
    for script in [*SCRIPTS, *TRITON_SCRIPTS]:
        text = script.read_text()
        assert text.startswith("#!"), script
        if script.suffix == ".py":
            assert ast.get_docstring(ast.parse(text)), script


GPU_PAGES = [page for page in REFERENCES if page.name.startswith("gpu-")]


def facts(page: Path) -> dict[str, str]:
    return dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", page.read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", GPU_PAGES, ids=lambda page: page.stem)
def test_every_gpu_has_its_facts_and_their_sources(page: Path) -> None:
    wanted = {"compute capability", "multiprocessors", "L2", "memory bandwidth"}
    assert wanted <= set(facts(page))
    sources = page.read_text().partition("## Sources")[2]
    assert sources.count("https://") >= 2
    for topic in ("Limits", "Multiprocessors", "andwidth", "L2"):
        assert topic in sources


@pytest.mark.parametrize("page", GPU_PAGES, ids=lambda page: page.stem)
def test_resident_blocks_and_waves_follow_from_the_limits(page: Path) -> None:
    table = facts(page)
    registers = int(table["registers a multiprocessor"])
    most = int(table["threads, blocks a multiprocessor"].split(",")[0]) // 256

    def registers_at(blocks: int) -> int:
        return registers // (256 * blocks) // 8 * 8  # given out in eights

    stated = re.findall(r"(\d+) at up to (\d+)", table["blocks of 256 threads resident"])
    resident = [int(blocks) for blocks, _ in stated]
    assert resident[0] == most
    assert [int(count) for _, count in stated] == [registers_at(blocks) for blocks in resident]
    assert registers_at(resident[-1]) >= 64
    multiprocessors = [int(count) for count in re.findall(r"(\d+)(?: \(|$)", table["multiprocessors"])]
    waves = [
        [int(count) for count in re.findall(r"(\d+) blocks", part)]
        for part in table["one wave of these"].split(";")
    ]
    assert waves == [[count * blocks for blocks in resident] for count in multiprocessors]


def test_bandwidths_are_those_that_kbuild_bench_uses() -> None:
    stated = {
        int(number)
        for page in GPU_PAGES
        for number in re.findall(r"(\d+) GB/s", facts(page)["memory bandwidth"])
    }
    known: dict[str, int] = data_json("gpus.json")["gb_per_second"]
    assert set(known.values()) <= stated
