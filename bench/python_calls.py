#!/usr/bin/env python3
# The measurements of bench/python_calls.sh: calls of the Python package in turns with the same ones
# of bench/python_peer.cc. Medians; a ratio and a difference are of the medians of neighbouring turns.
# Beside the time of a call: the processor time of the calling thread, which other programs on the
# machine disturb less.
import argparse
import math
import os
import pathlib
import re
import statistics
import subprocess
import time

import numpy
import tributary
from service import Tier
from tributary import _core

PEER = os.environ.get("TRIBUTARY_PYTHON_PEER", "build/release/bench/python_peer")


class Peer:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([PEER, *map(str, arguments)], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise SystemExit("the peer did not start")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.wait(20)

    def medians(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        pairs = [pair.split(":") for pair in self.process.stdout.readline().split()]
        return [statistics.median(map(float, times)) for times in zip(*pairs)]


def medians(call, seconds, before=lambda: None):
    """Time of a call, and the thread's, in microseconds; `before` is called before each."""
    end = time.perf_counter() + seconds
    times = []
    call()
    while not times or time.perf_counter() < end:
        before()
        used, start = time.thread_time_ns(), time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - start, time.thread_time_ns() - used))
    return [statistics.median(column) / 1e3 for column in zip(*times)]


def compare(name, call, peer, options):
    """Turns of both, in either order."""
    ours, theirs = [], []
    for turn in range(options.turns + 1):
        for which in ((0, 1) if turn % 2 else (1, 0)):
            if which:
                ours.append(medians(call, options.seconds))
            else:
                theirs.append(peer.medians(options.seconds))
    line = f"{name:<44}"
    for ours_us, theirs_us in zip(zip(*ours[1:]), zip(*theirs[1:])):  # the first turn warms up
        ratio = statistics.median(a / b for a, b in zip(ours_us, theirs_us))
        more = statistics.median(a - b for a, b in zip(ours_us, theirs_us))
        line += (f"{statistics.median(theirs_us):>11.1f}{statistics.median(ours_us):>11.1f}"
                 f"{ratio:>8.3f}{more:>9.1f}")
    print(line, flush=True)


def noise(rng, *shape):
    """bf16 as its bits, from a multiple of 64 bytes on, as torch's arrays are."""
    values = (rng.standard_normal(1 << 16, numpy.float32) / 10).view(numpy.uint32) >> 16
    count = math.prod(shape)
    memory = numpy.empty(2 * count + 64, numpy.uint8)
    begin = -memory.ctypes.data % 64
    array = memory[begin:begin + 2 * count].view(numpy.uint16).reshape(shape)
    array[...] = numpy.resize(values.astype(numpy.uint16), shape)
    return array


def attend(options):
    rng = numpy.random.default_rng(1)
    for heads, length, tokens in ((128, 1024, 1), (128, 4096, 1), (128, 4096, 2), (16, 4096, 1),
                                  (16, 32768, 1)):
        for threads in (1, 2):
            blocks = -(-length // 64)
            q = noise(rng, 1, tokens, heads, 576)
            k_cache = noise(rng, blocks, 64, 1, 576)
            table = rng.permutation(blocks).astype(numpy.int32)[None]
            lengths = numpy.array([length], numpy.int32)
            metadata = tributary.get_mla_metadata()
            with Peer("attend", "--heads", heads, "--length", length, "--tokens", tokens,
                      "--threads", threads) as peer:
                compare(f"attend: {heads} heads, {length} rows, s_q {tokens}, {threads} threads",
                        lambda: tributary.flash_mla_with_kvcache(
                            q, k_cache, table, lengths, 512, *metadata, causal=True,
                            threads=threads), peer, options)


def layer(options):
    with Tier(options.shape, "tcp") as tier:
        client = tributary.Client(tier.url)
        with Peer("layer", "--service", tier.url) as peer, client.admit(63, 1) as sequence:
            shape = sequence.shape
            kind = numpy.float32 if shape.query_dtype == "f32" else numpy.uint16
            query = numpy.zeros((1, shape.heads, shape.latent_dim), kind)
            rows = numpy.zeros((63, shape.latent_dim),
                               numpy.float32 if shape.row_format == "f32" else numpy.uint16)
            for index in range(shape.layers):
                sequence.push(index, 0, rows)
            sequence.wait_ready()
            row = rows[:1].copy()
            out = numpy.empty((1, shape.heads * (shape.kv_lora_rank + 1)), numpy.float32)
            # The cost of measuring in Python, with caches as cold as a layer's wait leaves them.
            took, used = medians(lambda: None, options.seconds, lambda: time.sleep(0.001))
            print(f"{'nothing, after a wait of 1 ms':<44}{took:>22.1f}{used:>39.1f}", flush=True)
            step = client.step([sequence])
            compare(f"layer: {options.shape}", lambda: step.attend(0, query, row), peer, options)
            compare(f"layer: {options.shape}, into `out`",
                    lambda: step.attend(0, query, row, out), peer, options)
            step.abort()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn of one half")
    parser.add_argument("--shape", default="deepseek-v3", help="of the tier")
    parser.add_argument("--only", choices=["attend", "layer"])
    options = parser.parse_args()
    model = re.search(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    print(f"{model[1] if model else 'unknown processor'}; kernels {_core.kernels(1)}")
    print(f"{'':<44}" + "".join(f"{what:>22}{'ratio':>8}{'more':>9}" for what in (
        "C++, Python us", "of the calling thread")))
    if options.only != "layer":
        attend(options)
    if options.only != "attend":
        layer(options)


if __name__ == "__main__":
    main()
