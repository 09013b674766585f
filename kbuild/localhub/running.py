"""A loopback Hub that runs: in the foreground for people, in a thread for tests and the demo."""

import socket
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from kbuild.errors import HubError, MachineError, UsageError
from kbuild.localhub.app import App
from kbuild.localhub.config import RESERVED_NAMESPACES, Config, User
from kbuild.localhub.store import DATABASE

DEMO_USER = User(name="demo-user", token="demo-token", orgs=("demo-org",))  # noqa: S106 - no secret
DEMO = Config(users=(DEMO_USER,), orgs=("demo-org",))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningHub:
    """Where a Hub listens, and what a client process needs in its environment to use it."""

    endpoint: str
    token: str
    environment: dict[str, str]


def environment(endpoint: str, token: str, home: Path) -> dict[str, str]:
    """Settings of the clients for a loopback Hub; `home` receives their caches."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_TOKEN": token,
        "HF_HOME": str(home),
        # This server has no Xet storage, and clients do not fall back by themselves.
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }


def serve(root: Path, config: Config, *, port: int, on_ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `on_ready` receives the endpoint once requests are answered."""
    _check(config)
    app = _open(root, config, time.time)
    try:
        with _listening(port) as listener:
            _Server(app, on_ready=lambda: on_ready(_endpoint(listener))).run(sockets=[listener])
    finally:
        app.close()


@contextmanager
def running_hub(
    root: Path,
    config: Config = DEMO,
    *,
    port: int = 0,
    clock: Callable[[], float] = time.time,
    wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> Iterator[RunningHub]:
    """A Hub with its state below `root`, in a thread of this process, while the block runs.

    `wrap` puts something around the application: tests make it fail on purpose.
    """
    _check(config)
    app = _open(root, config, clock)
    ready = threading.Event()
    with _listening(port) as listener, tempfile.TemporaryDirectory(prefix="localhub-home-") as home:
        server = _Server(wrap(app), on_ready=ready.set)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not ready.wait(0.05):
                if not thread.is_alive():
                    raise HubError("The loopback Hub did not start")
            endpoint, token = _endpoint(listener), config.users[0].token if config.users else ""
            yield RunningHub(
                endpoint=endpoint, token=token, environment=environment(endpoint, token, Path(home))
            )
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()
            app.close()


def in_all_orgs(config: Config) -> Config:
    """The same Hub with every user a member of every organisation."""
    return replace(config, users=tuple(replace(user, orgs=config.orgs) for user in config.users))


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp, *, on_ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error", access_log=False)
        )
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self._on_ready()


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise MachineError(
                f"Cannot listen on 127.0.0.1:{port}: {error.strerror}",
                hint="Name another port, or --port 0 for any free one.",
            ) from error
        yield listener


def _open(root: Path, config: Config, clock: Callable[[], float]) -> App:
    hint = "Name a folder for the Hub's state: one that is empty, missing, or was used for that before."
    try:
        # NB: a Hub clears out what it finds half received, which must not be somebody's own files.
        present = {path.name for path in root.iterdir()} if root.is_dir() else set[str]()
        if DATABASE not in present and present - {"blobs", "incoming"}:
            raise UsageError(f"Cannot keep a Hub in {root}: there is something else in it", hint=hint)
        return App(root, config, clock=clock)
    except OSError as error:
        raise UsageError(
            f"Cannot keep a Hub in {root}: {error.filename or root}: {error.strerror}", hint=hint
        ) from error
    except sqlite3.Error as error:
        raise UsageError(f"Cannot keep a Hub in {root}: {error}", hint=hint) from error


def _endpoint(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


def _check(config: Config) -> None:
    for name in (*config.orgs, *(user.name for user in config.users)):
        if name in RESERVED_NAMESPACES or "/" in name:
            raise HubError(f"{name!r} cannot be the name of a user or organisation")
