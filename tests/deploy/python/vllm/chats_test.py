# Prompts that begin alike: vLLM computes what nobody has computed before, and its tokens are its own.
import collections
import contextlib
import os
import re
import signal

import pytest

from conftest import Engine, prompts_of, tier_of
from tier import wait_until

# Tokens of the system prompt, and about how many are said in each turn.
Story = collections.namedtuple("Story", "model chats system said")
CHATS, LONG_CHATS = (6, 700, (60,) * 4), (8, 1000, (60,) * 6)
AGENTS = 8, 1000, (1850, 310, 345, 380)  # up to 4,000 tokens, 90% of them there
NEW, BLOCK, LEAF = 20, 64, 128


@pytest.fixture(scope="module", params=[
    Story("v2", *CHATS), Story("v3", *CHATS),
    *(pytest.param(Story(model, *long), marks=pytest.mark.long)
      for model in ("v2", "v3") for long in (LONG_CHATS, AGENTS))],
    ids=lambda story: f"{story.model}-{story.chats}x{story.system + sum(story.said)}")
def story(request):
    return request.param


@pytest.fixture(scope="module")
def options(story):
    return {"max_model_len": -(-(story.system + sum(story.said) + 256) // BLOCK) * BLOCK}


@pytest.fixture(scope="module")
def turns(models, story, options):
    """The prompts of each turn, and vLLM's own tokens."""
    system, = prompts_of(story.system)
    chats = [list(system) for _ in range(story.chats)]
    made = []
    with Engine(models(story.model), "own", options, {"VLLM_PLUGINS": ""}) as engine:
        assert engine.reply()["ready"]
        for turn, said in enumerate(story.said):
            for chat, more in zip(chats, prompts_of(*range(said, said + story.chats), seed=turn)):
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
def running(models, story, options):
    with contextlib.ExitStack() as stack_of:
        yield Running(models(story.model), stack_of, options)


def test_what_was_there_is_neither_computed_nor_pushed(running, turns, story):
    prompts, answers = turns[0]
    first = running.ask(prompts[:1])  # its system prompt is there before the others come
    assert first["tokens"] == answers[:1] and first["cached"] == [0]
    present = {}
    for turn, (prompts, answers) in enumerate(turns):
        got = running.ask(prompts)
        assert got["tokens"] == answers
        # All but a prompt's last token are in blocks, and the last token of an answer has no row.
        expected = [(len(before) + NEW - 1 if turn else story.system) // BLOCK * BLOCK
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


def only(story, model):
    if story != Story(model, *CHATS):
        pytest.skip("one model is enough")


def extents_of(tier, after, count):
    """{sequence: what the control plane says of it} of the `count` sequences that were admitted after
    that one."""
    answers = [tier.get(f"/v1/sequences/{id}") for id in range(after + 1, after + 1 + 2 * count)]
    found = {answer.json["sequence_id"]: answer.json for answer in answers if answer.status == 200}
    assert len(found) == count, found
    return found


def test_a_worker_is_killed_within_a_turn(models, story, turns):
    """Of four that were started one by one: the requests that had rows there are computed again, and
    no others."""
    only(story, "v2")
    with contextlib.ExitStack() as stack_of:
        running = Running(models(story.model), stack_of, workers=4, mpirun=None)
        tier, pool, engine = running.tier, running.tier.pools["pool0"], running.engine
        victims = []
        for prompts, answers in turns[:3]:
            before = tier.admit(1, 1).json["sequence_id"]
            assert tier.request("DELETE", f"/v1/sequences/{before}").status == 200
            begun, said = engine.steps(), len(engine.output())
            engine.ask(prompts, NEW)
            wait_until(lambda: engine.steps() >= begun + 5, "they decode", 300)
            with engine.stopped():
                held = extents_of(tier, int(before), len(prompts))
                ranks = {id: {part["rank"] for part in handle["extents"]}
                         for id, handle in held.items()}
                there = set().union(*ranks.values()) - {0}
                if there:
                    victims.append(max(there))
                    os.kill(pool.pids()[victims[-1]], signal.SIGKILL)
            assert engine.reply()["tokens"] == answers
            lost = set(re.findall(r"has lost <tributary.Sequence (\d+)", engine.output()[said:]))
            had = {id for id in held if there and victims[-1] in ranks[id]}
            # An open step may have begun a leaf there.
            border = {id for id, handle in held.items() if handle["length"] % LEAF == 0}
            assert had <= lost <= (had | border if there else set()), (held, lost)
            assert len(lost) < len(prompts)
        assert victims
        assert running.ask(turns[3][0])["tokens"] == turns[3][1]
        wait_until(lambda: sorted(victims) == [
            worker["rank"] for worker in tier.cluster()["pools"][0]["workers"]
            if worker["state"] == "lost"], "the losses are told")
        assert tier.state("pool0") == "serving"
        running.wait_all_free()


def test_pages_that_are_just_enough(models, story, turns):
    """For two of the last turn's requests at a time."""
    only(story, "v3")
    with contextlib.ExitStack() as stack_of:
        longest = max(map(len, turns[-1][0])) + NEW
        pages = 2 * (longest // 64 + 2)
        tight = Running(models(story.model), stack_of, workers=1,
                        kv_gib=pages * 64 * 576 * 4 * 2 / 2**30)
        for prompts, answers in turns:
            assert tight.ask(prompts)["tokens"] == answers
        tight.wait_all_free()


def test_a_request_that_was_preempted_finds_its_rows_again(models, story, turns):
    """vLLM's own cache has room for three prompts of six, and for few of their new tokens."""
    only(story, "v2")
    prompts, answers = turns[1]
    longest, new = max(map(len, prompts)), 60
    with contextlib.ExitStack() as stack_of:
        # One element for each token and layer.
        tokens = 3 * longest + 64
        small = Running(models(story.model), stack_of, {"cache_bytes": tokens * 4 * 2})
        got = small.engine.tokens(prompts, new)
        assert [own[:NEW] for own in got] == answers
        small.wait_all_free()
        preempted = small.engine.output().count("is preempted")
        assert preempted > 0
        once = sum(len(prompt) - 1 for prompt in prompts)  # those that are admitted at once
        pushed = small.tier.metric("tributary_ingested_rows_total") / 2
        assert pushed <= once + preempted * 2 * BLOCK, (preempted, pushed, once)


def test_requests_that_want_logprobs_of_their_prompts_are_admitted_once(running, story, turns):
    """vLLM asks for no rows of these, and does not wait for room."""
    def admitted():
        return running.tier.metric("tributary_sequences_admitted_total")
    before, (prompts, answers) = admitted(), turns[0]
    running.engine.ask(prompts, NEW, prompt_logprobs=1)
    got = running.engine.reply()
    assert got["tokens"] == answers and got["cached"] == [0] * story.chats
    running.wait_all_free()
    assert 0 < admitted() - before <= story.chats
