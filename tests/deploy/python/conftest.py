# Tiers for the tests of the Python package, of real processes and inside this one; the package must
# be installed:
# TRIBUTARY_PROGRAM=build/release/deploy/tributary pytest tests/deploy/python. Every test is bounded.
import faulthandler
import os
import pathlib
import sys

import numpy
import pytest

import tributary

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "service"))
from tier import Tier, wait_until  # noqa: E402
from program import TINY  # noqa: E402

ENGINES = os.environ.get("TRIBUTARY_ENGINES") == "1"
# For the stages `engines` and `vllm`: long prompts, through workers that share two cores with the model.
VLLM = os.environ.get("TRIBUTARY_VLLM") == "1"
LIMIT_S = 600 if ENGINES or VLLM else 300
collect_ignore = [name for name, wanted in (("engines", ENGINES), ("vllm", VLLM)) if not wanted]


def pytest_configure(config):
    config.addinivalue_line("markers", "long: with deploy/test.sh --long")
    # While a test runs, pytest keeps stderr to itself, and a run that ends here would take it along.
    config.hang_report = os.fdopen(os.dup(2), "w")


@pytest.fixture(autouse=True)
def limit(request):
    """A test that hangs ends the run, with where each thread stands."""
    faulthandler.dump_traceback_later(LIMIT_S, exit=True, file=request.config.hang_report)
    yield
    faulthandler.cancel_dump_traceback_later()


def tier(workers, *flags):
    return Tier(pools=(workers,), worker_flags=["--model", TINY, *flags])


# 4 heads, 128 + 16, one layer with weights, fp32.
WIDE = ("--rows", "f32", "--query", "f32")


def pool(workers, rows="f32", query="f32"):
    """The same in this process."""
    return tributary.Pool(workers, model=TINY, rows=rows, query=query, leaf_tokens=64, kv_gib=0.05)


def client_of(running):
    return running if isinstance(running, tributary.Pool) else tributary.Client(running.url)


def tier_of(client):
    """What another client of the same tier is made from."""
    return client if isinstance(client, tributary.Pool) else client.url


def wait_all_free(running):
    if not isinstance(running, tributary.Pool):
        return running.wait_all_free()
    return wait_until(lambda: not any(running.pages_held), "every page is free")


@pytest.fixture(scope="session")
def one_worker():
    with tier(1, *WIDE) as running:
        yield running


@pytest.fixture(scope="session")
def two_workers():
    with tier(2, *WIDE) as running:
        yield running


@pytest.fixture(scope="session")
def two_threads():
    with pool(2) as running:
        yield running


@pytest.fixture(scope="session")
def narrow_service():
    """bf16 rows and queries."""
    with tier(1, "--rows", "bf16", "--query", "bf16") as running:
        yield running


@pytest.fixture(scope="session")
def narrow_thread():
    with pool(1, "bf16", "bf16") as running:
        yield running


@pytest.fixture(params=["one_worker", "two_workers", "two_threads"])
def client(request):
    running = request.getfixturevalue(request.param)
    yield client_of(running)
    wait_all_free(running)  # whatever the test did


@pytest.fixture(params=["narrow_service", "narrow_thread"])
def narrow(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def narrow_client(narrow):
    yield client_of(narrow)
    wait_all_free(narrow)


@pytest.fixture
def room(narrow):
    """Tokens that fill the pool of narrow_client."""
    if isinstance(narrow, tributary.Pool):
        return 64 * narrow.pages_per_worker
    return 64 * int(narrow.metric("tributary_pages_capacity"))


@pytest.fixture
def other_client(one_worker):
    """One that has not admitted what `client` has."""
    return tributary.Client(one_worker.url)


@pytest.fixture
def rng():
    return numpy.random.default_rng(17)
