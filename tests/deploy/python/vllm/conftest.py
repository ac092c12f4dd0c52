# Random models, engines as processes, and tiers for the stage `vllm`.
import contextlib
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest

from tier import Tier

HERE = pathlib.Path(__file__).resolve().parent
MAX_TOKENS, POSITIONS = 2048, 8192  # of an engine, unless it says so; of the models
# The width of vLLM's kernel for CPUs; weights of such a size that attention decides about tokens.
COMMON = dict(
    vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, qk_rope_head_dim=64,
    qk_nope_head_dim=128, v_head_dim=128, first_k_dense_replace=2, n_routed_experts=4,
    moe_intermediate_size=64, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1,
    max_position_embeddings=POSITIONS, bos_token_id=0, eos_token_id=1, tie_word_embeddings=False)
MODELS = {
    "v2": ("DeepseekV2", dict(q_lora_rank=None, head_dim=64)),
    "v3": ("DeepseekV3", dict(q_lora_rank=192, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=16.0, original_max_position_embeddings=512,
        beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0))),
}
MAKE = """
import json, sys, torch, transformers
family, options, folder = json.loads(sys.argv[1])
torch.manual_seed(1)
model = getattr(transformers, family + "ForCausalLM")(
    getattr(transformers, family + "Config")(**options))
with torch.no_grad():
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=1.0 if "embed" in name else 2 / weight.shape[1]**0.5)
model.float().save_pretrained(folder)
"""


def make_model(name, folder):
    """In a process of its own: torch stays out of this one."""
    family, own = MODELS[name]
    subprocess.run([sys.executable, "-c", MAKE, json.dumps([family, COMMON | own, str(folder)])],
                   check=True)
    return folder


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    made = {}

    def model(name):
        if name not in made:
            made[name] = make_model(name, tmp_path_factory.mktemp(name))
        return made[name]
    return model


def tier_of(model, workers=2, kv_gib=0.2, numbers="f32", rows=None, **more):
    """A tier for the model's configuration; `numbers` of its queries, and of its rows unless `rows`
    says otherwise."""
    return Tier(pools=(workers,), worker_flags=[
        "--shape", model / "config.json", "--rows", rows or numbers, "--query", numbers, "--threads", 1,
        "--leaf-tokens", 128, "--kv-gib", kv_gib,
        # An engine that starts takes the processors for a while.
        "--failure-timeout-ms", 20_000], **more)


class Engine(contextlib.AbstractContextManager):
    def __init__(self, model, url, options=None, environment=None):
        options = {"max_model_len": MAX_TOKENS, "skip_tokenizer_init": True,
                   # vLLM's own for CPUs is wrong where rope_type is "default".
                   "compilation_config": {"custom_ops": ["-rotary_embedding"]}} | (options or {})
        self.log = open(model / f"engine{random.randrange(1 << 32)}.log", "w+")
        self.process = subprocess.Popen(
            [sys.executable, HERE / "engine.py", model, url, json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | (environment or {}), start_new_session=True)

    def __exit__(self, *unused):
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()
        self.log.close()

    def kill(self):
        """With its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @contextlib.contextmanager
    def stopped(self):
        """No step ends meanwhile."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)

    def output(self):
        return pathlib.Path(self.log.name).read_text(errors="replace")

    def reply(self):
        line = self.process.stdout.readline()
        assert line, f"the engine has ended: {self.output()[-6000:]}"
        return json.loads(line)

    def ask(self, prompts, max_tokens, abort=None, transfer=None, logprobs=None,
            prompt_logprobs=None):
        """Starts a batch; reply() waits for its tokens."""
        print(json.dumps({"prompts": prompts, "max_tokens": max_tokens, "abort": abort or {},
                          "transfer": transfer, "logprobs": logprobs,
                          "prompt_logprobs": prompt_logprobs}),
              file=self.process.stdin, flush=True)

    def steps(self):
        return self.output().count("\nstep ")

    def tokens(self, *batch, **more):
        self.ask(*batch, **more)
        return self.reply()["tokens"]


def prompts_of(*lengths, seed=17):
    generator = random.Random(seed)
    return [[generator.randrange(3, 512) for _ in range(n)] for n in lengths]


# One token, one page and its neighbours, a leaf and its neighbours, the most.
LENGTHS = (1, 2, 17, 63, 64, 65, 127, 128, 129, 300, 511, 700, 1000, 1, 1500, 2000)
NEW = 24
FIRST, SECOND = prompts_of(*LENGTHS), prompts_of(*LENGTHS[::-1], seed=18)


@pytest.fixture(scope="session")
def own(models):
    """Tokens of vLLM without the plug-in, in its default processes."""
    made = {}

    def tokens(name):
        if name not in made:
            with Engine(models(name), "own", environment={"VLLM_PLUGINS": ""}) as engine:
                assert engine.reply()["ready"]
                made[name] = [engine.tokens(batch, NEW) for batch in (FIRST, SECOND)]
        return made[name]
    return tokens
