"""Compile one translation unit with g++ or nvcc; the inputs are those of compile.nix."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    os.environ["PATH"] = host["path"]
    os.environ["TMPDIR"] = str(Path.cwd())
    # A relative path of the unit, so that __FILE__ says `relu_cuda/relu.cu` wherever the project lies.
    os.chdir(i["source"])
    return subprocess.run(command(i, out, threads=os.environ["NIX_BUILD_CORES"]), check=False).returncode


def command(i: dict[str, Any], out: str, *, threads: str) -> list[str]:
    """The compiler's argv, to be run in the folder of the sources; `threads` are those of one nvcc call."""
    unit = i["unit"]
    includes = [str(Path(folder)) for folder in i["includes"]]
    system = [i["registration"], i["torch"] and f"{i['torch']}/include"]
    system += [i["torch"] and f"{i['torch']}/include/torch/csrc/api/include"]
    system = [path for path in system if path]
    # No store path may reach the binary: assertion messages and __FILE__ name headers by these short prefixes.
    prefixes = {i["source"]: ".", i["torch"]: "torch", i["registration"]: "kbuild", i["toolkit"]: "cuda"}
    maps = [f"-ffile-prefix-map={path}={short}" for path, short in prefixes.items() if path]
    flags = [*COMMON, *maps]
    if not any(flag.startswith("-std=") for flag in i["flags"] + i["cuda_flags"]):
        flags.append(f"-std={i['cxx_standard']}")
    defines = i["defines"] + stable_abi_defines(i["stable_abi"], cuda=bool(i["toolkit"]))
    flags += [f"-D{define}" for define in defines] + [f"-I{path}" for path in includes]
    if i["toolkit"]:
        flags += ["-isystem", f"{i['toolkit']}/include"]
    for path in system:
        flags += ["-isystem", path]

    if unit.endswith(".cu"):
        if not i["toolkit"]:
            raise SystemExit(f"kbuild: {unit} is CUDA code in a section of another backend")
        argv = [
            f"{i['toolkit']}/bin/nvcc",
            "-ccbin",
            host_compiler(),
            "--threads",
            threads,
        ]
        for capability in i["capabilities"]:
            argv += gencode(capability)
        argv += nvcc_flags(flags) + nvcc_flags(i["flags"]) + i["cuda_flags"]
        return [*argv, "--expt-relaxed-constexpr", "-c", unit, "-o", out]
    return [host_compiler(), *flags, *i["flags"], "-c", unit, "-o", out]


def host_compiler() -> str:
    return "g++"


def nvcc_flags(flags: list[str]) -> list[str]:
    """The same flags for nvcc, which hands on to the host compiler only what it is told to."""
    own = re.compile(r"-(?:D|I|O|U|std=|isystem|DNDEBUG)")
    result: list[str] = []
    takes_next = False
    for flag in flags:
        if takes_next or own.match(flag):
            result.append(flag)
            takes_next = flag == "-isystem"
        else:
            result += ["-Xcompiler", flag]
    return result


if __name__ == "__main__":
    sys.exit(main())
