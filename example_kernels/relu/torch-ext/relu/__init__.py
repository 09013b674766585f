"""ReLU: `max(x, 0)` element by element."""

from . import layers
from .functional import relu

__all__ = ["layers", "relu"]
