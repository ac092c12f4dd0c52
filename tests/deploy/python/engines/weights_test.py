# Random DeepSeek models give their own tokens through pools that have their weights.
import pytest
import transformers

import models
import tributary
from models import assert_same, batch, generate, random_prompts
from tier import Tier
from tributary.transformers import TributaryCache, use_pool_weights


# A pool's own weights rotate adjacent pairs.
@pytest.mark.parametrize("name", [name for name in models.DEEPSEEK if name != "v3-halves"])
def test_its_own_tokens_and_logits(name, tmp_path):
    family, more = models.DEEPSEEK[name]
    model = models.make(family, **more)
    model.save_pretrained(tmp_path)
    cases = [batch(*random_prompts(40)), batch(*random_prompts(5, 70, 1, 33))]
    alone = [generate(model, inputs, 12) for inputs in cases]
    use_pool_weights(model)
    use_pool_weights(model)  # once is enough, twice does no harm
    own_calls = []
    for layer in model.model.layers:
        layer.self_attn.own.register_forward_hook(
            lambda module, inputs, output: own_calls.append(output[0].shape[1]))
    flags = ["--model", tmp_path, "--rows", "f32", "--query", "f32", "--threads", 1]
    with Tier(pools=(1,), worker_flags=flags) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        for inputs, own in zip(cases, alone):
            with TributaryCache(client, model.config, 12) as cache:
                assert_same(own, generate(model, inputs, 12, cache))
        tier.wait_all_free()
    assert own_calls == [40] * 3 + [70] * 3  # prompts alone


def test_a_pool_with_another_epsilon_is_refused(tmp_path):
    """As ports in the style of vLLM have it: the config's rms_norm_eps for the latents too."""
    family, more = models.DEEPSEEK["v3"]
    model = models.make(family, **more)
    model.save_pretrained(tmp_path)
    use_pool_weights(model)
    flags = ["--model", tmp_path, "--latent-norm-eps", "1e-5", "--rows", "f32", "--query", "f32",
             "--threads", 1]
    with Tier(pools=(1,), worker_flags=flags) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        with TributaryCache(client, model.config, 2) as cache:
            with pytest.raises(ValueError, match="latent_norm_eps is 1e-05, the model's 1e-06"):
                generate(model, batch(*random_prompts(9)), 2, cache)
        tier.wait_all_free()


def test_a_model_without_latent_rows_is_refused():
    with pytest.raises(tributary.Unsupported, match="model_type llama: pools with weights"):
        use_pool_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=2)))
