# Random DeepSeek V2 and V3 models give their own tokens with their caches in a tier.
from models import assert_same, batch, generate, random_prompts, through_tier


def test_its_own_tokens_and_logits(client, deepseek):
    for prompt in random_prompts(1, 37, 200):
        alone = generate(deepseek, batch(prompt), 24)
        assert_same(alone, through_tier(client, deepseek, batch(prompt), 24))
        assert len(set(alone[0][0].tolist())) > 4  # of a model that has something to say


def test_a_batch_of_prompts_of_different_lengths(client, deepseek):
    tokens = (5, 70, 1, 33, 128, 64, 65, 12)
    inputs = batch(*random_prompts(*tokens))
    alone = generate(deepseek, inputs, 16)

    def lengths(cache):
        # Padding is not in the tier, nor is the row of the newest token.
        assert [s.length for s in cache.sequences] == [n + 15 for n in tokens]

    assert_same(alone, through_tier(client, deepseek, inputs, 16, lengths))
