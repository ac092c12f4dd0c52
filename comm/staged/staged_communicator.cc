// Runs each collective between a download and an upload. A failing backend fails the collective.
#include "comm/staged/staged_communicator.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tributary {
namespace {

class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(Backend& backend, Communicator& host)
      : Communicator(host.rank(), host.size(), host.members()),
        backend_(backend),
        host_(host),
        name_(fmt::format("staged/{}", host.name())) {}
  StagedCommunicator(Backend& backend, std::unique_ptr<Communicator> host)
      : StagedCommunicator(backend, *host) {
    owned_ = std::move(host);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] std::vector<int> waited_for() const override { return host_.waited_for(); }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    Status status = status_of([&] {
      send_.resize(call.send.size());
      recv_.resize(call.recv.size());
      backend_.synchronize(deadline);
      backend_.download(send_, call.send.data());
    });
    Collective on_host = call;
    on_host.send = send_;
    on_host.recv = recv_;
    if (status.ok()) status = host_.run(on_host, deadline);
    return status.ok() ? status_of([&] { backend_.upload(call.recv.data(), recv_); }) : status;
  }
  void do_interrupt(const Status& reason) override { host_.interrupt(reason); }
  void do_poison(const Status& reason) override { host_.poison(reason); }
  Status do_look_for_failure() override { return host_.look_for_failure(); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t generation) override {
    return std::make_unique<StagedCommunicator>(backend_, host_.survivors(members, generation));
  }

 private:
  Backend& backend_;
  std::unique_ptr<Communicator> owned_;  // of survivors; null: the caller owns host_
  Communicator& host_;
  std::string name_;
  std::vector<std::byte> send_, recv_;
};

}  // namespace

std::unique_ptr<Communicator> make_staged_communicator(Backend& backend, Communicator& host) {
  return std::make_unique<StagedCommunicator>(backend, host);
}

}  // namespace tributary
