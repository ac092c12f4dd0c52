# Absorbed MLA decode in PyTorch, bf16 through oneDNN: the peer of bench/cpu_limits.
#
# Reads lines `heads length threads repetitions sequences` and answers each with the seconds of one
# call, for the faster of two forms: all rows of the cache at once, or 4096 at a time. Both fold heads
# into rows; the sequences of a batch have rows of their own, one after the other. Prints
# `ready VERSION` first and exits at the end of its input.
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


def seconds(form, batch, repetitions):
    best = float("inf")
    for repetition in range(repetitions + 1):
        start = time.perf_counter()
        for query, cache in batch:
            form(query, cache)
        if repetition > 0:
            best = min(best, time.perf_counter() - start)
    return best


def version():
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    one_dnn = [part.strip() for part in torch.__config__.show().splitlines() if "MKL-DNN" in part]
    return f"PyTorch {torch.__version__}, {' '.join(one_dnn)[:100]}, {capability}"


def main():
    torch.manual_seed(1)
    print("ready", version(), flush=True)
    cases = {}
    for line in sys.stdin:
        heads, length, threads, repetitions, sequences = map(int, line.split())
        torch.set_num_threads(threads)
        if (heads, length, sequences) not in cases:
            cases.clear()
            cases[heads, length, sequences] = [(torch.randn(heads, RANK + ROPE).bfloat16(),
                                                torch.randn(length, RANK + ROPE).bfloat16())
                                               for _ in range(sequences)]
        batch = cases[heads, length, sequences]
        with torch.no_grad():
            print(min(seconds(form, batch, repetitions) for form in (whole, blocked)), flush=True)


if __name__ == "__main__":
    main()
