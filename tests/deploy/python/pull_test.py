# Rows that come back: what was pushed and committed, in whose memory, and what is refused.
import asyncio

import numpy
import pytest

import tributary
from conftest import tier_of
from life_test import WIDTH

HEADS, PROMPT = 4, 150  # three leaves


@pytest.fixture
def rows(rng):
    return rng.standard_normal((PROMPT + 8, WIDTH), numpy.float32)


@pytest.fixture
def sequence(client, rows):
    with client.admit(PROMPT, 8, spread="all") as sequence:
        sequence.push(0, 0, rows[:PROMPT])
        yield sequence


def decode(client, sequence, rows):
    query = numpy.zeros((len(rows), HEADS, WIDTH), numpy.float32)
    with client.step([sequence], len(rows)) as step:
        step.attend(0, query, rows)


def test_rows_come_back_bit_for_bit(client, sequence, rows):
    got = sequence.pull(0, 0, PROMPT)
    assert got.dtype == numpy.float32 and got.shape == (PROMPT, WIDTH)
    assert (got.view(numpy.uint32) == rows[:PROMPT].view(numpy.uint32)).all()
    sequence.wait_ready()
    for begin in (PROMPT, PROMPT + 3):
        decode(client, sequence, rows[begin:begin + 3])
        assert (sequence.pull(0, begin - 70, begin + 3) == rows[begin - 70:begin + 3]).all()
    sequence.truncate(100)
    assert (sequence.pull(0, 60, 100) == rows[60:100]).all()
    with pytest.raises(tributary.InvalidArgument, match=f"rows 60 to 101: sequence {sequence.id} has 100"):
        sequence.pull(0, 60, 101)


def test_they_come_into_the_callers_memory(sequence, rows):
    out = numpy.zeros((PROMPT, WIDTH), numpy.float32)
    part = out[20:80]
    assert sequence.pull(0, 20, 80, part) is part
    assert (out[20:80] == rows[20:80]).all() and not out[:20].any() and not out[80:].any()


def test_a_tensor_of_torch_is_written(sequence, rows):
    torch = pytest.importorskip("torch", reason="NO torch")
    out = torch.zeros(64, WIDTH)
    assert sequence.pull(0, 64, 128, out=out) is out
    assert (out.numpy() == rows[64:128]).all()


def test_rows_of_bf16_are_their_bits(narrow_client, rng):
    rows = rng.integers(0, 0x7F80, (70, WIDTH), numpy.uint16)
    with narrow_client.admit(70, 0) as sequence:
        sequence.push(0, 0, rows)
        got = sequence.pull(0, 1, 70)
        assert got.dtype == numpy.uint16 and (got == rows[1:]).all()


@pytest.mark.parametrize("begin,end", [(5, 5), (6, 5), (-1, 5), (0, PROMPT + 1), (0, 2**62)])
def test_a_range_that_is_not_there_is_named(sequence, begin, end):
    with pytest.raises(tributary.InvalidArgument, match=f"rows {begin} to {end}: sequence"):
        sequence.pull(0, begin, end)


def test_a_layer_that_is_not_there_is_named(sequence):
    with pytest.raises(tributary.InvalidArgument, match="layer 1: the pool has 1"):
        sequence.pull(1, 0, 5)


@pytest.mark.parametrize("out,error,message", [
    (numpy.zeros((5, WIDTH), numpy.uint16), TypeError, "out: uint16, expected float32"),
    (numpy.zeros((4, WIDTH), numpy.float32), ValueError, "out: shape"),
    (numpy.zeros((5, 2 * WIDTH), numpy.float32)[:, :WIDTH], ValueError, "out: strides"),
    (numpy.broadcast_to(numpy.zeros(WIDTH, numpy.float32), (5, WIDTH)), ValueError, "out: read-only"),
    ([1.0], TypeError, "out: list"),
])
def test_other_memory_is_refused(sequence, out, error, message):
    with pytest.raises(error, match=message):
        sequence.pull(0, 0, 5, out)


def test_rows_that_have_not_arrived_are_named(client):
    with client.admit(20, 0) as sequence:
        sequence.push(0, 5, numpy.ones((5, WIDTH), numpy.float32))
        assert (sequence.pull(0, 5, 10) == 1).all()
        with pytest.raises(tributary.FailedPrecondition,
                           match=f"row 10 of layer 0 of sequence {sequence.id} has not arrived"):
            sequence.pull(0, 5, 11)


def test_many_at_once(client, rows):
    sequences = [client.admit(20, 0) for _ in range(3)]
    for i, sequence in enumerate(sequences):
        sequence.push(0, 0, rows[i:i + 20])
    parts = [(sequence, 0, 2, 20) for sequence in sequences]
    for i, got in enumerate(client.pull(parts)):
        assert (got == rows[i + 2:i + 20]).all()
    out = numpy.zeros((3, 18, WIDTH), numpy.float32)
    client.pull(parts, out=list(out))
    assert (out[1] == rows[3:21]).all()
    assert client.pull([]) == []
    with pytest.raises(tributary.InvalidArgument, match="2 arrays in out for 3 parts"):
        client.pull(parts, out=list(out[:2]))
    client.free(sequences[1:2])
    with pytest.raises(tributary.NotFound) as caught:
        client.pull(parts)
    assert list(caught.value.failed) == [1]
    assert (caught.value.results[2] == rows[4:22]).all()
    client.free(sequences)


def test_another_client_that_adopts_it_pulls(client, sequence, rows):
    other = client if isinstance(client, tributary.Pool) else tributary.Client(tier_of(client))
    theirs = other.adopt(tributary.Sequence.from_json(sequence.to_json()))
    assert (theirs.pull(0, 0, PROMPT) == rows[:PROMPT]).all()


def test_pulls_are_awaited(client, rows):
    async def main():
        async with tributary.AsyncClient(tier_of(client)) as tier:
            async with await tier.admit(30, 0, wait=60) as sequence:
                await sequence.push(0, 0, rows[:30])
                one, (many,) = await asyncio.gather(
                    sequence.pull(0, 0, 10), tier.pull([(sequence, 0, 10, 30)]))
                return numpy.concatenate([one, many])

    assert (asyncio.run(main()) == rows[:30]).all()
