# Every use of a cache by transformers' generate(), once each, with the cache in a tier.
import pytest
import torch

import models
from models import assert_same, batch, generate, random_prompts, through_tier
from tributary.transformers import TributaryCache

pytestmark = pytest.mark.parametrize("deepseek", ["v3", "v2"], indirect=True)


def test_prompts_in_chunks_some_of_them_padding(client, deepseek):
    inputs = batch(*random_prompts(40, 3, 17))
    alone = generate(deepseek, inputs, 8)
    assert_same(alone, through_tier(client, deepseek, inputs, 48, max_new_tokens=8,
                                    prefill_chunk_size=16))


def test_sampling(client, deepseek):
    inputs = batch(*random_prompts(20, 31))
    options = {"do_sample": True, "top_k": 20, "temperature": 0.8}
    alone = generate(deepseek, inputs, 16, **options)
    assert_same(alone, through_tier(client, deepseek, inputs, 16, **options))
    assert alone[0].tolist() != generate(deepseek, inputs, 16)[0].tolist()


def test_sequences_that_end_early(client, deepseek):
    inputs = batch(*random_prompts(20, 31, 9))
    end = generate(deepseek, inputs, 6)[0][1, 3].item()
    alone = generate(deepseek, inputs, 12, eos_token_id=end)
    assert (alone[0] == 2).any()  # padding after the end
    assert_same(alone, through_tier(client, deepseek, inputs, 12, eos_token_id=end))


@pytest.mark.parametrize("assistant_layers", [3, 1])
def test_assisted_generation_truncates(client, deepseek, assistant_layers):
    """By its like, which is always right, and by another random model, which never is."""
    inputs = batch(*random_prompts(30))
    alone = generate(deepseek, inputs, 24)
    assistant = models.make(deepseek.config.model_type, assistant_layers)
    assistant.generation_config.num_assistant_tokens = 4

    def truncated(cache):
        assert (cache.sequences[0].epoch > 4) == (assistant_layers == 1)

    tier = through_tier(client, deepseek, inputs, 24, truncated, assistant_model=assistant)
    assert alone[0].tolist() == tier[0].tolist()


def test_a_conversation_goes_on(client, deepseek):
    """The cache is used again; the next turn comes in steps."""
    first, second = random_prompts(30, 9)
    with TributaryCache(client, deepseek.config, 64) as cache:
        answer = generate(deepseek, batch(first), 8, cache)[0][0].tolist()
        turn = batch([*first, *answer, *second])
        tier = generate(deepseek, turn, 8, cache)
    assert_same(generate(deepseek, turn, 8), tier)


def test_the_next_turns_of_a_conversation(client, deepseek):
    """Of any length: the model gets the rows back, and pushes the new ones alone."""
    prompts = random_prompts(30, 9)
    with TributaryCache(client, deepseek.config, 12) as cache:
        for turn in range(3):
            inputs = batch(*prompts)
            answers = generate(deepseek, inputs, 8, cache)
            assert_same(generate(deepseek, inputs, 8), answers)
            assert [s.present_tokens for s in cache.sequences] == (
                [len(p) - 50 - 1 for p in prompts] if turn else [0, 0])
            prompts = [[*p, *answer.tolist(), *more] for p, answer, more in
                       zip(prompts, answers[0], random_prompts(50, 50, seed=turn))]


def test_a_turn_that_fails_leaves_the_sequences_as_they_were(client, deepseek):
    prompt, more = random_prompts(70, 40)
    deepseek.set_attn_implementation("tributary")

    def fail(*unused):
        raise ZeroDivisionError

    with TributaryCache(client, deepseek.config, 8) as cache, torch.no_grad():
        deepseek(torch.tensor([prompt]), past_key_values=cache)
        sequence, = cache.sequences
        hook = deepseek.model.layers[1].mlp.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            deepseek(torch.tensor([more]), past_key_values=cache)
        hook.remove()
        cache.crop(-1)
        assert cache.sequences == [sequence] and sequence.length == cache.length == 69
        tier = deepseek(torch.tensor([[prompt[-1], *more]]), past_key_values=cache).logits
        assert cache.sequences != [sequence] and cache.sequences[0].length == 110
    deepseek.set_attn_implementation("sdpa")
    with torch.no_grad():
        alone = deepseek(torch.tensor([[*prompt, *more]])).logits[:, 69:]
    assert (alone - tier).abs().max() < 1e-4


@pytest.mark.parametrize("beams", [2, 5])
def test_beam_search(client, deepseek, beams):
    inputs = batch(*random_prompts(20, 70))
    options = {"num_beams": beams, "length_penalty": 0.5}
    alone = generate(deepseek, inputs, 20, **options)[0]

    def forked(cache):
        assert len(cache.sequences) == 2 * beams

    tier = through_tier(client, deepseek, inputs, 20, forked, **options)[0]
    assert alone.tolist() == tier.tolist()
    assert alone.tolist() != generate(deepseek, inputs, 20)[0].tolist()


def test_one_prompt_in_several_ways(client, deepseek):
    prompt, = random_prompts(40)
    deepseek.set_attn_implementation("tributary")
    with TributaryCache(client, deepseek.config, 8) as cache, torch.no_grad():
        deepseek(torch.tensor([prompt]), past_key_values=cache)
        cache.batch_repeat_interleave(3)
        logits = deepseek(torch.tensor([[5], [6], [7]]), past_key_values=cache).logits
        cache.batch_select_indices(torch.tensor([2, 0]))
        more = deepseek(torch.tensor([[8], [9]]), past_key_values=cache).logits
        assert [s.length for s in cache.sequences] == [42, 42]
    deepseek.set_attn_implementation("sdpa")
    with torch.no_grad():
        for got, tail in zip([*logits, *more], [[5], [6], [7], [7, 8], [5, 9]]):
            alone = deepseek(torch.tensor([[*prompt, *tail]])).logits[0, -1]
            assert (alone - got[-1]).abs().max() < 1e-4


def test_a_cache_that_is_emptied_is_used_again(client, deepseek):
    inputs = batch(*random_prompts(12, 7))
    with TributaryCache(client, deepseek.config, 8) as cache:
        for empty in (lambda: cache.crop(-cache.length), cache.reset, cache.close):
            assert_same(generate(deepseek, inputs, 4), generate(deepseek, inputs, 4, cache))
            assert len(cache.sequences) == 2
            empty()
            assert cache.length == 0 and not cache.sequences


def test_a_pass_that_fails_leaves_everything_as_it_was(client, deepseek):
    prompt, = random_prompts(20)
    deepseek.set_attn_implementation("tributary")

    def step(cache, *ids):
        with torch.no_grad():
            return deepseek(torch.tensor([ids]), past_key_values=cache).logits[:, -1]

    def fail(*unused):
        raise ZeroDivisionError

    with TributaryCache(client, deepseek.config, 8) as cache, \
            TributaryCache(client, deepseek.config, 8) as undisturbed:
        for ids in (prompt, [5], [6, 7]):
            for layer in (0, 1):
                hook = deepseek.model.layers[layer].mlp.register_forward_hook(fail)
                with pytest.raises(ZeroDivisionError):
                    step(cache, *ids)
                hook.remove()
            assert torch.equal(step(cache, *ids), step(undisturbed, *ids))
        assert cache.length == cache.sequences[0].length == len(prompt) + 3
