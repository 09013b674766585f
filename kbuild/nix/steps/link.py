"""Link the objects of a variant into `<namespace>.abi3.so`; the inputs are those of link.nix."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

# CPython's stable ABI, written out so that no Python headers are needed: the layout of PyModuleDef and the version
# number 3 are fixed by PEP 384 (https://docs.python.org/3/c-api/stable.html).
MODULE = """\
extern "C" {{
struct KbuildModuleDef {{
  long refcount; void* type; void* init; long index; void* copy;
  const char* name; const char* doc; long size; void* methods; void* slots; void* traverse; void* clear; void* free;
}};
void* PyModule_Create2(KbuildModuleDef*, int);
extern __attribute__((visibility("hidden"))) const char kbuild_op_namespace[];
const char kbuild_op_namespace[] = "{namespace}";
__attribute__((visibility("default"))) void* PyInit_{namespace}() {{
  static KbuildModuleDef definition = {{1, nullptr, nullptr, 0, nullptr, kbuild_op_namespace}};
  return PyModule_Create2(&definition, 3);
}}
}}
"""


def main() -> int:
    attrs = json.loads(Path(".attrs.json").read_text())
    i, host, out = attrs["inputs"], attrs["host"], Path(attrs["outputs"]["out"])
    os.environ["PATH"] = host["path"]
    namespace, runtime = i["namespace"], i["runtime"]
    Path("module.cpp").write_text(MODULE.format(namespace=namespace))
    # Only the module's entry is exported: nothing of one kernel can be taken for another's.
    Path("exports.map").write_text(f"{{ global: PyInit_{namespace}; local: *; }};\n")
    subprocess.run(["g++", "-O2", "-fPIC", "-c", "module.cpp", "-o", "module.o"], check=True)

    out.mkdir()
    argv = [
        "g++",
        "-shared",
        "-nodefaultlibs",
        "-o",
        str(out / f"{namespace}.abi3.so"),
        "module.o",
        *i["objects"],
    ]
    argv += [
        "-Wl,--as-needed",
        "-Wl,-z,defs",
        "-Wl,-z,noexecstack",
        "-Wl,-z,relro",
        "-Wl,--gc-sections",
        "-Wl,-s",
    ]
    argv += ["-Wl,--build-id=none", "-Wl,--version-script=exports.map", "-Wl,--exclude-libs,ALL"]
    # The interpreter provides the one Python function that module.cpp calls.
    argv += ["-Wl,--ignore-unresolved-symbol=PyModule_Create2"]
    for stubs in i["stubs"]:
        argv += [str(path) for path in sorted(Path(stubs).glob("*.so"))]
    if i["cudart"]:
        argv += [f"{i['cudart']}/libcudart.so"]
    # Shared stubs first; what only newer runtimes have comes from the static archives behind them.
    argv += [
        f"{runtime}/libstdc++.so.6",
        "-l:libstdc++.a",
        f"{runtime}/libm.so.6",
        f"{runtime}/libgomp.so.1",
        "-l:libgcc_s.so.1",
        "-lgcc",
    ]
    argv += [f"{runtime}/libkbuild_compat.a"]
    # The loader last: it has functions of libc.so.6 too, but only it has __tls_get_addr.
    libc = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libc.so.6", "ld-linux-x86-64.so.2")
    argv += [f"{runtime}/{name}" for name in libc]
    done = subprocess.run(argv, check=False, stderr=subprocess.PIPE, text=True)
    for name in missing(done.stderr):
        print(
            f"kbuild: neither this kernel nor PyTorch nor a manylinux_2_28 system has {name}", file=sys.stderr
        )
    sys.stderr.write(done.stderr)
    return done.returncode


def missing(messages: str) -> list[str]:
    """The symbols that the linker says nothing defines, each once."""
    found = re.findall(r"undefined references? to `(.+?)'|hidden symbol `(.+?)' isn't defined", messages)
    return sorted({name or hidden for name, hidden in found})


sys.exit(main())
