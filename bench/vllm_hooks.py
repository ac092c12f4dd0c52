#!/usr/bin/env python3
# The plug-in's cost in vLLM: a layer's hooks outside the client's call, commits and pushes, beside
# the tier's own rounds, for 16 requests and a random model with the attention of DeepSeek-V2-Lite;
# and what 200 sequences take in one call and one by one. In the environment that
# `deploy/test.sh --only vllm` makes:
#   build/python/vllm/bin/python bench/vllm_hooks.py [--workers 1] [--context 512] [--new-tokens 64]
import argparse
import collections
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
import urllib.request

os.environ.update(HF_HUB_OFFLINE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from engine_speed import ROOT, Tier, processor  # noqa: E402

REQUESTS, LAYERS, SEQUENCES = 16, 4, 200
times = collections.defaultdict(list)  # seconds, by what took them


def arguments():
    parser = argparse.ArgumentParser(description="the plug-in's cost in vLLM")
    parser.add_argument("--program", default=ROOT / "build/release/deploy/tributary")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=9, help="of 200 sequences")
    return parser.parse_args()


def model_config():
    import transformers
    return transformers.DeepseekV2Config(
        vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=LAYERS,
        num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, kv_lora_rank=512,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, head_dim=64,
        first_k_dense_replace=LAYERS, n_routed_experts=4, moe_intermediate_size=64,
        num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1,
        max_position_embeddings=4096, bos_token_id=0, eos_token_id=1)


class Timed:
    """An object whose calls of these names are timed."""

    def __init__(self, inner, *names):
        self._inner, self._names = inner, names

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        return timed(name, found) if name in self._names else found


def timed(name, function):
    def call(*arguments, **options):
        begin = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            times[name].append(time.perf_counter() - begin)
    return call


def time_the_plugin():
    """`rows` and `query` of a layer are the hooks with all that they call."""
    from tributary.vllm.backend import TributaryImpl
    from tributary.vllm.batch import Batch
    from tributary.vllm.worker import Worker
    TributaryImpl.do_kv_cache_update = timed("rows", TributaryImpl.do_kv_cache_update)
    TributaryImpl.forward_mqa = timed("query", TributaryImpl.forward_mqa)
    new_step, start = Batch._new_step, Worker.start
    Batch._new_step = lambda self, parts: Timed(new_step(self, parts), "attend", "commit")

    def start_timed(self):
        start(self)
        self.client = Timed(self.client, "push")
    Worker.start = start_timed


def rounds_of(tier):
    text = urllib.request.urlopen(f"{tier.url}/metrics").read().decode()
    name = "tributary_round_duration_seconds"
    return [sum(map(float, re.findall(rf"^{name}_{part}\S* (\S+)$", text, re.MULTILINE)))
            for part in ("sum", "count")]


def make_llm(config, folder, tier):
    """Of a random model, which is saved into the folder."""
    import transformers
    from vllm import LLM
    transformers.DeepseekV2ForCausalLM(config).float().save_pretrained(folder)
    return LLM(str(folder), enforce_eager=True, attention_backend="CPU_MLA", dtype="float32",
               skip_tokenizer_init=True, kv_cache_memory_bytes=64 << 20, max_num_seqs=REQUESTS,
               max_model_len=4096, disable_log_stats=True, distributed_executor_backend="uni",
               compilation_config={"custom_ops": ["-rotary_embedding"]},
               kv_transfer_config={
                   "kv_connector": "TributaryConnector",
                   "kv_connector_module_path": "tributary.vllm",
                   "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                   "kv_connector_extra_config": {"url": tier.url, "timeout": 60}})


def run_vllm(options, config, folder, tier):
    from vllm import SamplingParams
    time_the_plugin()
    engine = make_llm(config, folder, tier).llm_engine
    for i in range(REQUESTS):
        engine.add_request(str(i), {"prompt_token_ids": [3 + i] * options.context},
                           SamplingParams(temperature=0.0, max_tokens=options.new_tokens,
                                          ignore_eos=True))
    layers = []  # of steps in which all decode: the hooks' and the client's seconds
    commits, pushes, before = [], [], None
    while engine.has_unfinished_requests():
        times.clear()
        outputs = engine.step()
        pushes += times["push"]
        full = len(times["rows"]) == len(times["attend"]) == LAYERS and not times["push"]
        if full and len(outputs) == REQUESTS and not any(o.finished for o in outputs):
            if before is None:
                time.sleep(1.5)  # until heartbeats have brought the rounds of prompts
                before = rounds_of(tier)
            layers += [(rows + query - attend, attend) for rows, query, attend in
                       zip(times["rows"], times["query"], times["attend"])]
            commits += times["commit"]
    time.sleep(1.5)
    seconds, rounds = (now - then for now, then in zip(rounds_of(tier), before))
    rows = REQUESTS * (options.context - 1) * LAYERS

    def us(values):
        return f"{1e6 * statistics.median(values):,.0f} us"
    print(f"a layer of {REQUESTS} requests: hooks outside the client {us([h for h, _ in layers])}, "
          f"the client's attend {us([a for _, a in layers])} "
          f"(mean {1e6 * statistics.mean(a for _, a in layers):,.0f}), "
          f"the tier's round mean {1e6 * seconds / rounds:,.0f} us ({rounds:.0f} rounds)\n"
          f"commit of a step: {us(commits)}\n"
          f"pushes, in threads of their own: {1e6 * sum(pushes) / rows * 1000:,.0f} us for 1,000 "
          f"rows of a layer ({rows} rows in {len(pushes)} calls)")


def run_many(options, tier):
    """wait_ready() and free() of 200 sequences, in one call and one by one, in turns."""
    import numpy

    import tributary
    client = tributary.Client(tier.url, timeout=60)
    took = collections.defaultdict(list)
    for turn in range(2 * options.turns):
        sequences = [client.admit(1, 0) for _ in range(SEQUENCES)]
        row = numpy.zeros((1, sequences[0].shape.latent_dim), numpy.float32)
        for layer in range(LAYERS):
            client.push(layer, [(sequence, 0, row) for sequence in sequences])
        for name in ("wait_ready", "free"):
            begin = time.perf_counter()
            if turn % 2:
                getattr(client, name)(sequences)
            else:
                for sequence in sequences:
                    getattr(sequence, name)()
            took[name, turn % 2].append(1e3 * (time.perf_counter() - begin))
    for name in ("wait_ready", "free"):
        print(f"{name} of {SEQUENCES} sequences: {statistics.median(took[name, 1]):.1f} ms in one "
              f"call, {statistics.median(took[name, 0]):.1f} ms one by one")


def main():
    options = arguments()
    config = model_config()
    print(f"{processor()}; {options.context} tokens of context, {options.new_tokens} new, "
          f"{LAYERS} layers, tier of {options.workers} workers beside vLLM on 1 thread")
    with tempfile.TemporaryDirectory() as folder, \
            Tier(options, config, pathlib.Path(folder)) as tier:
        run_many(options, tier)
        run_vllm(options, config, pathlib.Path(folder) / "model", tier)


if __name__ == "__main__":
    main()
