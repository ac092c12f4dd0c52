# FlashMLA's functions on the CPU: in place, the same bits whatever the batch, threads and layout,
# FlashMLA's conventions at the edges, and what is refused. Its grid is in flash_mla_grid_test.py.
import math
import mmap
import os
import signal
import threading
import time

import numpy
import pytest

import fp8
import golden
import tributary
from arrays_test import Exported, OnDevice
from paged import Paged

BOTH = pytest.mark.parametrize("kind", ["bf16", "f32"])


def attend(case, metadata=None, **changes):
    arguments = {"q": case.q, "k_cache": case.k_cache, "block_table": case.block_table,
                 "cache_seqlens": case.lengths, "head_dim_v": case.width, "causal": True, **changes}
    tile_scheduler_metadata, num_splits = metadata or tributary.get_mla_metadata()
    return tributary.flash_mla_with_kvcache(
        **{"tile_scheduler_metadata": tile_scheduler_metadata, "num_splits": num_splits,
           **arguments})


def bits(results):
    return [numpy.asarray(array).tobytes() for array in results]


@pytest.fixture
def case():
    return Paged(lengths=[130, 2, 2049, 1], tokens=2, heads=6, kv_heads=2, seed=3)


@BOTH
def test_bits_depend_on_neither_threads_nor_company_nor_gaps(kind):
    case = Paged(lengths=[130, 5000, 0, 64, 1], tokens=3, heads=6, kv_heads=3, kind=kind, seed=1)
    out, lse = attend(case, threads=1)
    for threads in (2, 3):
        assert bits(attend(case, threads=threads)) == bits((out, lse))
    for b in range(len(case.lengths)):
        alone = attend(case, q=case.q[b:b + 1], block_table=case.block_table[b:b + 1],
                       cache_seqlens=case.lengths[b:b + 1])
        assert bits(alone) == bits((out[b:b + 1], lse[b:b + 1]))
    # Blocks of several layers beside each other, a table that is a part of a larger one.
    layers = numpy.zeros((len(case.k_cache), 3, *case.k_cache.shape[1:]), case.k_cache.dtype)
    layers[:, 1] = case.k_cache
    table = numpy.full((len(case.lengths), 200), -1, numpy.int32)
    table[:, :case.block_table.shape[1]] = case.block_table
    assert bits(attend(case, k_cache=layers[:, 1], block_table=table)) == bits((out, lse))


@pytest.mark.parametrize("lengths, tokens, heads, causal", [
    ([1, 63, 64, 65, 0], 1, 16, True), ([130, 2049, 4100], 2, 128, True), ([700], 4, 64, False)])
def test_an_fp8_cache_has_the_bits_of_its_values(lengths, tokens, heads, causal):
    """FlashMLA's kind of cache, with NaN where nothing may be read."""
    case = Paged(lengths=lengths, tokens=tokens, heads=heads, seed=9)
    coded = fp8.encode(golden.from_bf16(case.k_cache))
    case.k_cache = golden.to_bf16(fp8.decode(coded))
    expected = attend(case, causal=causal)
    case.check(*expected, causal)
    assert coded.shape[-1] == 656
    for threads in (1, 2):
        assert bits(attend(case, k_cache=coded, is_fp8_kvcache=True, causal=causal,
                           threads=threads)) == bits(expected)
    metadata = tributary.get_mla_metadata(case.lengths, heads, 1, is_fp8_kvcache=True)
    assert bits(attend(case, metadata, k_cache=coded, is_fp8_kvcache=True,
                       causal=causal)) == bits(expected)


def test_an_fp8_cache_of_torch(case):
    torch = pytest.importorskip("torch", reason="NO torch")
    case = Paged(lengths=[90, 200], tokens=1, heads=16, seed=10)
    coded = fp8.encode(golden.from_bf16(case.k_cache))
    expected = attend(case, k_cache=coded, is_fp8_kvcache=True)
    floats = torch.from_numpy(coded).view(torch.float8_e4m3fn)
    assert bits(attend(case, k_cache=floats, is_fp8_kvcache=True)) == bits(expected)


@BOTH
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("axis", range(4))
def test_queries_may_lie_apart(kind, tokens, axis):
    case = Paged(lengths=[130, 64], tokens=tokens, heads=6, kind=kind, seed=3)
    apart = numpy.repeat(case.q, 2, axis)[(slice(None),) * axis + (slice(None, None, 2),)]
    assert bits(attend(case, q=apart)) == bits(attend(case))


def test_a_tier_of_those_rows_merges_to_the_same_bits(client, rng):
    with client.admit(300, 2) as sequence:
        shape = sequence.shape
        rows = rng.standard_normal((302, shape.latent_dim), numpy.float32)
        query = rng.standard_normal((2, shape.heads, shape.latent_dim), numpy.float32)
        sequence.push(0, 0, rows[:300])
        sequence.wait_ready()
        with client.step([sequence], tokens=2) as step:
            o, lse = step.attend(0, query, rows[300:])
    assert shape.leaf_tokens == 64
    k_cache = numpy.full((5 * 64, shape.latent_dim), numpy.nan, numpy.float32)
    k_cache[:302] = rows

    def leaf(block):
        out, lse = tributary.flash_mla_with_kvcache(
            query[None], k_cache.reshape(5, 64, 1, -1), numpy.array([[block]], numpy.int32),
            numpy.array([min(64, 302 - 64 * block)], numpy.int32), shape.kv_lora_rank,
            *tributary.get_mla_metadata(), softmax_scale=shape.softmax_scale, causal=block == 4)
        return out[0], numpy.ascontiguousarray(lse[0].T)

    def merged(a, b):
        return tributary.merge_states(*a, *b)
    whole = merged(merged(merged(leaf(0), leaf(1)), merged(leaf(2), leaf(3))), leaf(4))
    assert bits(whole) == bits((o, lse))


def test_the_cache_is_read_where_it_lies():
    # More address space than a machine has memory: neither a copy nor a look at all of it ends.
    blocks = 1 << 19
    memory = mmap.mmap(-1, blocks * 64 * 576 * 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                       | getattr(mmap, "MAP_NORESERVE", 0x4000))
    huge = numpy.frombuffer(memory, numpy.uint16).reshape(blocks, 64, 1, 576)
    case = Paged(lengths=[100], tokens=1, heads=4, seed=2)
    pages = case.block_table[0, :2]
    expected = attend(case)
    huge[[7, blocks - 1]] = case.k_cache[pages]
    table = numpy.array([[7, blocks - 1]], numpy.int32)
    assert bits(attend(case, k_cache=huge, block_table=table)) == bits(expected)
    huge[7, 0] = case.k_cache[pages[0], 1]  # and the next call sees what is written
    assert bits(attend(case, k_cache=huge, block_table=table)) != bits(expected)
    del huge


@pytest.mark.parametrize("causal", [False, True])
def test_more_new_tokens_than_rows_and_than_a_task_takes(causal):
    case = Paged(lengths=[3, 0, 70], tokens=40, heads=2, seed=4)
    out, lse = attend(case, causal=causal)
    case.check(out, lse, causal)
    empty = numpy.isposinf(lse)  # [B, H, S]
    assert empty[1].all() and not empty[2].any()
    assert empty[0].sum() == (2 * 37 if causal else 0)
    assert not golden.from_bf16(out)[empty.transpose(0, 2, 1)].any()


def test_the_widths_and_the_scale_are_the_callers():
    case = Paged(lengths=[90], tokens=1, heads=3, head_dim=80, width=48, seed=5)
    out, lse = attend(case, softmax_scale=0.5)
    assert out.shape == (1, 1, 3, 48)
    case.check(out, lse, True, scale=0.5)


def test_metadata_of_every_release(case):
    expected = bits(attend(case))
    lengths = case.lengths
    for metadata in (tributary.get_mla_metadata(lengths, 2 * 3, 2),
                     tributary.get_mla_metadata(lengths, num_heads_per_head_k=6, num_heads_k=2),
                     tributary.get_mla_metadata(cache_seqlens=lengths, num_q_tokens_per_head_k=6,
                                                num_heads_k=2, num_heads_q=6, is_fp8_kvcache=False,
                                                topk=None)):
        for _ in range(2):
            assert bits(attend(case, metadata)) == expected
    with pytest.raises(tributary.InvalidArgument, match="seq_len_q is 1, was 2 in the first call"):
        attend(case, metadata, q=case.q[:, :1])


@pytest.mark.parametrize("changes, kind, words", [
    ({"is_fp8_kvcache": True, "k_cache": numpy.zeros((9, 64, 1, 584), numpy.uint8)},
     tributary.Unsupported, r"k_cache: ndarray of shape .*584 bytes are DeepSeek-V4's \(MODEL1\)"),
    ({"is_fp8_kvcache": True}, TypeError, "k_cache: uint16, expected uint8"),
    ({"is_fp8_kvcache": True, "head_dim_v": 500}, tributary.InvalidArgument,
     r"rows of 500 \+ 76 values cannot be stored as fp8_ds_mla"),
    ({"tile_scheduler_metadata": None}, TypeError, r"None, None, expected what .*get_mla_metadata"),
    ({"num_splits": numpy.zeros(5, numpy.int32)}, TypeError, r"ndarray of shape \[5\], expected"),
    ({"head_dim_v": 577}, tributary.InvalidArgument, "head_dim_v is 577, must be 1 to 576"),
    ({"head_dim_v": 0}, tributary.InvalidArgument, "head_dim_v is 0, must be 1 to 576"),
    ({"softmax_scale": 0.0}, tributary.InvalidArgument, "softmax_scale is 0, must be positive"),
    ({"threads": 0}, tributary.InvalidArgument, "threads is 0, must be 1 to 1024"),
    ({"block_table": None}, TypeError, "block_table: NoneType, expected an array of int32"),
    ({"cache_seqlens": numpy.zeros(4, numpy.int64)}, TypeError,
     "cache_seqlens: int64, expected int32"),
    ({"cache_seqlens": numpy.zeros(3, numpy.int32)}, ValueError,
     r"cache_seqlens: shape \[3\], expected \[4\]"),
    ({"cache_seqlens": numpy.array([9, -1, 0, 0], numpy.int32)}, tributary.InvalidArgument,
     r"cache_seqlens\[1\] is -1, must be 0 to"),
    ({"cache_seqlens": numpy.array([9, 1 << 30, 0, 0], numpy.int32)}, tributary.InvalidArgument,
     r"cache_seqlens\[1\] is 1073741824, must be 0 to .* of 64 of block_table"),
])
def test_arguments_that_do_not_fit(case, changes, kind, words):
    with pytest.raises(kind, match=words):
        attend(case, **changes)


@pytest.mark.parametrize("name, bad, kind, words", [
    ("q", lambda q: q.view(numpy.float16), TypeError,
     "q: float16, expected float32 or bfloat16, or its bits as uint16"),
    ("q", lambda q: q[0], ValueError, r"q: shape \[2, 6, 576\], expected \[n, n, n, n\]"),
    ("q", lambda q: q[:0], tributary.InvalidArgument, "q: batch_size is 0, must be 1 to"),
    ("q", lambda q: q[:, :, :5], tributary.InvalidArgument,
     "num_heads_k is 2, must divide the 5 heads"),
    ("q", OnDevice, ValueError, r"q: on a device \(DLPack type 2\), expected memory of the CPU"),
    ("k_cache", lambda k: golden.from_bf16(k), TypeError, "k_cache: float32, expected bfloat16"),
    ("k_cache", lambda k: k[:, :32], ValueError, r"k_cache: shape .*32.*, expected \[n, 64, n, 576\]"),
    ("k_cache", lambda k: k[..., :512].copy(), ValueError, r"expected \[n, 64, n, 576\]"),
    ("k_cache", lambda k: k[:, ::-1], ValueError, "k_cache: strides"),
    ("k_cache", lambda k: k[:, :, :1], ValueError, "k_cache: strides"),
    ("k_cache", OnDevice, ValueError, "k_cache: on a device"),
    ("k_cache", lambda k: k.view(numpy.uint8), TypeError, "k_cache: uint8, expected bfloat16"),
    ("block_table", lambda t: t.astype(numpy.int64), TypeError, "block_table: int64"),
    ("block_table", lambda t: t[:2], ValueError, r"block_table: shape .*, expected \[4, n\]"),
    ("block_table", lambda t: t - 1000, tributary.InvalidArgument,
     r"block_table\[0, 0\] is -\d+, must be 0 to \d+"),
    ("block_table", lambda t: t + 1000, tributary.InvalidArgument, r"block_table\[0, 0\] is 1"),
])
def test_arrays_that_do_not_fit(case, name, bad, kind, words):
    array = {"q": case.q, "k_cache": case.k_cache, "block_table": case.block_table}[name]
    with pytest.raises(kind, match=words):
        attend(case, **{name: bad(array)})


def test_any_kind_of_array(case):
    expected = bits(attend(case))
    assert bits(attend(case, q=Exported(case.q), k_cache=memoryview(case.k_cache),
                       block_table=Exported(case.block_table))) == expected


def test_torch_tensors_give_torch_tensors(case):
    torch = pytest.importorskip("torch", reason="NO torch: NumPy alone is tested")
    expected = attend(case)
    tensors = {"q": torch.from_numpy(case.q).view(torch.bfloat16),
               "k_cache": torch.from_numpy(case.k_cache).view(torch.bfloat16),
               "block_table": torch.from_numpy(case.block_table),
               "cache_seqlens": torch.from_numpy(case.lengths)}
    out, lse = attend(case, **tensors)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    assert bits((out.view(torch.uint16), lse)) == bits(expected)
    wide = attend(case, **{**tensors, "q": tensors["q"].float(),
                           "k_cache": tensors["k_cache"].float()})
    assert wide[0].dtype == torch.float32
    v, s = tributary.merge_states(out[:, 0], lse[:, :, 0], out[:, 1], lse[:, :, 1])
    assert v.dtype == torch.bfloat16 and s.dtype == torch.float32
    with pytest.raises(TypeError, match="q: float16, expected"):
        attend(case, **{**tensors, "q": tensors["q"].half()})


@BOTH
@pytest.mark.parametrize("base2", [False, True])
def test_merged_halves_are_the_whole(kind, base2, rng):
    case = Paged(lengths=[256, 192], tokens=1, heads=5, kind=kind, seed=6)
    unit = math.log(2) if base2 else 1
    halves = [attend(case, cache_seqlens=numpy.array(lengths, numpy.int32), block_table=table)
              for lengths, table in (([128, 128], case.block_table[:, :2].copy()),
                                     ([128, 64], case.block_table[:, 2:].copy()))]
    (v_a, s_a), (v_b, s_b) = [(v[:, 0], s[:, :, 0] / numpy.float32(unit)) for v, s in halves]
    v_b = numpy.repeat(v_b, 2, 0)[::2]  # gaps between tokens
    v, s = tributary.merge_states(v_a, s_a, v_b, s_b, base2=base2)
    assert v.dtype == v_a.dtype and v.shape == v_a.shape and s.shape == s_a.shape
    case.check(v[:, None], (s * numpy.float32(unit))[..., None], True)
    # A side without keys adds nothing, whatever its v holds.
    poison = golden.to_bf16(numpy.full(v_a.shape, numpy.nan)) if kind == "bf16" else v_a * numpy.nan
    for empty in (-numpy.inf, numpy.inf, numpy.nan):
        none = numpy.full_like(s_a, empty)
        for pair in ((v_a, s_a, poison, none), (poison, none, v_a, s_a)):
            merged = tributary.merge_states(*pair, base2=base2)
            assert bits(merged[:1]) == bits([v_a])
            numpy.testing.assert_allclose(merged[1], s_a, rtol=1e-6)
        nothing = tributary.merge_states(poison, none, poison, none)
        assert not nothing[0].any() and numpy.isneginf(nothing[1]).all()


@pytest.mark.parametrize("change, kind, words", [
    ({"s_a": numpy.zeros((2, 3))}, TypeError, "s_a: float64, expected float32"),
    ({"s_b": numpy.zeros((3, 2), numpy.float32)}, ValueError,
     r"s_b: shape \[3, 2\], expected \[2, 3\]"),
    ({"v_b": numpy.zeros((2, 3, 8), numpy.uint16)}, TypeError, "v_b: uint16, expected float32"),
    ({"v_a": numpy.zeros((3, 8), numpy.float32)}, ValueError, r"v_a: shape \[3, 8\]"),
    ({"v_a": numpy.zeros((2, 3, 16), numpy.float32)[..., ::2]}, ValueError, "v_a: strides"),
])
def test_states_that_do_not_fit(change, kind, words):
    state = numpy.zeros((2, 3, 8), numpy.float32), numpy.zeros((2, 3), numpy.float32)
    arguments = dict(zip(("v_a", "s_a", "v_b", "s_b"), state + state), **change)
    with pytest.raises(kind, match=words):
        tributary.merge_states(**arguments)


def test_other_threads_of_the_interpreter_run_during_a_call():
    case = Paged(lengths=[6000], tokens=16, heads=64, seed=7)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.monotonic())
    ticker = threading.Thread(target=tick)
    ticker.start()
    begin = time.monotonic()
    attend(case, threads=1)
    end = time.monotonic()
    stop.set()
    ticker.join()
    assert any(begin < moment < end for moment in ticks)


def test_calls_from_several_threads_take_turns(case):
    expected, wrong = bits(attend(case)), []

    def calls(threads):
        for _ in range(4):
            if bits(attend(case, threads=threads)) != expected:
                wrong.append(threads)
    workers = [threading.Thread(target=calls, args=(threads,)) for threads in (1, 2, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_child_of_a_fork_has_kernels_of_its_own(case):
    expected = bits(attend(case, threads=2))
    child = os.fork()
    if child == 0:
        signal.alarm(250)  # against a hang
        os._exit(0 if bits(attend(case, threads=2)) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
