# The awaitable forms.
import asyncio

import numpy
import pytest

import tributary
from conftest import tier_of

WIDTH = 144
QUERY, ROW = numpy.ones((1, 4, WIDTH), numpy.float32), numpy.ones((1, WIDTH), numpy.float32)


async def decode(client, tokens):
    async with await client.admit(tokens, 4, wait=60) as sequence:
        await sequence.push(0, 0, numpy.ones((tokens, WIDTH), numpy.float32))
        await sequence.wait_ready()
        async with client.step([sequence]) as step:
            o, _ = await step.attend(0, QUERY, ROW)
        with pytest.raises(ZeroDivisionError):
            async with client.step([sequence]) as step:
                await step.attend(0, QUERY, ROW)
                1 / 0
        await sequence.truncate(sequence.length)
        return sequence.length, float(o.mean())


def test_many_sequences_of_one_event_loop(client):
    async def main():
        async with tributary.AsyncClient(tier_of(client), workers=4) as tier:
            return await asyncio.gather(*(decode(tier, n) for n in (5, 64, 65, 130)))

    lengths, means = zip(*asyncio.run(main()))
    assert lengths == (6, 65, 66, 131)
    assert means == pytest.approx([1] * 4, abs=131 * 2.0**-24)


def test_the_loop_runs_while_a_call_waits(narrow_client, room):
    """The pool is full until this very loop frees a sequence."""
    async def main():
        async with tributary.AsyncClient(tier_of(narrow_client)) as tier:
            first = await tier.admit(room, 0)
            second = asyncio.create_task(tier.admit(64, 0, wait=60))
            await first.free()
            await (await second).free()

    asyncio.run(main())


def test_what_a_cancelled_admission_was_given_is_freed(narrow_client, room):
    async def main():
        async with tributary.AsyncClient(tier_of(narrow_client)) as tier:
            first = await tier.admit(room, 0)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(tier.admit(64, 0, wait=60), timeout=0.2)
            await first.free()

    asyncio.run(main())  # the fixture waits until every page is free


def test_errors_and_adoption(client):
    async def main():
        async with tributary.AsyncClient(tier_of(client)) as tier:
            with pytest.raises(tributary.TooLarge):
                await tier.admit(10**9, 1)
            with client.admit(5, 1) as sequence:
                copy = tributary.Sequence.from_json(sequence.to_json())
                async with await tier.adopt(copy) as adopted:
                    await adopted.refresh()
                    assert adopted.shape == sequence.shape

    asyncio.run(main())
