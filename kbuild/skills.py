"""Skills for coding agents: what kbuild brings along, where each agent looks for skills, and keeping a copy there.

A skill is a folder with a `SKILL.md` whose front matter has a name and a description (the Agent Skills format,
https://agentskills.io/specification). Where the agents look:

- Claude Code: `.claude/skills` and `~/.claude/skills` (https://code.claude.com/docs/en/skills)
- Codex: `.agents/skills` and `~/.agents/skills` (https://developers.openai.com/codex/skills)
- Cursor: `.cursor/skills` and `~/.cursor/skills` (https://cursor.com/docs/context/skills)
- OpenCode: `.opencode/skills` and `~/.config/opencode/skills` (https://opencode.ai/docs/skills)
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from kbuild.errors import UsageError
from kbuild.resources import data_path
from kbuild.text import did_you_mean

# What an installed copy was when kbuild wrote it; without it nobody could tell an old copy from a changed one.
RECORD = ".kbuild-skill.json"


class Agent(StrEnum):
    """A coding agent that reads skills."""

    CLAUDE = "claude"
    CODEX = "codex"
    CURSOR = "cursor"
    OPENCODE = "opencode"

    @property
    def project_folder(self) -> str:
        """Where it looks for a project's skills, relative to the project."""
        return {"codex": ".agents/skills"}.get(self.value, f".{self.value}/skills")

    @property
    def user_folder(self) -> str:
        """Where it looks for a person's skills, relative to the home folder."""
        return {"opencode": ".config/opencode/skills"}.get(self.value, self.project_folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill as shipped; `files` are paths relative to its folder."""

    name: str
    description: str
    files: Mapping[str, bytes]


class Action(StrEnum):
    """What installing does to one file."""

    ADD = "add"
    UPDATE = "update"
    REMOVE = "remove"
    KEEP = "keep"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One file of an installed copy, and what is to be done about it."""

    path: str
    action: Action


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What it takes to make `target` a copy of the skill as shipped. CONFLICT steps are a user's changes."""

    skill: Skill
    target: Path
    steps: tuple[Step, ...]

    def of(self, *actions: Action) -> tuple[str, ...]:
        return tuple(step.path for step in self.steps if step.action in actions)

    @property
    def up_to_date(self) -> bool:
        return not self.of(Action.ADD, Action.UPDATE, Action.REMOVE, Action.CONFLICT)

    @property
    def forced(self) -> "Plan":
        """The plan that undoes a user's changes too: no CONFLICT is left in it."""
        steps = (
            replace(step, action=Action.UPDATE if step.path in self.skill.files else Action.REMOVE)
            if step.action is Action.CONFLICT
            else step
            for step in self.steps
        )
        return replace(self, steps=tuple(steps))


def shipped() -> tuple[Skill, ...]:
    """Every skill that kbuild brings along, by name."""
    return tuple(_read(path.parent) for path in sorted(data_path("skills").glob("*/SKILL.md")))


def find(name: str) -> Skill:
    """The skill of that name. Raises UsageError where there is none."""
    skills = {skill.name: skill for skill in shipped()}
    if name not in skills:
        raise UsageError(
            f"there is no skill {name!r}.{did_you_mean(name, skills)}", hint="`kbuild skills list` lists them"
        )
    return skills[name]


def folder(
    agent: Agent, *, for_user: bool, project: Path, home: Path, environment: Mapping[str, str]
) -> Path:
    """Where the agent looks for skills: of a project, or of the user in all projects."""
    if not for_user:
        return project / agent.project_folder
    if agent is Agent.OPENCODE and environment.get("XDG_CONFIG_HOME"):
        return Path(environment["XDG_CONFIG_HOME"]) / "opencode" / "skills"
    return home / agent.user_folder


def plan(skill: Skill, target: Path) -> Plan:
    """Compare what lies in `target` with the skill; nothing is written."""
    recorded = _recorded(target)
    steps = []
    for path in sorted({*skill.files, *recorded}):
        file = target / path
        current = _digest(file.read_bytes()) if file.is_file() else None
        wanted = _digest(skill.files[path]) if path in skill.files else None
        steps.append(Step(path=path, action=_action(current, wanted, recorded.get(path))))
    return Plan(skill=skill, target=target, steps=tuple(steps))


def installed_above(target: Path, here: Path) -> Path | None:
    """The nearest copy in the folders above `here` of a skill whose place in `here` is `target`."""
    if not target.is_relative_to(here):
        return None
    above = (parent / target.relative_to(here) for parent in here.parents)
    return next((copy for copy in above if (copy / "SKILL.md").is_file()), None)


def refuse_conflicts(plans: Iterable[Plan]) -> None:
    """Raise UsageError where carrying out one of the plans would undo a user's changes."""
    conflicts = [plan.target / path for plan in plans for path in plan.of(Action.CONFLICT)]
    if conflicts:
        listed = "\n".join(f"  {path}" for path in conflicts)
        raise UsageError(
            f"these files were changed by hand, so nothing was written:\n{listed}",
            hint="--force puts kbuild's own in their place",
        )


def apply(plan: Plan) -> None:
    """Carry out a plan, conflicts included. Raises UsageError where a file cannot be written."""
    for path in plan.forced.of(Action.ADD, Action.UPDATE):
        _write(plan.target / path, plan.skill.files[path])
    for path in plan.forced.of(Action.REMOVE):
        (plan.target / path).unlink(missing_ok=True)
    record = {path: _digest(content) for path, content in plan.skill.files.items()}
    text = json.dumps({"version": 1, "skill": plan.skill.name, "files": record}, indent=1) + "\n"
    if not (plan.target / RECORD).is_file() or (plan.target / RECORD).read_text(encoding="utf-8") != text:
        _write(plan.target / RECORD, text.encode())


def _action(current: str | None, wanted: str | None, recorded: str | None) -> Action:
    """Judged by the digests of the installed file, of the shipped one, and of what the last installation wrote."""
    if current == wanted:
        return Action.KEEP
    if current is None:
        return Action.ADD
    if current != recorded:
        return Action.CONFLICT
    return Action.REMOVE if wanted is None else Action.UPDATE


def _read(root: Path) -> Skill:
    files = dict(_files(root))
    fields = front_matter(files["SKILL.md"].decode("utf-8"))
    return Skill(name=fields["name"], description=fields["description"], files=files)


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path.read_bytes()


def front_matter(text: str) -> dict[str, str]:
    """The one-line fields between the leading pair of `---` lines."""
    found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    lines = found[1].splitlines() if found else []
    return {key: value.strip() for key, colon, value in (line.partition(":") for line in lines) if colon}


def _recorded(target: Path) -> dict[str, str]:
    try:
        document = json.loads((target / RECORD).read_text(encoding="utf-8"))
        return {str(path): str(digest) for path, digest in document["files"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return {}  # then every difference counts as the user's


def _write(file: Path, content: bytes) -> None:
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        if file.suffix in (".py", ".sh") and content.startswith(b"#!"):
            draft.chmod(0o755)
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise UsageError(
            f"cannot write {file}: {error.strerror}",
            hint="clear the way, or name another place with --dest PATH",
        ) from error


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
