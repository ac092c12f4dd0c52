// The sequences whose tokens each connection has proven: what it may ask for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/access_token.h"
#include "core/base/deadline.h"
#include "core/pool/ingest_table.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

/// Any thread may call any function.
class AccessCheck {
 public:
  /// `sequences` are those that run on this worker; they outlive the check.
  AccessCheck(const wire::Token& pool_key, const IngestTable& sequences)
      : key_(pool_key), sequences_(sequences) {}

  /// A connection has opened with the proof of one id.
  void open(PeerId peer, const Proven& who, Time now);
  /// Adds the sequences whose proofs are right. A wrong one takes nothing away.
  [[nodiscard]] wire::ProveReply prove(PeerId peer, const wire::Prove& further, Time now);
  [[nodiscard]] bool allowed(PeerId peer, std::uint64_t id) const;
  /// The id with whose proof the connection has opened; 0 for an unknown one.
  [[nodiscard]] std::uint64_t opened_as(PeerId peer) const;
  void close(PeerId peer);

  struct Idle {
    PeerId peer = 0;
    Duration since{};
  };
  /// Connections of clients of which no sequence runs here, and since when.
  [[nodiscard]] std::vector<Idle> idle(Time now);

 private:
  /// A connection that has proven more than these forgets the ones that have ended.
  static constexpr std::size_t kMostKept = 4096;
  struct Connection {
    Session session{};
    std::uint64_t opened_as = 0;
    std::unordered_set<std::uint64_t> proven;
    Time used{};  // when one of them ran, or was proven
  };

  const wire::Token key_;
  const IngestTable& sequences_;
  mutable std::mutex mutex_;  // guards what follows
  std::unordered_map<PeerId, Connection> connections_;
};

}  // namespace tributary
