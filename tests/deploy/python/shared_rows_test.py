# Clients that share rows by names and by forks are killed at any moment, and the control plane is
# too: the others' rows stay what they were, and every page is free at the end.
import multiprocessing
import random

import numpy
import pytest

import tributary
from conftest import WIDE
from life_test import WIDTH
from program import TINY
from tier import LEASE_MS, Tier

HEADS, PROMPT, TURN, TEXTS = 4, 300, 130, 3
STEPS, CLIENTS, ROUNDS = 40, 3, 8


def rows_of(text):
    """Of a prompt and a next turn, the same in every process."""
    return numpy.random.default_rng(text).standard_normal((PROMPT + TURN, WIDTH), numpy.float32)


def prefix_of(text, tokens):
    return tributary.Prefix(64, [f"{text:8}{end:8}".encode() for end in range(64, tokens + 1, 64)])


def check(sequence, text, end):
    assert (sequence.pull(0, 0, end) == rows_of(text)[:end]).all(), f"rows of {sequence}"


def fill(sequence, rows, say):
    """In two parts."""
    present = sequence.present_tokens
    middle = (present + len(rows)) // 2
    for begin, end in ((present, middle), (middle, len(rows))):
        if begin < end:
            sequence.push(0, begin, rows[begin:end])
        say(f"pushed rows to {end}")
    sequence.wait_ready()
    say("ready")


def converse(url, seed, pipe):
    """Chats until it is killed, and says what it is about to do next."""
    dice, client = random.Random(seed), tributary.Client(url, timeout=60.0)
    try:
        while True:
            text = dice.randrange(TEXTS)
            rows = rows_of(text)
            pipe.send("admit")
            with client.admit(PROMPT, 8, wait=60.0, prefix=prefix_of(text, PROMPT)) as first:
                pipe.send(f"{first.present_tokens} are there")
                check(first, text, first.present_tokens)
                fill(first, rows[:PROMPT], pipe.send)
                length = dice.randint(1, PROMPT)
                with first.fork(length, 8, prompt_tokens=PROMPT + TURN,
                                prefix=prefix_of(text, PROMPT + TURN)) as turn:
                    pipe.send("forked")
                    fill(turn, rows, pipe.send)
                    check(turn, text, PROMPT + TURN)
                    query = numpy.zeros((1, HEADS, WIDTH), numpy.float32)
                    with client.step([first, turn]) as step:
                        step.attend(0, query.repeat(2, 0), rows[:2])
                    pipe.send("stepped")
                    turn.truncate(dice.randint(1, PROMPT))
                    check(turn, text, turn.length)
                    check(first, text, PROMPT)
                pipe.send("freed one")
                first.free(prefix=prefix_of(text, PROMPT))
    except tributary.Error as error:
        pipe.send(error)
    except AssertionError as error:
        pipe.send(error)


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_clients_and_control_planes_change_no_row(workers):
    dice, process = random.Random(workers), multiprocessing.get_context("spawn")
    flags = ["--model", TINY, *WIDE]
    with Tier(pools=(workers,), worker_flags=flags, lease_ms=LEASE_MS) as tier:
        client = tributary.Client(tier.url, timeout=60.0)
        own = [client.admit(PROMPT, 0, prefix=prefix_of(text, PROMPT)) for text in range(TEXTS)]
        for text, sequence in enumerate(own):
            fill(sequence, rows_of(text)[:PROMPT], lambda said: None)
        for number in range(ROUNDS):
            children = []
            for i in range(CLIENTS):
                ours, theirs = process.Pipe()
                child = process.Process(target=converse, daemon=True,
                                        args=(tier.url, number * CLIENTS + i, theirs))
                child.start()
                children.append((child, ours, dice.randint(1, STEPS)))
            if number % 3 == 2:
                children[0][1].recv()
                tier.kill_control()
                tier.start_control(tier.address)
            for child, pipe, after in children:
                for _ in range(after):
                    said = pipe.recv()
                    assert isinstance(said, str), said
                child.kill()
                child.join(60)
            for text, sequence in enumerate(own):
                check(sequence, text, PROMPT)
        assert tier.metric("tributary_prefix_cache_hits_total") > 0
        client.free(own)
        tier.wait_all_free()
        with client.admit(PROMPT, 0, prefix=prefix_of(0, PROMPT)) as again:
            assert again.present_tokens == 256
            check(again, 0, 256)
