"""The pinned toolchain: PyTorch and CUDA trees kept of official wheels, and the symbols they export."""

from kbuild.toolchain.lock import Lock, Tree, Wheel, load_lock, store_path
from kbuild.toolchain.symbols import Kind, Symbol, glibc_symbols, torch_exports, torch_symbols

__all__ = [
    "Kind",
    "Lock",
    "Symbol",
    "Tree",
    "Wheel",
    "glibc_symbols",
    "load_lock",
    "store_path",
    "torch_exports",
    "torch_symbols",
]
