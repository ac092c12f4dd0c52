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

}  // namespace tributary::bench
