# FlashMLA's grid for dense decode, but for batches of 64 and 128 long sequences, which run for some
# numbers of heads, and those of 128 very long ones, of which two do.
import pytest
from flash_mla_grid_test import HEADS, cases_of, run


@pytest.mark.parametrize("heads, kv_heads", HEADS)
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 6, 64])
def test_short_sequences(count, tokens, heads, kv_heads):
    for mean in (20, 140):
        cases_of(count, tokens, mean, heads, kv_heads)


@pytest.mark.parametrize("heads, kv_heads", HEADS)
@pytest.mark.parametrize("tokens", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_long_sequences(count, tokens, heads, kv_heads):
    cases_of(count, tokens, 4096, heads, kv_heads)


@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (63, 1), (64, 8), (128, 1)])
def test_large_batches_of_long_sequences(heads, kv_heads):
    run(64, 2, 4096, heads, kv_heads, True, True)
    for causal in (False, True):
        run(128, 2, 4096, heads, kv_heads, True, causal, some_empty=True)


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("mean", [8192, 16384, 32768])
def test_very_long_sequences(mean, tokens):
    for causal in (False, True):
        run(2, tokens, mean, 128, 1, True, causal)
