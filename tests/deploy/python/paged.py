# Paged caches as FlashMLA's tests make them (tests/test_flash_mla_dense_decoding.py of
# deepseek-ai/FlashMLA), what attention over them is in float64, and the tolerances published there.
import functools
import math

import numpy

import golden

BLOCK = 64
# Bounds on out against the reference rounded to bf16, and on softmax_lse.
OUT = {"absolute": 8e-4, "relative": 2.01 / 128, "cosine": 5e-6}
LSE = {"absolute": 1e-6, "relative": 8.01 / 65536, "cosine": 1e-7}


@functools.cache
def noise():
    """Numbers of N(0, 1) / 10, within [-1, 1]: a table, since drawing each would take longer than
    attending to it."""
    values = numpy.random.default_rng(11).standard_normal(1 << 21, numpy.float32) / 10
    return values.clip(-1, 1)


@functools.cache
def noise_of(kind):
    return golden.to_bf16(noise()) if kind == "bf16" else noise()


def assert_close(name, result, expected, absolute, relative, cosine):
    """Element by element within one of two bounds, and as a whole in direction; infinities and NaN
    in the same places."""
    result, expected = result.astype(numpy.float64), expected.astype(numpy.float64)
    assert result.shape == expected.shape
    finite = numpy.isfinite(expected)
    numpy.testing.assert_array_equal(result[~finite], expected[~finite], name)
    result, expected = result[finite], expected[finite]
    error = abs(result - expected)
    wrong = (error >= absolute) & (error >= relative * (abs(expected) + 1e-6))
    assert not wrong.any(), f"{name}: {wrong.sum()} of {wrong.size} off, by {error[wrong].max()}"
    if (expected * expected).sum() >= 1e-12:
        both = (result * result + expected * expected).sum()
        assert abs(1 - 2 * (result * expected).sum() / both) <= cosine, name


class Paged:
    """A batch: q, k_cache, block_table and lengths; NaN where nothing may be read as a value, and
    entries of the table that no page has."""

    def __init__(self, lengths, tokens, heads, kv_heads=1, head_dim=576, width=512, kind="bf16",
                 seed=0):
        rng = numpy.random.default_rng(seed)
        table = noise_of(kind)
        self.kind, self.width = kind, width
        self.lengths = numpy.array(lengths, numpy.int32)
        blocks = -(-self.lengths // BLOCK)
        spare = 3
        pages = int(blocks.sum()) + spare
        size = BLOCK * kv_heads * head_dim
        nan = golden.to_bf16(numpy.array([numpy.nan]))[0] if kind == "bf16" else numpy.nan

        def draw(count):
            at = rng.integers(len(table) - min(count, len(table)) + 1)
            return numpy.resize(table[at:at + count], count)
        self.k_cache = numpy.empty((pages, BLOCK, kv_heads, head_dim), table.dtype)
        for page in self.k_cache:
            page[:] = draw(size).reshape(page.shape)
        order = rng.permutation(pages).astype(numpy.int32)
        self.k_cache[order[:spare]] = nan
        self.block_table = numpy.full((len(lengths), max(1, blocks.max())), 2147480000,
                                      numpy.int32)
        first = spare
        for row, count, length in zip(self.block_table, blocks, self.lengths):
            row[:count] = order[first:first + count]
            first += count
            if length % BLOCK:
                self.k_cache[row[count - 1], length % BLOCK:] = nan
        self.q = draw(len(lengths) * tokens * heads * head_dim).reshape(
            len(lengths), tokens, heads, head_dim)

    def values(self, array):
        return golden.from_bf16(array) if self.kind == "bf16" else array

    def reference(self, b, causal, scale=None):
        """out [S, H, V] and lse [H, S] of sequence b in float64."""
        tokens, heads, head_dim = self.q.shape[1:]
        kv_heads = self.k_cache.shape[2]
        length, group = int(self.lengths[b]), heads // kv_heads
        if length == 0:
            return (numpy.zeros((tokens, heads, self.width)),
                    numpy.full((heads, tokens), numpy.inf))
        pages = self.block_table[b, :-(-length // BLOCK)]
        rows = self.values(self.k_cache[pages].reshape(-1, kv_heads, head_dim)[:length])
        rows = rows.transpose(1, 2, 0).astype(numpy.float64)  # [K, D, rows]
        query = self.values(self.q[b]).reshape(tokens, kv_heads, group, head_dim)
        query = query.transpose(1, 0, 2, 3).reshape(kv_heads, tokens * group, head_dim)
        scores = (query.astype(numpy.float64) @ rows * (scale or 1 / math.sqrt(head_dim))).reshape(
            kv_heads, tokens, group, length)
        if causal:
            seen = length - tokens + 1 + numpy.arange(tokens)
            hidden = numpy.arange(length) >= seen[:, None]
            scores = numpy.where(hidden[:, None], -numpy.inf, scores)
        top = scores.max(axis=-1, keepdims=True, initial=-1e9)
        weights = numpy.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        with numpy.errstate(divide="ignore"):
            lse = (top + numpy.log(total))[..., 0]
        weights /= numpy.where(total > 0, total, 1)
        out = weights.reshape(kv_heads, -1, length) @ rows[:, :self.width].transpose(0, 2, 1)
        out = out.reshape(kv_heads, tokens, group, -1).transpose(1, 0, 2, 3)
        lse = numpy.where(numpy.isneginf(lse), numpy.inf, lse)
        return (out.reshape(tokens, heads, self.width),
                lse.transpose(0, 2, 1).reshape(heads, tokens))

    def check(self, out, lse, causal, scale=None, sequences=None):
        """What was computed, within the published tolerances; of some sequences, or of all."""
        picked = range(len(self.lengths)) if sequences is None else sequences
        references = [self.reference(b, causal, scale) for b in picked]
        expected = numpy.stack([o for o, _ in references]).astype(numpy.float32)
        if self.kind == "bf16":
            expected = golden.from_bf16(golden.to_bf16(expected))
        picked = list(picked)
        assert_close("out", self.values(out[picked]), expected, **OUT)
        assert_close("lse", lse[picked], numpy.stack([lse for _, lse in references]), **LSE)
