# Random DeepSeek-V3.2 and GLM-5 models, whose tokens attend to the rows that their indexer selects,
# give their own tokens with their caches in a tier, and the same bits through any number of workers.
import contextlib

import pytest
import torch

import models
import tributary
from models import assert_same, batch, generate, random_prompts, through_tier, tier_of
from tributary.transformers import TributaryCache

NEW = 64


@pytest.fixture(scope="module", params=models.SPARSE)
def model(request):
    return models.deepseek(request.param)


@pytest.fixture(scope="module")
def clients(model, tmp_path_factory):
    """Of tiers of 1, 2 and 4 workers, in leaves of a page, so that sequences spread."""
    with contextlib.ExitStack() as stack:
        tiers = [stack.enter_context(tier_of(model.config, tmp_path_factory.mktemp("shape"), workers,
                                             ["--leaf-tokens", 64])) for workers in (1, 2, 4)]
        yield [tributary.Client(tier.url, timeout=60.0) for tier in tiers]
        for tier in tiers:
            tier.wait_all_free()


def test_its_own_tokens_and_the_same_bits_for_any_number_of_workers(model, clients):
    for prompts in (random_prompts(200), random_prompts(5, 70, 33, 128, 64, 23)):
        inputs = batch(*prompts)
        alone = generate(model, inputs, NEW)
        results = [through_tier(client, model, inputs, NEW) for client in clients]
        assert_same(alone, results[0])
        assert len(set(alone[0][0].tolist())) > 4  # of a model that has something to say
        for tokens, logits in results[1:]:
            assert torch.equal(tokens, results[0][0])
            assert torch.equal(logits, results[0][1])


def test_rows_that_are_not_selected_decide_nothing(model, clients):
    """The selection matters: with all rows the model says something else."""
    inputs = batch(*random_prompts(200))
    alone = generate(model, inputs, 16)
    config = model.config
    try:
        config.index_topk = 1 << 16
        for layer in model.get_decoder().layers:
            if layer.self_attn.indexer is not None:
                layer.self_attn.indexer.index_topk = 1 << 16
        dense = generate(model, inputs, 16)
    finally:
        config.index_topk = models.INDEXER["index_topk"]
        for layer in model.get_decoder().layers:
            if layer.self_attn.indexer is not None:
                layer.self_attn.indexer.index_topk = models.INDEXER["index_topk"]
    assert (alone[1] - dense[1]).abs().max() > 1e-2


def test_speculation_and_what_was_not_accepted(model, clients):
    inputs = batch(*random_prompts(70))
    alone = generate(model, inputs, 24)
    with TributaryCache(clients[1], model.config, 40, spread="all") as cache:
        tier = generate(model, inputs, 24, cache, prompt_lookup_num_tokens=4)
    assert alone[0].tolist() == tier[0].tolist()


def test_a_pass_that_is_given_up_leaves_no_keys_of_the_indexer(model, clients):
    prompt = batch(*random_prompts(70))
    model.set_attn_implementation("tributary")
    with TributaryCache(clients[1], model.config, 8, spread="all") as cache, torch.no_grad():
        model(**prompt, past_key_values=cache)
        token = torch.tensor([[7]])
        first = model(input_ids=token, past_key_values=cache).logits
        cache.crop(-1)
        hook = model.get_decoder().layers[-1].register_forward_pre_hook(_interrupt)
        with pytest.raises(KeyboardInterrupt):
            model(input_ids=token, past_key_values=cache)
        hook.remove()
        assert torch.equal(model(input_ids=token, past_key_values=cache).logits, first)


def _interrupt(*unused):
    raise KeyboardInterrupt


def test_a_dense_pool_is_refused(model, tmp_path):
    with tier_of(model.config, tmp_path, 1, ["--topk", 0]) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        with pytest.raises(ValueError, match="topk is 0, the model's 24"):
            through_tier(client, model, batch(*random_prompts(5)), 2)
        tier.wait_all_free()
