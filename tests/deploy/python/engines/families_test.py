# Models as they are published: the keys about attention of the files in tests/data/cases, few layers that
# are small in all else. Where a pool takes weights, its attention beside the model's own module in
# float64; of all, tokens and logits with the cache in a tier.
import copy
import json
import pathlib

import numpy
import pytest
import torch
import transformers

import tributary
from models import assert_same, batch, generate, random_prompts, through_tier, tier_of
from tier import Tier

CASES = pathlib.Path(__file__).parents[3] / "data/cases/models"
SMALL = dict(vocab_size=512, hidden_size=640, intermediate_size=256, moe_intermediate_size=64,
             num_hidden_layers=2, num_layers=2, ffn_hidden_size=256, expert_ffn_hidden_size=64,
             n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, moe_topk=2,
             zero_expert_num=1, n_group=1, topk_group=1, first_k_dense_replace=1,
             tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2)
# Keys that no file has: of DeepSeek-V2-Lite's and Mistral 4's config.json.
KEYS = {
    "deepseek-v2-lite": dict(
        model_type="deepseek_v2", num_attention_heads=16, num_key_value_heads=16, kv_lora_rank=512,
        q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        rope_theta=10000, max_position_embeddings=163840, rms_norm_eps=1e-6,
        rope_scaling=dict(type="yarn", factor=40, beta_fast=32, beta_slow=1, mscale=0.707,
                          mscale_all_dim=0.707, original_max_position_embeddings=4096)),
    "mistral4": dict(
        model_type="mistral4", num_attention_heads=32, num_key_value_heads=32, kv_lora_rank=256,
        q_lora_rank=1024, qk_nope_head_dim=64, qk_rope_head_dim=64, v_head_dim=128,
        max_position_embeddings=1048576),
}
WITH_WEIGHTS = ["deepseek-v2-lite", "v3-infinity", "kimi-k2.5",
                "glm-4.7-flash", "youtu-llm-2b"]
WITHOUT = ["minicpm3-4b", "longcat-flash-yarn", "mistral4"]


def make(name):
    keys = KEYS.get(name) or json.loads((CASES / f"{name}.json").read_text())
    keys = {**keys.get("text_config", keys), **SMALL}
    for key in "architectures", "torch_dtype", "quantization_config", "swiglu_limit":
        keys.pop(key, None)
    family = {"kimi_k2": "deepseek_v3"}.get(keys["model_type"], keys.pop("model_type"))
    keys.pop("model_type", None)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(family, **keys)
    if family == "mistral4":  # which transformers' Auto class does not list
        return transformers.Mistral4ForCausalLM(config).eval()
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def own_attention(model, hidden):
    """Of all layers, each of [T, hidden_size]: float64, causal."""
    model = copy.deepcopy(model).double()
    model.set_attn_implementation("eager")
    tokens = len(hidden)
    states = torch.from_numpy(hidden).double()[None]
    rotation = model.model.rotary_emb(states, torch.arange(tokens)[None])
    mask = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        return [layer.self_attn(hidden_states=states, position_embeddings=rotation,
                                attention_mask=mask)[0][0].numpy() for layer in model.model.layers]


@pytest.mark.parametrize("name", WITH_WEIGHTS)
def test_attention_by_a_pools_weights_is_the_modules_in_float64(name, tmp_path, rng):
    model = make(name)
    model.save_pretrained(tmp_path)
    tokens = 40
    hidden = rng.standard_normal((tokens, model.config.hidden_size), numpy.float32)
    expected = own_attention(model, hidden)
    flags = ["--model", tmp_path, "--rows", "f32", "--query", "f32", "--threads", 1]
    with Tier(pools=(2,), worker_flags=flags) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        got = [[] for _ in expected]
        with client.admit(0, tokens) as sequence:
            for token in range(tokens):
                with client.step([sequence]) as step:
                    for layer, outputs in enumerate(got):
                        outputs.append(step.forward(layer, hidden[token:token + 1]))
        tier.wait_all_free()
    for layer, outputs in enumerate(got):
        error = numpy.concatenate(outputs) - expected[layer]
        relative = numpy.linalg.norm(error) / numpy.linalg.norm(expected[layer])
        print(f"{name}, layer {layer}: {relative:.2e}")
        assert relative < 1e-6, layer


@pytest.mark.parametrize("name", WITH_WEIGHTS + WITHOUT)
def test_its_own_tokens(name, tmp_path):
    model = make(name)
    inputs = batch(*random_prompts(70, 5, 33))
    alone = generate(model, inputs, 12)
    with tier_of(model.config, tmp_path) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        assert_same(alone, through_tier(client, model, inputs, 12))
        tier.wait_all_free()
