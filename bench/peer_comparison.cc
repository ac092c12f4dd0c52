// Alternates between ours and a peer: the best of a few calls each, with a calibration before and
// after. Rounds with a low calibration are dropped. The result is the median ratio of the others.
#include "bench/peer_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "bench/calibrated.h"
#include "bench/decode_batches.h"
#include "bench/mla_step.h"
#include "bench/peer.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/timing.h"

namespace tributary::bench {
namespace {

constexpr int kCalls = 3;
constexpr std::size_t kRounds = 5;
constexpr int kMostRounds = 20;
// No round begins after it: a batch that a peer is slow with must not take the whole run.
constexpr double kMostSeconds = 12;

struct Turns {
  std::vector<double> ours, theirs, ratios;  // seconds of a call, theirs over ours
  int rounds = 0;
};

/// `ours` and the peer's answer to `line`, in turn.
Turns take_turns(Machine& machine, const std::function<void()>& ours, Peer& peer,
                 const std::string& line) {
  const auto best_of_ours = [&] {
    double best = std::numeric_limits<double>::infinity();
    for (int call = 0; call < kCalls; ++call) {
      const double start = seconds_now(Clock::kWall);
      ours();
      best = std::min(best, seconds_now(Clock::kWall) - start);
    }
    return best;
  };
  Turns turns;
  const double begin = seconds_now(Clock::kWall);
  for (; turns.rounds < kMostRounds && turns.ratios.size() < 2 * kRounds; ++turns.rounds) {
    if (seconds_now(Clock::kWall) - begin > kMostSeconds) break;
    std::array<double, 2> own{};
    std::array<double, 2> other{};
    bool calm = machine.undisturbed();
    for (std::size_t turn = 0; turn < own.size(); ++turn) {
      own.at(turn) = best_of_ours();
      calm = machine.undisturbed() && calm;
      other.at(turn) = peer.ask(line);
      calm = machine.undisturbed() && calm;
    }
    if (!calm) continue;
    for (std::size_t turn = 0; turn < own.size(); ++turn) {
      turns.ours.push_back(own.at(turn));
      turns.theirs.push_back(other.at(turn));
      turns.ratios.push_back(other.at(turn) / own.at(turn));
    }
  }
  return turns;
}

/// `figure` of a call's seconds, in `unit`.
void print_ratio(const std::string& what, const Turns& turns, std::string_view unit,
                 const std::function<double(double)>& figure) {
  fmt::print("{}: ", what);
  if (turns.ratios.empty()) {
    fmt::print("all {} rounds were disturbed\n", turns.rounds);
    return;
  }
  fmt::print("{:6.1f} {}, peer {:6.1f}: {:.2f} x faster  ({} rounds, {} dropped)\n",
             figure(median(turns.ours)), unit, figure(median(turns.theirs)), median(turns.ratios),
             turns.ratios.size() / 2,
             static_cast<std::size_t>(turns.rounds) - turns.ratios.size() / 2);
}

void compare(Machine& machine, Backend& backend, Peer& peer, int heads, const Batch& batch) {
  const std::vector<int> lengths(static_cast<std::size_t>(batch.sequences), batch.length);
  DecodeCase decode(backend, heads, 1, lengths);
  const auto attend = [&] {
    decode.attend();
    decode.merge();
  };
  const Turns turns = take_turns(machine, attend, peer,
                                 fmt::format("{} {} {} {} {}", heads, batch.length,
                                             machine.threads(), kCalls, batch.sequences));
  print_ratio(fmt::format("{:3} heads, {} x {:6} rows", heads, batch.sequences, batch.length),
              turns, "GFLOP/s", [&](double seconds) { return decode.gflop() / seconds; });
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

void compare_layers(Machine& machine, Backend& backend, const std::string& python) {
  constexpr int kLength = 1024;
  fmt::print("\nOne layer of DeepSeek-V3, {} rows, PyTorch in bf16, {} thread(s), wall time:\n",
             kLength, machine.threads());
  auto peer = Peer::start(python, TRIBUTARY_PEER);
  if (!peer) {
    fmt::print("No peer: {} has no PyTorch (package python3-torch).\n", python);
    return;
  }
  fmt::print("{}\n", peer->version());
  for (const int batch : {1, 4, 16}) {
    MlaStep step(backend, batch, kLength, Clock::kWall);
    const Turns turns = take_turns(
        machine, [&] { step.run(); }, *peer,
        fmt::format("layer {} {} {} {}", kLength, machine.threads(), kCalls, batch));
    print_ratio(fmt::format("batch {:2}", batch), turns, "ms",
                [](double seconds) { return 1e3 * seconds; });
  }
}

}  // namespace tributary::bench
