# A model's heads, and their translation to latent queries and rows and back.
"""What a model's attention is to a tier: `heads_of(config, model_of(config))`.

Tensors are torch's. n counts tokens of all sequences, one sequence's after the other's; B prompts
of T tokens each are what transformers hands over.
"""

from __future__ import annotations

import dataclasses
import json

import torch

from .._core import ModelShape
from ..errors import Unsupported
from ..grouped import GroupedAttention


@dataclasses.dataclass(frozen=True)
class LatentHeads:
    """Multi-head latent attention: H heads, C values of a latent row, R rotated ones beside them.

    N and V are the values of a head's key that are not rotated, and of its value. A tier's rows
    hold what is rotated together side by side, as DeepSeek does; `halves`: the model holds all
    first values of the pairs, then all second ones. topk: rows that a token selects; 0: all.
    """

    heads: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    halves: bool
    topk: int = 0

    def rows(self, latent: torch.Tensor, rotated: torch.Tensor) -> torch.Tensor:
        """Normalised latents [B, 1, T, C], rotated keys [B, 1, T, R] -> [B, T, C + R]."""
        if latent.shape[1] != 1 or latent.shape[3] != self.kv_lora_rank:
            raise Unsupported(
                f"a cache of keys {list(latent.shape)}: this version of transformers does not hand "
                f"over latents of {self.kv_lora_rank} values; 5.23 does")
        return torch.cat([latent[:, 0], self._paired(rotated[:, 0])], dim=-1)

    def states(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What rows() was given, of rows [B, T, C + R]."""
        latent, rotated = rows[:, None].split([self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        if self.halves:
            rotated = rotated.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        return latent, rotated

    def queries(self, module, query: torch.Tensor) -> torch.Tensor:
        """[n, H, N + R] -> [n, H, C + R]: W_UK absorbed."""
        plain, rotated = query.split([self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        w_uk = self._up(module)[:, :self.qk_nope_head_dim]
        absorbed = (plain.transpose(0, 1) @ w_uk).transpose(0, 1)
        return torch.cat([absorbed, self._paired(rotated)], dim=-1)

    def outputs(self, module, output: torch.Tensor) -> torch.Tensor:
        """[n, H, C] of the tier -> [n, H, V]: W_UV applied."""
        w_uv = self._up(module)[:, self.qk_nope_head_dim:]
        return (output.transpose(0, 1) @ w_uv.transpose(1, 2)).transpose(0, 1)

    def _paired(self, rotated: torch.Tensor) -> torch.Tensor:
        if not self.halves:
            return rotated
        return rotated.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)

    def _up(self, module) -> torch.Tensor:
        """W_UK above W_UV: [H, N + V, C]."""
        return module.kv_b_proj.weight.view(
            self.heads, self.qk_nope_head_dim + self.v_head_dim, self.kv_lora_rank)


@dataclasses.dataclass(frozen=True)
class GroupedHeads:
    """Grouped-query attention as MLA (tributary.grouped): K KV heads of D values."""

    grouped: GroupedAttention
    topk = 0

    @property
    def heads(self) -> int:
        return self.grouped.heads

    @property
    def kv_lora_rank(self) -> int:
        return self.grouped.width

    @property
    def qk_rope_head_dim(self) -> int:
        return self.grouped.width

    def rows(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Rotated keys and values [B, K, T, D] -> [B, T, 2 * K * D]."""
        batch, _, tokens, _ = keys.shape
        rows = self.grouped.rows(*(_numpy(x.transpose(1, 2).flatten(0, 1)) for x in (keys, values)))
        return torch.from_numpy(rows).view(batch, tokens, -1)

    def states(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What rows() was given, of rows [B, T, 2 * K * D]."""
        keys, values = self.grouped.keys_values(rows)
        return keys.transpose(1, 2), values.transpose(1, 2)

    def queries(self, module, query: torch.Tensor) -> torch.Tensor:
        """[n, H, D] -> [n, H, 2 * K * D]."""
        return torch.from_numpy(self.grouped.queries(_numpy(query)))

    def outputs(self, module, output: torch.Tensor) -> torch.Tensor:
        """[n, H, K * D] of the tier -> [n, H, D]."""
        return torch.from_numpy(self.grouped.outputs(_numpy(output))).to(output.device)


def _numpy(tensor: torch.Tensor):
    return tensor.to("cpu", torch.float32).numpy()


def _latent(config, model: ModelShape) -> LatentHeads:
    # transformers' V3 leaves halves, whichever way the weights have the pairs, as do the models that
    # follow it; its V2 leaves pairs.
    return LatentHeads(model.heads, model.kv_lora_rank, model.qk_rope_head_dim,
                       config.qk_nope_head_dim, config.v_head_dim,
                       halves=config.model_type != "deepseek_v2", topk=model.topk)


def _grouped(config) -> GroupedHeads:
    dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return GroupedHeads(
        GroupedAttention(config.num_attention_heads, config.num_key_value_heads, dim))


def model_of(config) -> ModelShape:
    """What a pool must have for a model of this configuration. Raises Unsupported, by name, what
    a tier does not compute."""
    model = ModelShape(json.loads(config.to_json_string(use_diff=False)))
    if model.layers != config.num_hidden_layers:
        raise Unsupported(f"model_type {config.model_type}: {model.layers} of "
                          f"{config.num_hidden_layers} layers have rows; all layers only")
    return model


def heads_of(config, model: ModelShape) -> LatentHeads | GroupedHeads:
    """Of a model's configuration and what model_of() makes of it."""
    return _latent(config, model) if hasattr(config, "kv_lora_rank") else _grouped(config)
