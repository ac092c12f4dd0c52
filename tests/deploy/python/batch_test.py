# Calls on many sequences: who failed, what the others got; nothing as a batch; more room.
import pickle
import subprocess
import sys

import numpy
import pytest

import tributary
from conftest import tier_of
from life_test import QUERY, ROW, WIDTH, ready

PROMPT = numpy.ones((5, WIDTH), numpy.float32)


@pytest.fixture
def three(client):
    sequences = [client.admit(5, 8) for _ in range(3)]
    client.push(0, [(sequence, 0, PROMPT) for sequence in sequences])
    client.wait_ready(sequences)
    yield sequences
    client.free(sequences)


def another_frees(client, sequence):
    other = client if isinstance(client, tributary.Pool) else tributary.Client(tier_of(client))
    other.free([other.adopt(tributary.Sequence.from_json(sequence.to_json()))])


@pytest.mark.parametrize("given", [False, True])
def test_a_layer_names_who_failed_and_gives_the_others_their_results(client, three, rng, given):
    query = rng.standard_normal((3, 4, WIDTH), numpy.float32)
    rows = rng.standard_normal((3, WIDTH), numpy.float32)
    with client.step(three) as step:
        expected, _ = step.attend(0, query, rows)
        step.accept([0, 0, 0])
    another_frees(client, three[1])
    out = numpy.zeros((3, 4 * 129), numpy.float32) if given else None
    step = client.step(three)
    with pytest.raises(tributary.NotFound, match=f"sequence {three[1].id}") as caught:
        step.attend(0, query, rows, out)
    assert list(caught.value.failed) == [1]
    assert isinstance(caught.value.failed[1], tributary.NotFound)
    o, lse = caught.value.results
    assert (o[[0, 2]] == expected[[0, 2]]).all() and lse.shape == (3, 4)
    assert out is None or numpy.shares_memory(o, out)
    with pytest.raises(tributary.NotFound) as caught:
        step.commit()
    assert list(caught.value.failed) == [1]
    assert [sequence.length for sequence in three] == [6, 5, 6]
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again.failed[1]) == str(caught.value.failed[1])


def test_a_step_goes_on_without_who_failed(client, three):
    another_frees(client, three[0])
    with pytest.raises(tributary.NotFound) as caught:
        client.step(three).attend(0, QUERY.repeat(3, 0), ROW.repeat(3, 0))
    left = [s for i, s in enumerate(three) if i not in caught.value.failed]
    with client.step(left) as step:
        step.attend(0, QUERY.repeat(2, 0), ROW.repeat(2, 0))
    assert [sequence.length for sequence in left] == [6, 6]


def test_pushes_and_waits_name_who_failed(client):
    sequences = [client.admit(5, 0) for _ in range(3)]
    another_frees(client, sequences[2])
    with pytest.raises(tributary.NotFound) as caught:
        client.push(0, [(sequence, 0, PROMPT) for sequence in sequences[1:]])
    assert list(caught.value.failed) == [1]
    with pytest.raises(tributary.Error) as caught:
        client.wait_ready(sequences, timeout=0.5)
    assert {i: type(e) for i, e in caught.value.failed.items()} == {
        0: tributary.DeadlineExceeded, 2: tributary.NotFound}
    client.push(0, [(sequences[0], 0, PROMPT[:2]), (sequences[0], 2, PROMPT[2:])])
    client.wait_ready(sequences[:2])
    client.free(sequences)
    client.free(sequences)  # not an error


def test_a_push_may_be_repeated(client, rng):
    rows = rng.standard_normal((4000, WIDTH), numpy.float32)
    with client.admit(4000, 1) as sequence:
        for timeout in (0.0005, 0.001, 0.002, None):
            try:
                sequence.push(0, 0, rows, timeout=timeout)
            except tributary.DeadlineExceeded:
                continue
        sequence.wait_ready()
        sequence.push(0, 0, rows)
        rows[17] += 1
        with pytest.raises(tributary.AlreadyExists):
            sequence.push(0, 0, rows)


def test_more_room(client):
    with ready(client, room=1) as sequence:
        with client.step([sequence]) as step:
            step.attend(0, QUERY, ROW)
        with pytest.raises(tributary.InvalidArgument, match="that was admitted"):
            client.step([sequence]).attend(0, QUERY, ROW)
        sequence.extend(200)
        assert sequence.max_new_tokens == 200
        for _ in range(14):
            with client.step([sequence], tokens=14) as step:
                step.attend(0, QUERY.repeat(14, 0), ROW.repeat(14, 0))
        assert sequence.length == 202
        sequence.refresh()
        assert (sequence.length, sequence.max_new_tokens) == (202, 200)
        with pytest.raises(tributary.TooLarge):
            sequence.extend(1 << 30)
        with pytest.raises(tributary.InvalidArgument):
            sequence.extend(-1)


def test_no_more_room(narrow_client, room):
    with narrow_client.admit(64, 0) as sequence, narrow_client.admit(room - 128, 0) as other:
        sequence.extend(64)
        with pytest.raises(tributary.PoolFull):
            sequence.extend(65)
        assert sequence.max_new_tokens == 64
        other.free()
        sequence.extend(65)


def test_nothing_is_a_batch_too(client, three):
    client.push(0, [])
    client.wait_ready([])
    client.free([])
    three[0].push(0, 5, PROMPT[:0])
    with client.step([]) as step:
        o, lse = step.attend(0, QUERY[:0], ROW[:0])
        assert len(o) == len(lse) == 0
        assert len(step.forward(0, ROW[:0])) == 0
    with client.step(three, tokens=0) as step:
        o, lse = step.attend(0, QUERY[:0], ROW[:0])
        assert o.shape == (0, 4, 128) and lse.shape == (0, 4)
    with client.step(three, tokens=[0, 2, 0]) as step:
        o, _ = step.attend(0, QUERY.repeat(2, 0), ROW.repeat(2, 0))
        assert len(o) == 2
    assert [sequence.length for sequence in three] == [5, 7, 5]


def test_what_is_no_sequence_and_no_number_of_tokens(client, three):
    for call in (client.adopt, client.step, client.free, client.wait_ready):
        with pytest.raises(TypeError):
            call(["x"] if call != client.adopt else "x")
    for tokens in (-1, [1, -1, 1], 17):
        with pytest.raises(tributary.InvalidArgument, match="new tokens of a sequence"):
            client.step(three, tokens)


def test_a_type_checker_finds_what_is_there(tmp_path):
    pytest.importorskip("mypy", reason="NO mypy")
    program = tmp_path / "program.py"
    program.write_text("""\
import numpy
import numpy.typing
import tributary

Array = numpy.typing.NDArray[numpy.float32]

def run(client: tributary.Client, sequences: list[tributary.Sequence]) -> float:
    try:
        client.wait_ready(sequences)
        sequences[0].extend(7)
    except tributary.PoolFull as error:
        return error.retry_after
    except tributary.NotFound as error:
        reveal_type(error.failed)
    return 0.0

def attend(step: tributary.Step, query: Array, row: Array) -> Array:
    o, lse = step.attend(0, query, row)
    reveal_type(lse)
    return step.forward(0, o)

def decode(q: Array, k_cache: Array, table: Array, lengths: Array) -> tuple[Array, Array]:
    metadata, splits = tributary.get_mla_metadata()
    out, lse = tributary.flash_mla_with_kvcache(q, k_cache, table, lengths, 512, metadata, splits)
    return tributary.merge_states(out, lse, out, lse)

async def turn(client: tributary.AsyncClient, query: Array, row: Array) -> int:
    async with await client.admit(5, 7) as sequence, client.step([sequence]) as step:
        o, _ = await step.attend(0, query, row)
        reveal_type(o)
        return sequence.length
""")
    found = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir",
                            str(tmp_path / "cache"), str(program)], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
    assert "int, tributary.errors.Error]" in found.stdout, found.stdout
    assert found.stdout.count("numpy.ndarray[") == 2, found.stdout
