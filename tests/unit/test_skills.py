"""`kbuild skills`: copies land where each agent looks, and nobody's changes are lost."""

import json
from pathlib import Path

import pytest
from runs import Finished, kbuild

from kbuild.skills import RECORD, Action, Agent, Skill, apply, find, front_matter, plan, shipped

# Each agent's documentation: see kbuild/skills.py.
LOOKS_IN = {
    Agent.CLAUDE: (".claude/skills", ".claude/skills"),
    Agent.CODEX: (".agents/skills", ".agents/skills"),
    Agent.CURSOR: (".cursor/skills", ".cursor/skills"),
    Agent.OPENCODE: (".opencode/skills", ".config/opencode/skills"),
}
NAME = "cuda-kernels"


def add(project: Path, home: Path, *arguments: str) -> Finished:
    return kbuild("skills", "add", *arguments, cwd=project, env={"HOME": str(home), "XDG_CONFIG_HOME": ""})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("agent", list(Agent))
def test_lands_where_the_agent_looks(project: Path, home: Path, agent: Agent) -> None:
    in_project, in_home = LOOKS_IN[agent]
    for flags, place in (((), project / in_project), (("--global",), home / in_home)):
        added = add(project, home, f"--{agent}", *flags)
        assert added.code == 0, added.stderr
        assert added.stdout == f"{place / NAME}: installed\n"
        assert set(files(place / NAME)) == {*find(NAME).files, RECORD}
    assert {path.parts[0] for path in map(Path, files(project))} == {in_project.split("/")[0]}
    assert {path.parts[0] for path in map(Path, files(home))} == {in_home.split("/")[0]}


@pytest.mark.parametrize("name", [skill.name for skill in shipped()])
def test_each_by_its_name(project: Path, home: Path, name: str) -> None:
    assert add(project, home, name, "--claude").stdout == f"{project / '.claude/skills' / name}: installed\n"
    assert add(project, home, name, "--claude", "--check").code == 0
    assert {path.name for path in (project / ".claude/skills").iterdir()} == {name}


def test_opencode_honours_its_configuration_folder(project: Path, home: Path) -> None:
    env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
    kbuild("skills", "add", "--opencode", "--global", cwd=project, env=env)
    assert (home / "config" / "opencode" / "skills" / NAME / "SKILL.md").is_file()


def test_several_at_once_and_a_folder(project: Path, home: Path) -> None:
    added = add(project, home, "--claude", "--codex", "--dest", "elsewhere", "--json")
    copies = json.loads(added.stdout)["copies"]
    assert all(copy["up_to_date"] for copy in copies)
    assert [Path(copy["path"]).parent for copy in copies] == [
        project / ".claude/skills",
        project / ".agents/skills",
        Path("elsewhere"),
    ]
    assert (project / "elsewhere" / NAME / "SKILL.md").is_file()


def test_again_changes_nothing(project: Path, home: Path) -> None:
    add(project, home, "--claude")
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    again = add(project, home, "--claude")
    assert again.stdout.endswith("up to date\n")
    assert {path: path.stat().st_mtime_ns for path in project.rglob("*")} == before


def test_changes_are_kept_unless_forced(project: Path, home: Path) -> None:
    add(project, home, "--claude")
    changed = project / ".claude/skills" / NAME / "SKILL.md"
    changed.write_text("mine")
    refused = add(project, home, "--codex", "--claude")
    assert refused.code == 2
    assert str(changed) in refused.stderr
    assert changed.read_text() == "mine"
    assert not (project / ".agents").exists(), "all or nothing"
    forced = add(project, home, "--claude", "--force")
    assert forced.code == 0
    assert forced.stderr == "  update SKILL.md\n"
    assert changed.read_bytes() == find(NAME).files["SKILL.md"]


def test_a_folder_that_kbuild_did_not_write_is_the_user_s(project: Path, home: Path) -> None:
    theirs = project / ".claude/skills" / NAME / "SKILL.md"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    assert add(project, home, "--claude").code == 2
    assert theirs.read_text() == "theirs"


def test_check_tells_the_state(project: Path, home: Path) -> None:
    def state() -> tuple[int, str]:
        checked = add(project, home, "--claude", "--check")
        return checked.code, checked.stdout.rpartition(": ")[2].strip()

    assert state() == (1, "not installed")
    assert not (project / ".claude").exists()
    add(project, home, "--claude")
    assert state() == (0, "up to date")
    (project / ".claude/skills" / NAME / "SKILL.md").write_text("mine")
    assert state() == (1, "changed by hand")


def test_check_in_a_folder_of_the_project_names_the_copy_above(project: Path, home: Path) -> None:
    add(project, home, "--claude")
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    checked = add(inner, home, "--claude", "--codex", "--check")
    assert checked.code == 1
    assert f"{inner / '.claude/skills' / NAME}: not installed\n" in checked.stdout
    assert checked.stderr.count("not looked at") == 1
    assert f"not looked at: the copy in {project / '.claude/skills' / NAME}\n" in checked.stderr
    assert "not looked at" not in add(inner, home, "--claude").stderr
    assert "not looked at" not in add(inner, home, "--claude", "--check").stderr


def test_an_old_copy_is_brought_up_to_date(tmp_path: Path) -> None:
    old = Skill(
        name="s",
        description="",
        files={"SKILL.md": b"1", "gone.md": b"1", "changed.md": b"1", "x/y.md": b"1"},
    )
    new = Skill(
        name="s", description="", files={"SKILL.md": b"2", "changed.md": b"2", "x/y.md": b"1", "new.md": b"2"}
    )
    apply(plan(old, tmp_path))
    (tmp_path / "changed.md").write_bytes(b"mine")
    (tmp_path / "own.md").write_bytes(b"mine")
    found = {step.path: step.action for step in plan(new, tmp_path).steps}
    assert found == {
        "SKILL.md": Action.UPDATE,
        "changed.md": Action.CONFLICT,
        "gone.md": Action.REMOVE,
        "new.md": Action.ADD,
        "x/y.md": Action.KEEP,
    }
    apply(plan(new, tmp_path))
    assert plan(new, tmp_path).up_to_date
    left = files(tmp_path)
    left.pop(RECORD)
    assert left == {**new.files, "own.md": b"mine"}


def test_an_interrupted_installation_is_finished(tmp_path: Path) -> None:
    skill = find(NAME)
    (tmp_path / "SKILL.md").write_bytes(skill.files["SKILL.md"])  # and no record
    interrupted = plan(skill, tmp_path)
    assert interrupted.of(Action.CONFLICT) == ()
    apply(interrupted)
    assert plan(skill, tmp_path).up_to_date


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--claude, --codex, --cursor, --opencode, or --dest"),
        (["cuda-kernel", "--claude"], "Did you mean 'cuda-kernels'?"),
        (["--dest", "x", "--global"], "--global says nothing about --dest"),
    ],
)
def test_usage_errors(project: Path, home: Path, arguments: list[str], says: str) -> None:
    failed = add(project, home, *arguments)
    assert failed.code == 2
    assert says in failed.stderr
    assert files(project) == {}


@pytest.mark.parametrize("way", ["file", "link", "folder"])
def test_what_is_in_the_way_is_named_and_stays(project: Path, home: Path, way: str) -> None:
    place = project / "skills" / NAME / "SKILL.md"
    if way == "folder":
        place.mkdir(parents=True)
    else:
        (project / "mine").write_text("mine")
    if way == "file":
        (project / "mine").rename(project / "skills")
    elif way == "link":
        (project / "skills").symlink_to("mine")
    before = set(project.rglob("*"))
    failed = add(project, home, "--dest", "skills", "--force")
    assert failed.code == 2
    assert f"cannot write skills/{NAME}/SKILL.md: " in failed.stderr
    assert "hint: clear the way" in failed.stderr
    assert set(project.rglob("*")) == before


def test_a_place_without_the_right_to_write(project: Path, home: Path) -> None:
    """/proc is nobody's to write, root's neither."""
    failed = add(project, home, "--dest", "/proc")
    assert failed.code == 2
    assert f"cannot write /proc/{NAME}/SKILL.md" in failed.stderr


def test_list() -> None:
    listed = kbuild("skills", "list", "--json").json()
    assert [entry["name"] for entry in listed["skills"]] == [skill.name for skill in shipped()]
    assert NAME in kbuild("skills", "list").stdout


def test_front_matter_is_what_yaml_makes_of_it() -> None:
    import yaml

    for skill in shipped():
        text = skill.files["SKILL.md"].decode()
        assert front_matter(text) == yaml.safe_load(text.split("---\n")[1])
