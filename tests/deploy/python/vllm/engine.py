# A vLLM engine as a process that tests command: python engine.py MODEL URL [OPTIONS as JSON]; URL
# is that of a tier, "own" for vLLM's own backend. Each line of stdin is a batch, {"prompts":
# [[token ids]], "max_tokens": n or one for each, "abort": {index: after how many steps},
# "transfer": kv_transfer_params of each, "logprobs": how many of each token, "prompt_logprobs": of
# each token of a prompt}; each line of stdout is {"tokens": [[ids]], "transfer": what the requests
# were answered with, "cached": how many tokens of each prompt were not computed, "logprobs": [[of
# each token, the greatest first]]}, the first one {"ready": true}. Where there is the file
# $KILL_ENGINE, all of it is killed while a step is between layers 0 and 1. SAY_AMX=1: vLLM takes a
# processor without AMX for one with it, where alone it cuts the prompts of MLA models into chunks.
import json
import os
import signal
import sys

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_CPU_OMP_THREADS_BIND="nobind",
                  VLLM_NO_USAGE_STATS="1", OMP_NUM_THREADS="1")


def connector(url, **more):
    return {"kv_connector": "TributaryConnector", "kv_connector_module_path": "tributary.vllm",
            "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"url": url, **more}}


def greatest(output):
    return [sorted((one.logprob for one in token.values()), reverse=True)
            for token in output.logprobs or ()]


def run(engine, params, batch, serial):
    prompts = batch["prompts"]
    limits = batch["max_tokens"]
    if isinstance(limits, int):
        limits = [limits] * len(prompts)
    names = [f"{serial}-{i}" for i in range(len(prompts))]
    transfer = batch.get("transfer") or [None] * len(prompts)
    for name, prompt, limit, given in zip(names, prompts, limits, transfer):
        more = {"extra_args": {"kv_transfer_params": given}} if given else {}
        engine.add_request(name, {"prompt_token_ids": prompt},
                           params(temperature=0.0, max_tokens=limit, ignore_eos=True,
                                  logprobs=batch.get("logprobs"),
                                  prompt_logprobs=batch.get("prompt_logprobs"), **more))
    aborts = {names[int(index)]: steps for index, steps in batch.get("abort", {}).items()}
    tokens, answers, cached, logprobs, steps = dict.fromkeys(names, []), {}, {}, {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            answers[output.request_id] = output.kv_transfer_params
            cached[output.request_id] = output.num_cached_tokens
            logprobs[output.request_id] = greatest(output.outputs[0])
        steps += 1
        if now := [name for name, after in aborts.items() if after == steps]:
            engine.abort_request(now)
        print(f"step {steps}", file=sys.stderr, flush=True)
    return {"tokens": [tokens[name] for name in names],
            "transfer": [answers.get(name) for name in names],
            "cached": [cached.get(name) for name in names],
            "logprobs": [logprobs.get(name) for name in names]}


def kill_between_layers(file):
    from tributary.vllm.batch import Batch
    add_rows = Batch.add_rows

    def killing(self, layer, rows):
        if layer == 1 and os.path.exists(file):
            os.killpg(0, signal.SIGKILL)
        add_rows(self, layer, rows)
    Batch.add_rows = killing


# vLLM's processes import this file too.
if "KILL_ENGINE" in os.environ:
    kill_between_layers(os.environ["KILL_ENGINE"])
if os.environ.get("SAY_AMX") == "1":
    import torch
    if not torch.cpu._is_amx_tile_supported():
        torch.cpu._is_amx_tile_supported = lambda: True


def main():
    model, url, *options = sys.argv[1:]
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM's log goes there
    from vllm import LLM, SamplingParams
    more = json.loads(options[0]) if options else {}
    if url != "own":
        more["kv_transfer_config"] = connector(url, **more.pop("extra", {}))
    llm = LLM(model, enforce_eager=more.pop("enforce_eager", True), dtype=more.pop("dtype", "float32"),
              attention_backend=more.pop("attention_backend", "CPU_MLA"),
              kv_cache_memory_bytes=more.pop("cache_bytes", 64 << 20), max_num_seqs=16,
              disable_log_stats=True, seed=0, **more)
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for serial, line in enumerate(sys.stdin):
        print(json.dumps(run(llm.llm_engine, SamplingParams, json.loads(line), serial)),
              file=replies, flush=True)


if __name__ == "__main__":
    main()
