# SmolLM2, a trained model, generates its own tokens with its cache in a tier, and the tier's outputs
# have the same bits on 1, 2 and 4 workers. The recorded tokens are the model's with its cache in
# its own process (own_tokens.py). TRIBUTARY_ENGINES=1 takes every prompt and all of its tokens.
import hashlib
import json
import os
import pathlib

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy
import pytest

import tributary
from program import run
from tier import Tier
from tributary.grouped import GroupedAttention

pytest.importorskip("gguf", reason="NO gguf: SmolLM2 is not tested")
from tributary.runner import (  # noqa: E402
    Llama, Prefilled, TierDecoder, generate_alone, make_tokenizer, smollm2_path)

LONG = os.environ.get("TRIBUTARY_ENGINES") == "1"
# They have 5, 18, 48 and 280 tokens; 600 is the longest.
CASES = json.loads(pathlib.Path(__file__).with_name("smollm2.json").read_text())
CASES = CASES if LONG else CASES[:4]
NEW_TOKENS = 64 if LONG else 32


@pytest.fixture(scope="module")
def model():
    return Llama(smollm2_path())


@pytest.fixture(scope="module")
def prompts(model):
    tokenizer = make_tokenizer(model)
    return [Prefilled(model, tokenizer.encode(case["prompt"]).ids) for case in CASES]


@pytest.fixture
def config(model, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model.config()))
    return path


def decode(model, prompts, config, workers):
    """Every sequence's tokens, and a digest of the bits of all outputs."""
    digest = hashlib.sha256()

    def add(layer, o, lse):
        digest.update(numpy.ascontiguousarray(o))
        digest.update(numpy.ascontiguousarray(lse))

    # Leaves of a page (the tier's default here), all over the pool, so that short prompts lie on
    # several workers. One thread each: the model computes beside them, and threads that wait for
    # each other on cores that are taken wait for the scheduler.
    with Tier(pools=(workers,), worker_flags=["--shape", config, "--rows", "f32", "--query", "f32",
                                              "--threads", 1, "--kv-gib", 0.2]) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        sequences = []
        for prompt in prompts:
            sequence = client.admit(len(prompt.tokens), NEW_TOKENS, spread="all")
            prompt.push(sequence)
            sequences.append(sequence)
        holders = {rank for sequence in sequences for _, _, rank in sequence.extents}
        assert holders == set(range(workers))
        decoder = TierDecoder(model, client, sequences, [prompt.first_token for prompt in prompts])
        decoder.outputs = add
        steps = list(decoder.steps(NEW_TOKENS))
        for sequence, prompt in zip(sequences, prompts):
            # All rows but that of the newest token are in the tier.
            assert sequence.length == len(prompt.tokens) + NEW_TOKENS - 1
            sequence.free()
        tier.wait_all_free()
    return [list(tokens) for tokens in zip(*steps)], digest.hexdigest()


@pytest.fixture(scope="module")
def digests():
    """Of the runs so far, by their number of workers."""
    return {}


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_its_own_tokens_and_the_same_bits_on_any_number_of_workers(
        model, prompts, config, digests, workers):
    tokens, digests[workers] = decode(model, prompts, config, workers)
    for case, own in zip(CASES, tokens):
        assert own == case["tokens"][:NEW_TOKENS], case["prompt"]
    assert len(set(digests.values())) == 1, digests


@pytest.mark.long
def test_the_recorded_tokens_are_the_models(model, prompts):
    assert generate_alone(model, prompts[0].tokens, 8) == CASES[0]["tokens"][:8]


def test_a_wider_row_than_the_bound_is_refused_with_the_reason(model, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**model.config(), "num_key_value_heads": 32,
                                "num_attention_heads": 32, "head_dim": 128}))
    refused = run("plan", "--shape", path)
    assert refused.status == 2
    assert "4096 values of V and as many of K; at most 2048 each" in refused.stderr
    assert "32 times the arithmetic" in refused.stderr


@pytest.mark.parametrize("heads, kv_heads, dim", [(9, 3, 64), (4, 4, 8), (8, 1, 16)])
def test_attention_over_rows_is_that_of_the_heads(heads, kv_heads, dim, rng):
    grouped = GroupedAttention(heads, kv_heads, dim)
    q = rng.normal(size=(2, heads, dim))
    k, v = rng.normal(size=(2, 50, kv_heads, dim))

    def attend(queries, keys, values):
        scores = queries @ keys.T * grouped.softmax_scale
        weights = numpy.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ values

    rows, queries = grouped.rows(k, v), grouped.queries(q)
    latent = [attend(queries[:, h], rows, rows[:, :grouped.width]) for h in range(heads)]
    own = [attend(q[:, h], k[:, h * kv_heads // heads], v[:, h * kv_heads // heads])
           for h in range(heads)]
    numpy.testing.assert_allclose(grouped.outputs(numpy.stack(latent, axis=1)),
                                  numpy.stack(own, axis=1), rtol=0, atol=1e-13)


def test_a_pool_of_another_shape_is_refused_by_name():
    class Shape:
        heads, kv_lora_rank, qk_rope_head_dim, softmax_scale = 9, 192, 192, 0.125

    grouped = GroupedAttention(9, 3, 64)
    grouped.check(Shape)
    for name, value in (("heads", 8), ("kv_lora_rank", 64), ("qk_rope_head_dim", 0),
                        ("softmax_scale", 0.1)):
        with pytest.raises(ValueError, match=f"the pool's {name} is {value}, the model's"):
            grouped.check(type("Other", (Shape,), {name: value}))
    with pytest.raises(ValueError, match="9 heads are no multiple of 2 KV heads"):
        GroupedAttention(9, 2, 64)
