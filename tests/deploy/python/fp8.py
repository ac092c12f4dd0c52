# Rows of FP8 in NumPy, by comparison with all numbers of e4m3: what the project's own encoders and
# decoders are tested against. `fp8_ds_mla`: 512 codes | a fp32 scale per 128 | bf16 values; `fp8`:
# codes.
import numpy

import golden

TILE = 128


def _numbers():
    codes = numpy.arange(127)
    exponent, mantissa = codes >> 3, codes & 7
    return numpy.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)


NUMBERS = _numbers()  # of codes without a sign, ascending; 127 is NaN


def _nearest(sizes):
    """Codes of sizes up to 448, ties to the even one."""
    above = numpy.searchsorted(NUMBERS, sizes).clip(1, 126)
    below = above - 1
    far, near = NUMBERS[above] - sizes, sizes - NUMBERS[below]
    return numpy.where((near < far) | ((near == far) & (below % 2 == 0)), below, above)


def encode(values, rank=512):
    """Rows [..., rank + rest] of fp32 as bytes."""
    values = golden.from_bf16(golden.to_bf16(values.astype(numpy.float32)))
    tiles = values[..., :rank].reshape(*values.shape[:-1], rank // TILE, TILE).astype(numpy.float64)
    finite = numpy.isfinite(tiles)
    sizes = numpy.abs(numpy.where(finite, tiles, 0))
    largest = numpy.maximum(sizes.max(-1, keepdims=True), numpy.float64(numpy.float32(1e-4)))
    scales = 2.0 ** numpy.ceil(numpy.log2(largest / 448))
    codes = numpy.where(finite, _nearest(sizes / scales), 127) | (numpy.signbit(tiles) << 7)
    rows = values.shape[:-1]
    return numpy.concatenate([
        codes.astype(numpy.uint8).reshape(*rows, rank),
        numpy.ascontiguousarray(scales[..., 0], numpy.float32).view(numpy.uint8),
        numpy.ascontiguousarray(golden.to_bf16(values[..., rank:])).view(numpy.uint8)], -1)


def decode(rows, rank=512):
    """Their values in fp32."""
    scales = rank // TILE
    codes = rows[..., :rank]
    numbers = numpy.append(NUMBERS, numpy.nan)[codes & 127] * numpy.where(codes > 127, -1.0, 1.0)
    scale = numpy.ascontiguousarray(rows[..., rank:rank + 4 * scales]).view(numpy.float32)
    values = numbers.astype(numpy.float32) * numpy.repeat(scale, TILE, -1)
    rest = numpy.ascontiguousarray(rows[..., rank + 4 * scales:]).view(numpy.uint16)
    return numpy.concatenate([golden.from_bf16(golden.to_bf16(values)), golden.from_bf16(rest)], -1)


def encode_with(scale, values):
    """Rows of `fp8` of a pool with this scale."""
    values = golden.from_bf16(golden.to_bf16(values.astype(numpy.float32))) / numpy.float32(scale)
    sizes = numpy.abs(values).astype(numpy.float64).clip(max=448)
    codes = numpy.where(numpy.isnan(values), 127, _nearest(numpy.nan_to_num(sizes)))
    return (codes | (numpy.signbit(values) << 7)).astype(numpy.uint8)


def decode_with(scale, rows):
    numbers = numpy.append(NUMBERS, numpy.nan)[rows & 127] * numpy.where(rows > 127, -1.0, 1.0)
    values = numbers.astype(numpy.float32) * numpy.float32(scale)
    return golden.from_bf16(golden.to_bf16(values))
