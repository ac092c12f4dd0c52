#include "comm/mesh/late_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tributary::mesh {
namespace {

class LateCommunicator final : public Communicator {
 public:
  LateCommunicator(std::unique_ptr<Communicator> pair, Clock& clock)
      : Communicator(pair->rank(), pair->size(), clock), pair_(std::move(pair)) {}
  [[nodiscard]] std::string_view name() const noexcept override { return pair_->name(); }
  [[nodiscard]] std::vector<int> waited_for() const override { return pair_->waited_for(); }
  [[nodiscard]] bool takes_newcomers() const noexcept override { return true; }
  [[nodiscard]] bool comes_late() const noexcept override { return true; }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    const bool gather = call.kind == CollectiveKind::kAllGather;
    if (!gather && (call.kind != CollectiveKind::kBroadcast || call.root != 0)) {
      return {ErrorCode::kUnsupported,
              fmt::format("{} by a rank that comes late", collective_name(call.kind))};
    }
    std::vector<std::size_t> to(static_cast<std::size_t>(size()));
    std::vector<std::size_t> from(to.size());
    to[0] = call.send.size();
    from[0] = call.recv.size();
    Status status = pair_->all_to_all(call.send, to, call.recv, from, deadline);
    // Rank 0 had no time to put this rank's own block among the others.
    if (status.ok() && gather) std::ranges::copy(call.send, call.block_from(rank()).begin());
    return status;
  }
  void do_poison(const Status& reason) override { pair_->poison(reason); }
  Status do_look_for_failure() override { return pair_->look_for_failure(); }
  void do_interrupt(const Status& reason) override { pair_->interrupt(reason); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t generation) override {
    return pair_->survivors(members, generation);
  }

 private:
  std::unique_ptr<Communicator> pair_;
};

}  // namespace

std::unique_ptr<Communicator> make_late_communicator(std::unique_ptr<Communicator> pair,
                                                     Clock& clock) {
  return std::make_unique<LateCommunicator>(std::move(pair), clock);
}

}  // namespace tributary::mesh
