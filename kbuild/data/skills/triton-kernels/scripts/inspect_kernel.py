#!/usr/bin/env python3
"""What Triton makes of a kernel for a GPU that need not be there: accesses to memory, registers, spills.

python inspect_kernel.py FILE KERNEL SIGNATURE [--arch 90] [--warps 4]

SIGNATURE says what each argument is, in their order and with commas between: a type, with :16 where the number or
address is divisible by 16, or the value of a constant. Of the kernel of `kbuild init --op elementwise`:

python inspect_kernel.py torch-ext/my_silu/triton_kernel.py elementwise '*bf16:16, *bf16:16, i32:16, 1024'

FILE must import without its package. Exits with 1 where a thread has a stack, which is where spilled registers go.
Triton's own ptxas compiles what is judged. For another one print the PTX with --ptx and a version that it knows, 90 for
the one of CUDA 13.0, and name the target that stands there: a kernel for sm_90a is refused by `ptxas -arch sm_90`.
"""

import argparse
import ast
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path


def compiled(kernel, signature, *, arch=90, warps=4, **options):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    while not isinstance(kernel, triton.JITFunction):  # autotuned
        kernel = kernel.fn
    if len(given := signature.split(",")) != len(kernel.arg_names):
        raise ValueError(f"the arguments are {', '.join(kernel.arg_names)}")
    types, constants, attributes = {}, {}, {}
    for index, (name, what) in enumerate(zip(kernel.arg_names, given, strict=True)):
        try:
            constants[(index,)] = ast.literal_eval(what.strip())
            types[name] = "constexpr"
        except (ValueError, SyntaxError):
            types[name] = what.strip().removesuffix(":16")
            if what.strip().endswith(":16"):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature=types, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": warps, **options})


def accesses(ptx):
    """How often each load and store of global memory stands there: `ld.global.v4.b32` moves 16 bytes."""
    return Counter(re.findall(r"\b(?:ld|st)\.global\.\S+", ptx))


def resources(cubin):
    """Registers, and bytes of stack, of each thread."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", said).groups()
    return int(registers), int(stack)


def main():
    os.environ.pop("TRITON_INTERPRET", None)  # it leaves nothing to compile
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("kernel")
    parser.add_argument("signature")
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--warps", type=int, default=4)
    parser.add_argument("--ptx", type=int, metavar="VERSION", help="print the PTX, nothing else")
    given = parser.parse_args()
    spec = importlib.util.spec_from_file_location(given.file.stem, given.file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel, options = getattr(module, given.kernel), {} if given.ptx is None else {"ptx_version": given.ptx}
    result = compiled(kernel, given.signature, arch=given.arch, warps=given.warps, **options)
    if given.ptx is not None:
        sys.exit(print(result.asm["ptx"]))
    for access, count in sorted(accesses(result.asm["ptx"]).items()):
        print(f"{count:4} {access}")
    registers, stack = resources(result.asm["cubin"])
    print(f"{registers:4} registers\n{stack:4} bytes of stack a thread")
    sys.exit(stack > 0)


if __name__ == "__main__":
    main()
