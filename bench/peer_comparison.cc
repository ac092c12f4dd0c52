// Alternates between ours and a peer: the best of a few calls each, with a calibration before and
// after. Rounds with a low calibration are dropped. The result is the median ratio of the others.
#include "bench/peer_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

#include "bench/calibrated.h"
#include "bench/decode_batches.h"
#include "bench/peer.h"
#include "deploy/app/bench/decode_case.h"

namespace tributary::bench {
namespace {

constexpr int kCalls = 3;
constexpr std::size_t kRounds = 5;
constexpr int kMostRounds = 20;
// No round begins after it: a batch that a peer is slow with must not take the whole run.
constexpr double kMostSeconds = 12;

double best_of_ours(DecodeCase& decode) {
  double best = std::numeric_limits<double>::infinity();
  for (int call = 0; call < kCalls; ++call) {
    const double start = seconds_now(Clock::kWall);
    decode.attend();
    decode.merge();
    best = std::min(best, seconds_now(Clock::kWall) - start);
  }
  return best;
}

void compare(Machine& machine, Backend& backend, Peer& peer, int heads, const Batch& batch) {
  const std::vector<int> lengths(static_cast<std::size_t>(batch.sequences), batch.length);
  DecodeCase decode(backend, heads, 1, lengths);
  const std::string line = fmt::format("{} {} {} {} {}", heads, batch.length, machine.threads(),
                                       kCalls, batch.sequences);
  std::vector<double> ours;
  std::vector<double> theirs;
  std::vector<double> ratios;
  int rounds = 0;
  const double begin = seconds_now(Clock::kWall);
  for (; rounds < kMostRounds && ratios.size() < 2 * kRounds; ++rounds) {
    if (seconds_now(Clock::kWall) - begin > kMostSeconds) break;
    std::array<double, 2> own{};
    std::array<double, 2> other{};
    bool calm = machine.undisturbed();
    for (std::size_t turn = 0; turn < own.size(); ++turn) {
      own.at(turn) = best_of_ours(decode);
      calm = machine.undisturbed() && calm;
      other.at(turn) = peer.ask(line);
      calm = machine.undisturbed() && calm;
    }
    if (!calm) continue;
    for (std::size_t turn = 0; turn < own.size(); ++turn) {
      ours.push_back(own.at(turn));
      theirs.push_back(other.at(turn));
      ratios.push_back(other.at(turn) / own.at(turn));
    }
  }
  fmt::print("{:3} heads, {} x {:6} rows: ", heads, batch.sequences, batch.length);
  if (ratios.empty()) {
    fmt::print("all {} rounds were disturbed\n", rounds);
    return;
  }
  fmt::print("{:6.0f} GFLOP/s, peer {:6.0f}: {:.2f} x faster  ({} rounds, {} dropped)\n",
             decode.gflop() / median(ours), decode.gflop() / median(theirs), median(ratios),
             ratios.size() / 2, static_cast<std::size_t>(rounds) - ratios.size() / 2);
  static_cast<void>(std::fflush(stdout));
}

}  // namespace

void compare_with_peers(Machine& machine, Backend& backend, std::span<const int> heads_counts,
                        const PeerPrograms& programs) {
  struct Candidate {
    const char* what;
    const std::string& program;
    const char* script;
    const char* missing;
  };
  for (const Candidate& candidate :
       {Candidate{"PyTorch, bf16 through oneDNN, the better of two forms", programs.python,
                  TRIBUTARY_PEER, "has no PyTorch (package python3-torch)"},
        Candidate{"SGLang's algorithm on oneDNN's brgemm, all heads in one block", programs.brgemm,
                  "", "does not start (bench/peer_torch.sh builds it)"}}) {
    fmt::print("\n{}; {} thread(s), wall time:\n", candidate.what, machine.threads());
    auto peer =
        candidate.program.empty() ? std::nullopt : Peer::start(candidate.program, candidate.script);
    if (!peer) {
      fmt::print("No peer: {} {}.\n", candidate.program.empty() ? "none given" : candidate.program,
                 candidate.missing);
      continue;
    }
    fmt::print("{}\n", peer->version());
    for (const int heads : {128, 16}) {
      if (std::ranges::find(heads_counts, heads) == heads_counts.end()) continue;
      for (const Batch& batch : kBatches) compare(machine, backend, *peer, heads, batch);
    }
  }
}

}  // namespace tributary::bench
