# FlashMLA's grid for dense decode (tests/test_flash_mla_dense_decoding.py of deepseek-ai/FlashMLA,
# with the tolerances published there), against float64: every number of heads in short sequences, and
# several leaves in some cases. As good as all of it: engines/whole_grid_test.py.
import random

import pytest

import fp8
import golden
import tributary
from paged import Paged

HEADS = [(heads, kv_heads) for heads in (1, 3, 9, 63, 64, 126, 128) for kv_heads in (1, 2, 3, 8)
         if heads % kv_heads == 0]


def lengths_of(count, tokens, mean, varied, some_empty, seed):
    draw = random.Random(seed)
    lengths = [int(max(draw.normalvariate(mean, mean / 2), tokens)) if varied else mean
               for _ in range(count)]
    return [0 if some_empty and draw.random() < 0.5 else length for length in lengths]


def run(count, tokens, mean, heads, kv_heads, varied, causal, some_empty=False, kind="bf16"):
    seed = hash((count, tokens, mean, heads, kv_heads, varied, causal))
    lengths = lengths_of(count, tokens, mean, varied, some_empty, seed)
    case = Paged(lengths, tokens, heads, kv_heads, kind="bf16" if kind == "fp8" else kind,
                 seed=seed % (1 << 32))
    cache = case.k_cache
    if kind == "fp8":  # FlashMLA's rows of 656 bytes, judged by their own values
        cache = fp8.encode(golden.from_bf16(cache))
        case.k_cache = golden.to_bf16(fp8.decode(cache))
    out, lse = tributary.flash_mla_with_kvcache(case.q, cache, case.block_table, case.lengths,
                                                512, *tributary.get_mla_metadata(), causal=causal,
                                                is_fp8_kvcache=kind == "fp8")
    # Sequences do not depend on each other (flash_mla_test.py): of a large batch the shortest, the
    # longest and two more.
    order = sorted(range(count), key=lengths.__getitem__)
    picked = None if count <= 4 else [order[0], order[-1], *order[count // 3::count // 3][:2]]
    case.check(out, lse, causal, sequences=picked)


def cases_of(*arguments, **more):
    for varied in (False, True):
        for causal in (False, True):
            run(*arguments, varied, causal, **more)


@pytest.mark.long
@pytest.mark.parametrize("heads, kv_heads", HEADS)
def test_short_sequences(heads, kv_heads):
    for count, tokens, mean in ((1, 1, 20), (2, 2, 140), (1, 4, 20)):
        cases_of(count, tokens, mean, heads, kv_heads)


@pytest.mark.long
@pytest.mark.parametrize("count, tokens, heads, kv_heads, kind", [
    (2, 2, 16, 1, "bf16"), (1, 4, 9, 3, "bf16"), (1, 1, 64, 2, "bf16"), (1, 1, 128, 1, "f32")])
def test_sequences_of_several_leaves(count, tokens, heads, kv_heads, kind):
    cases_of(count, tokens, 4096, heads, kv_heads, kind=kind)


@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (9, 3), (126, 2)])
def test_fp32(heads, kv_heads):
    cases_of(2, 2, 140, heads, kv_heads, kind="f32")


@pytest.mark.parametrize("heads", [1, 16, 64, 128])
def test_rows_of_fp8(heads):
    for count, tokens, mean in ((2, 2, 140), (1, 4, 20)):
        cases_of(count, tokens, mean, heads, 1, kind="fp8")


def test_a_batch_of_which_half_is_empty():
    for causal in (False, True):
        run(32, 2, 140, 9, 1, True, causal, some_empty=True)
