"""@{description}"""

from . import layers
from .functional import @{function}

__all__ = ["layers", "@{function}"]
