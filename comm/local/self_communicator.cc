// Collectives of one rank.
#include "comm/local/self_communicator.h"

#include <algorithm>

namespace tributary {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  SelfCommunicator() : Communicator(/*rank=*/0, /*size=*/1) {}
  [[nodiscard]] std::string_view name() const noexcept override { return "self"; }

 protected:
  Status do_collective(const Collective& call, Deadline /*deadline*/) override {
    std::ranges::copy(call.block_to(0), call.block_from(0).begin());
    return {};
  }
  void do_poison(const Status& /*reason*/) override {}
  std::unique_ptr<Communicator> do_survivors(std::span<const int> /*members*/,
                                             std::uint64_t /*generation*/) override {
    return make_self_communicator();
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

}  // namespace tributary
