"""RMSNorm for Qwen3-8B and its like: alone, and fused with the residual add before it.

Both normalise over the last dimension, in float32 whatever the dtype (float32, float16, bfloat16), take any leading
shape and row strides, carry gradients, and work under torch.compile. The weight may be float32 or have the dtype of x.
"""

from . import layers
from .functional import add_rms_norm, rms_norm

__all__ = ["add_rms_norm", "layers", "rms_norm"]
