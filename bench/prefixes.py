#!/usr/bin/env python3
# What named blocks cost an admission, and what a prefix that is there saves, in a pool of one worker
# in this process, with short rows (48 bytes, one layer). Medians, the kinds in turns. With the package
# installed:
#   bench/prefixes.py [--blocks 100000] [--rounds 300]
import argparse
import contextlib
import pathlib
import re
import statistics
import time

import numpy

import tributary

SHAPE = {"heads": 1, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "layers": 1, "softmax_scale": 0.2}
BLOCK = 64  # tokens
LONG = 32_768  # tokens of a prefix that is there
KEYS = 64  # of an admission


def arguments():
    parser = argparse.ArgumentParser(description="admissions with and without named blocks")
    parser.add_argument("--blocks", type=int, default=100_000, help="that are named")
    parser.add_argument("--rounds", type=int, default=300, help="of admissions, in turns")
    parser.add_argument("--url", help="of a tier of one worker with such rows, instead: tributary up "
                        "--workers 1 --shape FILE --kv-gib 0.3")
    return parser.parse_args()


def key(text, block):
    return f"{text:8}{block:8}".encode()


def prefix(text, tokens):
    return tributary.Prefix(BLOCK, [key(text, i) for i in range(tokens // BLOCK)])


def fill(pool, text, tokens):
    """Names as many blocks, which are idle then."""
    with pool.admit(tokens, 0, prefix=prefix(text, tokens)) as sequence:
        rows = numpy.ones((tokens - sequence.present_tokens, 24), numpy.uint16)
        sequence.push(0, sequence.present_tokens, rows)
        sequence.wait_ready()


def admission(pool, tokens, names):
    """Seconds from the call to a sequence that may decode, of what need not be pushed; or to its answer."""
    begin = time.perf_counter()
    sequence = pool.admit(tokens, 1, prefix=names)
    if sequence.present_tokens == tokens:
        sequence.wait_ready()
    took = time.perf_counter() - begin
    sequence.free()
    return took, sequence.present_tokens


def push(pool, tokens):
    """The same of a prompt that has to be pushed, its rows at hand."""
    rows = numpy.ones((tokens, 24), numpy.uint16)
    begin = time.perf_counter()
    with pool.admit(tokens, 1) as sequence:
        sequence.push(0, 0, rows)
        sequence.wait_ready()
        return time.perf_counter() - begin


def measure(pool, rounds):
    cold = prefix("nobody's", KEYS * BLOCK)
    there = prefix("long", LONG)
    kinds = {"without a prefix": lambda: admission(pool, KEYS * BLOCK, None),
             f"{KEYS} blocks, none there": lambda: admission(pool, KEYS * BLOCK, cold),
             f"{LONG} tokens without one": lambda: admission(pool, LONG, None),
             f"{LONG // BLOCK} blocks, all there": lambda: admission(pool, LONG, there)}
    times = {name: [] for name in kinds}
    present = {}
    for _ in range(rounds):
        for name, run in kinds.items():
            took, present[name] = run()
            times[name].append(took)
    return {name: (statistics.median(all_times), present[name]) for name, all_times in times.items()}


def main():
    options = arguments()
    processor = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    print(f"{processor[1] if processor else 'unknown processor'}; blocks of {BLOCK} tokens, "
          f"{options.rounds} rounds")
    each = 1000  # blocks of a sequence that is filled
    pages = options.blocks + LONG // BLOCK + 4 * KEYS + 2 * LONG // BLOCK
    with contextlib.ExitStack() as stack:
        pool = tributary.Client(options.url) if options.url else stack.enter_context(
            tributary.Pool(1, shape=tributary.ModelShape(SHAPE), kv_gib=pages * BLOCK * 48 / 2**30))
        fill(pool, "long", LONG)
        before = measure(pool, options.rounds)
        for i in range(options.blocks // each):
            fill(pool, f"of {i}", each * BLOCK)
        after = measure(pool, options.rounds)
        pushed = statistics.median(push(pool, LONG) for _ in range(20))
    print(f"{'':24}{'few named':>12}{f'{options.blocks} named':>16}{'ratio':>8}{'present':>9}")
    for name, (seconds, _) in before.items():
        later, present = after[name]
        print(f"{name:24}{seconds * 1e6:>9.0f} us{later * 1e6:>13.0f} us{later / seconds:>8.2f}{present:>9}")
    print(f"{LONG} tokens pushed: {pushed * 1e6:.0f} us of rows of 48 bytes")


if __name__ == "__main__":
    main()
