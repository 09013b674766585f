"""What must hold on disk for a build to succeed: sources that exist and are visible, headers, the package."""

import posixpath
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kbuild.config.edits import append_entry
from kbuild.config.model import Config, TorchNoarch
from kbuild.config.source import Source
from kbuild.diagnostics import Report, Span
from kbuild.sources.files import (
    COMPILED,
    CONFIG_NAME,
    HEADERS,
    IMPLICIT_INCLUDE,
    candidates,
    folders,
    inside,
    is_source,
    linked_parent,
    submodule,
    walk,
    walk_all,
)
from kbuild.sources.includes import Include
from kbuild.sources.texts import Texts
from kbuild.text import did_you_mean

# Builders write it beside the bindings; a copy that lies there from work in place does no harm.
_GENERATED_HEADER = "-ext/registration.h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One entry of a `src` array: its place in the file's key space, as written, and normalised."""

    where: tuple[str | int, ...]
    written: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """What git says of the files that matter, relative to the root; `changed` differ from the commit."""

    tracked: frozenset[str]
    ignored: frozenset[str] = frozenset()
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The layout rules of one project; each adds to the report."""

    texts: Texts
    source: Source
    config: Config
    git: GitState | None
    report: Report

    @property
    def root(self) -> Path:
        return self.texts.root

    def check(self) -> None:
        listed = list(self._listed())
        existing = [entry for entry in listed if self._source_is_usable(entry)]
        self._binding_sources(existing)
        self._include_folders()
        self._package()
        self._links()
        self._headers_are_listed({entry.path for entry in existing})
        self._is_tracked(existing)

    def _listed(self) -> Iterator[Listed]:
        """Every `src` entry once, however many sections name the file."""
        seen = set()
        for where, written in self._src_entries():
            path = posixpath.normpath(written)
            if path not in seen:
                seen.add(path)
                yield Listed(where=where, written=written, path=path)

    def _src_entries(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        framework = self.config.framework
        if not isinstance(framework, TorchNoarch):
            for index, written in enumerate(framework.src):
                yield (framework.key, "src", index), written
        for kernel in self.config.kernels:
            for index, written in enumerate(kernel.src):
                yield ("kernel", kernel.id, "src", index), written

    def _error(self, code: str, message: str, entry: Listed, *, hint: str | None = None) -> None:
        self.report.error(code, message, self.source.value(*entry.where), hint=hint)

    def _source_is_usable(self, entry: Listed) -> bool:
        full = self.root / entry.path
        if inside(entry.written) is None:
            self._error(
                "outside-project",
                f"{entry.written!r} lies outside the project: a build never sees it",
                entry,
                hint="copy the file into the project and name it relative to build.toml",
            )
        elif full.is_dir():
            self._error(
                "not-a-file",
                f"{entry.written!r} is a folder; src takes files",
                entry,
                hint=_src_of(path for path in walk(self.root, entry.path) if is_source(path)),
            )
        elif not full.is_file():
            self._missing_source(entry)
        elif not full.resolve().is_relative_to(self.root):
            self._error(
                "outside-project",
                f"{entry.written!r} links to {full.resolve()}, outside the project: a build never sees it",
                entry,
                hint="replace the link by a copy of the file",
            )
        elif not is_source(entry.path) and entry.path.lower().endswith(COMPILED):
            stem, suffix = posixpath.splitext(entry.path)
            self._error(
                "suffix-case",
                f"{entry.written!r} is not compiled: file names end in lower case, as in {' '.join(COMPILED[:4])}",
                entry,
                hint=f"rename it to {stem}{'.cpp' if suffix == '.C' else suffix.lower()}",
            )
            return True
        else:
            if not is_source(entry.path):
                self.report.warning(
                    "odd-source",
                    f"{entry.written!r} is neither compiled nor known as a header",
                    self.source.value(*entry.where),
                    hint=f"compiled: {' '.join(COMPILED)}; headers: {' '.join(HEADERS)}",
                )
            return True
        return False

    def _missing_source(self, entry: Listed) -> None:
        if any(character in entry.written for character in "*?["):
            matches = sorted(
                path.relative_to(self.root).as_posix() for path in _glob(self.root, entry.written)
            )
            self._error(
                "glob-in-src",
                f"{entry.written!r} is a pattern; src takes file names only",
                entry,
                hint=_src_of(matches) or "it matches no file",
            )
            return
        folder = posixpath.dirname(entry.path) or "."
        names = [path for path in _walk_shallow(self.root, folder) if is_source(path)]
        self._error(
            "missing-source",
            f"there is no file {entry.written!r}.{did_you_mean(entry.path, names)}",
            entry,
            hint="paths are relative to build.toml, with / between folders",
        )

    def _binding_sources(self, existing: list[Listed]) -> None:
        framework = self.config.framework
        if isinstance(framework, TorchNoarch):
            return
        listed = {entry.path for entry in existing}
        if self.config.kernels and not any(
            inside(path) in listed and path.endswith(COMPILED) for path in framework.src
        ):
            self.report.error(
                "no-binding",
                f"{framework.key}.src names no source file to compile, so no operation would be registered",
                self.source.key(framework.key, "src"),
                hint=f'add the bindings, for example "{framework.folder}/torch_binding.cpp"',
            )
        for path in walk(self.root, framework.folder):
            if path.endswith(COMPILED) and path not in listed:
                self.report.warning(
                    "unlisted-binding",
                    f"{path} is in no src: it is not compiled",
                    self.source.key(framework.key, "src"),
                    hint=f'add "{path}" to {framework.key}.src, or remove the file',
                )

    def _include_folders(self) -> None:
        framework = self.config.framework
        owners: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        if not isinstance(framework, TorchNoarch):
            owners.append(((framework.key,), framework.include))
        owners += [(("kernel", kernel.id), kernel.include) for kernel in self.config.kernels]
        for where, include in owners:
            for index, folder in enumerate(include):
                span = self.source.value(*where, "include", index)
                if inside(folder) is None:
                    self.report.error(
                        "outside-project",
                        f"include folder {folder!r} lies outside the project: a build never sees it",
                        span,
                        hint="copy the headers into the project and list them in src",
                    )
                elif not (self.root / folder).is_dir():
                    self.report.warning("missing-include", f"there is no folder {folder!r}", span)

    def _package(self) -> None:
        folder, name = self.config.framework.folder, self.config.general.python_name
        package = f"{folder}/{name}"
        span = self.source.value("general", "name")
        if not (self.root / package / "__init__.py").is_file():
            others = [path.parent.name for path in sorted((self.root / folder).glob("*/__init__.py"))]
            self.report.error(
                "missing-package",
                f"there is no {package}/__init__.py, the package of kernel {self.config.general.name!r}",
                span,
                hint=(
                    f"rename {folder}/{others[0]} to {package} (dashes of the name become underscores)"
                    if len(others) == 1
                    else "create it: it is what users of the kernel import"
                ),
            )
        elif (self.root / package / name).exists():
            self.report.error(
                "nested-package",
                f"{package} must hold nothing named {name}: old loaders would take it for the package",
                span,
                hint=f"rename {package}/{name}",
            )

    def _links(self) -> None:
        """Links in the folders that go to a build by extension: it does not follow them out, nor into folders."""
        for folder in folders(self.config):
            linked = [folder] if (self.root / folder).is_symlink() else []
            for parent, children, names in walk_all(self.root / folder):
                full = (Path(parent, name) for name in sorted([*children, *names]))
                linked += [path.relative_to(self.root).as_posix() for path in full if path.is_symlink()]
            for path in linked:
                if not (self.root / path).exists():
                    continue
                target = (self.root / path).resolve()
                if not target.is_relative_to(self.root):
                    what = f"{path} links to {target}, outside the project: a build never sees it"
                elif target.is_dir() and path != folder:
                    what = f"{path} is a link to a folder, which a build does not follow"
                else:
                    continue
                self.report.error(
                    "stray-link", what, Span(path=path), hint="replace the link by a copy, or remove it"
                )

    def _headers_are_listed(self, listed: set[str]) -> None:
        framework = self.config.framework
        sections: list[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = []
        if not isinstance(framework, TorchNoarch):
            sections.append(((framework.key, "src"), framework.src, framework.include))
        sections += [
            (("kernel", kernel.id, "src"), kernel.src, kernel.include) for kernel in self.config.kernels
        ]
        scanner = _HeaderScan(texts=self.texts, listed=listed)
        for where, src, include in sections:
            folders = [path for path in map(inside, include) if path is not None]
            scanner.section(where, [path for path in map(inside, src) if path in listed], folders)
        for finding in scanner.findings.values():
            add = self.report.warning if finding.conditional else self.report.error
            add(
                "unlisted-header",
                f"{finding.header} is included{finding.chain} but is in no src: a build does not see it",
                finding.span,
                hint=f'add "{finding.header}" to {".".join(finding.where)}',
                fix=() if finding.conditional else append_entry(self.source, finding.where, finding.header),
            )

    def _is_tracked(self, existing: list[Listed]) -> None:
        if self.git is None:
            return
        tracked = self.git.tracked
        if not tracked:
            root = shlex.quote(str(self.root))
            way = (
                f"git ignores it: remove what `git -C {root} check-ignore -v {CONFIG_NAME}` shows, then "
                if CONFIG_NAME in self.git.ignored
                else ""
            )
            self.report.error(
                "untracked-project",
                "git tracks no file of this project, so a build would see none",
                Span(path=CONFIG_NAME),
                hint=f"{way}git -C {root} add .",
            )
            return
        if self.git.changed:
            shown = ", ".join(self.git.changed[:3])
            more = f" and {len(self.git.changed) - 3} more" if len(self.git.changed) > 3 else ""
            self.report.note(
                "uncommitted-changes",
                f"{shown}{more}: not as in the commit, and a build says so in metadata.json",
                Span(path=self.git.changed[0]),
                hint="commit before a build that is to be published",
            )
        for entry in existing:
            if entry.path not in tracked:
                hidden = self._hidden(entry.path)
                self._error("untracked-source", hidden.what, entry, hint=hidden.hint)
        listed = {entry.path for entry in existing}
        behind: set[str] = set()
        for path in sorted(set(candidates(self.root, self.config)) - listed - tracked):
            if not (self.root / path).is_file():
                continue
            hidden = self._hidden(path)
            if hidden.at in behind:
                continue
            behind.add(hidden.at)
            # What the package imports is not optional, unless the author has git ignore it.
            essential = path == CONFIG_NAME or path.startswith(f"{self.config.framework.folder}/")
            add = self.report.error if essential and path not in self.git.ignored else self.report.warning
            add("untracked-file", hidden.what, Span(path=hidden.at), hint=hidden.hint)

    def _hidden(self, path: str) -> "_Hidden":
        """Why git does not have a file, and the way to have it."""
        link, module = linked_parent(self.root, path), submodule(self.root, path)
        if link is not None:
            real = (self.root / path).resolve()
            own_place = link in folders(self.config) or not real.is_relative_to(self.root)
            return _Hidden(
                at=link,
                what=f"{path!r} lies behind {link!r}, a link to a folder: git does not track what is there",
                hint=f"replace the link {link} by the folder that it leads to"
                if own_place
                else f'write "{real.relative_to(self.root).as_posix()}"',
            )
        if module is not None:
            return _Hidden(
                at=module,
                what=f"{path!r} lies in the git submodule {module!r}: a build does not see it",
                hint="copy the files that the build needs into the project",
            )
        ignored = self.git is not None and path in self.git.ignored
        return _Hidden(
            at=path,
            what=f"{path!r} is not tracked by git: a build does not see it",
            hint=f"git add -f {shlex.quote(path)} (.gitignore leaves it out)"
            if ignored
            else f"git add {shlex.quote(path)}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hidden:
    at: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnlistedHeader:
    header: str
    where: tuple[str, ...]
    span: Span
    chain: str
    conditional: bool


class _HeaderScan:
    """Follows includes inside the project from the sources, and notes headers that no `src` lists."""

    def __init__(self, *, texts: Texts, listed: set[str]) -> None:
        self.findings: dict[str, _UnlistedHeader] = {}
        self._texts = texts
        self._listed = listed

    def section(self, where: tuple[str, ...], sources: Iterable[str], folders: list[str]) -> None:
        """Follow the includes of the section whose `src` stands at `where`."""
        # path -> (how it was reached, whether only under a condition)
        reached: dict[str, tuple[str, bool]] = dict.fromkeys(sources, ("", False))
        queue = list(reached)
        while queue:
            path = queue.pop(0)
            chain, conditional = reached[path]
            for include in self._texts.includes(path):
                target = self._resolve(include, path, folders)
                if target is None:
                    continue
                maybe = conditional or include.conditional
                if target not in self._listed:
                    known = self.findings.get(target)
                    if known is None or (known.conditional and not maybe):
                        self.findings[target] = _UnlistedHeader(
                            header=target,
                            where=where,
                            span=Span(
                                path=path,
                                line=include.line,
                                column=include.column,
                                length=len(include.target),
                            ),
                            chain=chain,
                            conditional=maybe,
                        )
                if target not in reached or (reached[target][1] and not maybe):
                    reached[target] = (f" by way of {path}{chain}", maybe)
                    queue.append(target)

    def _resolve(self, include: Include, path: str, folders: list[str]) -> str | None:
        """The project's file that the compiler would take, or None where it is someone else's."""
        places = [*folders, IMPLICIT_INCLUDE]
        if include.quoted:
            places.insert(0, posixpath.dirname(path))
        for place in places:
            target = inside(posixpath.join(place, include.target))
            if target is not None and (self._texts.root / target).is_file():
                return None if target.endswith(_GENERATED_HEADER) else target
        return None


def _src_of(paths: Iterable[str]) -> str | None:
    names = [f'"{path}"' for path in paths]
    if len(names) > 20:
        names = [*names[:20], f"… ({len(names) - 20} more)"]
    return f"src = [{', '.join(names)}]" if names else None


def _glob(root: Path, pattern: str) -> list[Path]:
    try:
        return [path for path in root.glob(pattern) if path.is_file() and is_source(path.name)]
    except (ValueError, NotImplementedError, IndexError):
        return []


def _walk_shallow(root: Path, folder: str) -> list[str]:
    """Candidates for a misspelled path: the files beside it, or below its nearest existing parent."""
    while folder != "." and not (root / folder).is_dir():
        folder = posixpath.dirname(folder) or "."
    found = []
    for pattern in ("*", "*/*"):
        for path in (root / folder).glob(pattern):
            if path.is_file() and not path.name.startswith("."):
                found.append(path.relative_to(root).as_posix())
            if len(found) > 2000:
                return found
    return found
