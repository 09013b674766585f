"""The benchmark's own instruments, and its report."""

import json
import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from benchmarks import build_matrix
from benchmarks.costs import measure
from benchmarks.counting_proxy import counting_proxy

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_a_grandchild_is_counted(tmp_path: Path) -> None:
    nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    cost = measure([sys.executable, "-c", nested], tmp_path / "log").cost
    assert 0.3 <= cost.cpu < 1.5
    assert cost.cgroup is None or cost.cgroup == pytest.approx(cost.cpu, abs=0.05)


def test_a_failure_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="ended with 3"):
        measure([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log")


def test_the_proxy_counts_what_comes_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, counting_proxy() as proxy:
        port = server.getsockname()[1]

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                assert connection.recv(5) == b"hello"
                connection.sendall(b"x" * 100_000)

        thread = threading.Thread(target=answer)
        thread.start()
        assert os.environ["https_proxy"] == proxy.url
        with socket.create_connection(("127.0.0.1", int(proxy.url.rpartition(":")[2]))) as client:
            client.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
            stream = client.makefile("rb")
            assert b"200" in stream.readline()
            assert stream.readline() == b"\r\n"
            client.sendall(b"hello")
            assert len(stream.read()) == 100_000
            stream.close()
        thread.join()
        assert proxy.received == 100_000
    assert os.environ.get("https_proxy") != proxy.url


def test_the_report_is_the_one_rendered_from_its_numbers() -> None:
    result = json.loads(build_matrix.RESULT.read_text(encoding="utf-8"))
    report = build_matrix.RESULT.with_suffix(".md").read_text(encoding="utf-8")
    assert report == build_matrix.render(result), "run: python tests/benchmarks/build_matrix.py render"
