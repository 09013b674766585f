"""The one door to subprocesses: quiet on success, everything on failure."""

import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A finished process; `stdout` and `stderr` are decoded with replacement characters."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    def transcript(self) -> str:
        """What a person needs in order to repeat the failure by hand."""
        parts = [f"$ {shlex.join(self.argv)}", self.stdout.rstrip(), self.stderr.rstrip()]
        return "\n".join(part for part in [*parts, f"(exit status {self.returncode})"] if part)


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    on_stderr_line: Callable[[str], None] | None = None,
) -> Completed:
    """Run to completion; never raises for a non-zero exit.

    `on_stderr_line` receives each line of stderr while the process runs (and `stderr` is then empty).
    On KeyboardInterrupt or any other exception the child is terminated, then killed, before it propagates.
    Raises FileNotFoundError where `argv[0]` does not exist.
    """
    process = subprocess.Popen(
        list(argv),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    try:
        if on_stderr_line is None:
            stdout, stderr = process.communicate(stdin)
        else:
            # NB: callers that stream stderr print little on stdout (less than a pipe holds).
            assert process.stderr is not None
            assert process.stdout is not None
            for line in process.stderr:
                on_stderr_line(line.rstrip("\n"))
            stdout, stderr = process.stdout.read(), ""
            process.wait()
    except BaseException:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
    return Completed(argv=tuple(argv), returncode=process.returncode, stdout=stdout, stderr=stderr)


def run_in_foreground(
    argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], to_stderr: bool = False
) -> int:
    """Run with this process's own streams (stdout into stderr where asked); the exit status.

    For programs whose output is for a person to watch. Ctrl-C reaches the child by itself; it is waited for.
    """
    with subprocess.Popen(list(argv), cwd=cwd, env=dict(env), stdout=2 if to_stderr else None) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def which(name: str) -> Path | None:
    """The absolute path of a program on PATH."""
    found = shutil.which(name)
    return None if found is None else Path(found)
