# The worker's half without vLLM: steps as vLLM makes them, attention compared with that over all
# rows.
import time
import types

import pytest
import torch

import tributary
from tier import wait_until
from tributary.vllm.options import Options
from tributary.vllm.worker import Worker

torch.set_num_threads(1)
HEADS, RANK, WIDTH, LAYERS, SCALE = 4, 32, 48, 2, 0.2
SHAPE = {"heads": HEADS, "kv_lora_rank": RANK, "qk_rope_head_dim": WIDTH - RANK, "layers": LAYERS,
         "softmax_scale": SCALE}
PAGE = 64


def local(query, rows):
    scores = torch.einsum("thd,nd->thn", query, rows) * SCALE
    seen = torch.ones(len(query), len(rows), dtype=torch.bool).tril(len(rows) - len(query))
    return scores.masked_fill(~seen[:, None], -torch.inf).softmax(-1) @ rows[:, :RANK]


class Engine:
    """Requests whose rows are random, in steps of those that are named."""

    def __init__(self, pool, **options):
        self.pool = pool
        self.worker = Worker(pool, Options("", timeout=5.0, **options), None)
        self.worker.layers = {str(layer): layer for layer in range(LAYERS)}
        self.worker.kv_lora_rank = RANK
        self.worker._model = {key: SHAPE[key] for key in SHAPE}
        self.rows, self.computed, self.sent, self.last = {}, {}, {}, {}
        self.claimed, self.hands_over, self.present = set(), set(), {}

    def admit(self, name, tokens, more, last=None, prefix=None):
        self.rows[name] = torch.randn(LAYERS, tokens + 200, WIDTH)
        self.computed[name] = 0
        self.last[name] = last or tokens + more
        self.sent[name] = self.pool.admit(tokens - 1, more, prefix=prefix).to_json()

    def share(self, name, other, tokens, more):
        """A request that begins as `other` does, which has named as many blocks as this one."""
        self.admit(name, tokens, more, prefix=prefix_of(tokens))
        present = tributary.Sequence.from_json(self.sent[name]).present_tokens
        assert present == (tokens - 1) // PAGE * PAGE
        self.rows[name][:, :present] = self.rows[other][:, :present]
        self.computed[name] = self.present[name] = present

    def claim(self, name, tokens, more):
        """A request whose prompt another engine has pushed."""
        self.admit(name, tokens, more)
        pushed = self.pool.adopt(tributary.Sequence.from_json(self.sent[name]))
        for layer in range(LAYERS):
            pushed.push(layer, 0, self.rows[name][layer, :tokens - 1])
        self.computed[name] = tokens - 1
        self.claimed.add(name)

    def step(self, **counts):
        """Tokens of each; returns the requests that are lost, to be computed again."""
        names = sorted(counts, key=lambda name: counts[name] > 1)  # decodes come first
        starts = [0]
        for name in names:
            starts.append(starts[-1] + counts[name])
        lengths = [self.computed[name] + counts[name] for name in names]
        blocks = [100 + i for i in range(len(names))]
        self.worker.begin(types.SimpleNamespace(
            dropped=[], sequences={n: self.sent.pop(n) for n in names if n in self.sent},
            claimed=[n for n in names if n in self.claimed],
            present={n: self.present.pop(n) for n in names if n in self.present},
            requests={n: types.SimpleNamespace(first_block=block, newest_block=block,
                                               last=self.last[n], hands_over=n in self.hands_over)
                      for n, block in zip(names, blocks)}))
        self.claimed.clear()
        batch = self.worker.new_batch(types.SimpleNamespace(
            starts=starts, lengths=lengths, newest_blocks=blocks,
            num_decodes=sum(counts[name] == 1 for name in names)))
        decodes = [name for name in names if counts[name] == 1]
        results = []
        for layer in range(LAYERS):
            batch.add_rows(layer, torch.cat([self.rows[n][layer, length - counts[n]:length]
                                             for n, length in zip(names, lengths)]))
            query = torch.randn(len(decodes), HEADS, WIDTH)
            if decodes:
                results.append((query, batch.attend(layer, query, local)))
        self.worker.end()
        lost = {names[blocks.index(block)] for block in self.worker.take_lost()}
        for layer, (query, out) in enumerate(results):
            for i, name in enumerate(decodes):
                if name not in lost:
                    expected = local(query[i:i + 1], self.rows[name][layer, :lengths[i]])
                    assert (out[i:i + 1] - expected).abs().max() < 1e-5, (layer, name)
        for name, length in zip(names, lengths):
            self.computed[name] = 0 if name in lost else length
        return lost


def prefix_of(tokens):
    """Of a prompt without its last token."""
    return tributary.Prefix(PAGE, [b"%16d" % i for i in range((tokens - 1) // PAGE)])


def pool_of(pages=1000):
    # A page of 64 rows, 48 values of 4 bytes, 2 layers.
    return tributary.Pool(1, SHAPE, rows="f32", query="f32", leaf_tokens=PAGE,
                          kv_gib=(pages + 0.5) * PAGE * WIDTH * 4 * LAYERS / 2**30)


@pytest.fixture
def engine():
    with pool_of() as pool:
        made = Engine(pool)
        yield made
        made.worker.close()
        wait_until(lambda: not any(pool.pages_held), "every page is free", 20)


def sequence_of(engine, name):
    return engine.worker._held[name].sequence


def free_from_outside(engine, name):
    copy = tributary.Sequence.from_json(sequence_of(engine, name).to_json())
    engine.pool.free([engine.pool.adopt(copy)])


def wait_anew(engine, name):
    held = engine.worker._held[name]
    wait_until(lambda: held.settled or held.sequence, "it is admitted anew", 20)


def test_rows_of_others_are_put_in_first(engine):
    engine.admit("a", 300, 40, prefix=prefix_of(300))
    engine.admit("other", 20, 40)
    assert not engine.step(a=300, other=20)
    engine.step(a=1)  # its prompt is there
    for name, tokens in (("b", 290), ("c", 130)):
        engine.share(name, "a", tokens, 40)
    # One comes whole, the other in two parts, beside one that decodes and one that brings all.
    engine.admit("d", 70, 40)
    assert not engine.step(b=290 - 256, c=2, d=70, other=1)
    for name in ("b", "c", "d"):
        held = engine.worker._held[name]
        for layer in range(LAYERS):
            assert torch.equal(held.rows(layer), engine.rows[name][layer, :engine.computed[name]])
    for _ in range(3):
        assert not engine.step(a=1, b=1, c=1, d=1, other=1)
    assert sequence_of(engine, "b").length == 293 and not engine.worker._held["b"].here


def test_a_sequence_that_ends_before_its_rows_come_is_computed_again(engine):
    engine.admit("a", 300, 40, prefix=prefix_of(300))
    assert not engine.step(a=300)
    engine.step(a=1)
    for name in ("b", "c"):
        engine.share(name, "a", 200, 40)
    engine.pool.free([engine.pool.adopt(tributary.Sequence.from_json(engine.sent["b"]))])
    assert engine.step(a=1, b=8, c=8) == {"b"}
    assert not engine.step(a=1, b=200, c=1)
    for _ in range(3):
        assert not engine.step(a=1, b=1, c=1)
    wait_anew(engine, "b")
    assert not engine.step(a=1, b=1, c=1)


def test_prompts_and_steps(engine):
    engine.admit("a", 70, 40)
    engine.admit("b", 1, 40)
    engine.admit("c", 2, 40)
    assert not engine.step(a=70, b=1)
    assert not engine.step(a=1, b=1, c=2)
    for _ in range(10):
        assert not engine.step(a=1, b=1, c=1)
    assert sequence_of(engine, "a").length == 81
    assert not engine.worker._held["a"].here


def test_chunks_of_a_prompt_and_a_last_one_of_one_token(engine):
    engine.admit("a", 100, 10)
    for count in (60, 39, 1, 1, 1):
        assert not engine.step(a=count)
    engine.admit("b", 100, 10)
    for count in (60, 40, 1, 1):
        assert not engine.step(b=count)
    assert sequence_of(engine, "a").length == 102 and sequence_of(engine, "b").length == 102


def test_more_room_than_was_admitted(engine):
    engine.admit("a", 10, 2, last=100)
    assert not engine.step(a=10)
    for _ in range(80):
        assert not engine.step(a=1)
    assert sequence_of(engine, "a").max_new_tokens == 91  # in all: it never asks for more than that


def test_a_lost_sequence_is_computed_again_and_moves_in(engine):
    for name in "abc":
        engine.admit(name, 70, 100)
    assert not engine.step(a=70, b=70, c=70)
    assert not engine.step(a=1, b=1, c=1)
    free_from_outside(engine, "b")
    assert engine.step(a=1, b=1, c=1) == {"b"}
    assert not engine.step(a=1, b=72, c=1)
    for _ in range(30):  # from its own rows, then from those of the sequence that was found
        assert not engine.step(a=1, b=1, c=1)
    wait_anew(engine, "b")
    for _ in range(3):
        assert not engine.step(a=1, b=1, c=1)
    assert sequence_of(engine, "b").length == 105
    assert list(engine.worker.take_admitted()) == ["b"]


def test_many_tokens_decoded_here_are_caught_up(engine):
    engine.admit("a", 5, 150)
    assert not engine.step(a=5)
    free_from_outside(engine, "a")
    full = engine.pool.admit(64 * 998, 0)  # its first step finds no room
    for _ in range(60):
        assert not engine.step(a=1)
    engine.pool.free([full])
    wait_anew(engine, "a")
    for _ in range(60):
        assert not engine.step(a=1)
    assert sequence_of(engine, "a").length == 125


def test_no_room_for_more_tokens_is_a_lost_sequence():
    with pool_of(pages=4) as pool:
        engine = Engine(pool, reserve_tokens=1)
        engine.admit("a", 60, 4, last=200)
        other = pool.admit(3 * PAGE, 0)
        assert not engine.step(a=60)
        for _ in range(4):
            assert not engine.step(a=1)
        assert engine.step(a=1) == {"a"}
        assert not engine.step(a=65)
        for _ in range(5):
            assert not engine.step(a=1)  # here
        pool.free([other])
        wait_anew(engine, "a")
        for _ in range(5):
            assert not engine.step(a=1)
        assert sequence_of(engine, "a").length == 75
        engine.worker.close()


def test_a_request_that_ends_while_it_waits_leaves_nothing():
    with pool_of(pages=4) as pool:
        engine = Engine(pool)
        engine.admit("a", 60, 4, last=80)
        assert not engine.step(a=60)
        free_from_outside(engine, "a")
        wait_until(lambda: not any(pool.pages_held), "no rows are on their way", 20)
        other = pool.admit(4 * PAGE, 0)
        assert not engine.step(a=1)
        engine.worker.drop("a")
        pool.free([other])
        engine.worker.close()
        wait_until(lambda: not any(pool.pages_held), "every page is free", 20)


def test_an_engine_that_closes_frees_what_was_found_and_is_not_used_yet():
    with pool_of() as pool:
        engine = Engine(pool)
        engine.admit("a", 60, 4, last=80)
        assert not engine.step(a=60)
        free_from_outside(engine, "a")
        assert not engine.step(a=1)  # from its own rows
        held = engine.worker._held["a"]
        wait_until(lambda: held.settled, "it is admitted anew", 20)
        assert any(pool.pages_held) and held.sequence is None
        engine.worker.close()
        wait_until(lambda: not any(pool.pages_held), "every page is free", 20)


def test_a_prompt_of_another_engine_is_not_computed(engine):
    engine.admit("a", 70, 40)
    assert not engine.step(a=70)
    engine.claim("b", 100, 40)
    for _ in range(5):
        assert not engine.step(a=1, b=1)
    assert sequence_of(engine, "b").length == 104
    engine.claim("c", 100, 40)
    engine.pool.free([engine.pool.adopt(tributary.Sequence.from_json(engine.sent["c"]))])
    assert engine.step(a=1, b=1, c=1) == {"c"}  # it was claimed, and is lost before its first step
    assert not engine.step(a=1, b=1, c=100)
    for _ in range(5):
        assert not engine.step(a=1, b=1, c=1)
    wait_anew(engine, "c")


def test_a_claimed_sequence_of_another_model_is_a_lost_one(engine):
    engine.claim("a", 10, 5)
    engine.worker._model["softmax_scale"] *= 2
    assert engine.step(a=1) == {"a"}
    assert not engine.step(a=11)


def test_what_is_handed_over_outlives_the_engine(engine):
    engine.hands_over.update("ab")
    for name in "ab":
        engine.admit(name, 70, 40)
    for _ in range(2):  # the rows have to wait
        engine.worker.pushing.submit(time.sleep, 0.3)
    assert not engine.step(a=70, b=70)
    copies = [engine.pool.adopt(tributary.Sequence.from_json(sequence_of(engine, name).to_json()))
              for name in "ab"]
    engine.worker.drop("a")
    engine.worker.close()
    for copy in copies:
        copy.wait_ready()
    engine.pool.free(copies)
