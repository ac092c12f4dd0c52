// Decode attention of the CPU backend beside what others would use, each in a process of its own:
// PyTorch's products through oneDNN, vLLM's kernel for CPUs, ggml's, and SGLang's algorithm on
// oneDNN's brgemm kernels.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "bench/calibrated.h"
#include "core/interface/backend.h"

namespace tributary::bench {

/// How the peers are started; empty: not to be had. What is missing or does not start is named and
/// left out.
struct PeerPrograms {
  std::string python;  // an interpreter with PyTorch, or one without
  std::string vllm;    // one with vLLM
  std::string ggml;    // one with pywhispercpp
  std::string brgemm;  // bench/brgemm_peer.cc as a program
};

/// Lets PyTorch, oneDNN and vLLM, started later, use no wider instructions than `set` of ours does.
/// ggml's are those that its wheel was compiled for, brgemm's are BF16 products in any case.
void limit_peers_to(std::string_view set);

/// Prints our rate, its shares of the machine's limits and each peer's time over ours, median of
/// turns, with 1 and 8 sequences. Wall time, as many threads as `machine` measures.
void compare_with_peers(Machine& machine, Backend& backend, std::span<const int> heads_counts,
                        std::span<const int> lengths, const PeerPrograms& programs);

/// Prints the time of a layer of DeepSeek-V3 (a token for each of 1, 4 and 16 sequences of 1,024
/// rows, bf16 weights), PyTorch's and the median ratio. Wall time.
void compare_layers(Machine& machine, Backend& backend, const std::string& python);

}  // namespace tributary::bench
