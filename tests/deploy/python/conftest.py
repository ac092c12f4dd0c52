# Tiers of real processes for the tests of the Python package, which must be installed:
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
from tier import Tier  # noqa: E402
from program import TINY  # noqa: E402

ENGINES = os.environ.get("TRIBUTARY_ENGINES") == "1"
# Of the stage `engines`: long prompts, through workers that share two cores with the model.
LIMIT_S = 600 if ENGINES else 120
collect_ignore = [] if ENGINES else ["engines"]


def pytest_configure(config):
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


@pytest.fixture(scope="session")
def one_worker():
    with tier(1, *WIDE) as running:
        yield running


@pytest.fixture(scope="session")
def two_workers():
    with tier(2, *WIDE) as running:
        yield running


@pytest.fixture(scope="session")
def narrow():
    """bf16 rows and queries."""
    with tier(1, "--rows", "bf16", "--query", "bf16") as running:
        yield running


@pytest.fixture(params=["one_worker", "two_workers"])
def client(request):
    running = request.getfixturevalue(request.param)
    yield tributary.Client(running.url)
    running.wait_all_free()  # whatever the test did


@pytest.fixture
def narrow_client(narrow):
    yield tributary.Client(narrow.url)
    narrow.wait_all_free()


@pytest.fixture
def room(narrow):
    """Tokens that fill the pool of narrow_client."""
    return 64 * int(narrow.metric("tributary_pages_capacity"))


@pytest.fixture
def rng():
    return numpy.random.default_rng(17)
