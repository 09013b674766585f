#!/usr/bin/env bash
# Check, build, test and, on a GPU, benchmark a project: all.sh [FOLDER [CUDA-VARIANT]]
# Without a GPU the CUDA code is still compiled, for CUDA-VARIANT or one that fits the PyTorch at hand, and the tests run on
# the CPU where the project has a CPU backend.
set -eu
project=${1:-.}
wanted=${2:-}

# The first variant of a backend that can be built: for the PyTorch that is installed, else for the newest.
variant() {
  kbuild variants "$project" --json | python3 -c '
import importlib.metadata, json, sys
try:
    torch = ".".join(importlib.metadata.version("torch").split(".")[:2])
except importlib.metadata.PackageNotFoundError:
    torch = None
found = [v for v in json.load(sys.stdin)["variants"] if v["builds"] and v["backend"] == sys.argv[1]]
for wanted in (torch, found[-1]["torch"] if found else None):
    fitting = [v["variant"] for v in found if v["torch"] == wanted]
    if fitting:
        print(fitting[0])
        break
' "$1"
}

kbuild check "$project" --strict
if nvidia-smi -L >/dev/null 2>&1; then
  kbuild build "$project" ${wanted:+--variant "$wanted"}
  kbuild test "$project"
  kbuild bench "$project"
else
  cpu=$(variant cpu)
  cuda=${wanted:-$(variant cuda)}
  kbuild build "$project" ${cpu:+--variant "$cpu"} ${cuda:+--variant "$cuda"}
  if [ -n "$cpu" ]; then
    kbuild test "$project"
    if [ -d "$project/benchmarks" ]; then kbuild bench "$project" --check; fi
  fi
  case $cuda in
    "") left="the CUDA code was not compiled and not run" ;;
    torch-cuda) left="nothing was compiled, and the code for a GPU was not run" ;;
    *) left="the CUDA code was compiled ($cuda) and not run" ;;
  esac
  echo "no GPU here: $left" >&2
fi
