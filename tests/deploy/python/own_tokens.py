#!/usr/bin/env python3
# Writes the tokens that SmolLM2 generates with its cache in its own process, beside the prompts:
#   python3 tests/deploy/python/own_tokens.py
# `margins` are the smallest differences between a prompt's best two logits: what a change of
# rounding would have to exceed to change a token.
import json
import os
import pathlib

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402

from tributary.runner import Llama, LocalCache, make_tokenizer, smollm2_path  # noqa: E402

FILE = pathlib.Path(__file__).with_name("smollm2.json")
NEW_TOKENS = 64


def generate(model, prompt):
    cache, tokens, length = LocalCache(model), prompt, 0
    generated, margin = [], np.inf
    while len(generated) < NEW_TOKENS:
        logits = model.forward([tokens], [length], cache.attend)[0]
        second, first = np.partition(logits, -2)[-2:]
        margin = min(margin, float(first - second))
        length += len(tokens)
        tokens = [int(logits.argmax())]
        generated += tokens
    return generated, round(margin, 4)


def main():
    cases = json.loads(FILE.read_text())
    model = Llama(smollm2_path())
    tokenizer = make_tokenizer(model)
    for case in cases:
        prompt = tokenizer.encode(case["prompt"]).ids
        case["prompt_tokens"] = len(prompt)
        case["tokens"], case["margin"] = generate(model, prompt)
        print(len(prompt), case["margin"], repr(tokenizer.decode(case["tokens"])))
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    FILE.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
