# The scheduler's half without vLLM: who has a sequence that one engine hands to another.
import contextlib

import numpy
import pytest

import tributary
from tier import wait_until
from tributary.vllm.admissions import Admissions
from tributary.vllm.options import Options

SHAPE = {"heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "layers": 1, "softmax_scale": 0.2}
ROWS = numpy.ones((9, 48), numpy.float32)


@pytest.fixture
def pool():
    with tributary.Pool(1, SHAPE, rows="f32", query="f32", leaf_tokens=64, kv_gib=0.001) as made:
        yield made
        wait_until(lambda: not any(made.pages_held), "every page is free", 20)


@contextlib.contextmanager
def engine(pool, timeout=5.0):
    admissions = Admissions(pool, Options("", timeout=timeout))

    def ask(name, tokens, handed_over=None):
        wait_until(lambda: admissions.ask(name, tokens, 8, handed_over), "it is decided", 20)
        return admissions.take(name)
    yield admissions, ask
    admissions.close()


def pushed(pool):
    sequence = pool.admit(9, 8)
    sequence.push(0, 0, ROWS)
    return sequence


def test_a_sequence_is_claimed_once(pool):
    first = pushed(pool)
    text = first.to_json()
    with engine(pool) as (_, one), engine(pool) as (_, other):
        mine, claimed = one("a", 9, text)
        assert claimed and (mine.id, mine.length, mine.epoch) == (first.id, 9, 2)
        own, claimed = other("b", 9, text)
        assert not claimed and own.id != mine.id
        with pytest.raises(tributary.Error, match="epoch"):  # what the first engine has is no use
            first.truncate(9)
        pool.free([mine, own])


@pytest.mark.parametrize("handle", ["", "{}", 7, "ended", "another prompt"])
def test_what_cannot_be_claimed_is_admitted(pool, handle):
    given = pool.admit(5, 8) if handle == "another prompt" else pushed(pool)
    if handle == "ended":
        given.free()
    with engine(pool) as (_, ask):
        sequence, claimed = ask("a", 9, given.to_json() if handle in ("ended", "another prompt")
                                else handle)
        assert not claimed and sequence.prompt_tokens == 9
        pool.free([sequence, given])


def test_rows_that_are_on_their_way_are_waited_for_and_others_go_first(pool):
    given = pool.admit(9, 8)
    with engine(pool) as (admissions, ask):
        assert not admissions.ask("a", 9, 8, given.to_json())
        other, _ = ask("b", 9)
        given.push(0, 0, ROWS)
        sequence, claimed = ask("a", 9, given.to_json())
        assert claimed
        pool.free([sequence, other])


def test_rows_that_never_come_are_given_up(pool):
    given = pool.admit(9, 8)
    with engine(pool, timeout=0.3) as (_, ask):
        sequence, claimed = ask("a", 9, given.to_json())
        assert not claimed
        pool.free([sequence, given])


def test_a_request_that_ends_while_it_waits_claims_nothing(pool):
    given = pool.admit(9, 8)
    with engine(pool) as (admissions, ask):
        assert not admissions.ask("a", 9, 8, given.to_json())
        admissions.give_up("a")
        sequence, _ = ask("b", 9)
        given.push(0, 0, ROWS)
        given.wait_ready()
        pool.free([sequence, given])


def test_an_engine_that_closes_frees_what_was_decided_and_is_not_taken_yet(pool):
    with engine(pool) as (admissions, _):
        for name, handle in ("a", pushed(pool).to_json()), ("b", None):
            wait_until(lambda: admissions.ask(name, 9, 8, handle), "it is decided", 20)
        assert any(pool.pages_held)
    wait_until(lambda: not any(pool.pages_held), "every page is free", 20)
