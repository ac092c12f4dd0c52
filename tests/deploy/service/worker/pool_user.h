// A client that pushes prompts of made-up rows and decodes by hand, one message at a time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/deploy/pool/pool_harness.h"
#include "tests/deploy/service/worker/raw_client.h"
#include "tests/deploy/service/worker/service_pool.h"

namespace tributary::test {

/// One sequence of a user. Rows and queries are pool_row() and pool_query() of its tag.
struct UserSequence {
  std::int64_t tag = 0;
  std::uint32_t epoch = 0;
  std::int64_t length = 0;
  SequenceInfo info;
};

class PoolUser {
 public:
  explicit PoolUser(ServicePool& pool);

  RawClient client;
  [[nodiscard]] const PoolShape& shape() const { return shape_; }
  /// The connection to a worker, which has proven `sequence`.
  [[nodiscard]] PeerId peer(int rank, const UserSequence& sequence);

  /// Admits; pushes nothing.
  [[nodiscard]] UserSequence admit(std::int64_t tag, std::int64_t prompt, std::int64_t new_tokens,
                                   SpreadPolicy spread = SpreadPolicy::kAll);
  /// Admits, and pushes the whole prompt in pieces of `piece` rows.
  [[nodiscard]] UserSequence start(std::int64_t tag, std::int64_t prompt, std::int64_t new_tokens,
                                   SpreadPolicy spread = SpreadPolicy::kAll,
                                   std::int64_t piece = 50);
  /// Rows of one layer, split by extent; returns the replies that were not ok.
  [[nodiscard]] std::vector<wire::Outcome> push(const UserSequence& sequence, int layer,
                                                std::int64_t begin, std::int64_t end);
  [[nodiscard]] wire::Rows rows_header(const UserSequence& sequence, int layer, std::int64_t begin,
                                       std::int64_t end) const;
  [[nodiscard]] std::vector<std::byte> rows(const UserSequence& sequence, int layer,
                                            std::int64_t begin, std::int64_t end) const;

  struct Part {
    const UserSequence* sequence = nullptr;
    std::int32_t tokens = 1;
    std::int32_t layer = 0;
  };
  /// All parts have the same home.
  [[nodiscard]] wire::LayerRequest round_header(const std::vector<Part>& parts) const;
  [[nodiscard]] std::vector<std::byte> round_payload(const std::vector<Part>& parts) const;
  [[nodiscard]] std::uint64_t send_attend(const std::vector<Part>& parts);
  [[nodiscard]] RawClient::RoundResult attend(const std::vector<Part>& parts);
  /// One step of one sequence through all layers, committed: outputs as PoolOutputs has them.
  void decode(UserSequence& sequence, std::int32_t tokens, PoolOutputs& outputs);
  [[nodiscard]] wire::ControlReply control(const UserSequence& sequence, wire::ControlOp op,
                                           std::int64_t length);
  /// Adds what a reply says about `parts` to `outputs`.
  void collect(const std::vector<Part>& parts, const std::vector<float>& values,
               PoolOutputs& outputs) const;

 private:
  ServicePool& pool_;
  PoolShape shape_;
  AttentionShape attention_;
  std::map<int, PeerId> peers_;
  std::set<std::pair<PeerId, std::uint64_t>> proven_;
};

/// The same requests through a pool without a service: what every output must be, bit for bit.
[[nodiscard]] PoolOutputs outputs_without_service(const PoolShape& shape,
                                                  const std::vector<PoolRequest>& requests,
                                                  std::int32_t tokens_per_step);

}  // namespace tributary::test
