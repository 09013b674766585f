"""Which commit a project is built from, and whether its files differ from it."""

from pathlib import Path

from kbuild import process
from kbuild.metadata import GitStatus


def of(root: Path) -> GitStatus | None:
    """The commit that the project at `root` is at; None outside git, without git, and before the first commit."""
    if process.which("git") is None:
        return None
    head = process.run(["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "HEAD"])
    if not head.ok:
        return None
    status = process.run(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no", "--", "."])
    return GitStatus(commit=head.stdout.strip(), dirty=not status.ok or bool(status.stdout.strip()))
