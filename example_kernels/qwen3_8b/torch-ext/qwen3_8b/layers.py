"""Layers for kernels.kernelize; they read the attributes of the modules whose forward they replace."""

from typing import Optional

import torch
import torch.nn as nn

from .functional import add_rms_norm, rms_norm


class RMSNorm(nn.Module):
    """For transformers' RMSNorm layers (Qwen3RMSNorm and its like)."""

    weight: torch.Tensor
    variance_epsilon: float

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class Qwen3DecoderLayer(nn.Module):
    """For transformers' Qwen3DecoderLayer: the residual add after attention and the norm after it in one pass."""

    self_attn: nn.Module
    mlp: nn.Module
    input_layernorm: nn.Module
    post_attention_layernorm: nn.Module

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
        past_key_values=None,
        use_cache: Optional[bool] = False,
        position_embeddings: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
        **kwargs,
    ) -> torch.Tensor:
        norm = self.input_layernorm
        residual = hidden_states
        attended, _ = self.self_attn(
            hidden_states=rms_norm(hidden_states, norm.weight, norm.variance_epsilon),
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            position_embeddings=position_embeddings,
            **kwargs,
        )
        norm = self.post_attention_layernorm
        normalised, residual = add_rms_norm(attended, residual, norm.weight, norm.variance_epsilon)
        return residual + self.mlp(normalised)


__all__ = ["Qwen3DecoderLayer", "RMSNorm"]
