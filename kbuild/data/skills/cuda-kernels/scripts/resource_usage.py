#!/usr/bin/env python3
"""Registers and spilled bytes of each kernel on each architecture, from what a build prints.

Put cuda-flags = ["--resource-usage"] into the kernel's section of build.toml, then

kbuild build PROJECT --variant NAME -L 2>&1 | python resource_usage.py

and take the flag out again. Kernels that spill come first; `40+16` is 40 registers and 16 bytes spilled. Names are
shortened where c++filt is installed. Exits with 1 where something spills or nothing was compiled.
"""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass

# Each line may follow the name of the step that printed it, `norm.cu.o> `; steps run side by side.
LINE = re.compile(r"^(?P<step>(?:\S+> ?)?)(?P<text>.*)$")
KERNEL = re.compile(r"Compiling entry function '(\S+)' for 'sm_(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass
class Usage:
    registers: int = 0
    spilled: int = 0

    def __str__(self):
        return f"{self.registers}+{self.spilled}" if self.spilled else str(self.registers)


def read(lines):
    """{kernel: {architecture: Usage}}; a function that was not inlined counts with the kernel listed before it."""
    found, current = {}, {}
    for line in lines:
        step, text = LINE.match(line).groups()
        if kernel := KERNEL.search(text):
            current[step] = found.setdefault(kernel[1], {})[kernel[2]] = Usage()
        elif step in current and (spills := SPILLS.search(text)):
            current[step].spilled += int(spills[1]) + int(spills[2])
        elif step in current and (registers := REGISTERS.search(text)):
            current[step].registers = int(registers[1])
    return found


def readable(names):
    """Demangled, without result, arguments and anonymous namespaces; as they are where c++filt is missing."""
    if shutil.which("c++filt") is None:
        return names
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    names = [name.replace("(anonymous namespace)::", "") for name in done.stdout.splitlines()]
    return [re.sub(r"^void |\(.*", "", name) for name in names]


def main():
    if sys.stdin.isatty():
        sys.exit(__doc__)
    found = read(sys.stdin)
    if not found:
        sys.exit('no kernel was compiled: is "--resource-usage" in cuda-flags, and -L given?')
    architectures = sorted({a for row in found.values() for a in row}, key=lambda a: (len(a), a))
    rows = sorted(
        zip(readable(list(found)), found.values(), strict=True),
        key=lambda row: (-max(usage.spilled for usage in row[1].values()), row[0]),
    )
    width = max(len(name) for name, _ in rows)
    print("kernel".ljust(width), *(f"sm_{a}".rjust(8) for a in architectures))
    for name, row in rows:
        print(name.ljust(width), *(str(row.get(a, "-")).rjust(8) for a in architectures))
    sys.exit(any(usage.spilled for _, row in rows for usage in row.values()))


if __name__ == "__main__":
    main()
