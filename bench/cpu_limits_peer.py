# Absorbed MLA decode in PyTorch, bf16 through oneDNN: the peer of bench/cpu_limits.
#
# Reads lines `heads length threads repetitions` and answers each with the seconds of one call, for
# the faster of two forms: all rows of the cache at once, or 4096 at a time. Both fold heads into rows.
# Prints `ready` first and exits at the end of its input.
import sys
import time

import torch

RANK, ROPE = 512, 64
SCALE = 0.0417


def whole(query, cache):
    scores = (query @ cache.T).float() * SCALE
    lse = torch.logsumexp(scores, dim=-1)
    return torch.softmax(scores, dim=-1).bfloat16() @ cache[:, :RANK], lse


def blocked(query, cache, block=4096):
    maximum = torch.full((query.shape[0], 1), float("-inf"))
    total = torch.zeros_like(maximum)
    out = torch.zeros(query.shape[0], RANK)
    for begin in range(0, cache.shape[0], block):
        rows = cache[begin:begin + block]
        scores = (query @ rows.T).float() * SCALE
        top = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True))
        weights = torch.exp(scores - top)
        factor = torch.exp(maximum - top)
        total = total * factor + weights.sum(dim=-1, keepdim=True)
        out = out * factor + (weights.bfloat16() @ rows[:, :RANK]).float()
        maximum = top
    return out / total, (maximum + torch.log(total)).squeeze(-1)


def seconds(form, query, cache, repetitions):
    form(query, cache)
    best = float("inf")
    for _ in range(repetitions):
        start = time.perf_counter()
        form(query, cache)
        best = min(best, time.perf_counter() - start)
    return best


def main():
    torch.manual_seed(1)
    print("ready", flush=True)
    cases = {}
    for line in sys.stdin:
        heads, length, threads, repetitions = map(int, line.split())
        torch.set_num_threads(threads)
        if (heads, length) not in cases:
            cases[heads, length] = (torch.randn(heads, RANK + ROPE).bfloat16(),
                                    torch.randn(length, RANK + ROPE).bfloat16())
        query, cache = cases[heads, length]
        with torch.no_grad():
            print(min(seconds(form, query, cache, repetitions) for form in (whole, blocked)),
                  flush=True)


if __name__ == "__main__":
    main()
