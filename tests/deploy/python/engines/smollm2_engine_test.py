# SmolLM2 in transformers, a trained model with grouped-query attention, with its cache in a tier:
# the tokens are those that the NumPy runner recorded (own_tokens.py).
import json
import pathlib

import pytest
import transformers

import tributary
from models import assert_same, batch, generate, through_tier, tier_of
from tributary.runner import Llama, make_tokenizer, smollm2_path

CASES = json.loads((pathlib.Path(__file__).parents[1] / "smollm2.json").read_text())


@pytest.fixture(scope="module")
def model():
    path = smollm2_path()
    return transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype="float32").eval()


@pytest.fixture(scope="module")
def prompts():
    tokenizer = make_tokenizer(Llama(smollm2_path()))
    return [tokenizer.encode(case["prompt"]).ids for case in CASES]


@pytest.fixture(scope="module")
def client(model, tmp_path_factory):
    with tier_of(model.config, tmp_path_factory.mktemp("shape")) as tier:
        yield tributary.Client(tier.url, timeout=60.0)
        tier.wait_all_free()


@pytest.mark.parametrize("number", [0, 7])
def test_the_recorded_tokens(client, model, prompts, number):
    tokens, _ = through_tier(client, model, batch(prompts[number]), 64)
    assert tokens[0].tolist() == CASES[number]["tokens"]


def test_the_recorded_tokens_of_all_prompts_in_a_batch(client, model, prompts):
    """Of 5 to 600 tokens."""
    tokens, _ = through_tier(client, model, batch(*prompts), 64)
    assert tokens.tolist() == [case["tokens"] for case in CASES]


def test_logits(client, model, prompts):
    inputs = batch(*prompts[:4])
    assert_same(generate(model, inputs, 8), through_tier(client, model, inputs, 8))


def test_assisted_by_its_own_prompt(client, model, prompts):
    """Candidates from the prompt: some are right, some are dropped."""
    def truncated(cache):
        assert cache.sequences[0].epoch > 1

    tokens, logits = through_tier(client, model, batch(prompts[3]), 64, truncated,
                                  prompt_lookup_num_tokens=4)
    assert tokens[0].tolist() == CASES[3]["tokens"]
