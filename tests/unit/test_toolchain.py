"""The toolchain: lock and data agree, hashes are Nix's, and only pinned bytes get into a store."""

import hashlib
import io
import re
import shutil
import threading
import zipfile
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from kbuild import process
from kbuild.errors import HubError, MachineError, UsageError
from kbuild.resources import data_json, data_path
from kbuild.toolchain import Kind, Lock, Store, Symbol, Tree, Wheel, ensure, index, load_lock, store_path
from kbuild.toolchain.fetch import Silent
from kbuild.toolchain.nar import nar_of
from kbuild.toolchain.recipes import CUDA_RELEASES, recipes
from kbuild.toolchain.refresh import format_lock
from kbuild.toolchain.symbols import (
    format_symbols,
    glibc_symbols,
    parse_symbols,
    torch_exports,
    torch_symbols,
    without_libstdcxx,
)
from kbuild.toolchain.unpack import Member, plan_spans

needs_nix = pytest.mark.skipif(shutil.which("nix-store") is None, reason="Nix is not installed")
MATRIX = data_json("matrix.json")


def trees_of_the_matrix() -> list[str]:
    torches = [entry["tree"] for entry in MATRIX["torch"].values()]
    cudas = [tree for toolkit in MATRIX["toolkits"].values() for tree in toolkit.get("trees", ())]
    return torches + cudas


class TestData:
    def test_every_row_is_pinned_and_every_pin_used(self) -> None:
        assert sorted(load_lock().trees) == sorted(trees_of_the_matrix())

    def test_every_row_names_a_release_and_a_toolkit_that_exist(self) -> None:
        for row in MATRIX["rows"]:
            assert row["torch"] in MATRIX["torch"]
            assert row["compute"] == "cpu" or row["compute"] in MATRIX["toolkits"]

    def test_a_toolkit_has_trees_or_a_reason_to_have_none(self) -> None:
        for toolkit in MATRIX["toolkits"].values():
            assert ("trees" in toolkit) != ("unavailable" in toolkit)

    def test_the_lock_follows_the_recipes(self) -> None:
        for recipe in recipes():
            tree = load_lock().trees[recipe.key]
            assert (tree.keep, tree.strip, tree.executable) == (recipe.keep, recipe.strip, recipe.executable)
            assert tree.wheel.project == recipe.project
            assert tree.store_name == recipe.store_name(tree.wheel.version)

    def test_the_compiler_of_a_toolkit_is_of_one_release(self) -> None:
        trees = load_lock().trees
        for cuda in CUDA_RELEASES:
            versions = {trees[f"cuda-{cuda}-{name}"].wheel.version for name in ("nvcc", "nvvm", "crt")}
            assert len(versions) == 1
            assert versions.pop().startswith(f"{cuda}.")

    def test_the_lock_is_written_the_way_refresh_writes_it(self) -> None:
        lock = load_lock()
        ordered = Lock(trees={recipe.key: lock.trees[recipe.key] for recipe in recipes()})
        assert data_path("toolchain.lock.json").read_bytes() == format_lock(ordered), (
            "repair: kbuild lock refresh"
        )

    def test_pins_are_complete(self) -> None:
        for tree in load_lock().trees.values():
            assert re.fullmatch(r"[0-9a-f]{64}", tree.wheel.sha256)
            assert re.fullmatch(r"sha256-[A-Za-z0-9+/]{43}=", tree.nar_hash)
            assert tree.wheel.size > 0
            assert tree.files > 0
            assert "+" not in tree.wheel.version

    def test_every_toolkit_of_the_matrix_knows_its_capabilities(self) -> None:
        archs = data_json("cuda_archs.json")
        for toolkit in MATRIX["toolkits"].values():
            known = archs["toolkits"][toolkit["cuda"]]
            assert {name.removesuffix("+PTX") for name in archs["default"][toolkit["cuda"]]} <= set(known)

    @pytest.mark.parametrize("minor", list(MATRIX["torch"]))
    def test_every_release_has_its_symbols(self, minor: str) -> None:
        symbols = torch_symbols(minor)
        assert set(symbols) == {
            "libc10.so",
            "libc10_cuda.so",
            "libtorch.so",
            "libtorch_cpu.so",
            "libtorch_cuda.so",
            "libtorch_cuda_linalg.so",
        }
        names = {symbol.name: symbol for symbol in symbols["libtorch_cpu.so"]}
        assert names["_ZN2at4_ops10empty_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE"].kind is Kind.FUNCTION  # fmt: skip  # noqa: E501
        assert "aoti_torch_empty_strided" in torch_exports(minor)
        # What a link stub must not offer: the CUDA wheels carry parts of a newer libstdc++ than the floor.
        assert "_ZSt21ios_base_library_initv" not in torch_exports(minor)
        release = load_lock().trees[f"torch-{minor}"].wheel
        assert release.sha256 in symbol_text(f"torch-{minor}")

    def test_glibc_stops_at_2_28(self) -> None:
        symbols = glibc_symbols()
        libc = symbols["libc.so.6"]
        assert {"ld-linux-x86-64.so.2", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"} < set(
            symbols
        )
        assert Symbol("memcpy", Kind.FUNCTION, 0, "GLIBC_2.14", True) in libc
        assert Symbol("memcpy", Kind.FUNCTION, 0, "GLIBC_2.2.5", False) in libc
        assert Symbol("stdout", Kind.OBJECT, 8, "GLIBC_2.2.5", True) in libc
        versions = {symbol.version for library in symbols.values() for symbol in library}
        numbers = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in versions if v is not None]
        assert max(numbers) == (2, 28)


def symbol_text(name: str) -> str:
    import lzma

    return lzma.decompress(data_path(f"abi/{name}.symbols.xz").read_bytes()).decode()


class TestSymbols:
    def test_a_list_is_read_as_it_was_written(self) -> None:
        exports = {
            "liba.so": frozenset({Symbol("f", Kind.FUNCTION), Symbol("x", Kind.OBJECT, 8), Symbol("t", Kind.TLS, 4)}),
            "libb.so": frozenset({Symbol("g", Kind.FUNCTION, 0, "V_1", False), Symbol("g", Kind.FUNCTION, 0, "V_2")}),
            "libempty.so": frozenset[Symbol](),
        }  # fmt: skip
        import lzma

        written = format_symbols(["from a test"], exports)
        assert parse_symbols(lzma.decompress(written).decode()) == exports
        assert written == format_symbols(["from a test"], dict(reversed(exports.items())))

    def test_a_foreign_line_is_refused(self) -> None:
        with pytest.raises(ValueError, match="X what"):
            parse_symbols("library a.so\nX what\n")
        with pytest.raises(ValueError, match="not a line"):
            parse_symbols("library a.so\n\n")

    @pytest.mark.parametrize(
        ("name", "stays"),
        [
            ("_ZN3c105ErrorC1Ev", True),
            ("_ZSt21ios_base_library_initv", False),
            ("_ZTVNSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEEE", False),
            ("_ZNKSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE7compareEPKc", False),
            ("_ZNSs6assignEPKc", False),
            ("_ZNKSt4hashIN3c106DeviceEEclES1_", True),
            ("aoti_torch_empty_strided", True),
        ],
    )
    def test_only_the_standard_library_is_left_out(self, name: str, stays: bool) -> None:
        exports = {"lib.so": frozenset({Symbol(name, Kind.FUNCTION)})}
        assert bool(without_libstdcxx(exports)["lib.so"]) is stays


class TestHashes:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        root = tmp_path / "small"
        (root / "b" / "empty").mkdir(parents=True)
        (root / "b" / "a.txt").write_bytes(b"")
        (root / "b.txt").write_bytes(b"12345678")
        (root / "B").write_bytes(b"123456789")
        (root / "tool").write_text("#!/bin/sh\n")
        (root / "tool").chmod(0o755)
        return root

    @needs_nix
    def test_a_nar_hash_is_that_of_nix(self, folder: Path) -> None:
        done = process.run(["nix-hash", "--type", "sha256", str(folder)])
        assert b64decode(nar_of(folder).hash.removeprefix("sha256-")).hex() == done.stdout.strip()
        dump = process.run(["sh", "-c", 'nix-store --dump "$0" | wc -c', str(folder)])
        assert nar_of(folder).size == int(dump.stdout)
        assert nar_of(folder).files == 4

    def test_the_run_bit_counts(self, folder: Path) -> None:
        before = nar_of(folder)
        (folder / "tool").chmod(0o644)
        assert nar_of(folder) != before

    def test_a_link_is_refused(self, folder: Path) -> None:
        (folder / "link").symlink_to("tool")
        with pytest.raises(ValueError, match="link"):
            nar_of(folder)

    @needs_nix
    def test_a_store_path_is_the_one_nix_prints(self) -> None:
        for tree in load_lock().trees.values():
            argv = [
                "nix-store",
                "--print-fixed-path",
                "--recursive",
                "sha256",
                tree.nar_hash,
                tree.store_name,
            ]
            assert store_path(tree) == process.run(argv).stdout.strip()


def test_spans_join_over_small_gaps_and_stay_short() -> None:
    def member(start: int, end: int) -> Member:
        return Member(
            path=f"{start}", executable=False, start=start, end=end, compressed=0, size=0, crc=0, stored=True
        )

    members = [
        member(0, 10),
        member(10, 20),
        member(25, 40),
        member(60, 70),
        member(70, 200),
        member(200, 210),
    ]
    spans = plan_spans(members, gap=5, length=50)
    assert [(span.start, span.end) for span in spans] == [(0, 40), (60, 70), (70, 200), (200, 210)]
    assert [m for span in spans for m in span.members] == members
    assert plan_spans([], gap=5, length=50) == ()


# A wheel of our own, and a server that can misbehave.


@dataclass(kw_only=True)
class Served:
    """Files by path. `ranges` off answers everything whole; `cut_after` closes connections early, that many times.

    A path that ends in a slash is a page of a package index. `sent` counts the bytes of bodies.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    sent: int = 0
    ranges: bool = True
    cut_after: int | None = None
    cuts: int = 0
    requests: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(served: Served) -> Iterator[Served]:
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            content = served.files[self.path]
            wanted = self.headers.get("Range")
            with lock:
                served.requests.append(wanted or "whole")
                cut = served.cut_after if served.cuts else None
                served.cuts -= bool(served.cuts)
            body = content
            if wanted is not None and served.ranges:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), int(last or len(content) - 1) + 1
                body = content[start:end]
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
            else:
                self.send_response(200)
            if self.path.endswith("/"):
                self.send_header("Content-Type", "text/html")
            if served.ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            with lock:
                served.sent += len(body)
            if cut is not None and len(body) > cut:
                self.wfile.write(body[:cut])
                self.wfile.flush()
                self.close_connection = True
                return
            self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


NAME = "demo-1.0-py3-none-any.whl"
NOISE = hashlib.shake_128(b"noise").digest(700_000)
CONTENT = {
    "demo/include/a.h": b"#pragma once\n" * 500,
    "demo/lib/big.so": NOISE,
    "demo/include/empty.h": b"",
    "demo/include/sub/b.h": b"#pragma once\n" * 300,
    "demo/include/sub/c.bin": NOISE[:300_000],
    "demo/bin/tool": b"#!/bin/sh\n",
    "demo-1.0.dist-info/METADATA": b"Name: demo\n",
}
KEPT = {"include/a.h", "include/empty.h", "include/sub/b.h", "include/sub/c.bin", "bin/tool"}


def make_wheel(content: Mapping[str, bytes] = CONTENT) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@pytest.fixture
def wheel() -> bytes:
    return make_wheel()


@pytest.fixture
def tree(tmp_path: Path, wheel: bytes) -> Tree:
    root = tmp_path / "expected"
    for name in KEPT:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT[f"demo/{name}"])
    (root / "bin" / "tool").chmod(0o755)
    nar = nar_of(root)
    return Tree(
        key="demo",
        store_name="demo-1.0",
        nar_hash=nar.hash,
        nar_size=nar.size,
        files=nar.files,
        wheel=Wheel(
            project="demo",
            version="1.0",
            file=NAME,
            size=len(wheel),
            sha256=hashlib.sha256(wheel).hexdigest(),
        ),
        keep=("demo/include/**", "demo/bin/**"),
        strip="demo",
        executable=("bin/*",),
    )


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A store of its own and a cache, and a way to fetch into them."""

    store: Store
    cache: Path

    def fetch(self, tree: Tree, url: str | None, lock: Lock | None = None) -> int:
        def locate(wheels: Iterable[Wheel]) -> Mapping[Wheel, str]:
            return {} if url is None else dict.fromkeys(wheels, url)

        lock = lock or Lock(trees={tree.key: tree})
        done = ensure([tree.key], nix=self.store, cache=self.cache, lock=lock, locate=locate)
        assert dict(done.paths) == {tree.key: store_path(tree)}
        return done.bytes_received

    def holds(self, tree: Tree) -> bool:
        return not self.store.missing([tree])

    def left_over(self) -> set[str]:
        return {path.name for path in self.cache.rglob("*") if path.is_file()} - {"fetch.lock"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    if shutil.which("nix-store") is None:
        pytest.skip("Nix is not installed")
    store = tmp_path / "store"
    yield Bench(store=Store(options=("--store", str(store))), cache=tmp_path / "cache")
    for folder in [store, *store.rglob("*")]:
        if folder.is_dir() and not folder.is_symlink():
            folder.chmod(0o755)


class TestFetch:
    def test_by_ranges_only_what_is_kept_is_received(self, bench: Bench, tree: Tree, wheel: bytes) -> None:
        with serving(Served(files={f"/{NAME}": wheel})) as served:
            received = bench.fetch(tree, f"{served.url}/{NAME}")
            assert "whole" not in served.requests
            asked = len(served.requests)
            assert bench.fetch(tree, f"{served.url}/{NAME}") == 0
            assert len(served.requests) == asked
        assert bench.holds(tree)
        assert received < len(wheel) - 600_000
        assert bench.left_over() == set()
        placed = Path(bench.store.options[1] + store_path(tree))
        files = {str(path.relative_to(placed)) for path in placed.rglob("*") if path.is_file()}
        assert files == KEPT
        assert (placed / "bin" / "tool").stat().st_mode & 0o111
        assert not (placed / "include" / "a.h").stat().st_mode & 0o111

    def test_a_tree_in_the_store_survives_its_garbage_collection(
        self, bench: Bench, tree: Tree, wheel: bytes
    ) -> None:
        with serving(Served(files={f"/{NAME}": wheel})) as served:
            bench.fetch(tree, f"{served.url}/{NAME}")
        done = process.run(["nix-store", *bench.store.options, "--gc"])
        assert done.ok, done.transcript()
        assert bench.holds(tree)
        (bench.cache / "roots" / "demo").unlink()
        process.run(["nix-store", *bench.store.options, "--gc"])
        assert not bench.holds(tree)

    def test_without_ranges_the_whole_wheel_comes(self, bench: Bench, tree: Tree, wheel: bytes) -> None:
        with serving(Served(files={f"/{NAME}": wheel}, ranges=False)) as served:
            assert bench.fetch(tree, f"{served.url}/{NAME}") >= len(wheel)
        assert bench.holds(tree)
        assert bench.left_over() == set()

    def test_a_wheel_on_this_machine_costs_nothing(
        self, bench: Bench, tree: Tree, wheel: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / "a folder" / NAME
        path.parent.mkdir()
        path.write_bytes(wheel)
        assert bench.fetch(tree, path.as_uri()) == 0
        assert bench.holds(tree)
        assert path.exists()

    @pytest.mark.parametrize("ranges", [True, False])
    def test_a_broken_connection_is_taken_up_again(
        self, bench: Bench, tree: Tree, wheel: bytes, ranges: bool
    ) -> None:
        served = Served(files={f"/{NAME}": wheel}, ranges=ranges, cut_after=40_000, cuts=2)
        with serving(served):
            bench.fetch(tree, f"{served.url}/{NAME}")
        assert bench.holds(tree)
        assert served.cuts == 0

    def test_an_interrupted_fetch_goes_on(self, bench: Bench, tree: Tree, wheel: bytes) -> None:
        # Every connection breaks inside c.bin: b.h is there already, and is not asked for again.
        served = Served(files={f"/{NAME}": wheel}, cut_after=150_000, cuts=99)
        with serving(served):
            with pytest.raises(HubError, match="keeps breaking") as raised:
                bench.fetch(tree, f"{served.url}/{NAME}")
            assert "same command again" in str(raised.value.hint)
            assert not bench.holds(tree)
            assert {"b.h", "c.bin.part"} <= bench.left_over()
            served.cuts = 0
            served.requests.clear()
            bench.fetch(tree, f"{served.url}/{NAME}")
        assert bench.holds(tree)
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            offsets = {
                name: archive.getinfo(f"demo/include/sub/{name}").header_offset for name in ("b.h", "c.bin")
            }
        starts = [request.removeprefix("bytes=").partition("-")[0] for request in served.requests]
        assert str(offsets["c.bin"]) in starts
        assert not {str(start) for start in range(offsets["b.h"], offsets["c.bin"])} & set(starts)

    def test_what_an_interrupted_fetch_left_half_written_does_not_get_in(
        self, bench: Bench, tree: Tree, wheel: bytes
    ) -> None:
        served = Served(files={f"/{NAME}": wheel}, cut_after=150_000, cuts=99)
        with serving(served):
            with pytest.raises(HubError):
                bench.fetch(tree, f"{served.url}/{NAME}")
            assert "c.bin.part" in bench.left_over()
            served.cuts, served.ranges = 0, False
            bench.fetch(tree, f"{served.url}/{NAME}")
        assert bench.holds(tree)

    @pytest.mark.parametrize("ranges", [True, False])
    def test_a_wrong_byte_is_refused(self, bench: Bench, tree: Tree, wheel: bytes, ranges: bool) -> None:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            offset = archive.getinfo("demo/include/sub/c.bin").header_offset + 100_000
        altered = bytearray(wheel)
        altered[offset] ^= 1
        with serving(Served(files={f"/{NAME}": bytes(altered)}, ranges=ranges)) as served:
            with pytest.raises(HubError) as raised:
                bench.fetch(tree, f"{served.url}/{NAME}")
            assert NAME in raised.value.message
            assert "Nothing was added" in raised.value.message
            assert raised.value.hint
        assert not bench.holds(tree)

    def test_a_consistent_forgery_is_refused(self, bench: Bench, tree: Tree) -> None:
        # As long as the true one, its checksums in order: only the hash of the tree tells.
        forged = make_wheel({**CONTENT, "demo/bin/tool": b"#!/bin/ev\n"})
        assert len(forged) == tree.wheel.size
        with serving(Served(files={f"/{NAME}": forged})) as served:
            with pytest.raises(HubError) as raised:
                bench.fetch(tree, f"{served.url}/{NAME}")
            assert tree.nar_hash in raised.value.message
            served.files[f"/{NAME}"] = make_wheel()
            bench.fetch(tree, f"{served.url}/{NAME}")
        assert bench.holds(tree)

    def test_a_local_wheel_that_is_another_is_refused(
        self, bench: Bench, tree: Tree, wheel: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / NAME
        path.write_bytes(wheel + b"x")
        with pytest.raises(HubError, match="sha256 is") as raised:
            bench.fetch(tree, path.as_uri())
        assert tree.wheel.sha256 in raised.value.message
        assert str(path) in raised.value.message
        assert not bench.holds(tree)

    def test_a_name_that_leaves_the_tree_is_refused(self, bench: Bench, tree: Tree, tmp_path: Path) -> None:
        evil = make_wheel({**CONTENT, "demo/include/../../../../escaped": b"x"})
        path = tmp_path / NAME
        path.write_bytes(evil)
        wheel = replace(tree.wheel, size=len(evil), sha256=hashlib.sha256(evil).hexdigest())
        with pytest.raises(HubError, match="leaves the tree"):
            bench.fetch(replace(tree, wheel=wheel), path.as_uri())
        assert not list(tmp_path.rglob("escaped"))

    def test_an_unreachable_server_is_said(
        self, bench: Bench, tree: Tree, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kbuild.toolchain import remote

        monkeypatch.setattr(remote, "_RETRIES", False)
        with pytest.raises(HubError, match=r"cannot reach 127\.0\.0\.1"):
            bench.fetch(tree, f"http://127.0.0.1:9/{NAME}")

    def test_an_unknown_key_is_a_usage_error(self, bench: Bench) -> None:
        with pytest.raises(UsageError, match=r"Did you mean 'torch-2\.13'"):
            ensure(["torch-2.l3"], nix=bench.store, cache=bench.cache)

    def test_no_nix_is_said(self, tree: Tree, tmp_path: Path) -> None:
        with pytest.raises(MachineError, match="Nix is not installed"):
            ensure([], nix=Store(program="no-such-nix-store"), cache=tmp_path) and Store(
                program="no-such-nix-store"
            ).missing([tree])

    def test_a_full_disk_is_said(
        self, bench: Bench, tree: Tree, wheel: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import errno

        from kbuild.toolchain import bring

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(bring, "unpack", full)
        with serving(Served(files={f"/{NAME}": wheel})) as served, pytest.raises(MachineError, match="full"):
            bench.fetch(tree, f"{served.url}/{NAME}")
        assert not bench.holds(tree)


class TestIndex:
    """pip itself against folders of our own; its configuration on this machine stays out of it."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        folder = tmp_path / "wheels"
        folder.mkdir()
        monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
        return folder

    @staticmethod
    def put(folder: Path, version: str = "1.0", extra: bytes = b"") -> Wheel:
        name = f"demo-{version}-py3-none-any.whl"
        meta = f"demo-{version}.dist-info"
        content = make_wheel(
            {
                "demo/include/a.h": extra,
                f"{meta}/METADATA": f"Metadata-Version: 2.1\nName: demo\nVersion: {version}\n".encode(),
                f"{meta}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
                f"{meta}/RECORD": b"",
            }
        )
        (folder / name).write_bytes(content)
        return Wheel(
            project="demo",
            version=version.partition("+")[0],
            file=name,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    def test_pip_names_the_pinned_file(self, folder: Path) -> None:
        wheel = self.put(folder)
        assert index.locate([wheel]) == {wheel: (folder / wheel.file).as_uri()}

    @pytest.mark.parametrize("ranges", [True, False])
    def test_an_address_costs_no_download(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool
    ) -> None:
        wheel = self.put(folder, extra=NOISE)
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        # A plain index: no metadata beside the wheel.
        page = f'<a href="/{wheel.file}#sha256={wheel.sha256}">{wheel.file}</a>'.encode()
        files = {"/simple/demo/": page, f"/{wheel.file}": (folder / wheel.file).read_bytes()}
        with serving(Served(files=files, ranges=ranges)) as served:
            monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
            assert index.locate([wheel]) == {wheel: f"{served.url}/{wheel.file}"}
        # Where the server knows no ranges, there is no way around it.
        assert (served.sent < wheel.size / 4) == ranges

    def test_a_local_version_does_not_stand_for_the_pinned_one(self, folder: Path) -> None:
        wheel = self.put(folder)
        self.put(folder, "1.0+cpu", b"another")
        assert index.locate([wheel]) == {wheel: (folder / wheel.file).as_uri()}

    def test_two_versions_of_a_project_are_found(self, folder: Path) -> None:
        wheels = [self.put(folder, "1.0"), self.put(folder, "2.0")]
        assert set(index.locate(wheels)) == set(wheels)

    def test_another_file_of_that_name_is_left_out_and_refused(self, folder: Path, tmp_path: Path) -> None:
        wheel = replace(self.put(folder), sha256="0" * 64)
        assert index.locate([wheel]) == {}
        with pytest.raises(HubError, match="pip cannot bring demo") as raised:
            index.download_with_pip(wheel, tmp_path)
        assert "0" * 64 in raised.value.message

    def test_pip_brings_the_pinned_file(self, folder: Path, tmp_path: Path) -> None:
        wheel = self.put(folder)
        path = index.download_with_pip(wheel, tmp_path)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel.sha256

    def test_what_no_index_has_is_said(self, folder: Path) -> None:
        wheel = replace(self.put(folder), version="3.0")
        with pytest.raises(HubError, match=r"pip finds no demo===3\.0") as raised:
            index.locate([wheel])
        assert "pip config list" in str(raised.value.hint)


class TestCommand:
    def test_list_names_every_tree(self) -> None:
        import json

        from kbuild.cli.lock import lock

        done = CliRunner().invoke(lock, ["list", "--json"])
        listed = json.loads(done.stdout)
        assert listed["version"] == 1
        assert [entry["key"] for entry in listed["trees"]] == list(load_lock().trees)
        plain = CliRunner().invoke(lock, ["list"])
        assert len(plain.stdout.splitlines()) == len(load_lock().trees)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--variant", "torch213-cxx11-cu126-x86_64-linux"], "12.6"),
            (["--variant", "torch213-cxx11-cu130-x86-linux"], "Did you mean"),
            (["--all", "torch-2.13"], "excludes"),
        ],
    )
    def test_fetch_refuses_what_it_cannot_mean(self, arguments: list[str], message: str) -> None:
        from kbuild.cli.lock import lock

        done = CliRunner().invoke(lock, ["fetch", *arguments])
        assert isinstance(done.exception, UsageError)
        assert message in done.exception.message


def test_a_real_tree_comes_by_ranges(bench: Bench) -> None:
    """The smallest pinned tree, from the index of this machine."""
    key = "cuda-13.0-nvjitlink"
    done = ensure([key], nix=bench.store, cache=bench.cache, progress=Silent())
    tree = load_lock().trees[key]
    assert bench.holds(tree)
    assert done.bytes_received < tree.wheel.size / 10
