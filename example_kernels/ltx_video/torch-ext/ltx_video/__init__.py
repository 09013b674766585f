"""The memory-bound ops of the LTX-Video transformer, each in one pass over its tensors.

RMSNorm carries gradients; the other ops are for inference. All compute in float32 whatever the dtype (float32, float16,
bfloat16), take any row strides, and work under torch.compile.
"""

from . import layers
from .functional import (
    ada_norm,
    add_ada_norm,
    apply_rotary_emb,
    gated_add,
    geglu,
    rms_norm,
    rope_3d,
    rope_3d_table,
)

__all__ = [
    "ada_norm",
    "add_ada_norm",
    "apply_rotary_emb",
    "gated_add",
    "geglu",
    "layers",
    "rms_norm",
    "rope_3d",
    "rope_3d_table",
]
