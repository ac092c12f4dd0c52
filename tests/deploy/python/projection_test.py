# Where a tributary.Pool projects: `project_at`.
import numpy
import pytest

import golden
import tributary
from program import TINY

HEADS, RANK, ROPE, NOPE, VALUE = 4, 128, 16, 32, 32  # the golden file's
SCALE = (NOPE + ROPE) ** -0.5
SHAPE = {"heads": HEADS, "kv_lora_rank": RANK, "qk_rope_head_dim": ROPE, "layers": 1,
         "softmax_scale": SCALE}
TOKENS = 500  # 8 leaves


@pytest.fixture(scope="module")
def kv_b():
    return golden.load()["self_attn.kv_b_proj.weight"].astype(numpy.float32)


def outputs(pool, width):
    """o and lse of two tokens after a prompt that lies on every worker; the same rows each time."""
    rng = numpy.random.default_rng(5)
    rows = rng.standard_normal((TOKENS + 2, RANK + ROPE), numpy.float32)
    query = rng.standard_normal((2, HEADS, width), numpy.float32)
    with pool, pool.admit(TOKENS, 8, spread="all") as sequence:
        sequence.push(0, 0, rows[:TOKENS])
        sequence.wait_ready()
        assert {rank for _, _, rank in sequence.extents} == set(range(pool.workers))
        with pool.step([sequence], tokens=2) as step:
            o, lse = step.attend(0, query, rows[TOKENS:])
            if pool.shape.hidden_size == 0:
                with pytest.raises(tributary.FailedPrecondition, match="serves attend alone"):
                    step.attend_projected(0, query, rows[TOKENS:])
    return o.copy(), lse.copy(), rows, query


def pool(workers, *shape, **options):
    return tributary.Pool(workers, *shape, **{"rows": "f32", "query": "f32", "leaf_tokens": 64,
                                              "kv_gib": 0.01, **options})


def bits(result):
    return result[0].tobytes(), result[1].tobytes()


@pytest.mark.parametrize("as_bits", [False, True], ids=["fp32", "bf16"])
def test_leaves_project_with_the_weights_that_were_given(kv_b, as_bits):
    given = golden.to_bf16(kv_b) if as_bits else kv_b
    weights = golden.from_bf16(given) if as_bits else kv_b
    results = []
    for workers in (1, 2, 4):
        tier = pool(workers, SHAPE, project_at="leaves", kv_b_proj=[given], v_head_dim=VALUE)
        shape = tier.shape
        assert (shape.project_at, shape.qk_nope_head_dim, shape.query_width, shape.v_head_dim,
                shape.hidden_size) == ("leaves", NOPE, NOPE + ROPE, VALUE, 0)
        results.append(outputs(tier, NOPE + ROPE))
        assert bits(results[-1]) == bits(results[0])
    o, lse, rows, query = results[0]
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


def test_weights_that_were_given_are_those_of_a_model(kv_b):
    """Bit by bit what a pool with the model's file gives, which projects its values too."""
    tiers = [pool(2, model=TINY, project_at="leaves"),
             pool(2, SHAPE, project_at="leaves", kv_b_proj=iter([kv_b]), v_head_dim=VALUE)]
    assert tiers[0].shape.hidden_size == 256 and tiers[0].shape.project_at == "leaves"
    assert tiers[0].shape.softmax_scale == tiers[1].shape.softmax_scale
    first, second = (outputs(tier, NOPE + ROPE) for tier in tiers)
    assert bits(first) == bits(second)


def test_the_array_may_have_gaps_and_may_change_afterwards(kv_b):
    padded = numpy.zeros((len(kv_b), RANK + 8), numpy.float32)
    padded[:, :RANK] = kv_b
    options = {"project_at": "leaves", "v_head_dim": VALUE}
    tier = pool(1, SHAPE, kv_b_proj=(padded[:, :RANK],), **options)
    padded[:] = 7
    assert bits(outputs(tier, NOPE + ROPE)) == bits(
        outputs(pool(1, SHAPE, kv_b_proj=[kv_b], **options), NOPE + ROPE))
