# Unsupported features are refused by name, before anything is wrong; and a client that dies leaves
# nothing behind.
import multiprocessing

import pytest
import torch
import transformers

import models
import tributary
from models import batch, generate, random_prompts, through_tier, tier_of
from tier import LEASE_MS, wait_until
from tributary.transformers import TributaryCache

pytestmark = pytest.mark.parametrize("deepseek", ["v3"], indirect=True)


@pytest.fixture
def inputs():
    return batch(*random_prompts(20, 20))


def test_a_model_without_the_cache(client, deepseek, inputs):
    deepseek.set_attn_implementation("tributary")
    words = "past_key_values=tributary.transformers.TributaryCache"
    with pytest.raises(tributary.FailedPrecondition, match=words):
        deepseek.generate(**inputs, max_new_tokens=2)


def test_the_cache_without_the_attention(client, deepseek, inputs):
    deepseek.set_attn_implementation("sdpa")
    with TributaryCache(client, deepseek.config, 2) as cache:
        with pytest.raises(tributary.FailedPrecondition, match='attn_implementation="tributary"'):
            deepseek.generate(**inputs, max_new_tokens=2, past_key_values=cache)


def test_another_model(client, deepseek):
    for config, words in (
            (transformers.GPT2Config(), "model_type is .*gpt2.*supported: deepseek_v2, .*, qwen3"),
            (transformers.Qwen2Config(num_hidden_layers=2, use_sliding_window=True,
                                      max_window_layers=1, sliding_window=8),
             "sliding_window is '8'")):
        with pytest.raises(tributary.Unsupported, match=words):
            TributaryCache(client, config, 1)
    with pytest.raises(ValueError, match="max_new_tokens -1"):
        TributaryCache(client, deepseek.config, -1)


def test_a_pool_of_another_model(client, deepseek, inputs):
    with pytest.raises(ValueError, match="the pool's layers is 3, the model's 2"):
        through_tier(client, models.make("deepseek_v3", 2), inputs, 2)


def test_another_batch_and_a_crop_that_adds(client, deepseek, inputs):
    deepseek.set_attn_implementation("tributary")
    with TributaryCache(client, deepseek.config, 40) as cache, torch.no_grad():
        deepseek(**inputs, past_key_values=cache)
        with pytest.raises(ValueError, match="a batch of 3: the cache holds 2"):
            deepseek(torch.zeros(3, 1, dtype=torch.long), past_key_values=cache)
        with pytest.raises(ValueError, match=r"crop\(3\)"):
            cache.crop(3)


def test_masks_that_are_not_causal(client, deepseek):
    deepseek.set_attn_implementation("tributary")
    padded = batch(*random_prompts(5, 9))
    with TributaryCache(client, deepseek.config, 8) as cache, torch.no_grad():
        deepseek(**padded, past_key_values=cache)
        token = torch.zeros(2, 1, dtype=torch.long)
        other = torch.ones(2, 10)
        other[1, 3] = 0
        for mask in (None, other):  # padding that is forgotten; a token that turns into padding
            with pytest.raises(tributary.Unsupported, match="attention_mask: "):
                deepseek(token, attention_mask=mask, past_key_values=cache)
        both = torch.cat([padded["attention_mask"], torch.ones(2, 1, dtype=torch.long)], dim=1)
        deepseek(token, attention_mask=both, past_key_values=cache)
        assert [s.length for s in cache.sequences] == [6, 10]
    with TributaryCache(client, deepseek.config, 8) as cache:
        everything = torch.ones(1, 1, 4, 4, dtype=torch.bool)
        with pytest.raises(tributary.Unsupported, match="attention_mask: "):
            deepseek(torch.zeros(1, 4, dtype=torch.long), attention_mask=everything,
                     past_key_values=cache)


def test_a_batch_that_does_not_fit_leaves_nothing(client, deepseek, deepseek_tier, inputs):
    room = 64 * int(deepseek_tier.metric("tributary_pages_capacity"))
    with pytest.raises((tributary.PoolFull, tributary.TooLarge)):
        through_tier(client, deepseek, inputs, room * 2 // 3, max_new_tokens=2)
    deepseek_tier.wait_all_free()


class Stop(transformers.generation.streamers.BaseStreamer):
    """Says when generation is in the middle, and stays there."""

    def __init__(self, told, stay):
        self.told, self.stay, self.tokens = told, stay, 0

    def put(self, value):
        self.tokens += 1
        if self.tokens == 4:
            self.told.set()
            self.stay.wait()

    def end(self):
        pass


def generate_and_stay(url, told, stay):
    model = models.deepseek("v3")
    cache = TributaryCache(tributary.Client(url, timeout=60.0), model.config, 64)
    generate(model, batch(*random_prompts(70)), 64, cache, streamer=Stop(told, stay))


def test_a_client_that_dies_leaves_no_pages(deepseek, tmp_path):
    process = multiprocessing.get_context("spawn")
    with tier_of(deepseek.config, tmp_path, lease_ms=LEASE_MS) as tier:
        told, stay = process.Event(), process.Event()
        child = process.Process(target=generate_and_stay, args=(tier.url, told, stay), daemon=True)
        child.start()
        assert told.wait(120)
        wait_until(lambda: tier.busy_pages() > 0, "its pages are counted")
        child.kill()
        child.join(60)
        tier.wait_all_free()
