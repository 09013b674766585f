"""Compile one translation unit with g++ or nvcc; the inputs are those of compile.nix."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HOST_COMPILER = "g++"
# As in the public builder: found without being named.
IMPLICIT_INCLUDES = ("csrc",)
COMMON = [
    "-O3",
    "-fPIC",
    "-DNDEBUG",
    # Two kernels in one process must not share their inline statics.
    "-fno-gnu-unique",
    "-D_GLIBCXX_USE_CXX11_ABI=1",
    "-DPy_LIMITED_API=0x03090000",
]


def gencode(capability: str) -> list[str]:
    """nvcc's flags for one capability such as `8.0`, `9.0a` or `12.0+PTX`."""
    number, ptx = capability.removesuffix("+PTX").replace(".", ""), capability.endswith("+PTX")
    flags = [f"-gencode=arch=compute_{number},code=sm_{number}"]
    return flags + ([f"-gencode=arch=compute_{number},code=compute_{number}"] if ptx else [])


def stable_abi_defines(version: str | None, *, cuda: bool) -> list[str]:
    """What holds the headers to PyTorch's stable ABI as of `version` (torch/headeronly/version.h)."""
    if version is None:
        return []
    major, minor = map(int, version.split("."))
    defines = ["TORCH_STABLE_ONLY", f"TORCH_TARGET_VERSION={(major << 56) | (minor << 48):#018x}"]
    # The C shim declares its CUDA part only under this name.
    return [*defines, "USE_CUDA"] if cuda else defines


def main() -> int:
    attrs = json.loads(Path(".attrs.json").read_text())
    i, host, out = attrs["inputs"], attrs["host"], attrs["outputs"]["out"]
    build = Path.cwd()
    os.environ |= {"PATH": host["path"], "TMPDIR": str(build), "SOURCE_DATE_EPOCH": "0"}
    # Compilers write paths into what they make (assertions, __FILE__, line tables). Here they see short ones that are
    # the same wherever the project and the store lie.
    for name in ("torch", "registration", "toolkit"):
        if i[name]:
            (build / name).symlink_to(i[name])
            i[name] = str(build / name)
    shutil.copytree(i["source"], build / "source")
    os.chdir("source")
    return subprocess.run(command(i, out, threads=os.environ["NIX_BUILD_CORES"]), check=False).returncode


def command(i: dict[str, Any], out: str, *, threads: str) -> list[str]:
    """The compiler's argv, to be run in the folder of the sources; `threads` are those of one nvcc call."""
    unit = i["unit"]
    includes = [*i["includes"], *(folder for folder in IMPLICIT_INCLUDES if Path(folder).is_dir())]
    system = [i["registration"]] if i["registration"] else []
    system += [f"{i['torch']}/include", f"{i['torch']}/include/torch/csrc/api/include"] if i["torch"] else []
    system += [f"{i['toolkit']}/include"] if i["toolkit"] else []
    # No path of the machine may reach the binary.
    prefixes = {str(Path.cwd()): ".", i["torch"]: "torch", i["registration"]: "kbuild", i["toolkit"]: "cuda"}
    flags = [*COMMON, *(f"-ffile-prefix-map={path}={short}" for path, short in prefixes.items() if path)]
    if not any(re.match("--?std=", flag) for flag in i["flags"] + i["cuda_flags"]):
        flags.append(f"-std={i['cxx_standard']}")
    defines = i["defines"] + stable_abi_defines(i["stable_abi"], cuda=bool(i["toolkit"]))
    flags += [f"-D{define}" for define in defines] + [f"-I{path}" for path in includes]
    for path in system:
        flags += ["-isystem", path]

    if unit.endswith(".cu"):
        if not i["toolkit"]:
            raise SystemExit(f"kbuild: {unit} is CUDA code in a section of another backend")
        argv = [f"{i['toolkit']}/bin/nvcc", "-ccbin", HOST_COMPILER, "--threads", threads]
        for capability in i["capabilities"]:
            argv += gencode(capability)
        argv += nvcc_flags(flags) + nvcc_flags(i["flags"]) + i["cuda_flags"]
        return [*argv, "--expt-relaxed-constexpr", "-c", unit, "-o", out]
    return [HOST_COMPILER, *flags, *i["flags"], "-c", unit, "-o", out]


def nvcc_flags(flags: list[str]) -> list[str]:
    """The same flags for nvcc, which hands on to the host compiler only what it is told to."""
    own = re.compile(r"-(?:D|I|U|isystem|O[0-3]?$|-?std=|Xcompiler)")
    with_value = {"-D", "-I", "-U", "-isystem", "-Xcompiler"}
    result: list[str] = []
    for index, flag in enumerate(flags):
        is_value = index > 0 and flags[index - 1] in with_value
        result += [flag] if is_value or own.match(flag) else ["-Xcompiler", flag]
    return result


if __name__ == "__main__":
    sys.exit(main())
