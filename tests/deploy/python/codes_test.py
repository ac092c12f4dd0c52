# Pools of rows of FP8: bytes as an engine has them or values that are encoded here, in and out; and
# states of the bits of a bf16 pool that holds the same values.
import functools
import struct

import numpy
import pytest

import fp8
import tributary
from conftest import client_of, pool, tier, wait_all_free
from golden import from_bf16, to_bf16

PROMPT, HEADS, RANK, ROPE = 150, 4, 128, 16
WIDTH, BYTES = RANK + ROPE, RANK + 4 + 2 * ROPE
ONE_SCALE = 0.02
FORMATS = {  # bytes, encoder, decoder
    "fp8_ds_mla": (BYTES, functools.partial(fp8.encode, rank=RANK),
                   functools.partial(fp8.decode, rank=RANK)),
    f"fp8@{ONE_SCALE}": (WIDTH, functools.partial(fp8.encode_with, ONE_SCALE),
                         functools.partial(fp8.decode_with, ONE_SCALE))}


@pytest.fixture(scope="module", params=FORMATS)
def row_format(request):
    return request.param


@pytest.fixture(scope="module")
def codes_service(row_format):
    with tier(2, "--rows", row_format, "--query", "bf16") as running:
        yield running


@pytest.fixture(scope="module")
def codes_thread(row_format):
    with pool(1, row_format, "bf16") as running:
        yield running


@pytest.fixture(params=["codes_service", "codes_thread"])
def client(request, row_format):
    running = request.getfixturevalue(request.param)
    yield client_of(running)
    wait_all_free(running)


def test_values_that_the_scale_has_no_room_for_are_counted(client, row_format):
    values = numpy.zeros((2, WIDTH), numpy.float32)
    values[0, :4] = 448 * ONE_SCALE, -449.9 * ONE_SCALE, numpy.inf, numpy.nan
    before = tributary.cut_values()
    sequence = client.admit(2, 1)
    sequence.push(0, 0, values)
    sequence.free()
    assert tributary.cut_values() - before == (2 if row_format == f"fp8@{ONE_SCALE}" else 0)


def only(row_format, name):
    if row_format != name:
        pytest.skip("of another format")


@pytest.fixture
def rows(rng):
    """As bf16 holds them, in fp32."""
    return as_bf16(rng.standard_normal((PROMPT + 3, WIDTH), numpy.float32))


def as_bf16(values):
    """What bf16 holds of them, in fp32."""
    return from_bf16(to_bf16(values))


def decode(client, sequence, rows, queries):
    with client.step([sequence], len(rows)) as step:
        states, lse = step.attend(0, queries, rows)
    return states.copy(), lse.copy()


def test_the_shape_says_what_rows_are(client, row_format):
    with client.admit(1, 0) as sequence:
        assert sequence.shape.row_format == row_format
        assert sequence.shape.row_values == "bf16"
        sequence.push(0, 0, numpy.zeros((1, WIDTH), numpy.float32))


def test_values_become_the_bytes_of_a_second_encoder(client, row_format, rng):
    """Hard tiles: nothing, one outlier, numbers too small for a code, all kinds of ties, NaN."""
    values = rng.standard_normal((PROMPT, WIDTH), numpy.float32)
    values[0] = 0
    values[1, 5] = 1e6
    values[2] *= 1e-30
    values[3] *= 2.0 ** rng.integers(-20, 20, WIDTH)
    values[4, :RANK] = numpy.arange(RANK) * 3.5  # exactly 448 x 2^k and beyond
    values[5, 7:9] = numpy.nan, -numpy.inf
    values[6] = -0.0
    values[7, :RANK] = numpy.linspace(-448, 448, RANK)
    values[8] *= 1e30
    with client.admit(PROMPT, 0) as sequence:
        sequence.push(0, 0, values)
        stored = sequence.pull(0, 0, PROMPT)
        _, encode, decode_rows = FORMATS[row_format]
        expected = encode(values)
        assert (stored == expected).all(), numpy.argwhere(stored != expected)[:9]
        back = numpy.zeros((PROMPT, WIDTH), numpy.float32)
        sequence.pull(0, 0, PROMPT, out=back)
        numpy.testing.assert_array_equal(back, decode_rows(stored))


def test_values_and_bytes_are_one_row(client, row_format, rows, rng):
    queries = to_bf16(as_bf16(rng.standard_normal((3, HEADS, WIDTH), numpy.float32)))
    with client.admit(PROMPT, 8, spread="all") as one, client.admit(PROMPT, 8) as two, \
            client.admit(PROMPT, 8) as three:
        one.push(0, 0, rows[:PROMPT])
        stored = one.pull(0, 0, PROMPT)
        assert stored.dtype == numpy.uint8 and stored.shape == (PROMPT, FORMATS[row_format][0])
        two.push(0, 0, stored)
        three.push(0, 0, to_bf16(rows[:PROMPT]))
        for other in (two, three):
            assert (other.pull(0, 0, PROMPT) == stored).all()
        new = one, two, three
        client.wait_ready(new)
        kinds = rows[PROMPT:], to_bf16(rows[PROMPT:])
        results = [decode(client, one, kinds[0], queries), decode(client, three, kinds[1], queries)]
        last = one.pull(0, PROMPT, PROMPT + 3)
        results.append(decode(client, two, last, queries))
        for states, lse in results[1:]:
            assert (states == results[0][0]).all() and (lse == results[0][1]).all()


def test_the_bits_are_those_of_a_bf16_pool_that_holds_the_values(client, narrow_client, row_format,
                                                                 rows, rng):
    queries = to_bf16(as_bf16(rng.standard_normal((3, HEADS, WIDTH), numpy.float32)))
    with client.admit(PROMPT, 8, spread="all") as coded, narrow_client.admit(PROMPT, 8) as plain:
        coded.push(0, 0, rows[:PROMPT])
        values = numpy.zeros((PROMPT, WIDTH), numpy.uint16)
        assert coded.pull(0, 0, PROMPT, out=values) is values
        wide = numpy.zeros((PROMPT, WIDTH), numpy.float32)
        coded.pull(0, 0, PROMPT, out=wide)
        assert (from_bf16(values) == wide).all()
        # Half a unit of the last of 3 bits of an e4m3 number; k_pe is bf16 where there are tiles.
        error = numpy.abs(wide - rows[:PROMPT])
        assert (error <= numpy.abs(rows[:PROMPT]) / 16 + 1e-4).all() and error.any()
        assert error[:, RANK:].any() == (row_format != "fp8_ds_mla")
        plain.push(0, 0, values)
        coded.wait_ready()
        plain.wait_ready()
        new = decode(client, coded, rows[PROMPT:], queries)
        last = numpy.zeros((3, WIDTH), numpy.uint16)
        coded.pull(0, PROMPT, PROMPT + 3, out=last)
        assert (new[0] == decode(narrow_client, plain, last, queries)[0]).all()


def test_a_row_whose_scale_is_none_is_refused(client, row_format):
    only(row_format, "fp8_ds_mla")
    with client.admit(2, 4) as sequence:
        row = numpy.zeros((2, BYTES), numpy.uint8)
        row[:, RANK:RANK + 4] = list(struct.pack("<f", 1.0))
        bad = row.copy()
        bad[1, RANK:RANK + 4] = list(struct.pack("<f", float("nan")))
        with pytest.raises(tributary.InvalidArgument, match="row 1: scale 0 is nan, must be positive"):
            sequence.push(0, 0, bad)
        with pytest.raises(tributary.FailedPrecondition, match="row 0 of layer 0 .* has not arrived"):
            sequence.pull(0, 0, 1)
        sequence.push(0, 0, row)
        sequence.wait_ready()
        query = numpy.zeros((1, HEADS, WIDTH), numpy.uint16)
        step = client.step([sequence], 1)
        with pytest.raises(tributary.Error, match="token 0: row 0: scale 0 is nan"):
            step.attend(0, query, bad[1:])
        step.attend(0, query, row[:1])
        step.commit()


def test_other_arrays_are_named(client, row_format):
    count = FORMATS[row_format][0]
    with client.admit(2, 0) as sequence:
        for wrong, error, message in (
                (numpy.zeros((2, count + 1), numpy.uint8), ValueError, f"expected \\[n, {count}\\]"),
                (numpy.zeros((2, count + 1), numpy.float32), ValueError,
                 f"expected \\[n, {WIDTH}\\]"),
                (numpy.zeros((2, WIDTH), numpy.int8), TypeError, "int8, expected uint8")):
            with pytest.raises(error, match=message):
                sequence.push(0, 0, wrong)


def test_a_prefix_comes_back_as_codes(client, rows):
    prefix = tributary.Prefix(64, [b"the first block.", b"and the second.."])
    with client.admit(PROMPT, 0, prefix=prefix) as first:
        first.push(0, 0, rows[:PROMPT])
        first.wait_ready()
        stored = first.pull(0, 0, PROMPT)
        with client.admit(PROMPT, 0, prefix=prefix) as second:
            assert second.present_tokens == 128
            assert (second.pull(0, 0, 128) == stored[:128]).all()
