"""A kernel project on disk: its configuration, and the layout without which a build cannot succeed."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kbuild import process
from kbuild.config import rules
from kbuild.config.editions import detect, report_old_edition
from kbuild.config.kinds import read
from kbuild.config.model import CURRENT_EDITION, Config
from kbuild.config.schema import read_config
from kbuild.config.source import Source
from kbuild.diagnostics import Report, Span
from kbuild.errors import FindingsError, UsageError
from kbuild.layout import GitState, Layout
from kbuild.lints import Tree, check_sources
from kbuild.sources.files import (
    CONFIG_NAME,
    ROOT_FILES,
    candidates,
    folders,
    inside,
    is_inside_file,
    linked_parent,
    submodule,
)
from kbuild.sources.texts import Texts
from kbuild.suppress import suppress
from kbuild.variants import Cause, Chosen, Matrix, Skipped, select

Runner = Callable[..., process.Completed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """An opened project. `config` is None where `build.toml` has errors; `report` has every finding.

    `git` is None outside of a git work tree.
    """

    root: Path
    source: Source | None
    config: Config | None
    report: Report
    git: GitState | None

    @classmethod
    def open(cls, path: Path | None = None, *, runner: Runner = process.run) -> "Project":
        """Read and check the project at `path`: its folder, or its `build.toml`.

        Without a path, the current folder and then its parents are searched. Raises UsageError where there is no
        readable `build.toml`.
        """
        root = find_root(path)
        report = Report()
        source = _read_source(root, report)
        config = None if source is None else _read_config(source, report)
        project = cls(root=root, source=source, config=config, report=report, git=None)
        if source is not None and config is not None:
            try:
                git = _ask_git(root, config, report, runner)
                project = replace(project, git=git)
                texts = Texts(root)
                Layout(texts=texts, source=source, config=config, git=git, report=report).check()
                files = frozenset(project.present_files())
                check_sources(Tree(config=config, source=source, files=files, texts=texts, report=report))
            except OSError as error:
                _unreadable(root, error, report)
        if any(error.code == "unknown-key" for error in report.errors):
            # Good enough to look at the rest of the project, and not to act on.
            project = replace(project, config=None)
        try:
            report = suppress(root, report)
        except OSError as error:
            _unreadable(root, error, report)
        return replace(project, report=report)

    def require_config(self) -> Config:
        """The configuration. Raises FindingsError, with the findings as text, where there is none."""
        if self.config is None:
            raise FindingsError(
                f"{self.root / CONFIG_NAME} has errors:\n{self.report.as_text()}",
                hint="`kbuild check` lists every finding of the project",
            )
        return self.config

    def visible_files(self) -> tuple[str, ...]:
        """What a build sees: existing regular files, relative to the root with `/`, sorted.

        `build.toml`, every `src`, the Python package and the tests (by `pyext`), `benchmarks/`, the card and
        the flake; only what git tracks where the project lies in a git work tree.
        """
        found = self.present_files()
        return found if self.git is None else tuple(path for path in found if path in self.git.tracked)

    def present_files(self) -> tuple[str, ...]:
        """What a build would see if git tracked everything; source rules look at these."""
        config = self.require_config()
        return tuple(
            sorted({path for path in candidates(self.root, config) if is_inside_file(self.root, path)})
        )


def _unreadable(root: Path, error: OSError, report: Report) -> None:
    """The finding for a file or folder that the system does not let us read; rules that come later were not run."""
    path = Path(error.filename or root)
    shown = path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
    report.error(
        "unreadable",
        f"cannot read {shown}: {error.strerror}; what comes after it was not checked",
        Span(path=shown),
        hint=f"let the user who builds read it: chmod u+rX {shlex.quote(shown)}"
        if isinstance(error, PermissionError)
        else None,
    )


def find_root(path: Path | None) -> Path:
    """The project folder for a command-line PATH (symbolic links resolved).

    Raises UsageError saying where it looked.
    """
    start = Path.cwd() if path is None else path
    if start.is_file():
        if start.name != CONFIG_NAME:
            raise UsageError(
                f"{start} is a file, not a project folder", hint=f"give the folder that holds {CONFIG_NAME}"
            )
        return start.parent.resolve()
    if not start.is_dir():
        raise UsageError(f"there is no folder {start}")
    start = start.resolve()
    if (start / CONFIG_NAME).is_file():
        return start
    above = next((parent for parent in start.parents if (parent / CONFIG_NAME).is_file()), None)
    if path is None and above is not None:
        return above
    looked = f"in {start}" + (" or any folder above it" if path is None else "")
    raise UsageError(
        f"there is no {CONFIG_NAME} {looked}",
        hint="run kbuild in a kernel project, or give its path"
        if above is None
        else f"there is one in {above}",
    )


def read_source(root: Path) -> Source:
    """The project's `build.toml`. Raises FindingsError where it is not TOML."""
    report = Report()
    source = _read_source(root, report)
    if source is None or not report.ok:
        raise FindingsError(report.as_text())
    return source


def _read_source(root: Path, report: Report) -> Source | None:
    try:
        data = (root / CONFIG_NAME).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {root / CONFIG_NAME}: {error.strerror}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        report.error(
            "not-utf-8",
            f"byte 0x{data[error.start]:02x} is not UTF-8, which TOML requires",
            Span(
                path=CONFIG_NAME,
                line=before.count(b"\n") + 1,
                column=len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1,
            ),
            hint="save the file as UTF-8",
        )
        return None
    if text.startswith("\ufeff"):
        report.error(
            "byte-order-mark",
            "the file starts with a byte order mark, which TOML readers refuse",
            Span(path=CONFIG_NAME),
            hint="save the file as UTF-8 without a byte order mark",
        )
        text = text[1:]
    return Source.parse(CONFIG_NAME, text, report)


def _read_config(source: Source, report: Report) -> Config | None:
    detected = detect(source)
    if detected.edition == CURRENT_EDITION:
        config = read_config(source, report)
    else:
        report_old_edition(detected, report)
        config = _read_old(detected.edition, source, report)
    if config is not None:
        rules.check(config, source, report)
        if report.ok:
            _something_is_left(config, source, report)
    return config


def _something_is_left(config: Config, source: Source, report: Report) -> None:
    """Filters of the author's that together leave a compiled backend without any variant."""
    selection = select(config, Matrix.load())
    for backend in config.general.backends:
        entries = [entry for entry in selection if entry.backend is backend]
        left = [entry for entry in entries if isinstance(entry, Chosen) or entry.cause is Cause.MEANS]
        if entries and not left:
            reasons = list(dict.fromkeys(entry.reason for entry in entries if isinstance(entry, Skipped)))
            more = f" (and {len(reasons) - 1} more filtered out likewise)" if len(reasons) > 1 else ""
            report.error(
                "nothing-left",
                f"no {backend} variant is left to build: {reasons[-1]}{more}",
                source.value("general", "backends", config.general.backends.index(backend)),
                hint="`kbuild variants` shows which filter removes which variant",
            )


def _read_old(edition: int, source: Source, report: Report) -> Config | None:
    """Judge an old file by its own edition; edition 4 says all that edition 5 asks for."""
    from kbuild.config.old_editions import OLD_EDITIONS

    table = OLD_EDITIONS.get(edition)
    if table is None:
        return None
    if edition == CURRENT_EDITION - 1:
        return read_config(source, report, table=table)
    read(table, source.data, (), source, report)
    return None


def _present(root: Path, config: Config) -> tuple[str, ...]:
    return tuple(sorted({path for path in candidates(root, config) if is_inside_file(root, path)}))


def _ask_git(root: Path, config: Config, report: Report, runner: Runner) -> GitState | None:
    """What git says of the files that matter, None where git has no say."""
    environment = {**os.environ, "LC_ALL": "C"}
    listed = [path for path in map(inside, config.listed_files) if path is not None]
    paths = dict.fromkeys([*ROOT_FILES, *folders(config), *listed])
    argv = ["git", "--literal-pathspecs", "ls-files", "-z", "--cached", "--", *paths]
    try:
        result = runner(argv, cwd=root, env=environment)
    except FileNotFoundError:
        return None
    if not result.ok:
        if "not a git repository" not in result.stderr:
            report.warning(
                "git-failed",
                f"git cannot say which files it tracks: {result.stderr.strip() or result.returncode}",
                Span(path=CONFIG_NAME),
                hint="all files are taken to be visible to the build",
            )
        return None
    tracked = frozenset(path for path in result.stdout.split("\0") if path)
    # Fails, and says nothing, before the first commit.
    argv = [
        "git",
        "--literal-pathspecs",
        "diff",
        "--name-only",
        "--relative",
        "--no-ext-diff",
        "-z",
        "HEAD",
        "--",
        ".",
    ]
    changed = runner(argv, cwd=root, env=environment).stdout if tracked else ""
    state = GitState(tracked=tracked, changed=tuple(sorted(path for path in changed.split("\0") if path)))
    # NB: one path that git refuses to look at, behind a link or in a submodule, ends the whole answer.
    untracked = [
        path
        for path in _present(root, config)
        if path not in tracked and linked_parent(root, path) is None and submodule(root, path) is None
    ]
    if not untracked:
        return state
    argv = ["git", "check-ignore", "-z", "--stdin"]
    ignored = runner(argv, cwd=root, env=environment, stdin="\0".join(untracked)).stdout
    return replace(state, ignored=frozenset(path for path in ignored.split("\0") if path))
