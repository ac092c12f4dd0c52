# Two engines and a tier: the first computes prompts, the second decodes. Tokens are those of one
# engine without the plug-in.
import contextlib
import json
import re

import pytest

import tributary
from conftest import FIRST, NEW, SECOND, Engine, tier_of
from tier import wait_until

LEASE_MS = 12_000
FREED_S = 2  # what is freed, and not left to its lease, is known by then
FREE_S = LEASE_MS / 1000 + 15
TO_OTHERS = [{"do_remote_decode": True}] * len(FIRST)


class Pair:
    def __init__(self, model, kill_first, stack_of):
        self.tier = stack_of.enter_context(tier_of(model, lease_ms=LEASE_MS))
        self.first, self.second = (
            stack_of.enter_context(Engine(model, self.tier.url, environment=environment))
            for environment in ({"KILL_ENGINE": str(kill_first)}, {}))
        for engine in (self.first, self.second):
            assert engine.reply()["ready"]

    def hand_over(self, prompts, **more):
        self.first.ask(prompts, 1, transfer=TO_OTHERS[:len(prompts)], **more)
        return self.first.reply()

    def pushed(self):
        return self.tier.metric("tributary_ingested_rows_total")

    def held(self):
        """Sequences, by the control plane's own count: no heartbeat is waited for."""
        return self.tier.cluster()["pools"][0]["sequences"]

    def refused(self):
        """Why the second engine computed prompts itself."""
        return re.findall(r"request \S+ computes its prompt itself: (.*)",
                          self.second.output())


@pytest.fixture(scope="module")
def kill_first(tmp_path_factory):
    return tmp_path_factory.mktemp("kill") / "first"


@pytest.fixture(scope="module")
def pair(models, kill_first):
    with contextlib.ExitStack() as stack_of:
        yield Pair(models("v2"), kill_first, stack_of)


def test_16_prompts_of_one_engine_are_decoded_by_another(pair, own):
    expected = own("v2")[0]
    before = pair.pushed()
    handed = pair.hand_over(FIRST)
    assert handed["tokens"] == [tokens[:1] for tokens in expected]
    assert pair.second.tokens(FIRST, NEW, transfer=handed["transfer"]) == expected
    once = 2 * sum(len(prompt) - 1 for prompt in FIRST)  # of two layers
    assert pair.refused() == []
    wait_until(lambda: pair.tier.busy_pages() == 0, "every page is free", FREED_S)
    assert pair.pushed() - before == once


def test_a_handle_is_claimed_once_and_for_its_prompt(pair, own):
    prompts, expected = FIRST[4:8], own("v2")[0][4:8]
    handles = pair.hand_over(prompts)["transfer"]
    ended = tributary.Sequence.from_json(handles[1]["tributary_sequence"])
    tributary.Client(pair.tier.url).adopt(ended).free()
    given = [handles[0], handles[1], handles[0], handles[2]]  # the last: of another prompt
    asked = [prompts[0], prompts[1], prompts[0], prompts[3]]
    assert pair.second.tokens(asked, NEW, transfer=given) == [expected[i] for i in (0, 1, 0, 3)]
    assert len(pair.refused()) == 3, pair.refused()
    wait_until(lambda: pair.held() == 2, "of two handles that nobody claims", FREED_S)
    wait_until(lambda: pair.tier.busy_pages() == 0, "leases have ended", FREE_S)


def test_a_made_up_handle_reaches_nobodys_rows(pair, own):
    """Both requests are in one engine, which has proven the first one's sequence."""
    prompts, expected = FIRST[4:6], own("v2")[0][4:6]
    handles, before = pair.hand_over(prompts)["transfer"], len(pair.refused())
    victim, mine = (json.loads(handle["tributary_sequence"]) for handle in handles)
    forged = handles[1] | {"tributary_sequence": json.dumps(
        mine | {"sequence_id": victim["sequence_id"]})}
    assert pair.second.tokens(prompts, NEW, transfer=[handles[0], forged]) == expected
    assert len(pair.refused()) == before + 1, pair.refused()
    wait_until(lambda: pair.tier.busy_pages() == 0, "leases have ended", FREE_S)


def test_engines_are_killed(pair, own, kill_first):
    """The first between layers, the second after it has claimed; its router has others then."""
    handles = pair.hand_over(FIRST)["transfer"]
    router = tributary.Client(pair.tier.url)
    kept = [router.adopt(tributary.Sequence.from_json(handle["tributary_sequence"]))
            for handle in handles]
    wait_until(lambda: pair.held() == len(kept), "those of the test before have ended", FREE_S)
    kill_first.touch()
    pair.first.ask(SECOND, 1, transfer=TO_OTHERS)
    pair.first.process.wait(60)
    assert pair.second.tokens(SECOND, NEW) == own("v2")[1]
    wait_until(lambda: pair.held() == len(kept), "those of the first have ended", FREE_S)

    def claimed():
        return pair.second.output().count("has claimed")
    before = claimed()
    pair.second.ask(FIRST, NEW, transfer=handles)
    wait_until(lambda: claimed() == before + len(FIRST), "all are claimed", 60)
    pair.second.kill()
    for sequence in kept:
        router.release(sequence)
    wait_until(lambda: pair.tier.busy_pages() == 0, "leases have ended", FREE_S)
