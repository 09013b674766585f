"""Layers for kernels.kernelize; they read the attributes of the modules whose forward they replace."""

from typing import Optional

import torch
import torch.nn as nn

from .functional import ada_norm, add_ada_norm, gated_add, geglu, rms_norm


class RMSNorm(nn.Module):
    """For diffusers' RMSNorm, with and without weight, and torch.nn.RMSNorm with an explicit eps."""

    weight: Optional[torch.Tensor]
    eps: float

    has_backward: bool = True
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, self.eps)


class GEGLU(nn.Module):
    """For diffusers' GEGLU: a projection to value and gate, and the exact GELU."""

    proj: nn.Module

    has_backward: bool = False
    can_torch_compile: bool = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return geglu(self.proj(hidden_states))


class LTXVideoTransformerBlock(nn.Module):
    """For diffusers' block of that name: normalisation, modulation, gates and residuals in one pass each."""

    norm1: nn.Module
    norm2: nn.Module
    attn1: nn.Module
    attn2: nn.Module
    ff: nn.Module
    scale_shift_table: torch.Tensor

    has_backward: bool = False
    can_torch_compile: bool = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        temb: torch.Tensor,
        image_rotary_emb: Optional[tuple[torch.Tensor, torch.Tensor]] = None,
        encoder_attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        table = self.scale_shift_table
        modulation = table[None, None].to(temb.device) + temb.reshape(
            hidden_states.size(0), temb.size(1), table.shape[0], -1
        )
        shift_msa, scale_msa, gate_msa, shift_mlp, scale_mlp, gate_mlp = modulation.unbind(dim=2)
        attended = self.attn1(
            hidden_states=ada_norm(hidden_states, scale_msa, shift_msa, self.norm1.eps),
            encoder_hidden_states=None,
            image_rotary_emb=image_rotary_emb,
        )
        hidden_states = gated_add(attended, hidden_states, gate_msa)
        attended = self.attn2(
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            image_rotary_emb=None,
            attention_mask=encoder_attention_mask,
        )
        normalised, hidden_states = add_ada_norm(
            attended, hidden_states, scale_mlp, shift_mlp, eps=self.norm2.eps
        )
        return gated_add(self.ff(normalised), hidden_states, gate_mlp)


__all__ = ["GEGLU", "LTXVideoTransformerBlock", "RMSNorm"]
