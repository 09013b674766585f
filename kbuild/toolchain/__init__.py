"""The pinned toolchain: PyTorch and CUDA trees kept of official wheels, and the symbols they export.

`fetch.ensure` brings trees into the Nix store; `refresh` makes the lock and the symbol lists anew.
"""

from kbuild.toolchain.fetch import Fetched, Progress, ensure
from kbuild.toolchain.lock import Lock, Tree, Wheel, load_lock, store_path
from kbuild.toolchain.store import Store
from kbuild.toolchain.symbols import Kind, Symbol, glibc_symbols, torch_exports, torch_symbols

__all__ = [
    "Fetched",
    "Kind",
    "Lock",
    "Progress",
    "Store",
    "Symbol",
    "Tree",
    "Wheel",
    "ensure",
    "glibc_symbols",
    "load_lock",
    "store_path",
    "torch_exports",
    "torch_symbols",
]
