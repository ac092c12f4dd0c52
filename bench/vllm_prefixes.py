#!/usr/bin/env python3
# What prompts that begin alike gain in vLLM: the time to the first new token of a prompt of which a
# tier has 90% of the rows, beside one of the same length that nobody has seen, in turns; a random
# model with the attention of DeepSeek-V2-Lite, 4 layers, fp32. In the environment that
# `deploy/test.sh --only vllm` makes:
#   build/python/vllm/bin/python bench/vllm_prefixes.py [--tokens 4000] [--share 0.9] [--turns 7]
import argparse
import pathlib
import random
import statistics
import tempfile
import time

import vllm_hooks
from engine_speed import ROOT, Tier, processor


def arguments():
    parser = argparse.ArgumentParser(description="time to the first token of shared prompts in vLLM")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4000, help="of a prompt")
    parser.add_argument("--share", type=float, default=0.9, help="of them that the tier has")
    parser.add_argument("--turns", type=int, default=7)
    return parser.parse_args()


def first_token(llm, prompt):
    """Seconds, and how many tokens were not computed."""
    from vllm import SamplingParams
    begin = time.perf_counter()
    done, = llm.generate([{"prompt_token_ids": prompt}],
                         SamplingParams(temperature=0.0, max_tokens=1), use_tqdm=False)
    return time.perf_counter() - begin, done.num_cached_tokens


def main():
    options = arguments()
    config = vllm_hooks.model_config()
    draw = random.Random(1)
    shared = int(options.tokens * options.share)

    def tokens(count):
        return [draw.randrange(3, config.vocab_size) for _ in range(count)]
    with tempfile.TemporaryDirectory() as name, \
            Tier(options, config, pathlib.Path(name)) as tier:
        llm = vllm_hooks.make_llm(config, pathlib.Path(name) / "model", tier)
        first_token(llm, tokens(300))
        known, unknown = [], []
        for _ in range(options.turns):
            begin = tokens(shared)
            first_token(llm, begin)
            known.append(first_token(llm, begin + tokens(options.tokens - shared)))
            unknown.append(first_token(llm, tokens(options.tokens)))
        with_it, without = (statistics.median(seconds for seconds, _ in times)
                            for times in (known, unknown))
        print(f"{processor()}; {options.turns} turns of {options.tokens} tokens, medians\n"
              f"{known[0][1]} tokens are there: {1e3 * with_it:,.0f} ms to the first one\n"
              f"{unknown[0][1]} tokens are there: {1e3 * without:,.0f} ms\n"
              f"{without / with_it:.2f} times as fast")


if __name__ == "__main__":
    main()
