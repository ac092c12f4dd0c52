# The life of a sequence as Python holds it: blocks, steps, several threads and processes, errors.
import concurrent.futures
import copy
import multiprocessing
import pickle
import subprocess
import sys
import threading

import numpy
import pytest

import tributary
from program import free_ports
from tier import Service, wait_until
from tributary import _core

WIDTH = 144
QUERY, ROW = numpy.zeros((1, 4, WIDTH), numpy.float32), numpy.zeros((1, WIDTH), numpy.float32)


def ready(client, tokens=5, room=8, **more):
    sequence = client.admit(tokens, room, **more)
    sequence.push(0, 0, numpy.zeros((tokens, WIDTH), numpy.float32))
    sequence.wait_ready()
    return sequence


def test_only_who_admitted_gets_the_same_sequence_under_its_key(narrow_service):
    client, again = (tributary.Client(narrow_service.url) for _ in range(2))
    with client.admit(5, 8, idempotency_key="order-7") as sequence:
        assert client.admit(5, 8, idempotency_key="order-7").id == sequence.id
        with pytest.raises(tributary.AlreadyExists, match="secret of the first one"):
            again.admit(5, 8, idempotency_key="order-7")
    with client.admit(5, 8, idempotency_key="order-8", idempotency_secret="mine") as sequence:
        assert again.admit(5, 8, idempotency_key="order-8", idempotency_secret="mine").id == (
            sequence.id)


def test_a_sequence_ends_with_its_block(client):
    with ready(client) as sequence:
        assert sequence.length == sequence.prompt_tokens == 5 and sequence.max_new_tokens == 8
    with pytest.raises(tributary.NotFound):
        sequence.refresh()
    sequence.free()  # not an error
    with pytest.raises(ZeroDivisionError), ready(client) as sequence:
        1 / 0
    with pytest.raises(tributary.NotFound):
        sequence.refresh()


def test_a_step_commits_what_was_accepted(client):
    with ready(client) as sequence:
        with client.step([sequence]) as step:
            step.attend(0, QUERY, ROW)
        assert sequence.length == 6
        with client.step([sequence], tokens=[3]) as step:
            step.attend(0, QUERY.repeat(3, 0), ROW.repeat(3, 0))
            step.accept([2])
        assert sequence.length == 8
        sequence.refresh()
        assert [(begin, end) for begin, end, _ in sequence.extents] == [(0, 8)]
        with client.step([sequence]) as step:
            step.attend(0, QUERY, ROW)
            step.accept([0])
        assert sequence.length == 8
        for wrong in ([4], [-1], [1, 1], []):
            with pytest.raises(tributary.InvalidArgument, match="accepted"):
                client.step([sequence], tokens=3).accept(wrong)
        with pytest.raises(tributary.FailedPrecondition, match="committed or aborted"):
            step.attend(0, QUERY, ROW)


def test_a_step_that_raises_is_aborted(client):
    with ready(client) as sequence:
        with pytest.raises(ZeroDivisionError), client.step([sequence]) as step:
            step.attend(0, QUERY, ROW)
            1 / 0
        sequence.refresh()
        assert sequence.length == 5
        with client.step([sequence]) as step:  # and the sequence goes on
            step.attend(0, QUERY, ROW)
        assert sequence.length == 6


def test_truncate(client):
    with ready(client) as sequence:
        sequence.truncate(3)
        assert (sequence.length, sequence.epoch) == (3, 2)
        with client.step([sequence]) as step:
            step.attend(0, QUERY, ROW)
        assert sequence.length == 4
        with pytest.raises(tributary.Error):
            sequence.truncate(5)


def elsewhere(url, pickled, answers):
    """Another process takes the sequence, and a step."""
    sequence = tributary.Client(url).adopt(pickle.loads(pickled))
    client = tributary.Client(url)
    client.adopt(sequence)
    with client.step([sequence]) as step:
        o, _ = step.attend(0, QUERY, ROW)
    answers.put((sequence.length, float(o.sum())))


@pytest.mark.parametrize("client", ["one_worker", "two_workers"], indirect=True)
def test_a_handle_goes_to_another_process(client):
    with ready(client) as sequence:
        process = multiprocessing.get_context("spawn")
        answers = process.Queue()
        other = process.Process(target=elsewhere, daemon=True,
                                args=(client.url, pickle.dumps(sequence), answers))
        other.start()
        assert answers.get(timeout=60) == (6, 0.0)
        other.join(60)
        sequence.refresh()
        assert sequence.length == 6


def test_a_released_sequence_is_nobodys_until_it_is_adopted(client):
    other = client if isinstance(client, tributary.Pool) else tributary.Client(client.url)
    sequence = client.admit(5, 3)
    client.release(sequence)
    with pytest.raises(tributary.FailedPrecondition, match=r"client\.adopt\(sequence\)"):
        sequence.refresh()
    with other.adopt(sequence):
        sequence.refresh()


def test_a_copy_needs_a_client(client):
    with ready(client) as sequence:
        for other in (copy.copy(sequence), tributary.Sequence.from_json(sequence.to_json())):
            assert (other.id, other.shape, other.extents) == (
                sequence.id, sequence.shape, sequence.extents)
            with pytest.raises(tributary.FailedPrecondition, match=r"client\.adopt\(sequence\)"):
                other.refresh()
            with pytest.raises(tributary.FailedPrecondition, match="adopt"):
                client.step([other])
            assert client.adopt(other) is other
            other.refresh()
        with pytest.raises(tributary.MalformedInput):
            tributary.Sequence.from_json("{}")


def test_threads_work_side_by_side(client, rng):
    rows = rng.standard_normal((2, 64, WIDTH), numpy.float32)

    def run(_):
        with client.admit(128, 4) as sequence:
            with concurrent.futures.ThreadPoolExecutor(2) as senders:
                list(senders.map(lambda part: sequence.push(0, 64 * part, rows[part]), range(2)))
            sequence.wait_ready()
            with client.step([sequence]) as step:
                o, _ = step.attend(0, numpy.ones_like(QUERY), ROW)
            return o.tobytes()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(run, range(12)))) == 1


def test_a_call_that_waits_leaves_the_interpreter_to_others(narrow_client, room):
    """The pool is full: only if this thread runs while the other waits is there ever room."""
    first = narrow_client.admit(room, 0)
    waiting = threading.Event()

    def wait():
        waiting.set()
        with narrow_client.admit(64, 0, wait=60) as sequence:
            return sequence.id

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        second = pool.submit(wait)
        assert waiting.wait(60)
        first.free()
        assert second.result(60) != first.id


def test_one_call_at_a_time_uses_a_sequence(client):
    """Of many that come at once all either do their work or say so; nothing else happens."""
    with ready(client, room=200) as sequence:
        def shorten(_):
            try:
                sequence.truncate(5)
            except tributary.FailedPrecondition as error:
                assert f"sequence {sequence.id}: another call uses it now" in str(error)
                return 0
            return 1

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert sequence.epoch - 1 <= sum(pool.map(shorten, range(40)))
        sequence.refresh()
        assert sequence.length == 5


def test_a_full_pool_says_when_to_try_again(narrow_client, room):
    with narrow_client.admit(room, 0):
        with pytest.raises(tributary.PoolFull) as caught:
            narrow_client.admit(64, 0)
        assert caught.value.code == "pool_full" and caught.value.retry_after > 0
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), again.retry_after) == (str(caught.value), caught.value.retry_after)
        with pytest.raises(tributary.PoolFull):
            narrow_client.admit(64, 0, wait=0.1)
    with pytest.raises(tributary.TooLarge):
        narrow_client.admit(room + 64, 0)


def test_every_code_has_a_class():
    classes = {kind.code: kind for kind in tributary.Error.__subclasses__()}
    assert set(classes) == set(_core.error_codes)
    for kind in classes.values():
        assert getattr(tributary, kind.__name__) is kind and kind.__name__ in tributary.__all__
        assert isinstance(pickle.loads(pickle.dumps(kind("why"))), kind)


def test_bad_arguments(client):
    for call, words in (
            (lambda: client.admit(-1, 0), "prompt_tokens"),
            (lambda: client.admit(1, 0, spread="everywhere"), "everywhere"),
            (lambda: client.admit(1, 0, timeout=0), "timeout 0"),
            (lambda: client.admit(1, 0, wait=float("nan")), "timeout nan"),
            (lambda: tributary.Client("ftp://127.0.0.1"), "ftp"),
            (lambda: tributary.Client(timeout=-1), "timeout -1"),
            (lambda: tributary.Client(transport="rdma"), "rdma"),
            (lambda: tributary.Client(max_in_flight_bytes=0), "max_in_flight_bytes 0")):
        with pytest.raises(ValueError, match=words) as caught:
            call()
        assert isinstance(caught.value, tributary.Error)
    with pytest.raises(tributary.Unsupported, match="transport 'ucx': not in the Python package"):
        tributary.Client(transport="ucx")
    with ready(client) as sequence:
        with pytest.raises(ValueError, match="layer 1: the pool has 1"):
            client.step([sequence]).attend(1, QUERY, ROW)


def test_nobody_there():
    with pytest.raises((tributary.Unavailable, tributary.DeadlineExceeded)):
        tributary.Client("http://127.0.0.1:1", timeout=2).admit(1, 1)


def test_neither_ucx_nor_mpi_nor_cuda_is_in_the_process(client):
    with ready(client) as sequence, client.step([sequence]) as step:
        step.attend(0, QUERY, ROW)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            libraries = {line.split("/")[-1].strip() for line in maps if ".so" in line}
    foreign = [name for name in libraries if name.startswith(("libuc", "libmpi", "libcuda"))]
    assert any(name.startswith("_core") for name in libraries) and not foreign


@pytest.mark.long
def test_a_call_that_outlasts_the_interpreter_does_not_end_the_process():
    """It returns, 8 s after its begin, while the interpreter, which waits 5 s for it, ends."""
    script = """
import threading, time, tributary
class Slow:
    def __del__(self, sleep=time.sleep): sleep(4)
slow, begun = Slow(), threading.Event()
def call():
    client = tributary.Client("http://127.0.0.1:1")
    begun.set()
    client.admit(1, 1, wait=8)
threading.Thread(target=call, daemon=True).start()
begun.wait()
time.sleep(1)  # the call is on its way
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_token_is_shown(tmp_path):
    """A control plane without a pool: who has shown the token hears that there is none."""
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    listen = f"127.0.0.1:{free_ports(1)[0]}"
    service = Service(["control", "--listen", listen, "--token-file", token])
    try:
        wait_until(lambda: listen in service.output(), "the control plane listens")
        url = f"http://{listen}"
        for wrong in (None, "another"):
            with pytest.raises(tributary.PermissionDenied):
                tributary.Client(url, token=wrong).admit(1, 1)
        with pytest.raises(tributary.Unavailable):
            tributary.Client(url, token=token.read_text().strip()).admit(1, 1)
    finally:
        service.close()
