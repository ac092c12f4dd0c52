# Decode steps by a pool that has the model's weights: hidden states in and out.
"""`use_pool_weights(model)`: projections, norm, rotation and attention of a step in the tier."""

from __future__ import annotations

import torch

from .._core import model_families
from ..errors import Unsupported
from .cache import TributaryCache


def norm_eps(attention: torch.nn.Module) -> float:
    """Of the norms of an attention module's latents. Raises Unsupported where they differ: a pool
    has one."""
    norms = [getattr(attention, name, None) for name in ("q_a_layernorm", "kv_a_layernorm")]
    eps = {norm.variance_epsilon for norm in norms if norm is not None}
    if len(eps) != 1:
        raise Unsupported(f"norms of latents with an epsilon of {sorted(eps)}: one of all only")
    return eps.pop()


class PoolAttention(torch.nn.Module):
    """Stands in a decoder layer in the place of its attention module, which prompts and whatever has
    more tokens than a step still go through; a step's hidden states go to the tier, and come back as
    `o_proj` left them."""

    def __init__(self, own: torch.nn.Module):
        super().__init__()
        self.own = own

    def forward(self, hidden_states: torch.Tensor, *arguments, attention_mask=None,
                past_key_values=None, **options):
        """hidden_states: [B, T, hidden_size] -> (the same shape, None)."""
        batch, tokens, _ = hidden_states.shape
        ours = isinstance(past_key_values, TributaryCache)
        if ours and not past_key_values.length:
            past_key_values.use_pool_weights(norm_eps(self.own))
        if not ours or past_key_values.is_prompt(tokens):
            return self.own(hidden_states, *arguments, attention_mask=attention_mask,
                            past_key_values=past_key_values, **options)
        layer = self.own.layer_idx
        with past_key_values.layer_of_pass(layer, batch, tokens, attention_mask) as running:
            output = torch.zeros_like(hidden_states)
            output[running.real] = running.forward(layer, hidden_states[running.real]).to(output)
        return output, None


def use_pool_weights(model) -> None:
    """Of a model with DeepSeek's attention whose folder is the pool's (`tributary up --model FOLDER`):
    its decode steps are then computed by the pool's weights. Raises Unsupported for others. The
    first prompt raises ValueError if the epsilon of the norms of the latents is not the pool's."""
    config = model.config.get_text_config(decoder=True)
    known = model_families(with_weights=True)
    if config.model_type not in known.split(", "):
        raise Unsupported(f"model_type {config.model_type}: pools with weights are of {known}")
    for layer in model.get_decoder().layers:
        norm_eps(getattr(layer.self_attn, "own", layer.self_attn))
        if not isinstance(layer.self_attn, PoolAttention):
            layer.self_attn = PoolAttention(layer.self_attn)
