# Small random models of transformers' DeepSeek families, tiers for a model, and generation by a
# model alone and through a tier.
import functools

import torch
import transformers

from tier import Tier
from tributary.transformers import TributaryCache

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
# transformers' V3 rotates adjacent pairs (as published weights have them) or halves, and stores
# halves; its V2 rotates and stores adjacent pairs.
DEEPSEEK = {
    "v3": ("deepseek_v3", {}),
    "v3-halves": ("deepseek_v3", {"rope_interleave": False}),
    "v3-no-q-lora": ("deepseek_v3", {"q_lora_rank": None}),
    "v3-yarn": ("deepseek_v3", {"rope_parameters": YARN}),
    "v2": ("deepseek_v2", {}),
    "v2-no-q-lora": ("deepseek_v2", {"q_lora_rank": None}),
    "v2-yarn": ("deepseek_v2", {"rope_parameters": YARN}),
}


# Their tokens attend to 24 rows that an indexer selects: of as many heads as published models have,
# since with 4 torch.topk itself breaks ties by chance. GLM's shared layers reuse the last selection.
INDEXER = {"index_topk": 24, "index_n_heads": 32, "index_head_dim": 32}
SPARSE = {
    "v3.2": ("deepseek_v32", INDEXER),
    "v3.2-yarn": ("deepseek_v32", {**INDEXER, "rope_parameters": YARN}),
    "glm": ("glm_moe_dsa", {**INDEXER, "indexer_types": ["full", "shared", "full", "shared"],
                            "layers": 4}),
}


@functools.cache
def deepseek(name):
    family, more = {**DEEPSEEK, **SPARSE}[name]
    return make(family, **more)


def make(model_type, layers=3, **more):
    """With weights of such a size that attention decides about tokens."""
    family = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3",
              "deepseek_v32": "DeepseekV32", "glm_moe_dsa": "GlmMoeDsa"}[model_type]
    options = dict(
        vocab_size=512, hidden_size=128, intermediate_size=256, moe_intermediate_size=64,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=4,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1,
        first_k_dense_replace=2, kv_lora_rank=64, q_lora_rank=48, qk_rope_head_dim=16,
        qk_nope_head_dim=32, v_head_dim=32, max_position_embeddings=2560, initializer_range=0.15,
        bos_token_id=0, eos_token_id=1, pad_token_id=2)
    config = getattr(transformers, f"{family}Config")(**{**options, **more})
    torch.manual_seed(layers)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def tier_of(config, folder, workers=2, flags=(), **more):
    """A tier of fp32 rows and queries for a model's configuration, which it reads itself."""
    path = folder / "config.json"
    config.to_json_file(path, use_diff=False)
    # One thread each: torch computes beside them.
    return Tier(pools=(workers,), worker_flags=["--shape", path, "--rows", "f32", "--query", "f32",
                                                "--threads", 1, "--kv-gib", 0.2, *flags], **more)


def batch(*prompts, pad=2):
    """Prompts of different lengths, padded on the left."""
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return {"input_ids": ids, "attention_mask": mask}


def random_prompts(*lengths, vocabulary=512, seed=17):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocabulary, (n,), generator=generator).tolist() for n in lengths]


def generate(model, inputs, new_tokens, cache=None, **options):
    """Tokens [B, new] and logits [new, B, vocabulary]; greedy, and to the end, unless the options
    say otherwise."""
    model.set_attn_implementation("sdpa" if cache is None else "tributary")
    torch.manual_seed(0)
    result = model.generate(
        **inputs, past_key_values=cache, return_dict_in_generate=True, output_logits=True,
        **{"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None,
           "pad_token_id": 2, **options})
    return result.sequences[:, inputs["input_ids"].shape[1]:], torch.stack(result.logits)


def through_tier(client, model, inputs, new_tokens, seen=None, **options):
    """The same with its cache in a tier; `seen` is called with the cache at the end."""
    with TributaryCache(client, model.config, new_tokens, spread="all") as cache:
        result = generate(model, inputs, new_tokens, cache, **options)
        if seen:
            seen(cache)
    return result


def assert_same(alone, tier):
    """Tokens, and logits up to rounding: fp32 sums in another order."""
    assert alone[0].tolist() == tier[0].tolist()
    difference = (alone[1] - tier[1]).abs().max().item()
    assert difference < 1e-4, difference
