// Alternates between ours and a peer: the best of a few calls each, with a calibration after both.
// The result is the median ratio; beside it stands how many turns had no low calibration, since
// both of a turn are disturbed alike, but not to the same degree.
#include "bench/peer_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/calibrated.h"
#include "bench/mla_step.h"
#include "bench/peer.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/timing.h"

namespace tributary::bench {
namespace {

constexpr std::size_t kTurns = 10;
constexpr std::size_t kLeastTurns = 3;
// No turn begins after it, but for the least: a batch that a peer is slow with must not take the
// whole run.
constexpr double kMostSeconds = 8;
// Of a turn's calls the best counts, of as many as take this long.
constexpr double kTurnSeconds = 0.1;
constexpr int kMostCalls = 3;

struct Turns {
  std::vector<double> ours, theirs, ratios;  // seconds of a call, theirs over ours
  std::size_t calm = 0;
};

/// `ours` and the peer's answer to `line`, to which the number of calls is added, in turn.
Turns take_turns(Machine& machine, const std::function<void()>& ours, Peer& peer,
                 const std::function<std::string(int calls)>& line) {
  const auto best_of_ours = [&](int calls) {
    double best = std::numeric_limits<double>::infinity();
    for (int call = 0; call < calls; ++call) {
      const double start = seconds_now(Clock::kWall);
      ours();
      best = std::min(best, seconds_now(Clock::kWall) - start);
    }
    return best;
  };
  ours();  // a first call is not like the next ones; the peer makes its own
  (void)peer.ask(line(1));
  const int calls = std::clamp(static_cast<int>(kTurnSeconds / best_of_ours(1)), 1, kMostCalls);
  Turns turns;
  const double begin = seconds_now(Clock::kWall);
  while (turns.ratios.size() < kTurns &&
         (turns.ratios.size() < kLeastTurns || seconds_now(Clock::kWall) - begin < kMostSeconds)) {
    turns.ours.push_back(best_of_ours(calls));
    const bool before = machine.undisturbed();
    turns.theirs.push_back(peer.ask(line(calls)));
    turns.ratios.push_back(turns.theirs.back() / turns.ours.back());
    if (machine.undisturbed() && before) ++turns.calm;
  }
  return turns;
}

struct Rival {
  std::string_view name;
  Peer peer;
};

/// Those that start; prints their versions, and the names of the others.
std::vector<Rival> start_peers(const PeerPrograms& programs) {
  struct Candidate {
    std::string_view name;
    const std::string& program;
    const char* script;
  };
  std::vector<Rival> rivals;
  for (const Candidate& candidate :
       {Candidate{"PyTorch", programs.python, TRIBUTARY_PEERS "/torch_peer.py"},
        Candidate{"vLLM", programs.vllm, TRIBUTARY_PEERS "/vllm_peer.py"},
        Candidate{"ggml", programs.ggml, TRIBUTARY_PEERS "/ggml_peer.py"},
        Candidate{"brgemm", programs.brgemm, ""}}) {
    auto peer =
        candidate.program.empty() ? std::nullopt : Peer::start(candidate.program, candidate.script);
    fmt::print("{}: {}\n", candidate.name,
               peer                        ? peer->version()
               : candidate.program.empty() ? "no program given"
                                           : "NOT COMPARED, does not start: " + candidate.program);
    if (peer) rivals.push_back({candidate.name, std::move(*peer)});
  }
  return rivals;
}

void compare(Machine& machine, Backend& backend, std::vector<Rival>& rivals, int heads,
             int sequences, int length) {
  const std::vector<int> lengths(static_cast<std::size_t>(sequences), length);
  DecodeCase decode(backend, heads, 1, lengths);
  const auto attend = [&] {
    decode.attend();
    decode.merge();
  };
  std::vector<double> ours;
  std::string ratios;
  for (Rival& rival : rivals) {
    const Turns turns = take_turns(machine, attend, rival.peer, [&](int calls) {
      return fmt::format("{} {} {} {} {}", heads, length, machine.threads(), calls, sequences);
    });
    ours.insert(ours.end(), turns.ours.begin(), turns.ours.end());
    ratios += fmt::format("; {} {:.2f} ({} turns, {} calm)", rival.name, median(turns.ratios),
                          turns.ratios.size(), turns.calm);
  }
  const std::string what = fmt::format("{:3} heads, {} x {:6} rows", heads, sequences, length);
  const double rate = decode.gflop() / median(ours);
  const double read = decode.gigabytes() / median(ours);
  fmt::print("{}: {:6.1f} GFLOP/s, {:3.0f}% of peak, {:3.0f}% of read{}\n", what, rate,
             100 * rate / machine.peak_gflops(), 100 * read / machine.read_gb_s(), ratios);
}

}  // namespace

void limit_peers_to(std::string_view set) {
  struct Limit {
    std::string_view set;
    const char *aten, *one_dnn;
  };
  for (const Limit& limit : {Limit{"AVX3", "avx512", "AVX512_CORE"}, Limit{"AVX2", "avx2", "AVX2"},
                             Limit{"SSE4", "default", "SSE41"}}) {
    if (limit.set != set) continue;
    (void)setenv("ATEN_CPU_CAPABILITY", limit.aten, 1);
    (void)setenv("ONEDNN_MAX_CPU_ISA", limit.one_dnn, 1);
  }
}

void compare_with_peers(Machine& machine, Backend& backend, std::span<const int> heads_counts,
                        std::span<const int> lengths, const PeerPrograms& programs) {
  fmt::print("\nA peer's time over ours (above 1: ours is faster), {} thread(s), wall time:\n",
             machine.threads());
  std::vector<Rival> rivals = start_peers(programs);
  if (rivals.empty()) return;
  for (const int heads : heads_counts) {
    for (const int sequences : {1, 8}) {
      for (const int length : lengths) {
        compare(machine, backend, rivals, heads, sequences, length);
      }
    }
  }
}

void compare_layers(Machine& machine, Backend& backend, const std::string& python) {
  constexpr int kLength = 1024;
  fmt::print("\nOne layer of DeepSeek-V3, {} rows, PyTorch in bf16, {} thread(s), wall time:\n",
             kLength, machine.threads());
  auto peer = Peer::start(python, TRIBUTARY_PEERS "/torch_peer.py");
  if (!peer) {
    fmt::print("No peer: {} has no PyTorch (package python3-torch).\n", python);
    return;
  }
  fmt::print("{}\n", peer->version());
  for (const int batch : {1, 4, 16}) {
    MlaStep step(backend, batch, kLength, Clock::kWall);
    const Turns turns = take_turns(
        machine, [&] { step.run(); }, *peer,
        [&](int calls) {
          return fmt::format("layer {} {} {} {}", kLength, machine.threads(), calls, batch);
        });
    fmt::print("batch {:2}: {:6.1f} ms, peer {:6.1f}: {:.2f} x faster  ({} turns, {} calm)\n",
               batch, 1e3 * median(turns.ours), 1e3 * median(turns.theirs), median(turns.ratios),
               turns.ratios.size(), turns.calm);
  }
}

}  // namespace tributary::bench
