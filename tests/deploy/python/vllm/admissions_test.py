# The scheduler's half without vLLM: who has a sequence that one engine hands to another.
import contextlib
import json

import numpy
import pytest

import tributary
from tier import wait_until
from tributary.vllm.admissions import Admissions, HandOff, hash_of
from tributary.vllm.options import Options

SHAPE = {"heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "layers": 1, "softmax_scale": 0.2}
ROWS = numpy.ones((9, 48), numpy.float32)
PROMPT = list(range(100, 109))
TOKENS = PROMPT + [1]  # of a request: the last one comes as a decode


@pytest.fixture
def pool():
    with tributary.Pool(1, SHAPE, rows="f32", query="f32", leaf_tokens=64, kv_gib=0.001) as made:
        yield made
        wait_until(lambda: not any(made.pages_held), "every page is free", 20)


@contextlib.contextmanager
def engine(pool, timeout=5.0):
    admissions = Admissions(pool, Options("", timeout=timeout))

    def ask(name, tokens, handed_over=None):
        wait_until(lambda: admissions.ask(name, tokens, 8, handed_over=handed_over), "it is decided", 20)
        return admissions.take(name)
    yield admissions, ask
    admissions.close()


def pushed(pool):
    sequence = pool.admit(9, 16)
    sequence.push(0, 0, ROWS)
    return sequence


def handle(text, prompt=PROMPT, tokens=TOKENS):
    return HandOff(text, hash_of(prompt), tokens)


def test_a_sequence_is_claimed_once(pool):
    first = pushed(pool)
    text = handle(first.to_json())
    with engine(pool) as (_, one), engine(pool) as (_, other):
        mine, claimed = one("a", 9, text)
        assert claimed and (mine.id, mine.length, mine.epoch) == (first.id, 9, 2)
        own, claimed = other("b", 9, text)
        assert not claimed and own.id != mine.id
        with pytest.raises(tributary.Error, match="epoch"):  # what the first engine has is no use
            first.truncate(9)
        pool.free([mine, own])


@pytest.mark.parametrize("text", ["", "{}", 7, None, "\ud800", [], {"token": 1}])
def test_what_is_no_handle_is_not_claimed(pool, text):
    with engine(pool) as (_, ask):
        sequence, claimed = ask("a", 9, handle(text))
        assert not claimed and sequence.prompt_tokens == 9
        pool.free([sequence])


def test_what_has_ended_or_has_another_prompt_is_not_claimed(pool):
    shorter, ended, given = pool.admit(5, 8), pushed(pool), pushed(pool)
    ended.free()
    with engine(pool) as (_, ask):
        for name, wrong in (("shorter", handle(shorter.to_json())),
                            ("ended", handle(ended.to_json())),
                            ("as long", handle(given.to_json(), PROMPT[::-1])),
                            ("no hash", HandOff(given.to_json(), None, TOKENS))):
            sequence, claimed = ask(name, 9, wrong)
            assert not claimed, name
            pool.free([sequence])
        assert ask("right", 9, handle(given.to_json()))[1]
    pool.free([shorter, given])


def decode(pool, sequence):
    with pool.step([sequence]) as step:
        o, _ = step.attend(0, numpy.ones((1, 4, 48), numpy.float32),
                           numpy.ones((1, 48), numpy.float32))
        step.commit()
    return o


def forgeries(victim, mine):
    """What a user who has a handle of his own makes of it to reach another's sequence."""
    zeros = {"token": "0" * 32}
    yield "token", victim | zeros
    yield "id", mine | {"sequence_id": victim["sequence_id"]}
    yield "epoch", victim | zeros | {"epoch": 7}
    yield "addresses", victim | {"workers": [{"rank": 0, "address": "tcp://127.0.0.1:1"}]}
    yield "length", victim | zeros | {"length": 5, "prompt_tokens": 5,
                                      "extents": [{"begin": 0, "end": 5, "rank": 0}]}


def test_a_forged_handle_claims_nothing_and_its_victim_goes_on(pool):
    """In the engine that decodes the victim's request, and so has proven its sequence."""
    victim, mine = pushed(pool), pushed(pool)
    victim.wait_ready()
    handles = [json.loads(sequence.to_json()) for sequence in (victim, mine)]
    with engine(pool) as (_, ask):
        for number, (name, forged) in enumerate(forgeries(*handles)):
            decode(pool, victim)
            prompt = PROMPT[:forged["prompt_tokens"]]
            sequence, claimed = ask(name, len(prompt),
                                    handle(json.dumps(forged), prompt, prompt + [1]))
            assert not claimed and sequence.id not in (victim.id, mine.id), name
            decode(pool, victim)
            victim.refresh()
            assert (victim.length, victim.epoch) == (9 + 2 * (number + 1), 1), name
            pool.free([sequence])
    pool.free([victim, mine])


def test_rows_that_are_on_their_way_are_waited_for_and_others_go_first(pool):
    given = pool.admit(9, 8)
    with engine(pool) as (admissions, ask):
        assert not admissions.ask("a", 9, 8, handed_over=handle(given.to_json()))
        other, _ = ask("b", 9)
        given.push(0, 0, ROWS)
        sequence, claimed = ask("a", 9, handle(given.to_json()))
        assert claimed
        pool.free([sequence, other])


def test_rows_that_never_come_are_given_up(pool):
    given = pool.admit(9, 8)
    with engine(pool, timeout=0.3) as (_, ask):
        sequence, claimed = ask("a", 9, handle(given.to_json()))
        assert not claimed
        pool.free([sequence, given])


def test_a_request_that_ends_while_it_waits_claims_nothing(pool):
    given = pool.admit(9, 8)
    with engine(pool) as (admissions, ask):
        assert not admissions.ask("a", 9, 8, handed_over=handle(given.to_json()))
        admissions.give_up("a")
        sequence, _ = ask("b", 9)
        given.push(0, 0, ROWS)
        given.wait_ready()
        pool.free([sequence, given])


def test_an_engine_that_closes_frees_what_was_decided_and_is_not_taken_yet(pool):
    with engine(pool) as (admissions, _):
        for name, given in ("a", handle(pushed(pool).to_json())), ("b", None):
            wait_until(lambda: admissions.ask(name, 9, 8, handed_over=given), "it is decided", 20)
        assert any(pool.pages_held)
    wait_until(lambda: not any(pool.pages_held), "every page is free", 20)


def test_a_pool_whose_leaves_are_smaller_than_a_block_shares_nothing(pool):
    prefix = tributary.Prefix(128, [b"k" * 16])
    with engine(pool) as (admissions, _):
        for name in ("a", "b"):
            wait_until(lambda: admissions.ask(name, 200, 8, prefix), "it is decided", 20)
            sequence, claimed = admissions.take(name)
            assert sequence.present_tokens == 0 and not claimed
            admissions.free(sequence)
