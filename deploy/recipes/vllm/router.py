# Sends each request to an engine that computes its prompt, and then to one that decodes it:
# python router.py PORT URL,... URL,...
import itertools
import sys

import aiohttp
from aiohttp import web

PORT = int(sys.argv[1])
PROMPTS, DECODES = (itertools.cycle(urls.split(",")) for urls in sys.argv[2:])


async def compute_prompt(session, path, body):
    """What its engine hands over: to whoever answers the request, who has a lease's time for it.
    None where it fails: the engine that decodes computes the prompt itself then."""
    asked = {name: value for name, value in body.items() if name != "stream_options"}
    asked |= {"stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    if "max_completion_tokens" in asked:
        asked["max_completion_tokens"] = 1
    try:
        async with session.post(next(PROMPTS) + path, json=asked) as answer:
            return (await answer.json()).get("kv_transfer_params") if answer.ok else None
    except aiohttp.ClientError:
        return None


async def complete(request):
    body = await request.json()
    async with aiohttp.ClientSession() as session:
        # Never the user's own: an engine believes what stands there.
        body["kv_transfer_params"] = await compute_prompt(session, request.path, body)
        async with session.post(next(DECODES) + request.path, json=body) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            return response


app = web.Application()
app.router.add_post("/v1/{call:(chat/)?completions}", complete)
web.run_app(app, port=PORT)
