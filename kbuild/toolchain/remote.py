"""Parts of files over HTTP: range requests that survive a broken connection."""

import io
import os
import ssl
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import urllib3

from kbuild.errors import HubError

ATTEMPTS = 4

_CHUNK = 1 << 18
_TIMEOUT = urllib3.Timeout(connect=15, read=60)
_RETRIES = urllib3.Retry(
    total=6, backoff_factor=0.5, status_forcelist=(408, 429, 500, 502, 503, 504), raise_on_status=False
)


class RangesRefusedError(Exception):
    """The server does not serve this file in parts (or not to us)."""


class BrokenTransferError(Exception):
    """The connection ended early; what was read so far is good."""


class StoppedError(Exception):
    """Another worker failed, or the user interrupted."""


class Client:
    """A connection pool that counts what it receives; one client serves many threads."""

    def __init__(self, *, connections: int, on_receive: Callable[[int], None] = lambda _: None) -> None:
        self._connections = connections
        self._on_receive = on_receive
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._received = 0
        self._pools: dict[str | None, urllib3.PoolManager] = {}

    @property
    def received(self) -> int:
        """Bytes of bodies received so far."""
        return self._received

    def count(self, amount: int) -> None:
        with self._lock:
            self._received += amount
        self._on_receive(amount)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, url: str, *, start: int | None = None, end: int | None = None) -> urllib3.BaseHTTPResponse:
        """An open response, its body unread. Raises HubError; RangesRefusedError for a certificate unknown."""
        headers = {"Accept-Encoding": "identity"}
        if start is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        try:
            return self._pool(url).request(
                "GET", url, headers=headers, preload_content=False, retries=_RETRIES, timeout=_TIMEOUT
            )
        except urllib3.exceptions.HTTPError as error:
            if isinstance(getattr(error, "reason", error), urllib3.exceptions.SSLError):
                # pip may know of certificates (or of a system store) that we do not: let it try.
                raise RangesRefusedError(str(error)) from error
            raise HubError(
                f"cannot reach {urlsplit(url).hostname}: {error}",
                hint="Check the network and the proxy; run the same command again to go on from here.",
            ) from error

    def _pool(self, url: str) -> urllib3.PoolManager:
        parts = urlsplit(url)
        bypassed = proxy_bypass(parts.hostname or "")
        proxy = None if bypassed else getproxies().get(parts.scheme)
        with self._lock:
            if proxy not in self._pools:
                self._pools[proxy] = _new_pool(proxy, self._connections)
            return self._pools[proxy]

    @contextmanager
    def part(self, url: str, start: int, end: int, *, total: int) -> Iterator["Body"]:
        """The bytes [start, end) of a file of `total` bytes. Raises RangesRefusedError, HubError."""
        response = self.get(url, start=start, end=end)
        try:
            expected = f"bytes {start}-{end - 1}/{total}"
            if response.status != 206 or response.headers.get("Content-Range", expected) != expected:
                raise RangesRefusedError(f"{urlsplit(url).hostname} answers {response.status}")
            yield Body(self, response, start)
        finally:
            # Closing, not draining: the rest of an abandoned body may be long.
            response.close()
            response.release_conn()


def _new_pool(proxy: str | None, connections: int) -> urllib3.PoolManager:
    # OpenSSL reads SSL_CERT_FILE and SSL_CERT_DIR by itself; these are the other names pip users set.
    context = ssl.create_default_context()
    for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        path = Path(os.environ.get(name, ""))
        if path.is_file():
            context.load_verify_locations(path)
    if proxy is None:
        return urllib3.PoolManager(maxsize=connections, ssl_context=context)
    return urllib3.ProxyManager(proxy, maxsize=connections, ssl_context=context)


class Body:
    """A forward reader over the body of a response that began at byte `position` of the file."""

    def __init__(self, client: Client, response: urllib3.BaseHTTPResponse, position: int) -> None:
        self._client = client
        self._response = response
        self.position = position

    def read(self, count: int) -> bytes:
        """Up to `count` bytes; none at the end. Raises BrokenTransferError, StoppedError."""
        if self._client.stop.is_set():
            raise StoppedError
        try:
            data = self._response.read(count)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise BrokenTransferError(str(error)) from error
        self._client.count(len(data))
        self.position += len(data)
        return data

    def read_exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            data = self.read(count - len(parts))
            if not data:
                raise BrokenTransferError("the connection was closed early")
            parts += data
        return bytes(parts)

    def skip_to(self, offset: int) -> None:
        while self.position < offset:
            self.read_exactly(min(offset - self.position, _CHUNK))


class RemoteFile(io.RawIOBase):
    """Enough of a file for `zipfile` to read the directory at its end with two or three requests."""

    _TAIL = 1 << 16

    def __init__(self, client: Client, url: str, size: int) -> None:
        self._client = client
        self._url = url
        self._size = size
        self._position = 0
        self._tail_start = max(0, size - self._TAIL)
        self._tail = self._fetch(self._tail_start, size)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        start = self._position
        end = self._size if size < 0 else min(self._size, start + size)
        self._position = max(start, end)
        if start >= end:
            return b""
        if start >= self._tail_start:
            return self._tail[start - self._tail_start : end - self._tail_start]
        return self._fetch(start, end)

    def _fetch(self, start: int, end: int) -> bytes:
        failures = 0
        while True:
            try:
                with self._client.part(self._url, start, end, total=self._size) as body:
                    return body.read_exactly(end - start)
            except BrokenTransferError as error:
                failures += 1
                if failures == ATTEMPTS:
                    raise keeps_breaking(self._url, error) from error


def open_wheel(client: Client, url: str, size: int) -> zipfile.ZipFile:
    """The directory of a wheel that lies on a server. Raises RangesRefusedError, HubError, BadZipFile."""
    return zipfile.ZipFile(RemoteFile(client, url, size))


def download(client: Client, url: str, path: Path, size: int) -> bool:
    """Bring a whole file, going on where an interrupted run stopped; False where the server refuses.

    Raises HubError where the server cannot be reached or breaks off again and again.
    """
    failures = 0
    while (have := _length(path)) < size:
        broken = BrokenTransferError("the connection was closed early")
        try:
            response = client.get(url, start=have)
        except RangesRefusedError:
            return False
        try:
            if response.status not in (200, 206):
                return False
            _append(client, response, path, have if _begins_at(response, have) else 0)
        except BrokenTransferError as error:
            broken = error
        finally:
            response.close()
            response.release_conn()
        failures = 0 if _length(path) > have else failures + 1
        if failures == ATTEMPTS:
            raise keeps_breaking(url, broken)
    return True


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(client: Client, response: urllib3.BaseHTTPResponse, path: Path, offset: int) -> None:
    body = Body(client, response, offset)
    with path.open("ab" if offset else "wb") as file:
        while chunk := body.read(_CHUNK):
            file.write(chunk)


def _begins_at(response: urllib3.BaseHTTPResponse, offset: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {offset}-")


def keeps_breaking(url: str, error: BrokenTransferError) -> HubError:
    """What is said once `ATTEMPTS` connections in a row broke without progress."""
    return HubError(
        f"the connection to {urlsplit(url).hostname} keeps breaking: {error}",
        hint="Run the same command again: it goes on from here.",
    )
