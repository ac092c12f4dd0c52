#!/usr/bin/env python3
# Tokens a second of transformers, alone and with its cache in a tier on this machine: SmolLM2-135M,
# decode steps without the prompts, the median of 3 runs. In the environment that
# `deploy/test.sh --only engines` makes:
#   build/python/engines/bin/python bench/engine_speed.py [--workers 2] [--batch 1,8]
import argparse
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
ROOT = pathlib.Path(__file__).resolve().parents[1]
START_LIMIT_S = 90


def arguments():
    parser = argparse.ArgumentParser(description="tokens a second of transformers, alone and "
                                     "through a tier")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of torch")
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args()


def processor():
    text = pathlib.Path("/proc/cpuinfo").read_text()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return f"{found[1] if found else 'unknown'}, {os.cpu_count()} cores"


class Tier:
    """`tributary up` for the length of a block; its URL."""

    def __init__(self, options, config, folder, rows="f32", kv_gib=1, cores=()):
        shape, self.log = folder / "config.json", folder / "up.log"
        config.to_json_file(shape, use_diff=False)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = "127.0.0.1:%d" % probe.getsockname()[1]
        self.url = f"http://{listen}"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*(["taskset", "-c", ",".join(map(str, cores))] if cores else []), options.program,
                 "up", "--listen", listen, "--workers", str(options.workers), "--shape", shape,
                 "--rows", rows, "--query", rows, "--kv-gib", str(kv_gib)],
                stdout=log, stderr=log)

    def __enter__(self):
        end = time.monotonic() + START_LIMIT_S
        while "ready with" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                sys.exit(f"engine_speed: no tier:\n{self.log.read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, *raised):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


def decode_rate(model, ids, new_tokens, cache):
    """Tokens a second from the first new token to the last."""
    import torch
    import transformers

    class Clock(transformers.StoppingCriteria):
        def __init__(self):
            self.times = []

        def __call__(self, input_ids, scores, **options):
            self.times.append(time.perf_counter())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    clock = Clock()
    model.set_attn_implementation("tributary" if cache else "sdpa")
    model.generate(ids, past_key_values=cache, max_new_tokens=new_tokens, do_sample=False,
                   eos_token_id=None, attention_mask=torch.ones_like(ids),
                   stopping_criteria=transformers.StoppingCriteriaList([clock]))
    return len(ids) * (new_tokens - 1) / (clock.times[-1] - clock.times[0])


def main():
    options = arguments()
    import torch
    import transformers

    import tributary
    from tributary.runner import smollm2_path
    from tributary.transformers import TributaryCache

    torch.set_num_threads(options.threads)
    transformers.logging.disable_progress_bar()
    path = smollm2_path()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    print(f"{processor()}; SmolLM2-135M fp32, {options.context} tokens of context, "
          f"{options.new_tokens} new; torch {torch.__version__} on {options.threads} threads, "
          f"tier of {options.workers} workers beside it")
    with tempfile.TemporaryDirectory() as folder, \
            Tier(options, model.config, pathlib.Path(folder)) as tier:
        client = tributary.Client(tier.url, timeout=60)
        for batch in map(int, options.batch.split(",")):
            torch.manual_seed(batch)
            ids = torch.randint(3, model.config.vocab_size, (batch, options.context))
            alone, through = [], []
            for _ in range(options.runs):
                alone.append(decode_rate(model, ids, options.new_tokens, None))
                with TributaryCache(client, model.config, options.new_tokens) as cache:
                    through.append(decode_rate(model, ids, options.new_tokens, cache))
            print(f"batch {batch}: alone {statistics.median(alone):.1f} tokens/s, "
                  f"through the tier {statistics.median(through):.1f}")


if __name__ == "__main__":
    main()
