"""A proxy on loopback that counts what comes back through it, whichever program asked: TLS records and all."""

import os
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CHUNK = 1 << 16


class CountingProxy(socketserver.ThreadingTCPServer):
    """Knows CONNECT only, which is all that https needs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self._lock = threading.Lock()
        self.received = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, amount: int) -> None:
        with self._lock:
            self.received += amount


class _Tunnel(socketserver.StreamRequestHandler):
    server: CountingProxy

    def handle(self) -> None:
        verb, _, rest = self.rfile.readline().decode("ascii").partition(" ")
        while self.rfile.readline().strip():
            pass
        if verb != "CONNECT":
            self.wfile.write(b"HTTP/1.1 405 Only CONNECT\r\n\r\n")
            return
        host, _, port = rest.split(" ")[0].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as remote:
            self.wfile.write(b"HTTP/1.1 200 Connected\r\n\r\n")
            up = threading.Thread(target=self._send, args=(remote,), daemon=True)
            up.start()
            with suppress(OSError):
                while data := remote.recv(CHUNK):
                    self.server.count(len(data))
                    self.connection.sendall(data)
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)
            up.join()

    def _send(self, remote: socket.socket) -> None:
        with suppress(OSError):
            while data := self.connection.recv(CHUNK):
                remote.sendall(data)
        with suppress(OSError):
            remote.shutdown(socket.SHUT_RDWR)


@contextmanager
def counting_proxy() -> Iterator[CountingProxy]:
    """Run the proxy, and have this process and its children go through it."""
    with CountingProxy() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        names = ("https_proxy", "HTTPS_PROXY")
        before = {name: os.environ.get(name) for name in names}
        os.environ.update(dict.fromkeys(names, server.url))
        try:
            yield server
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            server.shutdown()
