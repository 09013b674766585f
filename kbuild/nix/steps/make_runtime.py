"""Link stubs of the manylinux_2_28 runtime: glibc from its symbol list, libstdc++ and libgomp from the host's own
libraries with every symbol above the ceiling left out, and the static compatibility archive."""

import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def host_symbols(stubs: ModuleType, library: str, ceilings: dict[str, str]) -> list[object]:
    """The default-versioned dynamic symbols of the host's `library` whose version is at or below its ceiling."""
    argv = ["readelf", "--dyn-syms", "--wide", library]
    table = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    kinds = {"FUNC": "T", "IFUNC": "T", "OBJECT": "B", "TLS": "L"}
    symbols = []
    for line in table.splitlines():
        fields = line.split()
        if len(fields) != 8 or fields[3] not in kinds or fields[6] == "UND" or "@@" not in fields[7]:
            continue
        name, _, version = fields[7].partition("@@")
        prefix, _, wanted = version.partition("_")
        numbered = re.fullmatch(r"[0-9.]+", wanted)
        if numbered and prefix in ceilings and number(wanted) <= number(ceilings[prefix]):
            symbols.append(stubs.Symbol(kinds[fields[3]], name, int(fields[2], 0), version))
    return symbols


def main() -> None:
    attrs = json.loads(Path(".attrs.json").read_text())
    os.environ["PATH"] = attrs["host"]["path"]
    i, out = attrs["inputs"], Path(attrs["outputs"]["out"])
    stubs = load(attrs["modules"][0])
    out.mkdir()
    for soname, symbols in stubs.read(Path(i["symbols"])):
        stubs.write_stub(out, soname, symbols)
    for soname in ("libstdc++.so.6", "libgomp.so.1"):
        argv = ["g++", f"-print-file-name={soname}"]
        library = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()
        stubs.write_stub(out, soname, host_symbols(stubs, library, i["ceilings"]))
    subprocess.run(
        ["gcc", "-O2", "-fPIC", "-ffreestanding", "-ffunction-sections", "-c", i["compat"], "-o", "compat.o"],
        check=True,
    )
    subprocess.run(["ar", "rcsD", str(out / "libkbuild_compat.a"), "compat.o"], check=True)


main()
