#!/usr/bin/env python3
"""Load a published kernel and call one of its functions, as its users do.

python hub_example.py --repo ORG/NAME --version 1 --function rms_norm

LOCAL_KERNELS=ORG/NAME=PROJECT puts a local build in the place of the published one.
"""

import argparse

import torch
from kernels import get_kernel, get_loaded_kernels


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repo", required=True)
    parser.add_argument("--version", type=int, default=1)
    parser.add_argument("--function", required=True)
    options = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # trust_remote_code: a kernel is code. Say so for a publisher that the Hub does not mark as trusted, having looked.
    kernel = get_kernel(options.repo, version=options.version, trust_remote_code=True)
    x = torch.randn(4, 4096, device=device)
    y = getattr(kernel, options.function)(x)
    metadata = get_loaded_kernels()[0].metadata
    print(f"{metadata.name} version {metadata.version}, {kernel.__file__}")
    print(f"{options.function}: {tuple(x.shape)} -> {tuple(y.shape)} on {device}")


if __name__ == "__main__":
    main()
