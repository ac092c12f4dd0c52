# The attention function that transformers calls, and under which name.
"""attn_implementation="tributary"."""

from __future__ import annotations

import math

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ..errors import Unsupported
from .cache import take_update
from .passes import PromptPass

NAME = "tributary"
# Arguments of some models' attention functions that a tier does not support.
_OTHERS = ("softcap", "s_aux", "sliding_window", "position_bias")


def register() -> None:
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def attention(module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              attention_mask: torch.Tensor | None, scaling: float | None = None,
              dropout: float = 0.0, **options):
    """query [B, H, T, D], key and value of the same T tokens -> ([B, T, H, V], None)."""
    cache, rows = take_update(module)
    for name in _OTHERS:
        if options.get(name) is not None:
            raise Unsupported(f"{name} {options[name]}: a tier computes plain attention")
    scaling = query.shape[-1]**-0.5 if scaling is None else scaling
    layer = module.layer_idx
    indices = options.pop("indices", None)  # [B, T, K]: the keys that each token attends to
    with cache.layer_of_pass(layer, *rows.shape[:2], attention_mask) as running:
        if isinstance(running, PromptPass):
            running.push(layer, rows)
            if indices is not None:
                attention_mask = selected_mask(attention_mask, indices)
            return sdpa_attention_forward(module, query, key, value, attention_mask,
                                          dropout=dropout, scaling=scaling, **options)
        real = running.real
        latent = cache.heads.queries(module, query.transpose(1, 2)[real])
        # The pool's scale is fp32; an engine's scale that differs goes into the query.
        ratio = scaling / running.shape.softmax_scale
        if not math.isclose(ratio, 1.0, rel_tol=2.0**-23):
            latent = latent * ratio
        selected = None if indices is None else cache.selected(indices, attention_mask)[real]
        o = running.attend(layer, latent, rows[real], selected)
        own = cache.heads.outputs(module, o.to(query))
        output = own.new_zeros(*real.shape, *own.shape[1:])
        output[real] = own
        return output, None


def selected_mask(mask: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The mask [B, 1, T, L] with the keys hidden that a token does not select."""
    chosen = torch.zeros(len(indices), *mask.shape[1:], dtype=torch.bool, device=mask.device)
    chosen.scatter_(-1, indices.long()[:, None], True)
    return mask & chosen if mask.dtype == torch.bool else mask.masked_fill(
        ~chosen, torch.finfo(mask.dtype).min)
