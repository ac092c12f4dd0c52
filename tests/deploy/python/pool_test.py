# A tier inside the interpreter: its life and its arguments. What it computes is tested with that of
# services, by the fixture `client`.
import concurrent.futures
import json
import math
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time

import numpy
import pytest

import tributary
from tier import wait_until

SMALL = {"heads": 4, "kv_lora_rank": 128, "qk_rope_head_dim": 16, "layers": 2, "softmax_scale": 0.25}
WIDTH = 144
CASES = pathlib.Path(__file__).parents[2] / "data" / "cases"


def small(workers=2, shape=SMALL, **options):
    return tributary.Pool(workers, shape, **{"rows": "f32", "query": "f32", "kv_gib": 0.01, **options})


def ready(pool, tokens=5):
    sequence = pool.admit(tokens, 8)
    for layer in range(sequence.shape.layers):
        sequence.push(layer, 0, numpy.ones((tokens, WIDTH), numpy.float32))
    sequence.wait_ready()
    return sequence


def attend(pool, sequence):
    with pool.step([sequence]) as step:
        for layer in range(sequence.shape.layers):
            o, _ = step.attend(layer, numpy.ones((1, 4, WIDTH), numpy.float32),
                               numpy.ones((1, WIDTH), numpy.float32))
    return o


def threads():
    return len(os.listdir("/proc/self/task"))


def test_it_ends_with_its_block():
    before = threads()
    with small() as pool:
        assert isinstance(pool, tributary.Client) and not pool.closed
        assert repr(pool) == "<tributary.Pool of 2 workers>" and threads() > before
        with ready(pool) as sequence:
            assert attend(pool, sequence).mean() == pytest.approx(1, abs=1e-5)
            assert all(address.startswith("local://") for address in sequence.workers)
            assert sum(pool.pages_held) == 1 and len(pool.pages_held) == pool.workers == 2
    assert pool.closed and repr(pool) == "<tributary.Pool of 2 workers, closed>"
    del sequence, pool
    # The kernel counts a thread that was joined for a moment more: also one of a test before.
    wait_until(lambda: threads() <= before, "its threads have ended")


def test_a_closed_pool_says_so():
    pool = small()
    sequence = ready(pool)
    step = pool.step([sequence])
    pool.close()
    pool.close()
    for call in (lambda: pool.admit(1, 1), lambda: pool.step([sequence]), lambda: pool.pages_held,
                 lambda: pool.adopt(sequence)):
        with pytest.raises(tributary.FailedPrecondition, match="the pool is closed"):
            call()
    for call in (sequence.refresh, lambda: sequence.truncate(1),
                 lambda: step.attend(0, numpy.ones((1, 4, WIDTH), numpy.float32),
                                     numpy.ones((1, WIDTH), numpy.float32))):
        with pytest.raises(tributary.PoolLost):
            call()
    sequence.free()  # it is gone


def test_a_pool_lives_while_a_sequence_does():
    pool = small()
    sequence = ready(pool)
    del pool
    sequence.refresh()
    assert sequence.length == 5
    sequence.free()


def test_who_waits_for_a_pool_that_is_closed_hears_of_it():
    pool = small(1)
    full = pool.admit(64 * pool.pages_per_worker, 0)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(pool.admit, 64, 0, wait=60)
        pool.close()
        with pytest.raises((tributary.PoolLost, tributary.FailedPrecondition)):
            waiting.result(60)
    full.free()


def test_a_handle_is_of_its_pool_alone():
    with small() as pool, small() as other, ready(pool) as sequence:
        copy = pickle.loads(pickle.dumps(sequence))
        # Workers of all pools in processes have the same addresses; the token tells them apart.
        for trusted in (False, True):
            with pytest.raises(tributary.Error):
                attend(other, other.adopt(copy, trusted=trusted))
        attend(pool, sequence)
        copy = tributary.Client().adopt(copy, trusted=True)
        with pytest.raises(tributary.InvalidArgument, match="address 'local://.*expected tcp://"):
            copy.truncate(1)


@pytest.mark.parametrize("give", [
    lambda folder: SMALL,
    lambda folder: folder / "shape.json",
    lambda folder: str(folder / "shape.json"),
])
def test_shapes(tmp_path, give):
    (tmp_path / "shape.json").write_text(json.dumps(SMALL))
    with small(shape=give(tmp_path)) as pool:
        shape = pool.shape
        assert {name: getattr(shape, name) for name in SMALL} == SMALL
        assert (shape.row_format, shape.query_dtype, shape.leaf_tokens) == ("f32", "f32", 2048)
    with small(shape=shape, softmax_scale=0.5, layers=1, rows="bf16", leaf_tokens=64) as pool:
        assert (pool.shape.softmax_scale, pool.shape.layers) == (0.5, 1)
        assert (pool.shape.row_format, pool.shape.leaf_tokens) == ("bf16", 64)


def test_presets_and_configurations():
    with tributary.Pool(shape="kimi-k3", layers=2, kv_gib=0.01) as pool:
        shape = pool.shape
        assert (shape.heads, shape.latent_dim, shape.layers) == (96, 576, 2)
        assert shape.softmax_scale == pytest.approx(192**-0.5)
    with tributary.Pool(softmax_scale=0.125, kv_gib=0.01) as pool:
        assert (pool.shape.heads, pool.shape.layers, pool.shape.softmax_scale) == (16, 1, 0.125)
    config = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 3,
              "num_attention_heads": 9, "num_key_value_heads": 3}
    with tributary.Pool(shape=config, kv_gib=0.01) as pool:
        assert (pool.shape.heads, pool.shape.latent_dim, pool.shape.layers) == (9, 2 * 3 * 64, 3)
        assert pool.shape.softmax_scale == pytest.approx(1 / math.sqrt(64))


def test_a_pool_of_another_model_is_refused(tmp_path):
    """Kimi K2 and K2.5 have the same dimensions and another scale."""
    model = tributary.ModelShape("kimi-k2.5")
    assert (model.heads, model.layers, model.topk) == (64, 61, 0)
    assert model.softmax_scale == pytest.approx(0.144679626)
    config = CASES / "models" / "kimi-k2.5.json"
    assert tributary.ModelShape(config).softmax_scale == model.softmax_scale
    assert tributary.ModelShape(json.loads(config.read_text())).name == "kimi_k2"
    with small() as pool:
        tributary.ModelShape(SMALL).check(pool.shape)
        tributary.ModelShape(pool.shape).check(pool.shape)
        for key, words in (("softmax_scale", "softmax_scale is 0.25, the model's 0.5"),
                           ("heads", "heads is 4, the model's 8")):
            other = tributary.ModelShape({**SMALL, key: 2 * SMALL[key]})
            with pytest.raises(ValueError, match=f"the pool's {words}"):
                other.check(pool.shape)
    with pytest.raises(tributary.Unsupported, match="model_type is '\"gpt2\"'"):
        tributary.ModelShape({"model_type": "gpt2"})
    with pytest.raises(TypeError, match="shape: int, expected a name"):
        tributary.ModelShape(7)


HEADS = {"v_head_dim": 8}


def weight(rows, columns=128):
    return numpy.ones((rows, columns), numpy.float32)


@pytest.mark.parametrize("options, kind, words", [
    ({"workers": 0}, ValueError, "0 workers"),
    ({"shape": "deepseek-v9"}, LookupError, "no shape preset 'deepseek-v9'"),
    ({"shape": {**SMALL, "heads": 0}}, ValueError, "heads"),
    ({"shape": {**SMALL, "height": 2}}, ValueError, "height"),
    ({"shape": 7}, TypeError, "shape: int, expected a name, a path, a dict"),
    ({"layers": 3}, ValueError, "--layers is 3, shape has 2"),
    ({"softmax_scale": -1.0}, ValueError, "softmax_scale"),
    ({"rows": "fp4"}, ValueError, "rows 'fp4': expected"),
    ({"query": "f16"}, ValueError, "query 'f16': expected bf16 or f32"),
    ({"v_head_dim": 8}, ValueError, "v_head_dim 8: expected with kv_b_proj alone"),
    ({**HEADS, "model": "/nowhere", "kv_b_proj": []}, ValueError, "kv_b_proj: a model has its"),
    ({**HEADS, "kv_b_proj": 7}, TypeError, "iterable"),
    ({**HEADS, "kv_b_proj": []}, ValueError, "kv_b_proj of 0 layers, the pool has 2"),
    ({**HEADS, "kv_b_proj": [weight(40)]}, ValueError, "kv_b_proj of 1 layers, the pool has 2"),
    ({**HEADS, "kv_b_proj": [weight(40), weight(44)]}, ValueError,
     r"kv_b_proj\[1\] has 44 rows, expected those of 4 heads"),
    ({**HEADS, "kv_b_proj": [weight(42)]}, ValueError, r"kv_b_proj\[0\] has 42 rows"),
    ({**HEADS, "kv_b_proj": [weight(32)]}, ValueError, "v_head_dim, 8"),  # no N is left
    ({**HEADS, "kv_b_proj": [weight(40, 127)]}, ValueError,
     r"kv_b_proj\[0\]: shape \[40, 127\], expected \[n, 128\]"),
    ({**HEADS, "kv_b_proj": [weight(40).astype(numpy.float64)]}, TypeError,
     r"kv_b_proj\[0\]: float64, expected float32 or bfloat16"),
    ({**HEADS, "kv_b_proj": [weight(40) * math.inf]}, ValueError,
     r"kv_b_proj\[0\]: element 0 is inf"),
    ({"kv_b_proj": [weight(40)] * 2}, ValueError, "v_head_dim, 0"),
    ({"leaf_tokens": 100}, ValueError, "100"),
    ({"kv_gib": 1e-9}, ValueError, "--kv-gib"),
    ({"threads": -1}, ValueError, "threads -1"),
    ({"backend": "abacus"}, tributary.Error, "abacus"),
    ({"timeout": 0}, ValueError, "timeout 0"),
    ({"close_timeout": 0}, ValueError, "close_timeout 0: expected seconds above 0"),
    ({"close_timeout": math.nan}, ValueError, "close_timeout nan"),
    ({"model": "/nowhere"}, tributary.Error, "/nowhere"),
    ({"model": "/nowhere", "softmax_scale": 1.0}, ValueError, "softmax_scale: a model"),
])
def test_bad_arguments(options, kind, words):
    before = threads()
    with pytest.raises(kind, match=words):
        small(**options)
    # The kernel counts a thread that was joined for a moment more.
    wait_until(lambda: threads() <= before, "its threads have ended")


def run_script(script):
    """In an interpreter of its own, which ends by itself and says no more than it should."""
    end = subprocess.run([sys.executable, "-c", PREAMBLE + script], capture_output=True, text=True,
                         timeout=60)
    assert (end.returncode, end.stderr) == (0, "")
    return end.stdout


PREAMBLE = f"""
import os, sys, threading
import numpy, tributary
pool = tributary.Pool(2, {SMALL}, rows="f32", query="f32", kv_gib=0.01)
sequence = pool.admit(5, 100)
for layer in range(2):
    sequence.push(layer, 0, numpy.ones((5, {WIDTH}), numpy.float32))
sequence.wait_ready()
query, row = numpy.ones((1, 4, {WIDTH}), numpy.float32), numpy.ones((1, {WIDTH}), numpy.float32)
"""


def test_the_end_of_the_interpreter_ends_it():
    run_script("")
    run_script("sys.exit(0)")
    # A thread in the middle of its calls.
    run_script("""
def work():
    begun.set()
    try:
        while True:
            step = pool.step([sequence])
            step.attend(0, query, row)
            step.abort()
    except tributary.Error:
        pass
begun = threading.Event()
threading.Thread(target=work, daemon=True).start()
begun.wait(60)
""")


STUCK = """
import sys, time
import numpy, tributary
shape = {"heads": 1024, "kv_lora_rank": 128, "qk_rope_head_dim": 16, "layers": 1,
         "softmax_scale": 0.25}
query, row = numpy.ones((16, 1024, 144), numpy.float32), numpy.ones((16, 144), numpy.float32)

def stuck(close_timeout):
    \"""A pool in the middle of a round that takes minutes.\"""
    pool = tributary.Pool(1, shape, rows="f32", query="f32", kv_gib=0.02, threads=1,
                          backend="reference", close_timeout=close_timeout)
    sequence = pool.admit(16000, 100)
    sequence.push(0, 0, numpy.ones((16000, 144), numpy.float32))
    sequence.wait_ready()
    step = pool.step([sequence], tokens=16)
    try:
        step.attend(0, query, row, timeout=0.2)
    except tributary.DeadlineExceeded:
        return pool, sequence, step
    sys.exit("the round has ended")
"""


def seconds_to_end(script):
    """From its last line on, of a process that says nothing else."""
    last = "\nprint(time.monotonic(), flush=True)"
    process = subprocess.Popen([sys.executable, "-c", STUCK + script + last],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        begin = float(process.stdout.readline())
        assert process.wait(250) == 0
        end = time.monotonic()
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return end - begin


@pytest.mark.long
def test_the_end_of_the_interpreter_waits_once_for_all_pools_that_are_stuck():
    # One after the other they would take 24 s, and as much again where the objects go.
    assert 8 <= seconds_to_end("kept = [stuck(8) for _ in range(3)]") < 24
    # Each has its own limit.
    assert seconds_to_end("kept = [stuck(8), stuck(0.1)]") >= 8


@pytest.mark.long
def test_a_pool_that_was_closed_in_vain_is_not_waited_for_again():
    assert seconds_to_end("""
kept = stuck(8)
begin = time.monotonic()
try:
    kept[0].close()
except tributary.DeadlineExceeded as error:
    assert "have not ended 8000 ms after they were told to" in str(error), error
assert time.monotonic() - begin >= 8
begin = time.monotonic()
del kept
assert time.monotonic() - begin < 8
""") < 8


def test_a_fork_says_that_the_pool_is_elsewhere():
    assert run_script("""
child = os.fork()
if child == 0:
    for call in (lambda: pool.admit(1, 1), lambda: pool.step([sequence]), sequence.refresh):
        try:
            call()
        except tributary.FailedPrecondition as error:
            assert "os.fork()" in str(error), error
            print("refused", flush=True)
    pool.close()
    del pool, sequence
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with pool.step([sequence]) as step:
    for layer in range(2):
        step.attend(layer, query, row)
print(sequence.length)
""") == "refused\nrefused\nrefused\n6\n"


def test_no_other_process_can_reach_it():
    assert run_script("""
print([os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
       if os.path.exists(f"/proc/self/fd/{fd}")
       and os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")])
""") == "[]\n"


def test_calls_leave_the_interpreter_to_others():
    with small() as pool:
        stop = threading.Event()

        def count():
            number = 0
            while not stop.is_set():
                number += 1
            return number

        with concurrent.futures.ThreadPoolExecutor(1) as executor, ready(pool) as sequence:
            counted = executor.submit(count)
            for _ in range(8):
                attend(pool, sequence)
            stop.set()
            assert counted.result(60) > 0
