# Heads, and rows of all KV heads: how a GQA model uses a tier of latent rows.
"""Grouped-query attention as MLA: any GQA or MHA model is an MLA model.

With K KV heads of D values, a token's latent row is ``[V of all KV heads, rotated K of all KV
heads]``: ``kv_lora_rank = qk_rope_head_dim = K * D``. A query head is zero except in its group's
slice of the K part, so its scores are its own; the output's V part holds its group's V in that
group's slice. Exact, at K times the arithmetic of GQA: a tier refuses rows of more than 4096 values
(`tributary up --shape config.json` says so).
"""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class GroupedAttention:
    """The heads of a model with grouped-query attention, and their translation to rows and back."""

    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self):
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads are no multiple of {self.kv_heads} KV heads")

    @property
    def width(self) -> int:
        """Values of V in a row, and of K."""
        return self.kv_heads * self.head_dim

    @property
    def softmax_scale(self) -> float:
        return self.head_dim**-0.5

    def check(self, shape) -> None:
        """Raises ValueError where a pool of `shape` cannot hold this model's rows."""
        wanted = {"heads": self.heads, "kv_lora_rank": self.width, "qk_rope_head_dim": self.width}
        for name, value in wanted.items():
            if getattr(shape, name) != value:
                raise ValueError(f"the pool's {name} is {getattr(shape, name)}, the model's {value}")
        # A pool keeps its scale as fp32.
        if not np.isclose(shape.softmax_scale, self.softmax_scale, rtol=2.0**-23, atol=0):
            raise ValueError(
                f"the pool's softmax_scale is {shape.softmax_scale}, the model's {self.softmax_scale}")

    def rows(self, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """[n, K, D] keys, rotated, and values -> [n, 2 * K * D]."""
        n = len(k)
        return np.concatenate([v.reshape(n, self.width), k.reshape(n, self.width)], axis=1)

    def keys_values(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """[..., 2 * K * D] -> the keys and values of rows(), [..., K, D] each; tensors too."""
        parts = rows[..., self.width:], rows[..., :self.width]
        keys, values = (part.reshape(*part.shape[:-1], self.kv_heads, self.head_dim)
                        for part in parts)
        return keys, values

    def queries(self, q: np.ndarray) -> np.ndarray:
        """[n, H, D] rotated -> [n, H, 2 * K * D]."""
        n, group = len(q), self.heads // self.kv_heads
        queries = np.zeros((n, self.kv_heads, group, 2, self.kv_heads, self.head_dim), q.dtype)
        grouped = q.reshape(n, self.kv_heads, group, self.head_dim)
        for kv_head in range(self.kv_heads):
            queries[:, kv_head, :, 1, kv_head] = grouped[:, kv_head]
        return queries.reshape(n, self.heads, 2 * self.width)

    def outputs(self, o: np.ndarray) -> np.ndarray:
        """[n, H, K * D] attention output of the tier -> [n, H, D]."""
        n, group = len(o), self.heads // self.kv_heads
        o = o.reshape(n, self.kv_heads, group, self.kv_heads, self.head_dim)
        own = np.stack([o[:, kv_head, :, kv_head] for kv_head in range(self.kv_heads)], axis=1)
        return own.reshape(n, self.heads, self.head_dim)
