# The router of the recipe, between engines that are servers of this test.
import asyncio
import contextlib
import json
import pathlib
import subprocess
import sys

import aiohttp
import pytest
from aiohttp import web

from program import free_ports

ROUTER = pathlib.Path(__file__).resolve().parents[4] / "deploy/recipes/vllm/router.py"
HANDLE = {"do_remote_prefill": True, "tributary_sequence": "{}"}
CALL = "/v1/completions"


@contextlib.asynccontextmanager
async def server(answer):
    """What it has been asked, and its URL."""
    asked = []

    async def handle(request):
        asked.append(await request.json())
        return await answer(request, asked[-1])
    app = web.Application()
    app.router.add_post(CALL, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield asked, "http://127.0.0.1:%d" % site._server.sockets[0].getsockname()[1]
    await runner.cleanup()


@contextlib.asynccontextmanager
async def router(prompts, decodes):
    port = free_ports(1)[0]
    process = subprocess.Popen([sys.executable, ROUTER, str(port), prompts, decodes])
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}{CALL}"
    finally:
        process.terminate()
        process.wait()


async def hands_over(_, body):
    assert body["max_tokens"] == 1
    return web.json_response({"kv_transfer_params": HANDLE})


async def refuses(_, body):
    return web.json_response({"error": "full"}, status=500)


async def streams(request, body):
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in ("data: a\n\n", "data: [DONE]\n\n"):
        await response.write(piece.encode())
    return response


@pytest.mark.parametrize(("first", "expected"), [
    (hands_over, HANDLE), (refuses, None), (None, None)])
def test_a_request_goes_to_both_and_a_first_engine_that_fails_is_left_out(first, expected):
    body = {"prompt": [1, 2], "max_tokens": 9, "max_completion_tokens": 9, "stream": True,
            "stream_options": {"include_usage": True}, "kv_transfer_params": {"of": "a user"}}

    async def main():
        async with server(first or refuses) as (prompts, one), server(streams) as (decodes, other):
            gone = "http://127.0.0.1:%d" % free_ports(1)[0]
            async with router(one if first else gone, other) as url, aiohttp.ClientSession() as s:
                async with s.post(url, json=body) as answer:
                    assert (answer.status, answer.content_type) == (200, "text/event-stream")
                    assert await answer.text() == "data: a\n\ndata: [DONE]\n\n"
            assert decodes == [body | {"kv_transfer_params": expected}]
            if first:
                assert prompts == [{"prompt": [1, 2], "max_tokens": 1, "max_completion_tokens": 1,
                                    "stream": False,
                                    "kv_transfer_params": {"do_remote_decode": True}}]
    asyncio.run(main())


def test_an_error_of_the_engine_that_decodes_is_the_answer():
    async def main():
        async with server(hands_over) as (_, one), server(refuses) as (_, other):
            async with router(one, other) as url, aiohttp.ClientSession() as session:
                async with session.post(url, json={"prompt": [1]}) as answer:
                    assert answer.status == 500
                    assert json.loads(await answer.text()) == {"error": "full"}
    asyncio.run(main())
