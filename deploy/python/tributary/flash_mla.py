# FlashMLA's decode by its own names, dense and sparse, on the CPU and on the caller's arrays.
"""What a program imports from flash_mla, on CPU tensors: `from tributary import
flash_mla_with_kvcache, get_mla_metadata`. NumPy arrays go as well."""
import functools
import os
import sys
from typing import Any, TypeVar

import numpy

from . import _core
from ._core import SchedMeta
from .errors import Unsupported

__all__ = ["SchedMeta", "flash_mla_with_kvcache", "get_mla_metadata", "merge_states"]

_Array = TypeVar("_Array")  # numpy.ndarray or torch.Tensor


@functools.cache
def _usable_cpus() -> int:
    return min(1024, len(os.sched_getaffinity(0)))


def _shown(value: object) -> str:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else f"{type(value).__qualname__} of shape {list(shape)}"


def _rows(name: str, cache: Any, is_fp8_kvcache: bool) -> Any:
    """FP8 rows as the bytes that they are."""
    if cache is None or not is_fp8_kvcache:
        return cache
    if getattr(cache, "shape", (0,))[-1] == 584:
        raise Unsupported(f"{name}: {_shown(cache)}: rows of 584 bytes are DeepSeek-V4's (MODEL1), which "
                          "are not supported; those of 656 bytes are")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(cache, torch.Tensor) and cache.dtype == torch.float8_e4m3fn:
        return cache.view(torch.uint8)
    return cache


def _without_gaps(array: Any) -> Any:
    if isinstance(array, numpy.ndarray):
        return numpy.ascontiguousarray(array)
    return array.contiguous() if hasattr(array, "contiguous") else array


def _queries(q: Any) -> Any:
    """q as it is where one token's heads lie together, else a copy of it: it is small."""
    if getattr(q, "ndim", 0) != 4 or 0 in q.shape:
        return q
    part = q if q.shape[1] > 1 else q[0]
    return q if _without_gaps(part) is part else _without_gaps(q)


def get_mla_metadata(cache_seqlens: object = None, num_q_tokens_per_head_k: object = None,
                     num_heads_k: object = None, num_heads_q: object = None,
                     is_fp8_kvcache: bool = False, topk: object = None, *,
                     num_heads_per_head_k: object = None) -> tuple[SchedMeta, None]:
    """(SchedMeta, None), to pass on as tile_scheduler_metadata and num_splits.

    Nothing has to be given, and nothing is computed: the arguments are those of FlashMLA's earlier
    releases (num_heads_per_head_k: of the first ones). One SchedMeta serves all layers of a step; it
    remembers the shapes of the first call, and later ones must have the same.
    """
    return SchedMeta(), None


def flash_mla_with_kvcache(q: _Array, k_cache: Any, block_table: Any, cache_seqlens: Any,
                           head_dim_v: int, tile_scheduler_metadata: SchedMeta,
                           num_splits: None = None, softmax_scale: float | None = None,
                           causal: bool = False, is_fp8_kvcache: bool = False, indices: Any = None,
                           attn_sink: Any = None, extra_k_cache: Any = None,
                           extra_indices_in_kvcache: Any = None, topk_length: Any = None,
                           extra_topk_length: Any = None, *,
                           threads: int | None = None) -> tuple[_Array, _Array]:
    """Decode attention of each sequence's new tokens over its cached rows: (out, softmax_lse).

    q: [batch_size, seq_len_q, num_heads_q, head_dim], bf16 or fp32, copied where its heads or
    tokens lie apart. k_cache: [num_blocks, 64,
    num_heads_k, head_dim] of q's type; it is read where it lies, and blocks may have gaps between
    them. A row's first head_dim_v values are what is averaged (512 of 576 for DeepSeek; 1 to
    head_dim). num_heads_k must divide num_heads_q. block_table: [batch_size, max_blocks] int32; what
    is past a sequence's last block is not read. cache_seqlens: [batch_size] int32, rows of each
    sequence with those of the new tokens. softmax_scale: head_dim ** -0.5 if None. causal: the last
    new token sees all rows, each one before it one row less.

    indices: [batch_size, seq_len_q, topk] int32, the rows that each token attends to, in any order:
    block * rows of a block + row, -1 for none; what is named twice counts twice. Then num_heads_k is
    1, a block has any number of rows (gaps between blocks of 64 alone), block_table and
    cache_seqlens are not read, and causal must be False. topk_length: [batch_size] int32, how many
    entries of its lists count. extra_k_cache, extra_indices_in_kvcache, extra_topk_length: more rows
    to attend to, of another cache. attn_sink: [num_heads_q] fp32, out is scaled by 1 / (1 +
    exp(attn_sink - softmax_lse)); softmax_lse stays as it is.

    out: [batch_size, seq_len_q, num_heads_q, head_dim_v] of q's type. softmax_lse: [batch_size,
    num_heads_q, seq_len_q] fp32, natural logarithm of the sum of exp(scaled score). A token that
    sees no row has out 0 and softmax_lse +inf. They are torch tensors where q is one; NumPy's bf16
    is its bits as uint16.

    threads: that work on the call, 1 to 1024; the CPUs that the process may use if None. They do
    not change a bit. One call runs at a time; another number of threads starts them anew. The
    interpreter's lock is left to others.

    is_fp8_kvcache: a cache has rows of FlashMLA's FP8, as uint8 or float8_e4m3fn: [num_blocks, 64,
    num_heads_k, 656] for 512 + 64, i.e. head_dim_v codes, a fp32 scale per 128 of them, bf16 for the
    rest. A value is code x scale, rounded to bf16; NaN where a scale is. q stays bf16 or fp32.

    The names and places of arguments are FlashMLA's; its rows of 584 bytes (MODEL1) are refused
    (Unsupported).
    """
    k_cache = _rows("k_cache", k_cache, is_fp8_kvcache)
    extra_k_cache = _rows("extra_k_cache", extra_k_cache, is_fp8_kvcache)
    if not isinstance(tile_scheduler_metadata, SchedMeta) or num_splits is not None:
        raise TypeError("tile_scheduler_metadata, num_splits: "
                        f"{_shown(tile_scheduler_metadata)}, {_shown(num_splits)}, expected what "
                        "tributary.get_mla_metadata() returned")
    threads = _usable_cpus() if threads is None else threads
    q = _queries(q)
    extra = (extra_k_cache, extra_indices_in_kvcache)
    if indices is None:
        for name, value in (("attn_sink", attn_sink), ("extra_k_cache", extra_k_cache),
                            ("extra_indices_in_kvcache", extra_indices_in_kvcache),
                            ("topk_length", topk_length), ("extra_topk_length", extra_topk_length)):
            if value is not None:
                raise TypeError(f"{name}: {_shown(value)}, must be None without indices")
        return _core.attend_paged(q, k_cache, block_table, cache_seqlens, head_dim_v,
                                  tile_scheduler_metadata, softmax_scale, causal, is_fp8_kvcache,
                                  threads)
    if causal:
        raise ValueError("causal: True, must be False with indices: they say what a token sees")
    if any(value is None for value in extra) and any(
            value is not None for value in (*extra, extra_topk_length)):
        raise TypeError("extra_k_cache, extra_indices_in_kvcache, extra_topk_length: "
                        f"{', '.join(map(_shown, (*extra, extra_topk_length)))}; the first two go "
                        "together, the third with them")
    return _core.attend_selected(q, k_cache, indices, topk_length, *extra, extra_topk_length,
                                 attn_sink, head_dim_v, tile_scheduler_metadata, softmax_scale,
                                 is_fp8_kvcache, threads)


def merge_states(v_a: _Array, s_a: Any, v_b: Any, s_b: Any, *, base2: bool = False,
                 threads: int | None = None) -> tuple[_Array, _Array]:
    """The attention over two sets of keys from that over each: (v, s).

    v_a, v_b: [tokens, num_heads, head_dim], bf16 or fp32, gaps between tokens alone. s_a, s_b:
    [tokens, num_heads] fp32 of any strides (vLLM and FlashMLA have the heads first: transpose
    them), the logarithm of the sum of exp(scaled score): to base e, as flash_mla_with_kvcache and
    vLLM give it, or to base 2 with base2=True, as FlashInfer gives it. A set of no keys (-inf, +inf or NaN) adds
    nothing, whatever its v holds; two of them give v 0 and s -inf.

    v has the type of v_a; both are torch tensors where v_a is one. threads: as of
    flash_mla_with_kvcache.
    """
    return _core.merge_states(v_a, _without_gaps(s_a), v_b, _without_gaps(s_b), base2,
                              _usable_cpus() if threads is None else threads)
