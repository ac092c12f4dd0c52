# Tokens that attend to the rows that they select: results, and what is refused.
import contextlib

import numpy
import pytest

import tributary

SHAPE = {"heads": 4, "kv_lora_rank": 128, "qk_rope_head_dim": 16, "layers": 2, "softmax_scale": 0.125}
TOPK, PROMPT, TOKENS = 24, 200, 3
RNG = numpy.random.default_rng(5)
ROWS = RNG.standard_normal((PROMPT + TOKENS, 144), numpy.float32)
QUERY = RNG.standard_normal((TOKENS, 4, 144), numpy.float32)
SELECTED = numpy.stack([RNG.choice(PROMPT + 1, TOPK, replace=False) for _ in range(TOKENS)]).astype(
    numpy.int32)


def sparse_pool(workers=2, topk=TOPK, **more):
    return tributary.Pool(workers, SHAPE, topk=topk, rows="f32", query="f32", leaf_tokens=64,
                          kv_gib=0.01, threads=1, **more)


@contextlib.contextmanager
def steps(pool, count=1):
    """A step of so many sequences of the same prompt."""
    with contextlib.ExitStack() as stack:
        sequences = [stack.enter_context(pool.admit(PROMPT, TOKENS, spread="all"))
                     for _ in range(count)]
        for sequence in sequences:
            for layer in range(2):
                sequence.push(layer, 0, ROWS[:PROMPT])
            sequence.wait_ready()
        step = pool.step(sequences, [TOKENS] * count)
        yield step
        step.abort()


def attend(step, selected, layer=0, count=1):
    return step.attend(layer, numpy.tile(QUERY, (count, 1, 1)),
                       numpy.tile(ROWS[PROMPT:], (count, 1)), selected=selected)


def expected(selected):
    """float64: o [T, H, C], lse [T, H]."""
    outputs, sums = [], []
    for query, positions in zip(QUERY.astype(float), selected):
        rows = ROWS[positions[positions >= 0]].astype(float)
        scores = query @ rows.T * SHAPE["softmax_scale"]
        weights = numpy.exp(scores - scores.max(1, keepdims=True))
        outputs.append(weights @ rows[:, :128] / weights.sum(1, keepdims=True))
        sums.append(scores.max(1) + numpy.log(weights.sum(1)))
    return numpy.stack(outputs), numpy.stack(sums)


def test_a_token_attends_to_the_rows_that_it_selects():
    bits = set()
    for workers in (1, 2, 4):
        with sparse_pool(workers) as pool, steps(pool) as step:
            o, lse = attend(step, SELECTED)
            again, _ = attend(step, numpy.sort(SELECTED)[:, ::-1].copy())
            assert o.tobytes() == again.tobytes()
            bits.add(o.tobytes())
    assert len(bits) == 1
    o64, lse64 = expected(SELECTED)
    assert numpy.abs(o - o64).max() < 1e-5
    assert numpy.abs(lse - lse64).max() < 1e-5


def test_fewer_rows_and_none():
    with sparse_pool() as pool, steps(pool) as step:
        few = SELECTED[:, :5].copy()
        o, _ = attend(step, few)
        assert numpy.abs(o - expected(few)[0]).max() < 1e-5
        gaps = numpy.full((TOKENS, TOPK), -1, numpy.int32)
        gaps[:, 3:8] = few
        assert attend(step, gaps)[0].tobytes() == o.tobytes()
        o, lse = attend(step, numpy.full((TOKENS, 1), -1, numpy.int32))
        assert not o.any() and (lse == -numpy.inf).all()


def test_everything_selected_is_dense_attention():
    own = numpy.arange(PROMPT + TOKENS, dtype=numpy.int32)
    everything = numpy.stack([numpy.where(own <= PROMPT + t, own, -1) for t in range(TOKENS)])
    outputs = []
    for topk, selected in ((0, None), (256, everything)):
        with sparse_pool(topk=topk) as pool, steps(pool) as step:
            outputs.append(attend(step, selected)[0].tobytes())
    assert outputs[0] == outputs[1]


def changed(token, index, value):
    selected = numpy.sort(SELECTED)
    selected[token, index] = value
    return selected


@pytest.mark.parametrize("selected, words", [
    (changed(0, 23, PROMPT + 1), r"token 0: selected\[23\] is 201, must be a position from 0 to 200"),
    (changed(2, 23, PROMPT + 3), r"token 2: selected\[23\] is 203, must be a position from 0 to 202"),
    (changed(1, 0, -2), r"token 1: selected\[23\] is -2, must be"),
    (changed(1, 1, numpy.sort(SELECTED)[1, 0]), r"token 1: selected\[1\] is \d+ again"),
])
def test_a_bad_position_is_refused_for_one_item_alone(selected, words):
    good = numpy.sort(SELECTED)
    with sparse_pool(1) as pool, steps(pool, 2) as step:
        with pytest.raises(tributary.InvalidArgument, match=words) as raised:
            attend(step, numpy.concatenate([selected, good]), count=2)
        assert list(raised.value.failed) == [0]
        o, _ = raised.value.results
        right, _ = attend(step, numpy.concatenate([good, good]), count=2)
        assert o[TOKENS:].tobytes() == right[TOKENS:].tobytes()
        assert right[:TOKENS].tobytes() == right[TOKENS:].tobytes()


@pytest.mark.parametrize("selected, kind, words", [
    (None, ValueError, "selected: None, but the pool attends to the rows that a token selects"),
    (SELECTED.astype(numpy.int64), TypeError, "selected: int64"),
    (SELECTED.astype(numpy.float32), TypeError, "selected: float32"),
    (SELECTED[:2], ValueError, r"selected: shape \[2, 24\]"),
    (SELECTED[0], ValueError, "selected"),
    (numpy.zeros((TOKENS, TOPK + 1), numpy.int32), ValueError, "25 selected positions, expected 1 to 24"),
])
def test_another_form_is_refused(selected, kind, words):
    with sparse_pool(1) as pool, steps(pool) as step:
        with pytest.raises(kind, match=words):
            attend(step, selected)
        attend(step, SELECTED)


def test_a_dense_pool_takes_no_selection():
    with sparse_pool(1, topk=0) as pool, steps(pool) as step:
        with pytest.raises(ValueError, match="selected: given, but the pool attends to all rows"):
            attend(step, SELECTED)


def test_a_shape_brings_its_topk_and_its_leaves():
    small = {**SHAPE, "topk": 32}
    for topk, seen, leaf in ((None, 32, 32768), (7, 7, 32768), (0, 0, 2048)):
        with tributary.Pool(1, small, topk=topk, kv_gib=0.02) as pool:
            assert (pool.shape.topk, pool.shape.leaf_tokens) == (seen, leaf)
            with tributary.Pool(1, pool.shape, kv_gib=0.02) as other:
                assert other.shape == pool.shape
    with pytest.raises(ValueError, match="topk 65537"):
        tributary.Pool(1, SHAPE, topk=65537)
