#!/usr/bin/env bash
# What `kbuild init` writes, and what coding agents made of the tasks, on a GPU.
#
#   gpu_try.sh prepare FOLDER [TORCH]   where Nix is: writes the projects of init into FOLDER, and builds them and every
#                                       try that lies there (qwen-norm, swiglu, int8-quant) for CUDA 13.0 and TORCH
#   gpu_try.sh run FOLDER REPORTS       where a GPU is: tests, unseen tests, benchmarks, scripts and Triton code of the skills
#
# FOLDER must not lie in a git work tree: a build sees only what git tracks. Both need kbuild on the path; `run` needs
# PyTorch, kernels 0.17, pytest and numpy too, and transformers and diffusers for the injections. What is not timed runs
# all at once. Exits 0 where everything passed.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scripts=$here/../../kbuild/data/skills/cuda-kernels/scripts
mode=$1
folder=$2
failed=0

try() {
  if "$@"; then echo "passed: $*"; else
    echo "FAILED: $*"
    failed=1
  fi
}

# later COMMAND...: tries it in the background; together: waits for all of them, and shows what they wrote in turn.
jobs=()
logs=$(mktemp -d)
trap 'rm -r "$logs"' EXIT

later() {
  (try "$@"; exit "$failed") > "$logs/${#jobs[@]}" 2>&1 &
  jobs+=($!)
}

together() {
  local i
  for i in "${!jobs[@]}"; do
    wait "${jobs[i]}" || failed=1
    cat "$logs/$i"
  done
  jobs=()
}

prepare() {
  local torch=${1:-2.11} operation project
  for operation in elementwise rmsnorm; do
    [ -d "$folder/my-$operation" ] || try kbuild init "try-org/my-$operation" --op "$operation" --dest "$folder/my-$operation"
    [ -d "$folder/my-$operation-triton" ] || try kbuild init "try-org/my-$operation-triton" --op "$operation" --noarch \
      --dest "$folder/my-$operation-triton"
    [ -d "$folder/my-$operation-stable" ] || try kbuild init "try-org/my-$operation-stable" --op "$operation" --stable-abi \
      --dest "$folder/my-$operation-stable"
  done
  for project in "$folder"/*/; do
    if grep -q '^stable-abi' "$project/build.toml"; then
      try kbuild build "$project" --variant torch-stable-abi210-cu130-x86_64-linux
    elif grep -q '^\[torch-noarch\]' "$project/build.toml"; then
      try kbuild build "$project" --variant torch-cuda
    else
      try kbuild build "$project" --variant "torch${torch/./}-cxx11-cu130-x86_64-linux"
    fi
  done
}

run() {
  local reports=$1 project pair pages
  for project in "$folder"/*/; do
    later kbuild test "$project"
  done
  for pair in rms_norm_h100:qwen-norm swiglu_a100:swiglu int8_quant:int8-quant; do
    if [ -d "$folder/${pair#*:}" ]; then
      later python3 "$here/check_try.py" "${pair%%:*}" "$folder/${pair#*:}" --built
    fi
  done
  pages=$(mktemp -d)
  try kbuild init my-org/my-silu --noarch --dest "$pages/my-silu"
  later python3 "$here/triton_pages.py" run "$pages"
  together
  for project in "$folder"/*/; do
    try kbuild bench "$project" -o "$reports"
  done
  try python3 "$scripts/micro_benchmark.py" --path "$folder/my-rmsnorm" --function rms_norm --shape 8192 4096 \
    --eager "torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)"
  if python3 -c 'import transformers'; then
    try python3 "$scripts/transformers_injection.py" --path "$folder/my-rmsnorm" --layers 8 --hidden 4096 --tokens 2048
  fi
  if python3 -c 'import diffusers'; then
    try python3 "$scripts/diffusers_injection.py" --path "$folder/my-rmsnorm" --layers 8 --heads 32 --frames 16
  fi
  rm -r "$pages"
}

case $mode in
  prepare) prepare "${3:-}" ;;
  run) run "$3" ;;
esac
exit "$failed"
