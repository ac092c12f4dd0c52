# Prompts that begin alike: vLLM computes what nobody has computed before, and its tokens are its own.
import contextlib
import os
import signal

import pytest

from conftest import Engine, prompts_of, tier_of
from tier import wait_until

CHATS, TURNS, SYSTEM, SAID, NEW = 6, 4, 700, 60, 20
BLOCK = 64


@pytest.fixture(scope="module", params=["v2", "v3"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def turns(models, name):
    """The prompts of each turn, and vLLM's own tokens."""
    system, = prompts_of(SYSTEM)
    chats = [list(system) for _ in range(CHATS)]
    made = []
    with Engine(models(name), "own", environment={"VLLM_PLUGINS": ""}) as engine:
        assert engine.reply()["ready"]
        for turn in range(TURNS):
            for chat, more in zip(chats, prompts_of(*range(SAID, SAID + CHATS), seed=turn)):
                chat += more
            prompts = [list(chat) for chat in chats]
            answers = engine.tokens(prompts, NEW)
            made.append((prompts, answers))
            for chat, answer in zip(chats, answers):
                chat += answer
    return made


class Running:
    def __init__(self, model, stack_of, options=None, **more):
        self.tier = stack_of.enter_context(tier_of(model, **more))
        self.engine = stack_of.enter_context(Engine(model, self.tier.url, options))
        assert self.engine.reply()["ready"]

    def ask(self, prompts):
        self.engine.ask(prompts, NEW)
        return self.engine.reply()

    def wait_all_free(self):
        wait_until(lambda: self.tier.busy_pages() == 0, "every page is free", 60)


@pytest.fixture(scope="module")
def running(models, name):
    with contextlib.ExitStack() as stack_of:
        yield Running(models(name), stack_of)


def test_what_was_there_is_neither_computed_nor_pushed(running, turns):
    prompts, answers = turns[0]
    first = running.ask(prompts[:1])  # its system prompt is there before the others come
    assert first["tokens"] == answers[:1] and first["cached"] == [0]
    present = {}
    for turn, (prompts, answers) in enumerate(turns):
        got = running.ask(prompts)
        assert got["tokens"] == answers
        # All but a prompt's last token are in blocks, and the last token of an answer has no row.
        expected = [(len(before) + NEW - 1 if turn else SYSTEM) // BLOCK * BLOCK
                    for before in (turns[turn - 1][0] if turn else prompts)]
        if turn == 0:
            expected[0] = (len(prompts[0]) + NEW - 1) // BLOCK * BLOCK
            expected[0] = min(expected[0], (len(prompts[0]) - 1) // BLOCK * BLOCK)
        assert got["cached"] == expected
        present[turn] = sum(expected)
    running.wait_all_free()
    brought = sum(len(p) - 1 for prompts, _ in turns for p in prompts) + len(turns[0][0][0]) - 1
    pushed = running.tier.metric("tributary_ingested_rows_total") / 2  # layers
    wait_until(lambda: running.tier.metric("tributary_ingested_rows_total") / 2
               == brought - sum(present.values()), f"rows are counted: {pushed}", 10)


def test_the_tier_is_killed_between_two_turns_and_within_one(running, turns):
    def kill():
        for pid in running.tier.pools["pool0"].pids().values():
            os.kill(pid, signal.SIGKILL)
        running.tier.start_pool("pool0", 2)
    for prompts, answers in turns[:2]:
        assert running.ask(prompts)["tokens"] == answers
        kill()
    prompts, answers = turns[2]
    begun = running.engine.steps()
    running.engine.ask(prompts, NEW)
    wait_until(lambda: running.engine.steps() >= begun + 5, "they decode", 300)
    kill()
    assert running.engine.reply()["tokens"] == answers
    assert running.ask(turns[3][0])["tokens"] == turns[3][1]
    running.wait_all_free()


def test_pages_that_are_just_enough(models, name, turns):
    """For two of the last turn's requests at a time."""
    if name != "v3":
        pytest.skip("one model is enough")
    with contextlib.ExitStack() as stack_of:
        longest = max(map(len, turns[-1][0])) + NEW
        pages = 2 * (longest // 64 + 2)
        tight = Running(models(name), stack_of, workers=1,
                        kv_gib=pages * 64 * 576 * 4 * 2 / 2**30)
        for prompts, answers in turns:
            assert tight.ask(prompts)["tokens"] == answers
        tight.wait_all_free()


def test_a_request_that_was_preempted_finds_its_rows_again(models, name, turns):
    """vLLM's own cache has room for three prompts of six, and for few of their new tokens."""
    if name != "v2":
        pytest.skip("one model is enough")
    prompts, answers = turns[1]
    longest, new = max(map(len, prompts)), 60
    with contextlib.ExitStack() as stack_of:
        # One element for each token and layer.
        tokens = 3 * longest + 64
        small = Running(models(name), stack_of, {"cache_bytes": tokens * 4 * 2})
        got = small.engine.tokens(prompts, new)
        assert [own[:NEW] for own in got] == answers
        small.wait_all_free()
        preempted = small.engine.output().count("is preempted")
        assert preempted > 0
        once = sum(len(prompt) - 1 for prompt in prompts)  # those that are admitted at once
        pushed = small.tier.metric("tributary_ingested_rows_total") / 2
        assert pushed <= once + preempted * 2 * BLOCK, (preempted, pushed, once)


def test_requests_that_want_logprobs_of_their_prompts_are_admitted_once(running, turns):
    """vLLM asks for no rows of these, and does not wait for room."""
    def admitted():
        return running.tier.metric("tributary_sequences_admitted_total")
    before, (prompts, answers) = admitted(), turns[0]
    running.engine.ask(prompts, NEW, prompt_logprobs=1)
    got = running.engine.reply()
    assert got["tokens"] == answers and got["cached"] == [0] * CHATS
    running.wait_all_free()
    assert 0 < admitted() - before <= CHATS
