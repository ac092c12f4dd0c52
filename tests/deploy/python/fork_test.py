# Sequences that begin with another one's rows: what they share, what is their own, what is refused.
import asyncio

import numpy
import pytest

import tributary
from life_test import WIDTH

HEADS, PROMPT = 4, 150  # three leaves, two full pages and a part


@pytest.fixture
def rows(rng):
    return rng.standard_normal((PROMPT + 200, WIDTH), numpy.float32)


@pytest.fixture(params=["auto", "all"])
def parent(request, client, rows):
    with client.admit(PROMPT, 60, spread=request.param) as sequence:
        sequence.push(0, 0, rows[:PROMPT])
        sequence.wait_ready()
        yield sequence


def decode(client, sequence, rows):
    query = numpy.linspace(-1, 1, len(rows) * HEADS * WIDTH, dtype=numpy.float32)
    with client.step([sequence], len(rows)) as step:
        return step.attend(0, query.reshape(len(rows), HEADS, WIDTH), rows)


def same(a, b):
    return all((x == y).all() for x, y in zip(a, b))


@pytest.mark.parametrize("length", [None, 1, 64, 128, 149])
def test_a_fork_goes_its_own_way(client, parent, rows, rng, length):
    own = rng.standard_normal((40, WIDTH), numpy.float32)
    with parent.fork(length) as fork:
        begin = PROMPT if length is None else length
        assert (fork.length, fork.prompt_tokens, fork.present_tokens) == (begin,) * 3
        assert fork.epoch == 1 and fork.id != parent.id
        assert fork.prompt_tokens + fork.max_new_tokens == PROMPT + 60
        assert (fork.pull(0, 0, begin) == rows[:begin]).all()
        for i in range(0, 40, 10):  # one and the other, in turns
            decode(client, parent, rows[PROMPT + i:PROMPT + i + 10])
            decode(client, fork, own[i:i + 10])
        assert (parent.pull(0, 0, PROMPT + 40) == rows[:PROMPT + 40]).all()
        expected = numpy.concatenate([rows[:begin], own])
        assert (fork.pull(0, 0, begin + 40) == expected).all()
        with client.admit(begin + 40, 1, spread="all") as alone:
            alone.push(0, 0, expected)
            alone.wait_ready()
            assert same(decode(client, alone, rows[-1:]), decode(client, fork, rows[-1:]))


def test_the_next_turn_pushes_what_is_new(client, parent, rows):
    decode(client, parent, rows[PROMPT:PROMPT + 7])
    said, length = rows[:PROMPT + 7], PROMPT + 7
    turn = numpy.concatenate([said, rows[-100:]])
    with parent.fork(max_new_tokens=5, prompt_tokens=len(turn)) as fork:
        assert (fork.present_tokens, fork.length) == (length, len(turn))
        with pytest.raises(tributary.AlreadyExists, match=f"shares those below {length}"):
            fork.push(0, length - 1, turn[length - 1:])
        with pytest.raises(tributary.FailedPrecondition, match="whose prompt is arriving"):
            fork.fork()
        parent.free()  # the rows stay
        fork.push(0, length, turn[length:])
        fork.wait_ready()
        assert (fork.pull(0, 0, len(turn)) == turn).all()
        with client.admit(len(turn), 5) as alone:
            alone.push(0, 0, turn)
            alone.wait_ready()
            assert same(decode(client, alone, rows[:3]), decode(client, fork, rows[:3]))


def test_what_one_drops_and_writes_anew_stays_as_it_was_for_the_others(client, parent, rows, rng):
    with parent.fork() as fork, fork.fork(100) as second:
        parent.truncate(90)
        decode(client, parent, rng.standard_normal((10, WIDTH), numpy.float32))
        second.truncate(70)
        decode(client, second, rng.standard_normal((10, WIDTH), numpy.float32))
        assert (fork.pull(0, 0, PROMPT) == rows[:PROMPT]).all()
        assert (second.pull(0, 0, 70) == rows[:70]).all()
        assert (parent.pull(0, 0, 90) == rows[:90]).all()


def test_many_of_one(client, parent, rows):
    forks = [parent.fork() for _ in range(20)]
    parent.free()
    with client.step(forks) as step:
        query = numpy.ones((20, HEADS, WIDTH), numpy.float32)
        o, lse = step.attend(0, query, rows[PROMPT:PROMPT + 20])
    for i, fork in enumerate(forks):
        assert (fork.pull(0, 0, PROMPT + 1) == [*rows[:PROMPT], rows[PROMPT + i]]).all()
    client.free(forks)


def test_a_fork_names_its_blocks(client, parent, rows):
    keys = [rows[:end].tobytes()[-16:] for end in (64, 128, 192)]
    turn = rows[:200]
    with parent.fork(prompt_tokens=200, prefix=tributary.Prefix(64, keys)) as fork:
        fork.push(0, PROMPT, turn[PROMPT:])
        fork.wait_ready()
    with client.admit(200, 0, prefix=tributary.Prefix(64, keys)) as next_one:
        assert next_one.present_tokens == 192
        assert (next_one.pull(0, 0, 192) == turn[:192]).all()


@pytest.mark.parametrize("length,options,message", [
    (151, {}, "fork of 151 tokens of sequence .*, expected 1 .. 150"),
    (100, {"prompt_tokens": 99}, "a fork of 100 tokens has a prompt of as many at least"),
    (100, {"max_new_tokens": 0}, "and room for one more: 100 [+] 0"),
    (0, {}, "parent.length is 0"),
    (-1, {"prompt_tokens": 5}, "parent.length is -1"),
])
def test_other_lengths_are_refused(parent, length, options, message):
    with pytest.raises((tributary.InvalidArgument, tributary.MalformedInput), match=message):
        parent.fork(length, **options)


def test_a_parent_that_is_not_there(client, parent):
    other = tributary.Sequence.from_json(parent.to_json())
    client.adopt(other, trusted=True)
    parent.truncate(140)
    with pytest.raises(tributary.StaleEpoch, match="epoch 1 is over, now is 2"):
        other.fork(100)
    parent.free()
    with pytest.raises(tributary.NotFound, match="fork of sequence .*, which is in no pool"):
        parent.fork(100)


def test_without_its_token_nobody_forks_it(client, parent):
    token = parent.to_json().split('"token":"')[1][:32]
    other = tributary.Sequence.from_json(parent.to_json().replace(token, "0" * 32))
    with pytest.raises(tributary.PermissionDenied):
        client.adopt(other, trusted=True)
        other.fork()


def test_a_full_pool_has_no_room_for_a_fork(client, parent):
    with pytest.raises(tributary.PoolFull):
        forks = []
        try:
            while True:
                forks.append(parent.fork(max_new_tokens=5000))
        finally:
            client.free(forks)


def test_awaited(client, parent, rows):
    async def fork():
        other = tributary.AsyncClient(client)
        sequence = await other.adopt(parent)
        async with await sequence.fork(max_new_tokens=3) as child:
            return (await child.pull(0, 0, PROMPT) == rows[:PROMPT]).all()
    assert asyncio.run(fork())
