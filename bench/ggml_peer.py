# Absorbed MLA decode by ggml, llama.cpp's kernels, with rows of f16: a peer of bench/cpu_limits
# (peer_lines.py says how it is asked). The library is the one in pywhispercpp, a wheel of PyPI;
# llama.cpp's own has no wheel there. Three forms: flash_attn_ext with a head for a head, and with a
# token for a head; two products and a softmax, whose values were transposed before.
import ctypes
import importlib.metadata

import numpy

import peer_lines
from peer_lines import RANK, ROPE, SCALE

F32, F16 = 0, 1  # enum ggml_type
ROW = RANK + ROPE


class InitParams(ctypes.Structure):  # struct ggml_init_params
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p),
                ("no_alloc", ctypes.c_bool)]


def library(begin):
    """The wheel's library whose name begins so; what it needs has to be loaded before."""
    files = importlib.metadata.files("pywhispercpp")
    path = next(file for file in files
                if file.name.startswith(begin) and ".libs" in str(file.parent))
    return ctypes.CDLL(str(path.locate()), ctypes.RTLD_GLOBAL)


library("libgomp-")
base, cpu = library("libggml-base-"), library("libggml-cpu-")
pointer, count, size, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_float
for lib, function, result, *arguments in (
        (base, "ggml_init", pointer, InitParams),
        (base, "ggml_free", None, pointer),
        (base, "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, count, count),
        (base, "ggml_get_data", pointer, pointer),
        (base, "ggml_view_4d", pointer, pointer, pointer, *[count] * 4, *[size] * 4),
        (base, "ggml_mul_mat", pointer, pointer, pointer, pointer),
        (base, "ggml_soft_max_ext", pointer, pointer, pointer, pointer, real, real),
        (base, "ggml_flash_attn_ext", pointer, *[pointer] * 5, *[real] * 3),
        (base, "ggml_new_graph", pointer, pointer),
        (base, "ggml_build_forward_expand", None, pointer, pointer),
        (base, "ggml_version", ctypes.c_char_p),
        (base, "ggml_backend_graph_compute", ctypes.c_int, pointer, pointer),
        (cpu, "ggml_backend_cpu_init", pointer),
        (cpu, "ggml_backend_cpu_set_n_threads", None, pointer, ctypes.c_int)):
    getattr(lib, function).restype, getattr(lib, function).argtypes = result, arguments
backend = cpu.ggml_backend_cpu_init()


class Graph:
    """Attends to all sequences in one way; its tensors and results are in memory of its own."""

    def __init__(self, sequences, way):
        room = sum(rows.nbytes * 2 + 8 * len(rows) * len(query) + query.nbytes * 2
                   for query, rows in sequences)
        self.context = base.ggml_init(InitParams(room + (64 << 20), None, False))
        self.graph = base.ggml_new_graph(self.context)
        self.results = [way(self, query, rows) for query, rows in sequences]
        for result in self.results:
            base.ggml_build_forward_expand(self.graph, result)

    def __del__(self):
        base.ggml_free(self.context)

    def __call__(self):
        if base.ggml_backend_graph_compute(backend, self.graph) != 0:
            raise RuntimeError("ggml computed nothing")

    def tensor(self, values):
        kind = {numpy.dtype(numpy.float32): F32, numpy.dtype(numpy.float16): F16}[values.dtype]
        values = numpy.ascontiguousarray(values)
        made = base.ggml_new_tensor_2d(self.context, kind, values.shape[1], values.shape[0])
        ctypes.memmove(base.ggml_get_data(made), values.ctypes.data, values.nbytes)
        return made

    def flash(self, query, rows, tokens):
        heads, row = len(query) // tokens, query[0].nbytes
        cache = self.tensor(rows)
        views = [base.ggml_view_4d(self.context, cache, width, len(rows), 1, 1, 2 * ROW,
                                   rows.nbytes, rows.nbytes, 0) for width in (ROW, RANK)]
        query = base.ggml_view_4d(self.context, self.tensor(query), ROW, tokens, heads, 1, row,
                                  row * tokens, query.nbytes, 0)
        return base.ggml_flash_attn_ext(self.context, query, *views, None, SCALE, 0, 0)

    def a_head_each(self, query, rows):
        return self.flash(query, rows, 1)

    def a_token_each(self, query, rows):
        return self.flash(query, rows, len(query))

    def products(self, query, rows):
        scores = base.ggml_mul_mat(self.context, self.tensor(rows), self.tensor(query))
        weights = base.ggml_soft_max_ext(self.context, scores, None, SCALE, 0)
        return base.ggml_mul_mat(self.context, self.tensor(rows[:, :RANK].T), weights)


WAYS = Graph.a_head_each, Graph.a_token_each, Graph.products


def sequences_of(heads, length, sequences):
    random = numpy.random.default_rng(1)
    return [(random.standard_normal((heads, ROW), numpy.float32),
             random.standard_normal((length, ROW), numpy.float32).astype(numpy.float16))
            for _ in range(sequences)]


def check():
    sequences = sequences_of(4, 96, 2)
    for way in WAYS:
        graph = Graph(sequences, way)
        graph()
        for result, (query, rows) in zip(graph.results, sequences):
            rows = rows.astype(numpy.float64)
            scores = query @ rows.T * SCALE
            weights = numpy.exp(scores - scores.max(1, keepdims=True))
            right = weights @ rows[:, :RANK] / weights.sum(1, keepdims=True)
            floats = ctypes.cast(base.ggml_get_data(result), ctypes.POINTER(real))
            numpy.testing.assert_allclose(numpy.ctypeslib.as_array(floats, right.shape), right,
                                          atol=0.03, err_msg=way.__name__)


def version():
    sets = [name for name in ("avx2", "f16c", "avx512", "avx512_bf16", "amx_int8")
            if getattr(cpu, f"ggml_cpu_has_{name}")()]
    return (f"ggml {base.ggml_version().decode()} of pywhispercpp "
            f"{importlib.metadata.version('pywhispercpp')}, compiled for {' '.join(sets)}")


def set_threads(threads):
    cpu.ggml_backend_cpu_set_n_threads(backend, threads)


def forms_of(case):
    sequences = sequences_of(int(case.what), case.length, case.sequences)
    return [Graph(sequences, way) for way in WAYS]


if __name__ == "__main__":
    check()
    peer_lines.answer(version(), set_threads, forms_of)
