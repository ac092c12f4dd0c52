#!/usr/bin/env python3
# What the next turn of a chat takes in transformers: with the library's own cache, with the cache in
# a tier (rows come back, new ones are pushed), and in the tier by steps of 16 tokens; a random model
# with the attention of DeepSeek-V2-Lite, 4 layers, fp32, turn by turn. In the environment that
# `deploy/test.sh --only engines` makes:
#   build/python/engines/bin/python bench/engine_turns.py [--turns 6] [--tokens 500] [--new-tokens 8]
import argparse
import os
import pathlib
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
import transformers  # noqa: E402

import tributary  # noqa: E402
from engine_speed import ROOT, Tier, processor  # noqa: E402
from tributary.transformers import TributaryCache  # noqa: E402
from vllm_hooks import model_config  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description="turns of a chat with the cache in a tier")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=500, help="that each turn brings")
    parser.add_argument("--new-tokens", type=int, default=8)
    return parser.parse_args()


def answer(model, chat, cache, new_tokens, **more):
    """The new tokens, and the seconds that they took."""
    begin = time.perf_counter()
    ids = torch.tensor([chat])
    result = model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache,
                            max_new_tokens=new_tokens, do_sample=False, eos_token_id=None,
                            pad_token_id=0, **more)
    return result[0, len(chat):].tolist(), time.perf_counter() - begin


def main():
    options = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = model_config()
    model = transformers.DeepseekV2ForCausalLM(config).eval()
    room = options.turns * (options.tokens + options.new_tokens)
    with tempfile.TemporaryDirectory() as name, \
            Tier(options, config, pathlib.Path(name)) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        with TributaryCache(client, config, options.new_tokens) as turns, \
                TributaryCache(client, config, room) as steps:
            ways = {"the library's cache": ("sdpa", transformers.DynamicCache(config=config), {}),
                    "the tier": ("tributary", turns, {}),
                    "the tier, by 16": ("tributary", steps, {"prefill_chunk_size": 16})}
            print(f"{processor()}; {options.tokens} tokens a turn, {options.new_tokens} new ones")
            print(f"{'turn':>5}" + "".join(f"{way:>22}" for way in ways))
            chat = []
            for turn in range(options.turns):
                chat += torch.randint(3, config.vocab_size, (options.tokens,)).tolist()
                answers = {}
                for way, (attention, cache, more) in ways.items():
                    model.set_attn_implementation(attention)
                    answers[way] = answer(model, chat, cache, options.new_tokens, **more)
                own = answers["the library's cache"][0]
                cells = [f"{1e3 * seconds:>19,.0f} ms" + ("" if tokens == own else " (!)")
                         for tokens, seconds in answers.values()]
                print(f"{turn + 1:>5}" + "".join(cells), flush=True)
                chat += own


if __name__ == "__main__":
    main()
