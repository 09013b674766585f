"""`kbuild skills`: skills for coding agents."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kbuild.errors import ExitCode, UsageError
from kbuild.skills import (
    Action,
    Agent,
    Plan,
    apply,
    find,
    folder,
    installed_above,
    plan,
    refuse_conflicts,
    shipped,
)

_DEFAULT = "cuda-kernels"


@click.group()
def skills() -> None:
    """Skills that teach a coding agent to write kernels with kbuild."""


@skills.command("list")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
def list_skills(as_json: bool) -> None:
    """List the skills that kbuild brings along."""
    found = shipped()
    if as_json:
        entries = [
            {"name": skill.name, "description": skill.description, "files": sorted(skill.files)}
            for skill in found
        ]
        click.echo(json.dumps({"version": 1, "skills": entries}, indent=2))
        return
    for skill in found:
        click.echo(f"{skill.name}: {skill.description}")


@skills.command()
@click.argument("name", default=_DEFAULT)
@click.option("--claude", "agents", flag_value=Agent.CLAUDE.value, multiple=True, help="For Claude Code.")
@click.option("--codex", "agents", flag_value=Agent.CODEX.value, multiple=True, help="For Codex.")
@click.option("--cursor", "agents", flag_value=Agent.CURSOR.value, multiple=True, help="For Cursor.")
@click.option("--opencode", "agents", flag_value=Agent.OPENCODE.value, multiple=True, help="For OpenCode.")
@click.option("--dest", type=click.Path(path_type=Path), metavar="PATH", help="Into PATH/NAME.")
@click.option("--global", "for_user", is_flag=True, help="For all projects of this user.")
@click.option("--force", is_flag=True, help="Overwrite files that were changed by hand.")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where a copy is missing, old or changed.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
@click.pass_context
def add(
    ctx: click.Context,
    name: str,
    agents: tuple[str, ...],
    dest: Path | None,
    for_user: bool,
    force: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Install the skill NAME where coding agents look for it: in this project, or for all projects of the user.

    Running it again brings a copy up to date and changes nothing else.
    """
    skill = find(name)
    plans = [plan(skill, place / name) for place in _places(agents, dest, for_user=for_user)]
    if not check:
        if force:
            plans = [one.forced for one in plans]
        refuse_conflicts(plans)
        for one in plans:
            apply(one)
    if as_json:
        click.echo(
            json.dumps({"version": 1, "copies": [_as_json(one, done=not check) for one in plans]}, indent=2)
        )
    else:
        for one in plans:
            click.echo(f"{one.target}: {_summary(one, done=not check)}")
            for line in _changes(one):
                click.echo(line, err=True)
            if check and not one.up_to_date and (other := installed_above(one.target, Path.cwd())):
                click.echo(f"  not looked at: the copy in {other}", err=True)
    if check and not all(one.up_to_date for one in plans):
        ctx.exit(ExitCode.FINDINGS)


def _places(agents: tuple[str, ...], dest: Path | None, *, for_user: bool) -> list[Path]:
    if not agents and dest is None:
        flags = ", ".join(f"--{agent}" for agent in Agent)
        raise UsageError("no agent is named", hint=f"add {flags}, or --dest PATH")
    if for_user and not agents:
        raise UsageError("--global says nothing about --dest", hint="leave it out, or name an agent")
    places = [
        folder(Agent(agent), for_user=for_user, project=Path.cwd(), home=Path.home(), environment=os.environ)
        for agent in dict.fromkeys(agents)
    ]
    return [*places, *([] if dest is None else [dest])]


def _summary(one: Plan, *, done: bool) -> str:
    if one.up_to_date:
        return "up to date"
    if done:
        return "installed" if not one.of(Action.KEEP) else "brought up to date"
    if one.of(Action.CONFLICT):
        return "changed by hand"
    return "not installed" if not one.of(Action.KEEP, Action.UPDATE, Action.REMOVE) else "out of date"


def _changes(one: Plan) -> Iterator[str]:
    for step in one.steps:
        if step.action is not Action.KEEP:
            yield f"  {step.action} {step.path}"


def _as_json(one: Plan, *, done: bool) -> dict[str, Any]:
    return {
        "skill": one.skill.name,
        "path": str(one.target),
        "up_to_date": done or one.up_to_date,
        "files": [{"path": step.path, "action": step.action.value} for step in one.steps],
    }
