# Arrays that calls take and refuse: types, shapes, strides, outputs; nothing is copied.
import ctypes

import numpy
import pytest

import golden
import tributary

HEADS, RANK, WIDTH = 4, 128, 144


class Exported:
    """An array that speaks DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Own(numpy.ndarray):
    """A class of its own, as others derive them."""


class OnDevice(Exported):
    """One that says it lies on a CUDA device."""

    def __dlpack__(self, **options):
        capsule = self.array.__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # DLTensor: a pointer to the data, then the device's type.
        ctypes.c_int32.from_address(pointer(capsule, b"dltensor") + 8).value = 2
        return capsule


@pytest.fixture
def sequence(client, rng):
    with client.admit(70, 16) as sequence:
        sequence.push(0, 0, rng.standard_normal((70, WIDTH), numpy.float32))
        sequence.wait_ready()
        yield sequence


@pytest.fixture
def query(rng):
    return rng.standard_normal((2, HEADS, WIDTH), numpy.float32)


@pytest.fixture
def row(rng):
    return rng.standard_normal((2, WIDTH), numpy.float32)


def attend(client, sequence, *arguments):
    """Two tokens of a step that is aborted."""
    step = client.step([sequence], tokens=2)
    try:
        return step.attend(0, *arguments)
    finally:
        step.abort()


def bits(results):
    return [array.tobytes() for array in results]


def test_the_same_numbers_from_any_kind_of_array(client, sequence, query, row):
    expected = bits(attend(client, sequence, query, row))
    read_only = query.copy()
    read_only.flags.writeable = False
    wide = numpy.full((2, HEADS + 3, WIDTH), numpy.nan, numpy.float32)  # gaps between tokens
    wide[:, :HEADS] = query
    wide_row = numpy.full((2, WIDTH + 5), numpy.nan, numpy.float32)
    wide_row[:, :WIDTH] = row
    for q, r in ((read_only, row), (Exported(query), Exported(row)),
                 (memoryview(query), memoryview(row)), (query.view(Own), row.view(Own)),
                 (wide[:, :HEADS], wide_row[:, :WIDTH])):
        assert bits(attend(client, sequence, q, r)) == expected


def test_torch_tensors_give_torch_tensors(client, sequence, query, row):
    torch = pytest.importorskip("torch", reason="NO torch: NumPy alone is tested")
    expected = bits(attend(client, sequence, query, row))
    o, lse = attend(client, sequence, torch.from_numpy(query), torch.from_numpy(row))
    assert isinstance(o, torch.Tensor) and isinstance(lse, torch.Tensor)
    assert bits((o.numpy(), lse.numpy())) == expected
    o, _ = attend(client, sequence, torch.from_numpy(query.copy()).requires_grad_(), row)
    assert not o.requires_grad


def test_results_are_views_of_one_buffer_or_of_the_callers(client, sequence, query, row):
    record = HEADS * (RANK + 1)
    o, lse = attend(client, sequence, query, row)
    assert lse.ctypes.data - o.ctypes.data == HEADS * RANK * 4
    assert o.strides == (record * 4, RANK * 4, 4) and lse.strides == (record * 4, 4)
    out = numpy.full((2, record), numpy.nan, numpy.float32)
    into = attend(client, sequence, query, row, out)
    assert bits(into) == bits((o, lse))
    assert all(numpy.shares_memory(part, out) for part in into)
    assert bits((out[:, :HEADS * RANK], out[:, HEADS * RANK:])) == bits((o, lse))
    del out
    assert bits(into) == bits((o, lse))  # they keep their memory


@pytest.mark.parametrize("bad, kind, words", [
    (lambda q: q.astype(numpy.float64), TypeError, "query: float64, expected float32"),
    (golden.to_bf16, TypeError, "query: uint16, expected float32"),
    (lambda q: q[:1], ValueError, r"query: shape \[1, 4, 144\], expected \[2, 4, 144\]"),
    (lambda q: q[0], ValueError, r"query: shape \[4, 144\], expected \[2, 4, 144\]"),
    (lambda q: numpy.repeat(q, 2, 2)[:, :, ::2], ValueError, r"query: strides \[1152, 288, 2\]"),
    (lambda q: numpy.repeat(q, 2, 1)[:, ::2], ValueError, r"query: strides \[1152, 288, 1\]"),
    (lambda q: numpy.ascontiguousarray(q[::-1])[::-1], ValueError, "query: strides"),
    (lambda q: numpy.broadcast_to(q[:1], q.shape), ValueError, r"query: strides \[0, 144, 1\]"),
    (lambda q: numpy.zeros((2, HEADS, WIDTH), [("a", "f4"), ("b", "u1")])["a"], TypeError,
     "query: ndarray of dtype float32 is not exported"),  # 5 bytes from one to the next
    (lambda q: q.astype(">f4"), TypeError, "query: ndarray of dtype >f4 is not exported"),
    (lambda q: q[0, 0, 0], ValueError, r"query: shape \[\], expected \[2, 4, 144\]"),
    (lambda q: q[None, None], ValueError, r"query: shape \[1, 1, 2, 4, 144\], expected"),
    (lambda q: q.tolist(), TypeError, "query: list, expected an array of float32"),
    (lambda q: None, TypeError, "query: NoneType, expected an array of float32"),
    (OnDevice, ValueError, r"query: on a device \(DLPack type 2\), expected memory of the CPU"),
])
def test_bad_queries_are_refused(client, sequence, query, row, bad, kind, words):
    with pytest.raises(kind, match=words):
        attend(client, sequence, bad(query), row)


@pytest.mark.parametrize("bad, kind, words", [
    (lambda out: out.astype(numpy.float64), TypeError, "out: float64, expected float32"),
    (lambda out: out[:1], ValueError, r"out: shape \[1, 516\], expected \[2, 516\]"),
    (lambda out: numpy.repeat(out, 2, 0)[::2], ValueError, r"out: strides \[1032, 1\].*no gaps"),
    (lambda out: numpy.frombuffer(out.tobytes(), out.dtype).reshape(out.shape), ValueError,
     "out: read-only"),
    (lambda out: numpy.empty(out.nbytes + 2, "b")[2:].view(out.dtype).reshape(out.shape),
     ValueError, "out: not aligned"),
    (lambda out: out.tolist(), TypeError, "out: list, expected an array of float32"),
])
def test_bad_outputs_are_refused(client, sequence, query, row, bad, kind, words):
    with pytest.raises(kind, match=words):
        attend(client, sequence, query, row, bad(numpy.zeros((2, 516), numpy.float32)))


@pytest.mark.parametrize("bad, kind, words", [
    (lambda rows: rows.astype(numpy.float16), TypeError, "rows: float16, expected float32"),
    (lambda rows: rows[:, :-1], ValueError, r"rows: shape \[5, 143\], expected \[n, 144\]"),
    (lambda rows: numpy.asfortranarray(rows), ValueError, r"rows: strides \[1, 5\]"),
    (lambda rows: numpy.repeat(rows, 2, 0)[::2], ValueError, r"rows: strides .*expected no gaps"),
])
def test_bad_rows_are_refused(sequence, bad, kind, words):
    with pytest.raises(kind, match=words):
        sequence.push(0, 0, bad(numpy.zeros((5, WIDTH), numpy.float32)))


def test_bf16_as_its_bits(narrow_client, rng):
    rows = golden.to_bf16(rng.standard_normal((41, WIDTH), numpy.float32))
    query = golden.to_bf16(rng.standard_normal((1, HEADS, WIDTH), numpy.float32))
    with narrow_client.admit(40, 1) as sequence:
        assert (sequence.shape.row_format, sequence.shape.query_dtype) == ("bf16", "bf16")
        sequence.push(0, 0, rows[:40])
        sequence.wait_ready()
        with pytest.raises(TypeError, match="row: float32, expected bfloat16, or its bits as uint16"):
            narrow_client.step([sequence]).attend(0, query, golden.from_bf16(rows[40:]))
        with narrow_client.step([sequence]) as step:
            o, lse = step.attend(0, query, rows[40:])
        exact_o, exact_lse = golden.attend(golden.from_bf16(query[0]), golden.from_bf16(rows), RANK,
                                           sequence.shape.softmax_scale)
    # Rows and queries are exact here; some kernels round weights to bf16 (2^-9) once more.
    assert golden.relative_error(o[0], exact_o) < 2.0**-8
    assert golden.relative_error(lse[0], exact_lse) < 2.0**-8


def test_numpys_own_bfloat16_is_told_what_to_pass(narrow_client):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="NO ml_dtypes")
    rows = numpy.zeros((5, WIDTH), ml_dtypes.bfloat16)
    with narrow_client.admit(5, 0) as sequence:
        with pytest.raises(TypeError, match=r"rows: .*bfloat16 .*\.view\(numpy\.uint16\)"):
            sequence.push(0, 0, rows)
        sequence.push(0, 0, rows.view(numpy.uint16))
        sequence.wait_ready()


def test_what_is_no_batch_is_refused(client, other_client, sequence, query):
    for sequences, tokens, words in (([], [1], "0 sequences"), ([sequence], [1, 1], "1 sequences"),
                                     ([sequence, sequence], 1, "stands twice")):
        with pytest.raises(tributary.InvalidArgument, match=words):
            client.step(sequences, tokens)
    with pytest.raises(TypeError, match="sequences: int, expected tributary.Sequence"):
        client.step([7])
    with pytest.raises(tributary.InvalidArgument, match="another client's"):
        other_client.step([sequence])
