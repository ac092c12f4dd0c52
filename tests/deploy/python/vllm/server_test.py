# What the recipe starts: two servers of vLLM and the router, asked as OpenAI's clients ask.
import asyncio
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import openai
import pytest

from conftest import MAX_TOKENS, Engine, prompts_of, tier_of
from program import free_ports
from tier import wait_until

ROUTER = pathlib.Path(__file__).resolve().parents[4] / "deploy/recipes/vllm/router.py"
NEW, START_LIMIT_S = 20, 500
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}


class Server(contextlib.AbstractContextManager):
    """The start line of the recipe, for a model without a tokenizer."""

    def __init__(self, model, port, url):
        transfer = {"kv_connector": "TributaryConnector", "kv_connector_module_path": "tributary.vllm",
                    "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": {"url": url}}
        self.log = open(model / f"server{port}.log", "w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
             "--served-model-name", "model", "--port", str(port), "--host", "127.0.0.1",
             "--enforce-eager", "--attention-backend", "CPU_MLA",
             "--compilation-config", '{"custom_ops": ["-rotary_embedding"]}',
             "--kv-cache-memory-bytes", "64M", "--kv-transfer-config", json.dumps(transfer),
             "--dtype", "float32", "--max-model-len", str(MAX_TOKENS), "--skip-tokenizer-init"],
            env=os.environ | ENVIRONMENT, stdout=self.log, stderr=self.log,
            stdin=subprocess.DEVNULL, start_new_session=True)

    def ready(self):
        text = pathlib.Path(self.log.name).read_text(errors="replace")
        assert self.process.poll() is None, text[-6000:]
        return "Application startup complete" in text

    def kill(self):
        """With its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __exit__(self, *unused):
        self.kill()
        self.log.close()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=[
    (8, 2), pytest.param((64, 3), marks=pytest.mark.long)], ids=lambda size: "{}x{}".format(*size))
def turns(request, models):
    """So many chats of so many turns: the prompts of each turn, and vLLM's own tokens."""
    chats, count = request.param
    prompts, made = prompts_of(*(150 + 40 * (i % 8) for i in range(chats))), []
    with Engine(models("v2"), "own", environment={"VLLM_PLUGINS": ""}) as engine:
        assert engine.reply()["ready"]
        for turn in range(count):
            answers = engine.tokens(prompts, NEW)
            made.append((prompts, answers))
            prompts = [[*prompt, *answer, *more] for prompt, answer, more in
                       zip(prompts, answers, prompts_of(*[40] * chats, seed=3 + turn))]
    return made


def test_chats_through_two_servers_and_the_router(models, turns):
    prefill, decode, front = free_ports(3)
    with contextlib.ExitStack() as stack:
        # Longer than the test: who holds pages gives them back, no lease ends.
        tier = stack.enter_context(tier_of(models("v2"), lease_ms=600_000))
        servers = [stack.enter_context(Server(models("v2"), port, tier.url))
                   for port in (prefill, decode)]
        wait_until(lambda: all(server.ready() for server in servers), "they serve", START_LIMIT_S)
        router = subprocess.Popen([sys.executable, ROUTER, str(front), f"http://127.0.0.1:{prefill}",
                                   f"http://127.0.0.1:{decode}"])
        stack.callback(router.kill)
        wait_until(lambda: listens(front), "the router listens")
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{front}/v1", api_key="none",
                                    max_retries=3)

        def ask(prompt, **more):
            return client.completions.create(
                model="model", prompt=prompt, max_tokens=NEW, temperature=0,
                extra_body={"return_token_ids": True, "ignore_eos": True}, **more)

        async def answers(prompts):
            done = await asyncio.gather(*map(ask, prompts))
            return [one.choices[0].token_ids for one in done]

        async def leave(prompt):
            """In the middle of the answer."""
            stream = await ask(prompt, stream=True)
            async for _ in stream:
                break
            await stream.close()

        async def main():
            for prompts, own in turns:  # with rows of the turn before
                assert await answers(prompts) == own
                await asyncio.gather(*map(leave, prompts))
                wait_until(lambda: tier.busy_pages() == 0, "every page is free", 60)
            servers[0].kill()
            assert await answers(prompts) == own
        asyncio.run(main())
        assert tier.metric("tributary_prefix_cache_hits_total") > 0
        wait_until(lambda: tier.busy_pages() == 0, "every page is free", 60)
