"""What a command costs: processor time of all its descendants, wall time, and what else the machine did meanwhile."""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`cpu` are user + system seconds of a process and all descendants that were waited for (wait4); `cgroup` the
    same as the kernel charges it to a control group, where one could be made; `others` what the rest of the
    machine used in the meantime; `wall` in seconds."""

    cpu: float
    wall: float
    others: float
    cgroup: float | None = None

    def __add__(self, other: "Cost") -> "Cost":
        both = self.cgroup is not None and other.cgroup is not None
        return Cost(
            cpu=self.cpu + other.cpu,
            wall=self.wall + other.wall,
            others=self.others + other.others,
            cgroup=(self.cgroup or 0) + (other.cgroup or 0) if both else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A finished command with its cost and what it wrote to stdout."""

    cost: Cost
    stdout: str


def measure(
    argv: Sequence[str], log: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Ran:
    """Run a command that must succeed; its stderr is added to `log`. Raises RuntimeError naming the log."""
    group = _Group.make()
    output = log.with_suffix(".stdout")
    started, busy = time.monotonic(), _machine()
    child = os.fork()
    if child == 0:
        try:
            group.enter()
            with output.open("wb") as out, log.open("ab") as err:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
            os.chdir(cwd or Path.cwd())
            os.execvpe(argv[0], list(argv), {**os.environ, **(env or {})})
        finally:
            os._exit(127)
    _, status, usage = os.wait4(child, 0)
    wall, busy = time.monotonic() - started, _machine() - busy
    cpu = usage.ru_utime + usage.ru_stime
    if status != 0:
        raise RuntimeError(f"{argv[0]} ended with {os.waitstatus_to_exitcode(status)}; see {log}")
    cost = Cost(cpu=cpu, wall=wall, others=max(0.0, busy - cpu), cgroup=group.leave())
    return Ran(cost=cost, stdout=output.read_text(encoding="utf-8", errors="replace"))


def load() -> list[float]:
    """The machine's load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _machine() -> float:
    """Seconds that all processors were busy since boot (proc(5), /proc/stat: user nice system _ _ irq softirq)."""
    fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    return sum(int(fields[index]) for index in (0, 1, 2, 5, 6)) / TICKS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """A control group of our own, where we may make one: the second witness for `cpu`."""

    path: Path | None

    @classmethod
    def make(cls) -> "_Group":
        for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
            if (root / "cgroup.procs").exists():
                path = root / f"kbuild-benchmark-{os.getpid()}"
                with suppress(OSError):
                    path.mkdir(exist_ok=True)
                    if (path / "cpu.stat").exists():
                        return cls(path=path)
        return cls(path=None)

    def enter(self) -> None:
        if self.path is not None:
            (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> float | None:
        if self.path is None:
            return None
        used = int((self.path / "cpu.stat").read_text(encoding="ascii").split()[1])
        with suppress(OSError):
            self.path.rmdir()
        return used / 1e6
