#!/usr/bin/env bash
# Builds the example and runs the tests of this folder on Debian 13: Nix 2.26, gcc 14, glibc 2.41. By hand, as root:
#
#   apt-get install debootstrap
#   bash tests/nix/try_debian13.sh FOLDER
#
# FOLDER gets a whole Debian (2 GB) and is kept; a second run takes seconds of set-up. It tries the last commit, not
# the work tree. What was built is in FOLDER/root/kbuild/example_kernels/relu/build.
set -eu
folder=$(realpath -m "${1:?usage: $0 FOLDER}")
source=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)

if [ ! -x "$folder/usr/bin/apt-get" ]; then
  mirror=$(sed -nE 's/^URIs: (\S+)/\1/p; s/^deb (\[[^]]*\] )?(\S+).*/\2/p' \
    /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -1)
  debootstrap --variant=minbase trixie "$folder" "${mirror:?apt names no mirror here}"
fi
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
DEBIAN_FRONTEND=noninteractive chroot "$folder" apt-get install -qq -y --no-install-recommends \
  nix-bin g++ git python3 python3-venv ca-certificates >/dev/null
# So that the package index is reached as it is from here, where pip's settings are in the environment.
cp -L /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
rm -rf "$folder/root/kbuild"
git clone -q "$source" "$folder/root/kbuild"

# Nix's sandbox needs a root of its own kind: user namespaces are forbidden below a mere chroot.
export HOME=/root folder
# shellcheck disable=SC2016
exec unshare --mount --pid --fork --propagation private bash -eu -c '
  mount --rbind "$folder" "$folder"
  cd "$folder"
  mount -t proc proc proc
  mount --rbind /dev dev
  mount --rbind /sys sys
  mkdir -p outside
  pivot_root . outside
  cd /root/kbuild
  umount -l /outside
  [ -x /root/venv/bin/python ] || python3 -m venv /root/venv
  /root/venv/bin/pip install --quiet -e ".[test]"
  export PATH=/root/venv/bin:$PATH
  nix --version
  g++ --version | head -1
  kbuild lock fetch --all >/dev/null
  kbuild build example_kernels/relu --variant torch213-cxx11-cpu-x86_64-linux \
    --variant torch213-cxx11-cu130-x86_64-linux
  kbuild abi example_kernels/relu/build
  # Not those that load kernels: they would install a PyTorch of several GB for this Python.
  python -m pytest -q tests/nix --ignore tests/nix/test_end_to_end.py -k "not standard_library_works"
'
