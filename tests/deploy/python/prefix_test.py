# Prompts that begin alike share rows: which are there, to whom, and what is refused.
import asyncio
import hashlib
import itertools

import numpy
import pytest

import tributary
from life_test import WIDTH

HEADS, BLOCK, PROMPT = 4, 64, 150  # two full blocks and a part
SEEDS = itertools.count()


def keys_of(rows, salt=b""):
    """Of the full blocks, each for all rows up to its end."""
    return [hashlib.sha256(salt + rows[:end].tobytes()).digest()
            for end in range(BLOCK, len(rows) + 1, BLOCK)]


def prefix_of(rows, **options):
    return tributary.Prefix(BLOCK, keys_of(rows), **options)


@pytest.fixture
def rng():
    """Of no other test: what one of them named stays in the tier."""
    return numpy.random.default_rng(next(SEEDS))


@pytest.fixture
def rows(rng):
    return rng.standard_normal((PROMPT + 60, WIDTH), numpy.float32)


def admit(client, rows, prefix, new_tokens=60):
    return client.admit(len(rows), new_tokens, prefix=prefix)


def start(client, rows, prefix=None, new_tokens=60):
    sequence = admit(client, rows, prefix, new_tokens)
    present = sequence.present_tokens
    sequence.push(0, present, rows[present:])
    sequence.wait_ready()
    return sequence


def decode(client, sequence, row, query):
    with client.step([sequence], len(row)) as step:
        return step.attend(0, query, row)


@pytest.fixture
def first(client, rows):
    with start(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as sequence:
        assert sequence.present_tokens == 0
        yield sequence


def test_the_second_one_finds_the_full_blocks_of_the_first(client, first, rows, rng):
    with start(client, rows[:PROMPT]) as alone, \
            admit(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as second:
        assert second.present_tokens == 2 * BLOCK
        assert (second.pull(0, 0, 2 * BLOCK) == rows[:2 * BLOCK]).all()  # at once
        second.push(0, 2 * BLOCK, rows[2 * BLOCK:PROMPT])
        second.wait_ready()
        query = rng.standard_normal((3, HEADS, WIDTH), numpy.float32)
        expected = [decode(client, s, rows[PROMPT:PROMPT + 3], query) for s in (alone, first)]
        got = decode(client, second, rows[PROMPT:PROMPT + 3], query)
        for o, lse in expected:
            assert (got[0] == o).all() and (got[1] == lse).all()


def test_it_need_not_be_the_whole_prompt(client, first, rows, rng):
    other = numpy.concatenate([rows[:BLOCK], rng.standard_normal((90, WIDTH), numpy.float32)])
    with start(client, other, prefix_of(other)) as second:
        assert second.present_tokens == BLOCK
        assert (second.pull(0, 0, len(other)) == other).all()
    with start(client, rows[:2 * BLOCK], prefix_of(rows[:2 * BLOCK])) as whole:
        assert whole.present_tokens == 2 * BLOCK  # nothing was pushed


def test_blocks_stay_when_nobody_has_them_any_more(client, rows):
    start(client, rows[:PROMPT], prefix_of(rows[:PROMPT])).free()
    with start(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as second:
        assert second.present_tokens == 2 * BLOCK
        assert (second.pull(0, 0, PROMPT) == rows[:PROMPT]).all()


def test_the_next_turn_finds_the_answer(client, rows, rng):
    sequence = start(client, rows[:PROMPT], prefix_of(rows[:PROMPT]))
    for begin in range(PROMPT, PROMPT + 50, 10):
        decode(client, sequence, rows[begin:begin + 10],
               rng.standard_normal((10, HEADS, WIDTH), numpy.float32))
    said = rows[:PROMPT + 50]
    sequence.free(prefix=prefix_of(said))
    with start(client, said, prefix_of(said)) as turn:
        assert turn.present_tokens == 3 * BLOCK
        assert (turn.pull(0, 0, len(said)) == said).all()


def test_what_was_not_whole_is_not_found(client, rows):
    prefix = prefix_of(rows[:PROMPT])
    dying = admit(client, rows[:PROMPT], prefix)
    dying.push(0, 0, rows[:PROMPT - 1])
    with start(client, rows[:PROMPT], prefix) as both_push:
        assert both_push.present_tokens == 0
    dying.free()
    with admit(client, rows[:PROMPT], prefix) as third:  # of the one that was whole
        assert third.present_tokens == 2 * BLOCK


@pytest.mark.parametrize("prefix", [
    lambda rows: prefix_of(rows, cache_salt=b"other"),
    lambda rows: tributary.Prefix(BLOCK, keys_of(rows, b"other")),
    lambda rows: tributary.Prefix(BLOCK, [key[:16] for key in keys_of(rows)]),
])
def test_another_name_is_another_block(client, first, rows, prefix):
    with admit(client, rows[:PROMPT], prefix(rows[:PROMPT])) as second:
        assert second.present_tokens == 0


def test_shared_rows_cannot_be_pushed(client, first, rows):
    with admit(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as second:
        with pytest.raises(tributary.AlreadyExists, match="shares those below 128"):
            second.push(0, 100, rows[100:PROMPT])
        assert (first.pull(0, 0, PROMPT) == rows[:PROMPT]).all()


def test_what_one_drops_and_writes_anew_stays_as_it_was_for_the_others(client, first, rows, rng):
    with start(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as second:
        second.truncate(100)  # within a shared page
        other = rng.standard_normal((40, WIDTH), numpy.float32)
        for begin in range(0, 40, 10):
            decode(client, second, other[begin:begin + 10],
                   rng.standard_normal((10, HEADS, WIDTH), numpy.float32))
        assert (second.pull(0, 0, 140) == numpy.concatenate([rows[:100], other])).all()
        assert (first.pull(0, 0, PROMPT) == rows[:PROMPT]).all()
    with admit(client, rows[:PROMPT], prefix_of(rows[:PROMPT])) as third:
        assert (third.pull(0, 0, 128) == rows[:128]).all()


@pytest.mark.parametrize("block,keys,salt,message", [
    (BLOCK, [b"k" * 15], b"", "keys of 15 bytes, expected 16 .. 32"),
    (BLOCK, [b"k" * 33], b"", "keys of 33 bytes, expected 16 .. 32"),
    (BLOCK, [b"k" * 16, b"k" * 17], b"", "key 1 has 17 bytes, the first has 16"),
    (BLOCK, [b"k" * 16] * 3, b"", "3 keys, a prompt of 150 tokens has 2 full blocks"),
    (100, [b"k" * 16], b"", "blocks of 100 tokens, expected a multiple of the page"),
    (128, [b"k" * 16], b"", r"that divides the leaf \(64\)"),
    (BLOCK, [b"k" * 16], b"s" * 65, "a salt of 65 bytes, expected 64 at most"),
])
def test_bad_names_are_refused(client, block, keys, salt, message):
    with pytest.raises(tributary.InvalidArgument, match=message):
        client.admit(PROMPT, 1, prefix=tributary.Prefix(block, keys, cache_salt=salt))


def test_names_of_rows_that_are_not_there_are_refused_and_the_sequence_is_freed(client, rows):
    sequence = start(client, rows[:PROMPT])
    with pytest.raises(tributary.InvalidArgument, match="2 keys, a prompt of 22 tokens|full blocks"):
        sequence.free(prefix=prefix_of(rows[:PROMPT + 50]))
    with pytest.raises(tributary.NotFound):
        sequence.refresh()


def test_too_many_names_are_refused_and_the_sequence_is_freed(client, rows):
    sequence = start(client, rows[:PROMPT])
    with pytest.raises(tributary.InvalidArgument, match="1025 blocks behind its prompt, 1024 are the most"):
        sequence.free(prefix=tributary.Prefix(BLOCK, [b"k" * 16] * 1027))
    with pytest.raises(tributary.NotFound):
        sequence.refresh()


def test_names_are_refused_while_rows_of_the_prompt_are_missing(client, rows):
    sequence = admit(client, rows[:PROMPT], None)
    with pytest.raises(tributary.FailedPrecondition, match="names of blocks: not ready"):
        sequence.free(prefix=prefix_of(rows))
    with pytest.raises(tributary.NotFound):
        sequence.refresh()


def test_many_are_freed_with_their_names(client, rows):
    several = [start(client, part, prefix_of(part)) for part in (rows[:PROMPT], rows[10:PROMPT])]
    client.free(several, prefixes=[prefix_of(rows[:PROMPT]), prefix_of(rows[10:PROMPT])])
    with pytest.raises(tributary.InvalidArgument, match="prefixes of 1 sequences, 2 are freed"):
        client.free(several, prefixes=[prefix_of(rows[:PROMPT])])


def test_rows_of_bf16_are_shared_too(narrow_client, rng):
    rows = rng.integers(0, 0x7F80, (PROMPT, WIDTH), numpy.uint16)
    with start(narrow_client, rows, prefix_of(rows)), \
            admit(narrow_client, rows, prefix_of(rows)) as second:
        assert second.present_tokens == 128
        assert (second.pull(0, 0, 128) == rows[:128]).all()


def test_awaited(client, rows):
    async def turns():
        other = tributary.AsyncClient(client)
        async with await other.admit(PROMPT, 0, prefix=prefix_of(rows[:PROMPT])) as sequence:
            await sequence.push(0, sequence.present_tokens, rows[sequence.present_tokens:PROMPT])
            await sequence.wait_ready()
        async with await other.admit(PROMPT, 0, prefix=prefix_of(rows[:PROMPT])) as sequence:
            return sequence.present_tokens
    assert asyncio.run(turns()) == 128
