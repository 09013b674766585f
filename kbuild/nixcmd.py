"""Nix, driven: values in, argv out; its event stream in, progress out; its failures in, the way out.

Works with Nix 2.4 and later. Flakes are switched on by flag, so the user's configuration does not matter.
"""

import grp
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kbuild import process
from kbuild.errors import MachineError
from kbuild.host import Host
from kbuild.nix_errors import ANSI, explain

OLDEST = (2, 4)
SYSTEM = "x86_64-linux"
_DRV = re.compile(r"/nix/store/[0-9a-z]{32}-[^\s'^]+\.drv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How Nix builds; `options` are passed through as they are."""

    max_jobs: int | None = None
    cores: int | None = None
    builders: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    def flags(self, host: Host) -> list[str]:
        flags = ["--option", "sandbox", "true", "--option", "sandbox-fallback", "false"]
        flags += ["--option", "sandbox-paths", " ".join(host.sandbox_paths)]
        if not any(name == "substituters" for name, _ in self.options):
            # Everything comes from the pinned wheels; a cache that cannot be reached must not stop a build.
            flags += ["--option", "substitute", "false"]
        if self.max_jobs is not None:
            flags += ["--option", "max-jobs", str(self.max_jobs)]
        if self.cores is not None:
            flags += ["--option", "cores", str(self.cores)]
        if self.builders is not None:
            flags += ["--option", "builders", self.builders]
        if _lacks_build_users():
            flags += ["--option", "build-users-group", ""]
        for name, value in self.options:
            flags += ["--option", name, value]
        return flags


def _lacks_build_users() -> bool:
    """Whether Nix would refuse to build: as root it hands builds to the users of a group that bare `nix-bin` lacks.

    Without them the builder is root in the same sandbox, where a user namespace takes root's rights away.
    """
    if os.geteuid() != 0:
        return False
    try:
        return not grp.getgrnam("nixbld").gr_mem
    except KeyError:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivation:
    """A variant as Nix knows it: the recipe's and the result's store path."""

    drv: str
    out: str


@dataclass(slots=True)
class Events:
    """What Nix's event stream has said so far. `on_change` is called after each event that changes it."""

    building: dict[int, str] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    on_change: Callable[["Events"], None] = lambda _: None
    on_log: Callable[[str, str], None] = lambda drv, line: None

    def feed(self, line: str) -> None:
        """Take one line of `--log-format internal-json`; lines of another form are kept as messages."""
        if not line.startswith("@nix "):
            self.messages.append(line)
            return
        event = json.loads(line[5:])
        match event:
            case {"action": "start", "type": 105, "id": int(key), "fields": [str(drv), *_]}:
                self.building[key] = drv
            case {"action": "stop", "id": int(key)} if key in self.building:
                self.finished.append(self.building.pop(key))
            case {"action": "result", "type": 101, "id": int(key), "fields": [str(text), *_]}:
                self.on_log(self.building.get(key, ""), ANSI.sub("", text))
                return
            case {"action": "msg", "level": int(level), "msg": str(text)} if level <= 1:
                text = ANSI.sub("", text)
                self.messages.append(text)
                if re.search(r"builder for '.*' failed|failed to build|hash mismatch|Cannot build", text):
                    self.failed += [drv for drv in _DRV.findall(text)[:1] if drv not in self.failed]
            case _:
                return
        self.on_change(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nix:
    """An installed Nix. `store` is another store than the default one, as in `nix --store`."""

    version: tuple[int, ...]
    store: str | None = None

    @property
    def store_options(self) -> tuple[str, ...]:
        """The flags that select the store, for any Nix command."""
        return () if self.store is None else ("--store", self.store)

    def physical(self, path: str) -> Path:
        """Where a store path lies on this machine's disk."""
        if self.store is None or not self.store.startswith(("/", "local?root=")):
            return Path(path)
        return Path(self.store.removeprefix("local?root=")) / path.lstrip("/")

    def _nix(self, *arguments: str) -> list[str]:
        return ["nix", "--extra-experimental-features", "nix-command flakes", *arguments, *self.store_options]

    def evaluate(
        self, flake: Path, names: Sequence[str], overrides: Mapping[str, Path]
    ) -> dict[str, Derivation]:
        """The derivations of these variants of a flake; writes nothing but recipes into the store."""
        listed = " ".join(json.dumps(name) for name in names)
        paths = "{ drv = vs.${n}.drvPath; out = vs.${n}.outPath; }"
        pick = f"vs: builtins.listToAttrs (map (n: {{ name = n; value = {paths}; }})"
        argv = self._nix("eval", "--json", f"path:{flake}#packages.{SYSTEM}.redistributable")
        argv += [
            "--apply",
            f"{pick} [ {listed} ])",
            "--no-write-lock-file",
            "--option",
            "substitute",
            "false",
        ]
        for name, path in overrides.items():
            argv += ["--override-input", name, f"path:{path}"]
        done = process.run(argv)
        if not done.ok:
            raise explain(done.stderr, "the flake does not evaluate")
        return {name: Derivation(**value) for name, value in json.loads(done.stdout).items()}

    def flake_inputs(self, flake: Path) -> dict[str, str]:
        """The names and URLs of a flake's inputs, read from its text without fetching anything."""
        path = json.dumps(str(flake / "flake.nix"))
        expression = f'builtins.mapAttrs (_: i: i.url or "") ((import {path}).inputs or {{ }})'
        done = process.run(self._nix("eval", "--impure", "--json", "--expr", expression))
        if not done.ok:
            raise explain(done.stderr, "flake.nix cannot be read")
        inputs: dict[str, str] = json.loads(done.stdout)
        return inputs

    def to_build(self, drvs: Sequence[str], host: Host, settings: Settings) -> frozenset[str]:
        """What of the closure of these derivations is not in the store yet."""
        done = process.run(self._realise(drvs, host, settings, "--dry-run"))
        if not done.ok:
            raise explain(done.stderr, "Nix cannot plan the build")
        return frozenset(_DRV.findall(done.stderr))

    def closures(self, drvs: Sequence[str]) -> dict[str, frozenset[str]]:
        """For each derivation, the derivations it needs, itself among them."""
        done = process.run(["nix-store", *self.store_options, "--query", "--graph", *drvs])
        if not done.ok:
            raise explain(done.stderr, "Nix cannot read its store")
        needs: dict[str, set[str]] = {}
        for source, target in re.findall(r'"(\S+?)" -> "(\S+?)"', done.stdout):
            needs.setdefault(f"/nix/store/{target}", set()).add(f"/nix/store/{source}")

        def closure(drv: str) -> frozenset[str]:
            seen, todo = {drv}, [drv]
            while todo:
                for below in needs.get(todo.pop(), ()):
                    if below not in seen:
                        seen.add(below)
                        todo.append(below)
            return frozenset(path for path in seen if path.endswith(".drv"))

        return {drv: closure(drv) for drv in drvs}

    def build(self, drvs: Sequence[str], host: Host, settings: Settings, events: Events) -> bool:
        """Build as many of these derivations as possible; True where all are there now."""
        argv = self._realise(drvs, host, settings, "--keep-going", "--log-format", "internal-json")
        return process.run(argv, on_stderr_line=events.feed).ok

    def try_sandbox(self, host: Host) -> None:
        """Build next to nothing the way kernels are built. Raises the KbuildError that a build would."""
        expression = (
            f'derivation {{ name = "kbuild-sandbox"; system = "{SYSTEM}"; builder = "{host.python}"; '
            f'args = [ "-c" "import os; open(os.environ[\\"out\\"], \\"w\\").write(os.getcwd())" ]; }}'
        )
        argv = ["nix-build", *self.store_options, "--no-out-link", "--expr", expression]
        done = process.run([*argv, *Settings().flags(host)])
        if not done.ok:
            raise explain(done.stderr, "a build in the sandbox fails")

    def log(self, drv: str) -> str:
        """The kept log of a derivation that was built or failed; empty where there is none."""
        done = process.run(["nix-store", *self.store_options, "--read-log", drv])
        return ANSI.sub("", done.stdout) if done.ok else ""

    def absent(self, paths: Sequence[str]) -> frozenset[str]:
        """Those of the store paths that are not there and registered."""
        argv = ["nix-store", *self.store_options, "--check-validity", "--print-invalid", *paths]
        done = process.run(argv)
        if not done.ok:
            raise explain(done.stderr, "Nix cannot read its store")
        return frozenset(done.stdout.split())

    def _realise(self, drvs: Sequence[str], host: Host, settings: Settings, *flags: str) -> list[str]:
        return ["nix-store", *self.store_options, "--realise", *drvs, *flags, *settings.flags(host)]


def step_name(drv: str) -> str:
    """What a person calls a derivation: its name without store, hash and suffix."""
    return drv.removesuffix(".drv")[len("/nix/store/") + 33 :]


def probe(store: str | None = None) -> Nix:
    """The Nix of this machine. Raises MachineError where there is none, or one too old."""
    if process.which("nix") is None or process.which("nix-store") is None:
        raise MachineError(
            "Nix is not installed: there is no `nix` on the PATH",
            hint="on Debian or Ubuntu: apt-get install nix-bin; elsewhere: https://nixos.org/download",
        )
    done = process.run(["nix", "--version"])
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", done.stdout)
    if not done.ok or found is None:
        raise MachineError(f"Nix does not run:\n{done.transcript()}")
    version = tuple(int(part) for part in found.groups(default="0"))
    if version < OLDEST:
        raise MachineError(
            f"Nix {found[0]} is too old: kbuild needs {OLDEST[0]}.{OLDEST[1]} or later", hint="update Nix"
        )
    return Nix(version=version, store=store)


def compiler_errors(log: str, *, limit: int = 20) -> Iterable[str]:
    """The lines of a build log that say what is wrong, or its end where no line does."""
    lines = log.splitlines()
    telling = [
        index
        for index, line in enumerate(lines)
        if re.search(
            r"\b(?:fatal )?error\b|undefined reference|multiple definition|cannot find|Killed|kbuild:", line
        )
    ]
    if not telling:
        return lines[-limit:]
    wanted = {near for index in telling for near in range(index, index + 3) if near < len(lines)}
    return [lines[index] for index in sorted(wanted)][:limit]
