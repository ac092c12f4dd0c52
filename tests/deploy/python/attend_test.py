# A tier's results in Python: the golden outputs, float64, the same bits for any workers.
import contextlib

import numpy
import pytest

import golden
from conftest import client_of, pool


# fp32 sums of at most `terms` products: each addition rounds by at most 2^-24 of the sum so far.
def bound(terms):
    return terms * 2.0**-24


@pytest.fixture(scope="module")
def tiny():
    return golden.load()


PROMPT, STEPS = 37, 5


def golden_rows(tiny):
    """[batch, tokens, C + R]"""
    return numpy.concatenate([tiny["f32.cache.kv"], tiny["f32.cache.pe"]], axis=2)


def golden_query(tiny, step):
    """[batch, H, C + R]"""
    return numpy.concatenate([tiny["f32.decode.q_nope_absorbed"][:, step],
                              tiny["f32.decode.q_pe"][:, step]], axis=2).astype(numpy.float32)


def admitted(client, stack, rows, spread="auto"):
    """A sequence with its prompt pushed, that ends with `stack`."""
    sequence = stack.enter_context(client.admit(len(rows), 64, spread=spread))
    sequence.push(0, 0, rows)
    sequence.wait_ready()
    return sequence


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def batch(client, stack, tiny):
    return [admitted(client, stack, rows[:PROMPT]) for rows in golden_rows(tiny)]


def test_attend_gives_the_golden_outputs(client, batch, tiny):
    assert batch[0].shape.heads == 4 and batch[0].shape.latent_dim == 144
    for number in range(STEPS):
        row = numpy.ascontiguousarray(golden_rows(tiny)[:, PROMPT + number])
        with client.step(batch) as step:
            o, lse = step.attend(0, golden_query(tiny, number), row)
        assert o.dtype == lse.dtype == numpy.float32
        assert golden.relative_error(o, tiny["f32.decode.latent"][:, number]) < bound(144 + 42)
        assert golden.relative_error(lse, tiny["f32.decode.lse"][:, number]) < bound(144 + 42)
        assert [s.length for s in batch] == [PROMPT + number + 1] * 2


def test_attend_projected_applies_w_uv(client, batch, tiny):
    v, rank = batch[0].shape.v_head_dim, batch[0].shape.kv_lora_rank
    w_uv = tiny["self_attn.kv_b_proj.weight"].reshape(4, -1, rank)[:, -v:]
    with client.step(batch) as step:
        row = numpy.ascontiguousarray(golden_rows(tiny)[:, PROMPT])
        values = step.attend_projected(0, golden_query(tiny, 0), row)
    expected = numpy.einsum("thc,hvc->thv", tiny["f32.decode.latent"][:, 0], w_uv)
    assert values.shape == (2, 4, v)
    assert golden.relative_error(values, expected) < bound(144 + 42 + rank)


def test_forward_takes_hidden_states(client, batch, tiny):
    for number in range(STEPS):
        hidden = numpy.ascontiguousarray(tiny["input.hidden_states"][:, PROMPT + number])
        with client.step(batch) as step:
            output = step.forward(0, hidden)
        expected = tiny["f32.decode.output"][:, number]
        # The file's own fp32 outputs are off by 4e-7; two projections of 256 terms more.
        assert golden.relative_error(output, expected) < bound(144 + 42 + 4 * 256)


def test_ragged_batches_are_near_float64_and_equal_over_workers(
        one_worker, two_workers, two_threads, stack, rng):
    lengths, tokens = (300, 75), (3, 1)
    rows = [rng.standard_normal((n, 144), numpy.float32) for n in lengths]
    queries = [rng.standard_normal((n, 4, 144), numpy.float32) for n in tokens]
    scale = None
    outputs = []
    pools = [stack.enter_context(pool(workers)) for workers in (1, 4)]
    for tier in (one_worker, two_workers, two_threads, *pools):
        client = client_of(tier)
        sequences = [admitted(client, stack, r[:-n], spread="all") for r, n in zip(rows, tokens)]
        scale = sequences[0].shape.softmax_scale
        if tier in (two_workers, two_threads):  # leaves of 64 tokens
            assert {rank for _, _, rank in sequences[0].extents} == {0, 1}
        with client.step(sequences, tokens=tokens) as step:
            o, lse = step.attend(0, numpy.concatenate(queries),
                                 numpy.concatenate([r[-n:] for r, n in zip(rows, tokens)]))
        assert [s.length for s in sequences] == list(lengths)
        sequences[0].refresh()
        assert sequences[0].extents[-1][1] == 300
        outputs.append((o.tobytes(), lse.tobytes()))
        token = 0
        for r, q, n in zip(rows, queries, tokens):
            for k in range(n):
                exact_o, exact_lse = golden.attend(q[k], r[:len(r) - n + k + 1], 128, scale)
                assert golden.relative_error(o[token], exact_o) < bound(144 + len(r))
                assert golden.relative_error(lse[token], exact_lse) < bound(144 + len(r))
                token += 1
    assert len(outputs) == 5 and len(set(outputs)) == 1


def test_bits_do_not_depend_on_the_batch_or_the_step(client, stack, rng):
    rows = rng.standard_normal((200, 144), numpy.float32)
    query = rng.standard_normal((4, 4, 144), numpy.float32)
    together = admitted(client, stack, rows[:196])
    alone = admitted(client, stack, rows[:196])
    with client.step([together], tokens=4) as step:
        all_o, all_lse = step.attend(0, query, rows[196:])
    for k in range(4):
        with client.step([alone]) as step:
            o, lse = step.attend(0, query[k:k + 1], rows[196 + k:197 + k])
        assert o.tobytes() == all_o[k:k + 1].tobytes()
        assert lse.tobytes() == all_lse[k:k + 1].tobytes()
