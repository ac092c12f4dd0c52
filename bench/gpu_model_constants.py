# The assumptions of bench/gpu_model.py on an H200 and on the kernels: the one place that the
# first measurement (bench/gpu_check.sh) corrects. The line of a constant says which check knows it.
import math

# An H200: NVIDIA's datasheet, and the CUDA programming guide on compute capability 9.0. The rate
# of the L2 port and the latencies are what published microbenchmarks of Hopper say, rounded.
MULTIPROCESSORS = 132
MEMORY = 4.8e12  # bytes a second
SHARED = 128  # bytes a cycle and multiprocessor
L2_PORT = 64  # bytes a cycle from L2 to a multiprocessor, and back; ncu.many: L2
TENSOR = 1024  # bf16 multiply-adds a cycle and multiprocessor: 989 TFLOP/s at 1.83 GHz
# Not known without a device, better and worse end. Of the memory: what copies reach of the
# datasheet's rate (time.attend: copies). The clock: 1.83 GHz at 989 TFLOP/s; FlashMLA's authors saw
# tensor cores throttle to 865 TFLOP/s (1.6 GHz) on an H800 (time.attend: the product; ncu.many).
# A start of a kernel in a graph, with its drain (time.orders16, fast order).
BETTER = {"memory": 0.92, "clock": 1.75e9, "launch": 2.5e-6}
WORSE = {"memory": 0.88, "clock": 1.6e9, "launch": 4e-6}
LATENCY = 800  # cycles of a load from memory under load; of one from L2:
L2_LATENCY = 400

# The kernels (kernels/cuda/sm90/layout.h, attend/few_rows_shape.h).
PAGE, RANK, LATENT, ROWS = 64, 512, 576, 64
PAGE_BYTES = PAGE * LATENT * 2
TILE_BYTES = 64 * 64 * 2
LEAF_PAGES = 32
FIXED_PAGES = 5  # FlashMLA's schedule, and ours
# Cycles of one group between products, counted by instructions a thread: softmax of 32 scores (256
# of them for 32 ex2 at 4 lanes a cycle and scheduler; maxima, shuffles, sums, stores the rest),
# rescaling of 128 sums, a warp's vote whether to, peaks of the other group with its barrier, issue
# and drain of a product. ncu.many: stalls and the tensor pipe.
SOFTMAX, RESCALE, VOTE, FOLLOW, PRODUCT = 440, 128, 12, 100, 60
STORE = ROWS * (RANK + 1) * 4 / L2_PORT  # cycles of writing a block's states
QUERIES = LATENCY + PAGE_BYTES / L2_PORT  # and of reading its queries


def changes_at(page):
    """How likely the largest score of one of a group's 64 rows is on the leaf's page number
    `page`: a product waits for all warps, so one row is enough. Scores as of random rows."""
    return 1 - math.pow(page / (page + 1), ROWS)


# Rescaling, mean cycles on a page. A lazy peak rises by more than 8 (in log2) after the first
# page hardly ever: the largest of 64 normal scores is at 2.4 deviations, of 2048 at 3.4, and that
# deviation is 2 at most in the models measured by FlashAttention 4's authors (2.9 of log2).
RESCALES = {"always": lambda page: RESCALE,
            "vote": lambda page: VOTE + RESCALE * (changes_at(page) if page > 0 else 0),
            "lazy": lambda page: VOTE}
