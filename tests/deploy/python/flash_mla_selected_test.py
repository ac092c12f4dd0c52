# FlashMLA's sparse decode on the CPU: its grid (tests/test_flash_mla_sparse_decoding.py of
# deepseek-ai/FlashMLA, with the tolerances published there, over bf16 rows), the same bits whatever the
# order and the threads, and what is refused.
import numpy
import pytest

import fp8
import golden
import tributary
from paged import LSE, OUT, assert_close, noise_of

SPARSE_OUT = {**OUT, "absolute": 1e-3}


class Rows:
    """A cache, and lists of its rows for each token: entries that are none among them, rubbish behind
    topk_length, NaN in all rows that no list names."""

    def __init__(self, rng, sequences, tokens, slots, topk, block, head_dim, kind="bf16",
                 length=False, all_invalid=False, some_empty=False):
        blocks = -(-slots // block) + 1
        table = noise_of(kind)
        self.kind, self.head_dim = kind, head_dim
        shape = (blocks, block, 1, head_dim)
        self.cache = numpy.resize(table[rng.integers(1 << 16):], shape).copy()
        self.indices = numpy.full((sequences, tokens, topk), -1, numpy.int32)
        self.length = rng.integers(0, topk + 1, sequences).astype(numpy.int32) if length else None
        for b in range(sequences):
            most = 0 if some_empty and b % 2 else min(topk, slots)
            for s in range(tokens):
                drawn = rng.permutation(slots)[:most]
                drawn[rng.random(most) < 0.1] = -1
                self.indices[b, s, :most] = -1 if all_invalid else drawn
            if length:
                self.indices[b, :, self.length[b]:] = 2147480000
        used = numpy.zeros(blocks * block, bool)
        for b in range(sequences):
            for s in range(tokens):
                used[self.of(b, s)] = True
        nan = golden.to_bf16(numpy.array([numpy.nan]))[0] if kind == "bf16" else numpy.nan
        self.cache.reshape(-1, head_dim)[~used] = nan

    def of(self, b, s):
        """The slots that a token attends to."""
        counted = self.indices[b, s, :None if self.length is None else self.length[b]]
        return counted[counted >= 0]

    def rows(self, b, s):
        rows = self.cache.reshape(-1, self.head_dim)[self.of(b, s)]
        return golden.from_bf16(rows) if self.kind == "bf16" else rows


class Case:
    def __init__(self, sequences, heads, tokens, slots, topk, block, head_dim=576, extra=None,
                 kind="bf16", sink=False, seed=0, **more):
        rng = numpy.random.default_rng(seed)
        self.kind, self.head_dim = kind, head_dim
        self.q = numpy.resize(noise_of(kind)[rng.integers(1 << 16):],
                              (sequences, tokens, heads, head_dim)).copy()
        self.main = Rows(rng, sequences, tokens, slots, topk, block, head_dim, kind, **more)
        self.extra = None
        if extra:
            extra_slots, extra_topk, extra_block, extra_length = extra
            self.extra = Rows(rng, sequences, tokens, extra_slots, extra_topk, extra_block, head_dim,
                              kind, **{**more, "length": extra_length})
        self.sink = None
        if sink:
            self.sink = rng.standard_normal(heads).astype(numpy.float32)
            self.sink[0], self.sink[heads // 2], self.sink[-1] = numpy.inf, -numpy.inf, 3

    def attend(self, **changes):
        arguments = {"q": self.q, "k_cache": self.main.cache, "block_table": None,
                     "cache_seqlens": None, "head_dim_v": 512, "indices": self.main.indices,
                     "topk_length": self.main.length, "attn_sink": self.sink}
        if self.extra:
            arguments |= {"extra_k_cache": self.extra.cache,
                          "extra_indices_in_kvcache": self.extra.indices,
                          "extra_topk_length": self.extra.length}
        metadata, splits = tributary.get_mla_metadata()
        return tributary.flash_mla_with_kvcache(
            **{"tile_scheduler_metadata": metadata, "num_splits": splits, **arguments, **changes})

    def check(self):
        out, lse = self.attend()
        sequences, tokens, heads, _ = self.q.shape
        for b in range(sequences):
            for s in range(tokens):
                rows = self.main.rows(b, s)
                if self.extra:
                    rows = numpy.concatenate([rows, self.extra.rows(b, s)])
                query = golden.from_bf16(self.q[b, s]) if self.kind == "bf16" else self.q[b, s]
                if len(rows) == 0:
                    expected, expected_lse = numpy.zeros((heads, 512)), numpy.full(heads, numpy.inf)
                else:
                    expected, expected_lse = golden.attend(query, rows, 512, self.head_dim ** -0.5)
                    if self.sink is not None:
                        with numpy.errstate(over="ignore"):
                            expected /= 1 + numpy.exp(self.sink.astype(numpy.float64)
                                                      - expected_lse)[:, None]
                got = out[b, s]
                if self.kind == "bf16":
                    expected = golden.from_bf16(golden.to_bf16(expected.astype(numpy.float32)))
                    got = golden.from_bf16(got)
                assert_close("out", got, expected, **SPARSE_OUT)
                assert_close("lse", lse[b, :, s], expected_lse, **LSE)


def test_fp8_caches_have_the_bits_of_their_values():
    case = Case(3, 64, 2, 1000, 128, 64, extra=(300, 64, 16, True), sink=True, seed=4, length=True)
    caches = {}
    for name, rows in (("k_cache", case.main), ("extra_k_cache", case.extra)):
        caches[name] = fp8.encode(golden.from_bf16(rows.cache))
        rows.cache = golden.to_bf16(fp8.decode(caches[name]))
    expected = case.attend()
    got = case.attend(**caches, is_fp8_kvcache=True)
    for mine, other in zip(expected, got):
        assert numpy.asarray(mine).tobytes() == numpy.asarray(other).tobytes()


SHAPES = [(512, 64, 2), (512, 64, 64), (512, 64, 69), (1024, 576, 2), (1024, 576, 61),
          (2046, 2048, 2), (2046, 2048, 64), (2046, 2048, 576)]


@pytest.mark.parametrize("slots, topk, block", SHAPES)
@pytest.mark.parametrize("heads", [64, 128])
@pytest.mark.parametrize("length", [False, True])
def test_grid(slots, topk, block, heads, length):
    for tokens in (1, 3):
        Case(2, heads, tokens, slots, topk, block, length=length, sink=True, seed=tokens).check()


@pytest.mark.parametrize("slots, topk, block", SHAPES[::2])
@pytest.mark.parametrize("extra", [(512, 64, 69), (1024, 576, 61), (2046, 2048, 64)])
def test_grid_of_two_caches(slots, topk, block, extra):
    for length in (False, True):
        for extra_length in (False, True):
            Case(1, 64, 3, slots, topk, block, head_dim=512, extra=(*extra, extra_length),
                 length=length, sink=True, seed=length).check()


@pytest.mark.parametrize("slots, topk, block", [(512, 64, 61), (650, 576, 53)])
@pytest.mark.parametrize("all_invalid", [False, True])
@pytest.mark.parametrize("some_empty", [False, True])
def test_corners(slots, topk, block, all_invalid, some_empty):
    for sink in (False, True):
        for extra in (None, (650, 576, 53, True)):
            Case(4, 64, 3, slots, topk, block, extra=extra, sink=sink, all_invalid=all_invalid,
                 some_empty=some_empty, seed=9).check()


def test_fp32_and_few_heads():
    Case(3, 5, 2, 700, 300, 64, kind="f32", sink=True).check()
    Case(3, 1, 2, 700, 300, 64, extra=(300, 40, 16, True), sink=True).check()


def bits(results):
    return [numpy.asarray(array).tobytes() for array in results]


@pytest.fixture
def case():
    return Case(3, 6, 2, 400, 100, 64, seed=3)


def test_bits_depend_on_neither_order_nor_threads_nor_company(case):
    expected = bits(case.attend(threads=1))
    assert bits(case.attend(threads=3)) == expected
    rng = numpy.random.default_rng(1)
    assert bits(case.attend(indices=rng.permuted(case.main.indices, axis=2))) == expected
    longer = numpy.concatenate([case.main.indices, numpy.full((3, 2, 7), -1, numpy.int32)], axis=2)
    assert bits(case.attend(indices=longer)) == expected
    out, lse = case.attend()
    alone = case.attend(q=case.q[1:2], indices=case.main.indices[1:2])
    assert bits(alone) == bits((out[1:2], lse[1:2]))


def test_all_rows_in_order_have_the_bits_of_dense_decode():
    case = Case(1, 16, 1, 128, 128, 64, seed=4)
    case.main.cache = numpy.resize(noise_of("bf16"), case.main.cache.shape).copy()
    table = numpy.array([[2, 0]], numpy.int32)
    everything = numpy.arange(128, dtype=numpy.int32)
    swapped = case.main.cache[[2, 0]].copy()  # the table's rows in the order of slots
    dense = tributary.flash_mla_with_kvcache(
        case.q, case.main.cache, table, numpy.array([128], numpy.int32), 512,
        *tributary.get_mla_metadata())
    assert bits(case.attend(k_cache=swapped, indices=everything[None, None])) == bits(dense)


def test_blocks_of_64_may_have_gaps(case):
    layers = numpy.zeros((len(case.main.cache), 3, *case.main.cache.shape[1:]), numpy.uint16)
    layers[:, 1] = case.main.cache
    assert bits(case.attend(k_cache=layers[:, 1])) == bits(case.attend())


def test_what_is_named_twice_counts_twice(case):
    twice = numpy.array([[[5, 5, 7]]], numpy.int32)
    case.main.cache[:] = 0
    _, lse = case.attend(q=case.q[:1, :1], indices=twice)
    numpy.testing.assert_allclose(lse, numpy.log(3), rtol=1e-6)


def test_torch_tensors(case):
    torch = pytest.importorskip("torch")
    q, cache = (torch.from_numpy(a.view(numpy.int16)).view(torch.bfloat16)
                for a in (case.q, case.main.cache))
    out, lse = case.attend(q=q, k_cache=cache, indices=torch.from_numpy(case.main.indices))
    expected = case.attend()
    assert bits((out.view(torch.int16), lse)) == bits(expected)



@pytest.mark.parametrize("changes, kind, words", [
    ({"causal": True}, ValueError, "causal: True, must be False with indices"),
    ({"indices": None, "attn_sink": numpy.zeros(6, numpy.float32)}, TypeError,
     "attn_sink: .* must be None without indices"),
    ({"indices": None, "topk_length": 1}, TypeError, "topk_length: 1, must be None without"),
    ({"extra_k_cache": numpy.zeros((1, 64, 1, 576), numpy.uint16)}, TypeError, "go together"),
    ({"extra_topk_length": numpy.zeros(3, numpy.int32)}, TypeError, "go together"),
    ({"indices": numpy.zeros((3, 2, 9), numpy.int64)}, TypeError, "indices: int64, expected int32"),
    ({"indices": numpy.zeros((3, 1, 9), numpy.int32)}, ValueError,
     r"indices: shape \[3, 1, 9\], expected \[3, 2, n\]"),
    ({"indices": numpy.zeros((3, 2, 0), numpy.int32)}, tributary.InvalidArgument,
     "indices is 0, must be 1"),
    ({"indices": numpy.full((3, 2, 9), 512, numpy.int32)}, tributary.InvalidArgument,
     r"indices\[0, 0, 0\] is 512, must be -1 to 511"),
    ({"indices": numpy.full((3, 2, 9), -2, numpy.int32)}, tributary.InvalidArgument, "is -2"),
    ({"topk_length": numpy.zeros(2, numpy.int32)}, ValueError, "topk_length: shape"),
    ({"attn_sink": numpy.zeros(5, numpy.float32)}, ValueError, "attn_sink: shape"),
    ({"k_cache": numpy.zeros((8, 64, 2, 576), numpy.uint16)}, ValueError,
     r"k_cache: shape .*, expected \[n, n, 1, 576\]"),
    ({"k_cache": numpy.zeros((16, 32, 1, 576), numpy.uint16)[::2]}, ValueError,
     "k_cache: .* no gaps unless blocks have 64 rows"),
])
def test_arguments_that_do_not_fit(case, changes, kind, words):
    with pytest.raises(kind, match=words):
        case.attend(**changes)


def test_metadata_remembers_the_lengths_of_lists(case):
    metadata, splits = tributary.get_mla_metadata(topk=100)
    case.attend(tile_scheduler_metadata=metadata)
    with pytest.raises(tributary.InvalidArgument, match="topk is 50, was 100"):
        case.attend(tile_scheduler_metadata=metadata,
                    indices=case.main.indices[:, :, :50].copy())
