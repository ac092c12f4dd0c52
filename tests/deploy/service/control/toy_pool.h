// A pool as the control plane sees one, without a connection: admits sequences into a number of
// pages, answers, beats. It holds no rows and runs no steps; its counters rise by themselves.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

struct ToyPoolConfig {
  std::string name = "a";
  std::string run = "run1";
  int workers = 2;
  int pages_per_worker = 64;
  PoolShape shape;  // sample_shape() where it has no heads
  int protocol = kPoolProtocol;
  std::uint32_t last_incarnation = 0;
  std::vector<SequenceInfo> sequences;  // from an earlier connection
};

class ToyPool {
 public:
  explicit ToyPool(ToyPoolConfig config);

  /// What it registers with.
  [[nodiscard]] RegisterPool about() const;
  /// Its answer to a question.
  [[nodiscard]] PoolReply answer(const ToPool& asked);
  [[nodiscard]] Heartbeat beat();
  /// A worker is lost, which the next heartbeat says.
  void lose(int worker) { lost_.insert(worker); }
  /// Another process is in its place.
  [[nodiscard]] WorkerJoined take_in(int worker, const std::string& address);
  /// Ends a sequence; false if it does not hold it.
  bool end(SequenceId id) { return sequences_.erase(id) > 0; }

  [[nodiscard]] const std::map<SequenceId, SequenceInfo>& sequences() const { return sequences_; }
  [[nodiscard]] bool draining() const { return draining_; }

 private:
  [[nodiscard]] PoolReply admit(const Admit& admit);
  [[nodiscard]] int free_pages() const;
  void count_work();

  ToyPoolConfig config_;
  std::map<SequenceId, SequenceInfo> sequences_;
  bool draining_ = false;
  std::set<int> drained_workers_;
  std::set<int> lost_;
  std::map<int, std::string> addresses_;  // of workers that came in the place of lost ones
  PoolMetrics metrics_;
};

}  // namespace tributary
