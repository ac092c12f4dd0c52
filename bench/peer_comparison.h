// Decode attention of the CPU backend beside what others would use: PyTorch's products through
// oneDNN, and SGLang's algorithm on oneDNN's brgemm kernels, each in a process of its own.
#pragma once

#include <span>
#include <string>

#include "bench/calibrated.h"
#include "core/interface/backend.h"

namespace tributary::bench {

/// How the peers are started; what is missing or does not start is named and left out.
struct PeerPrograms {
  std::string python;  // an interpreter with PyTorch, or one without
  std::string brgemm;  // bench/brgemm_peer.cc as a program; empty: none
};

/// Prints the rates of both and the median ratio, for those of `heads_counts` that are 128 or 16,
/// and several batches. Wall time, as many threads as `machine` measures.
void compare_with_peers(Machine& machine, Backend& backend, std::span<const int> heads_counts,
                        const PeerPrograms& programs);

/// Prints the time of a layer of DeepSeek-V3 (a token for each of 1, 4 and 16 sequences of 1,024
/// rows, bf16 weights), PyTorch's and the median ratio. Wall time.
void compare_layers(Machine& machine, Backend& backend, const std::string& python);

}  // namespace tributary::bench
