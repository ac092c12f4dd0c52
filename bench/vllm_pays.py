#!/usr/bin/env python3
# When a tier on CPUs pays: vLLM alone, vLLM with a tier on the same cores, and vLLM on one core with
# a tier on the other; a random model with the attention of DeepSeek-V2-Lite, 4 layers. The three
# take turns with each case: time to the first token (median of the requests, which come together),
# tokens a second while all decode, CPU seconds of everything. In the environment that
# `deploy/test.sh --only vllm` makes:
#   build/python/vllm/bin/python bench/vllm_pays.py [--dtype bfloat16] [--cases 1x256,8x256,1x4000]
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import vllm_hooks
from engine_speed import ROOT, Tier, processor

ROWS = {"float32": "f32", "bfloat16": "bf16"}
ENGINES = {  # by what a column says: vLLM's cores, the tier's
    "alone": ((0, 1), None), "same cores": ((0, 1), (0, 1)), "a core each": ((0,), (1,))}


def arguments():
    parser = argparse.ArgumentParser(description="vLLM alone and through a tier, on two cores")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--dtype", choices=ROWS, default="bfloat16")
    parser.add_argument("--cases", default="1x256,8x256,32x256,1x4000,8x4000,1x16000",
                        help="requests x tokens of each one's prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3, help="of cases with up to 4,000 tokens")
    parser.add_argument("--engine", help="(of this script itself) a folder with model and URL")
    return parser.parse_args()


class Engine:
    """A process with vLLM; run() computes a case in it."""

    def __init__(self, options, model, cores, tier):
        self.tier = tier
        environment = dict(os.environ, OMP_NUM_THREADS=str(len(cores)))
        work = json.dumps([str(model), tier and tier.url])
        self.process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "--dtype",
             options.dtype, "--new-tokens", str(options.new_tokens), "--engine", work],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, requests, tokens):
        before = cpu_seconds(self.tier.process.pid) if self.tier else 0
        self.process.stdin.write(f"{requests} {tokens}\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("case "):
            if not line:
                sys.exit("vllm_pays: an engine has ended")
        first, rate, cpu = map(float, line.split()[1:])
        return first, rate, cpu + (cpu_seconds(self.tier.process.pid) - before if self.tier else 0)


def cpu_seconds(pid):
    """Of a process and all below it."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return 0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(cpu_seconds, below))


def serve_cases(options):
    from vllm import LLM, SamplingParams
    model, url = json.loads(options.engine)
    tier = {"attention_backend": "CPU_MLA", "kv_cache_memory_bytes": 64 << 20,
            "kv_transfer_config": {
                "kv_connector": "TributaryConnector", "kv_role": "kv_both",
                "kv_connector_module_path": "tributary.vllm",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"url": url, "timeout": 60}}} if url else {
            "kv_cache_memory_bytes": 2 << 30,
            # AMX_MLA, which it takes itself where there is AMX, ends at fp32 weights.
            "attention_backend": "CPU_MLA" if options.dtype == "float32" else None}
    engine = LLM(model, enforce_eager=True, dtype=options.dtype, skip_tokenizer_init=True,
                 max_num_seqs=32, max_model_len=16384, disable_log_stats=True,
                 distributed_executor_backend="uni",
                 compilation_config={"custom_ops": ["-rotary_embedding"]}, **tier).llm_engine
    serial = 0
    for line in sys.stdin:
        requests, tokens = map(int, line.split())
        begin, cpu = time.perf_counter(), time.process_time()
        sampling = SamplingParams(temperature=0.0, max_tokens=options.new_tokens, ignore_eos=True)
        for _ in range(requests):
            serial += 1
            prompt = [3 + (serial * 7 + i * i) % 500 for i in range(tokens)]
            engine.add_request(str(serial), {"prompt_token_ids": prompt}, sampling)
        first, lengths, steady = {}, {}, []
        while engine.has_unfinished_requests():
            for output in engine.step():
                first.setdefault(output.request_id, time.perf_counter() - begin)
                lengths[output.request_id] = len(output.outputs[0].token_ids)
            if len(first) == requests and max(lengths.values()) < options.new_tokens:
                steady.append((time.perf_counter(), sum(lengths.values())))
        (start, before), (end, after) = steady[0], steady[-1]
        print("case", statistics.median(first.values()), (after - before) / (end - start),
              time.process_time() - cpu, flush=True)


def main():
    options = arguments()
    if options.engine:
        serve_cases(options)
        return
    config = vllm_hooks.model_config()
    config.max_position_embeddings = 32768
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        import transformers
        transformers.DeepseekV2ForCausalLM(config).save_pretrained(folder / "model")
        tiers, engines = [], {}
        try:
            for column, (cores, tier_cores) in ENGINES.items():
                tier = None
                if tier_cores:
                    own = folder / column.replace(" ", "_")
                    own.mkdir()
                    tier = Tier(options, config, own, rows=ROWS[options.dtype], kv_gib=2,
                                cores=tier_cores).__enter__()
                    tiers.append(tier)
                engines[column] = Engine(options, folder / "model", cores, tier)
            for engine in engines.values():
                engine.run(1, 64)
            print(f"{processor()}; {options.dtype}, {options.new_tokens} new tokens; seconds to the "
                  "first token, tokens/s, CPU seconds", flush=True)
            for case in options.cases.split(","):
                requests, tokens = map(int, case.split("x"))
                results = {column: [] for column in engines}
                for _ in range(options.turns if tokens <= 4000 and requests < 32 else 1):
                    for column, engine in engines.items():
                        results[column].append(engine.run(requests, tokens))
                print(f"{case:>8}: " + "; ".join(
                    "{}: {:.3f} s, {:.1f} tok/s, {:.1f} CPU s".format(
                        column, *map(statistics.median, zip(*values)))
                    for column, values in results.items()), flush=True)
        finally:
            for engine in engines.values():
                engine.process.kill()
            for tier in tiers:
                tier.__exit__()


if __name__ == "__main__":
    main()
