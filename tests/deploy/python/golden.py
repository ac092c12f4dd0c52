# The golden file of the repository as NumPy arrays, and bf16 as its bits.
import json
import struct

import numpy

from program import TINY


def to_bf16(values):
    """fp32 to the bits of bf16, to nearest even."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16)


def from_bf16(bits):
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def load(path=TINY):
    """Tensor by name; bf16 as fp32."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        kind = {"F64": numpy.float64, "F32": numpy.float32, "BF16": numpy.uint16}[entry["dtype"]]
        tensor = numpy.frombuffer(data[8 + length + begin:8 + length + end], kind)
        tensors[name] = (from_bf16(tensor) if entry["dtype"] == "BF16" else tensor
                         ).reshape(entry["shape"])
    return tensors


def attend(query, rows, rank, scale):
    """In float64: o [heads, rank] and lse [heads] of one query [heads, rank + rope]."""
    rows = rows.astype(numpy.float64)
    scores = query.astype(numpy.float64) @ rows.T * scale
    top = scores.max(axis=1, keepdims=True)
    weights = numpy.exp(scores - top)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total @ rows[:, :rank], (top + numpy.log(total))[:, 0]


def relative_error(result, expected):
    """Frobenius."""
    return numpy.linalg.norm(result - expected) / numpy.linalg.norm(expected)
