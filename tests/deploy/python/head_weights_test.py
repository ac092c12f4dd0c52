# W_UK and W_UV at the home: attend(absorbed=False), with a model's weights or given ones.
import numpy
import pytest

import golden
import tributary
from conftest import client_of

HEADS, RANK, ROPE, NOPE, VALUE = 4, 128, 16, 32, 32  # the golden file's
SCALE = (NOPE + ROPE) ** -0.5
SHAPE = {"heads": HEADS, "kv_lora_rank": RANK, "qk_rope_head_dim": ROPE, "layers": 1,
         "softmax_scale": SCALE}
TOKENS = 500  # 8 leaves


@pytest.fixture(scope="module")
def kv_b():
    return golden.load()["self_attn.kv_b_proj.weight"].astype(numpy.float32)


def pool(workers, *shape, **options):
    return tributary.Pool(workers, *shape, **{"rows": "f32", "query": "f32", "leaf_tokens": 64,
                                              "kv_gib": 0.01, **options})


def outputs(client):
    """o and lse of two tokens after a prompt that lies on every worker; the same rows each time."""
    rng = numpy.random.default_rng(5)
    rows = rng.standard_normal((TOKENS + 2, RANK + ROPE), numpy.float32)
    query = rng.standard_normal((2, HEADS, NOPE + ROPE), numpy.float32)
    with client.admit(TOKENS, 8, spread="all") as sequence:
        shape = sequence.shape
        assert (shape.qk_nope_head_dim, shape.v_head_dim) == (NOPE, VALUE)
        sequence.push(0, 0, rows[:TOKENS])
        sequence.wait_ready()
        with client.step([sequence], tokens=2) as step:
            o, lse = step.attend(0, query, rows[TOKENS:], absorbed=False)
            if shape.hidden_size == 0:
                with pytest.raises(tributary.FailedPrecondition, match="no model's weights"):
                    step.forward(0, numpy.zeros((2, 0), numpy.float32))
    return o.copy(), lse.copy(), rows, query


def bits(result):
    return result[0].tobytes(), result[1].tobytes()


@pytest.mark.parametrize("as_bits", [False, True], ids=["fp32", "bf16"])
def test_given_weights_project_near_float64_with_equal_bits(kv_b, as_bits):
    given = golden.to_bf16(kv_b) if as_bits else kv_b
    weights = golden.from_bf16(given) if as_bits else kv_b
    results = []
    for workers in (1, 2, 4):
        with pool(workers, SHAPE, kv_b_proj=iter([given]), v_head_dim=VALUE) as tier:
            results.append(outputs(tier))
        assert bits(results[-1]) == bits(results[0])
    o, lse, rows, query = results[0]
    assert o.shape == (2, HEADS, VALUE) and lse.shape == (2, HEADS)
    heads = weights.astype(numpy.float64).reshape(HEADS, NOPE + VALUE, RANK)
    for token in range(2):
        absorbed = numpy.einsum("hn,hnc->hc", query[token, :, :NOPE], heads[:, :NOPE])
        latent, expected_lse = golden.attend(
            numpy.concatenate([absorbed, query[token, :, NOPE:]], axis=1),
            rows[:TOKENS + token + 1], RANK, SCALE)
        expected = numpy.einsum("hc,hvc->hv", latent, heads[:, NOPE:])
        bound = (TOKENS + 2 * (RANK + NOPE + ROPE)) * 2.0**-24
        assert golden.relative_error(o[token], expected) < bound
        assert golden.relative_error(lse[token], expected_lse) < bound


def test_services_and_pools_of_a_model_have_the_bits_of_given_weights(
        kv_b, one_worker, two_workers, two_threads):
    results = [bits(outputs(client_of(tier))) for tier in (one_worker, two_workers, two_threads)]
    with pool(2, SHAPE, kv_b_proj=[kv_b], v_head_dim=VALUE) as given:
        results.append(bits(outputs(given)))
    assert len(set(results)) == 1


def test_the_array_may_have_gaps_and_may_change_afterwards(kv_b):
    padded = numpy.zeros((len(kv_b), RANK + 8), numpy.float32)
    padded[:, :RANK] = kv_b
    with pool(1, SHAPE, kv_b_proj=(padded[:, :RANK],), v_head_dim=VALUE) as tier:
        padded[:] = 7
        changed = bits(outputs(tier))
    with pool(1, SHAPE, kv_b_proj=[kv_b], v_head_dim=VALUE) as tier:
        assert bits(outputs(tier)) == changed


def test_queries_come_absorbed_where_there_are_no_weights():
    with pool(1, SHAPE) as tier, tier.admit(1, 8) as sequence:
        row = numpy.ones((1, RANK + ROPE), numpy.float32)
        sequence.push(0, 0, row)
        sequence.wait_ready()
        with tier.step([sequence]) as step:
            with pytest.raises(tributary.FailedPrecondition, match="queries come absorbed"):
                step.attend(0, numpy.ones((1, HEADS, NOPE + ROPE), numpy.float32), row,
                            absorbed=False)
            step.attend(0, numpy.ones((1, HEADS, RANK + ROPE), numpy.float32), row)
