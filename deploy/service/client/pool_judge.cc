#include "deploy/service/client/pool_judge.h"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <string>

#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

/// A control plane asks the pool, and answers by its pool timeout (1.5 s) if the pool is gone.
constexpr std::chrono::milliseconds kAskTimeout{2'000};
/// The limit for any answer of a worker, through its leader: longer than a round.
constexpr std::chrono::milliseconds kWorkerTimeout{1'000};

/// Any answer will do, even a refusal: a renewal changes nothing.
std::size_t ask_worker(WorkerCall& call, const SilentWorker& worker) {
  const Greeting& greeting = worker.greetings.front();
  return call.send({.address = worker.address, .greetings = {greeting}},
                   wire::Control{.items = {{.op = wire::ControlOp::kRenew,
                                            .sequence_id = greeting.sequence_id}}});
}

/// What the control plane says of the sequences that wait for one worker.
struct Word {
  std::vector<std::uint64_t> ended;    // not found
  Status last;                         // of the last one that was asked about
  std::vector<std::string> addresses;  // of the pool, where one runs
  std::vector<std::string> lost;       // of its workers: it goes on without them
};

/// Asks until one answer is about the pool.
Word ask(ControlPlane& control, const SilentWorker& worker, Deadline deadline) {
  Word word;
  for (const Greeting& greeting : worker.greetings) {
    word.last = status_of([&] {
      const SequenceHandle now = control.query(greeting.sequence_id, deadline);
      word.addresses = now.addresses;
      for (const int rank : now.lost_workers) {
        word.lost.push_back(now.addresses.at(static_cast<std::size_t>(rank)));
      }
    });
    if (word.last.code() != ErrorCode::kNotFound) break;
    word.ended.push_back(greeting.sequence_id);
  }
  return word;
}

}  // namespace

void PoolJudge::judge(const std::vector<SilentWorker>& silent) {
  const Time begin = connections_.clock().now();
  const Deadline deadline = Deadline::after(begin, kAskTimeout);
  WorkerCall workers(connections_, Deadline::after(begin, kWorkerTimeout));
  for (const SilentWorker& worker : silent) static_cast<void>(ask_worker(workers, worker));
  std::vector<Word> words(silent.size());
  std::set<std::string> known;  // to the control plane; one answer names all workers of its pool
  std::set<std::string> lost;
  for (std::size_t i = 0; i < silent.size(); ++i) {
    if (known.contains(silent[i].address)) continue;
    words[i] = ask(control_, silent[i], deadline);
    known.insert(words[i].addresses.begin(), words[i].addresses.end());
    lost.insert(words[i].lost.begin(), words[i].lost.end());
  }
  for (std::size_t i = 0; i < silent.size(); ++i) {
    const Word& word = words[i];
    const std::string& address = silent[i].address;
    const bool gone = connections_.unreachable(address);
    const std::string text =
        fmt::format("{}, and the control plane says: {}",
                    gone ? "it cannot be reached" : "it does not answer", word.last.message());
    // Any other answer says nothing about the pool: deadlines end calls that are lost.
    const bool replaced = !word.addresses.empty() && !known.contains(address);
    if (lost.contains(address) || replaced) {
      connections_.give_up(address, {ErrorCode::kWorkerLost,
                                     "its pool goes on without it: see TierClient::query()"});
    } else if (word.last.code() == ErrorCode::kPoolLost) {
      if (gone || !workers.wait(i).ok()) {
        connections_.give_up(address, {ErrorCode::kPoolLost, text});
      }
    } else if (gone && !word.ended.empty()) {
      // Others may have begun to wait since. Where all had ended, so has the pool, probably.
      const bool all = word.last.code() == ErrorCode::kNotFound;
      connections_.give_up(
          address, word.ended,
          all ? Status{ErrorCode::kPoolLost, text}
              : Status{ErrorCode::kNotFound, "it cannot be reached, and the sequence has ended"});
    }
  }
}

}  // namespace tributary
