// Collectives as exchanges of blocks, and how failures are told to the peers.
#include "comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "comm/mpi/mpi_exchange.h"
#include "comm/mpi/mpi_support.h"

namespace tributary {
namespace {

/// Tag of the messages that tell the cause of a failure. Exchanges have tags from 1 up.
constexpr int kPoisonTag = 0;
/// Small enough that every MPI transport sends it eagerly, whatever the receiver does.
constexpr std::size_t kMaxPoisonBytes = 1024;

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiState> state, Deadline deadline)
      : Communicator(state->rank, state->size), state_(std::move(state)) {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) others_.push_back(peer);
    }
    MPI_Request request = MPI_REQUEST_NULL;
    Status status = mpi_status("MPI_Comm_idup", MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request));
    if (status.ok()) status = wait_for_request("MPI_Comm_idup", &request, deadline);
    if (!status.ok()) {
      state_->failed = true;
      status.throw_if_error();
    }
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  [[nodiscard]] std::string_view name() const noexcept override { return "mpi"; }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    exchange_->begin(comm_, ++exchanges_, call.kind);
    if (Status told = do_look_for_failure(); !told.ok()) return told;
    // One block for all is staged once.
    if (call.kind != CollectiveKind::kAllToAll) exchange_->send(others_, call.send);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      if (call.kind == CollectiveKind::kAllToAll) exchange_->send(only(peer), call.block_to(peer));
      exchange_->receive(only(peer), call.block_from(peer));
    }
    if (Status status = exchange_->start(); !status.ok()) return status;
    std::ranges::copy(call.block_to(rank()), call.block_from(rank()).begin());
    return exchange_->finish(deadline, [this] { return do_look_for_failure(); });
  }

  void do_poison(const Status& reason) override {
    if (state_->finalized) return;
    state_->failed = true;
    // MPI continues the pending requests.
    state_->abandoned.push_back(std::exchange(exchange_, std::make_shared<MpiExchange>()));
    if (told_by_peer_) return;  // the rank that told this one has told the others
    const std::string text = fmt::format("rank {}: {}", rank(), reason.message());
    const auto code = static_cast<std::int32_t>(reason.code());
    const auto message = std::make_shared<std::array<char, kMaxPoisonBytes>>();
    const std::size_t text_bytes = std::min(text.size(), message->size() - sizeof(code));
    std::memcpy(message->data(), &code, sizeof(code));
    std::copy_n(text.data(), text_bytes, message->data() + sizeof(code));
    for (const int peer : others_) {
      MPI_Request request = MPI_REQUEST_NULL;
      // Errors are ignored: an unreachable peer fails at its deadline.
      if (MPI_Isend(message->data(), static_cast<int>(sizeof(code) + text_bytes), MPI_BYTE, peer,
                    kPoisonTag, comm_, &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
    state_->abandoned.push_back(message);
  }

  Status do_look_for_failure() override {
    int found = 0;
    MPI_Status envelope;
    if (const int code = MPI_Iprobe(MPI_ANY_SOURCE, kPoisonTag, comm_, &found, &envelope);
        code != MPI_SUCCESS) {
      return mpi_status("MPI_Iprobe", code);
    }
    if (found == 0) return {};
    told_by_peer_ = true;
    std::array<char, kMaxPoisonBytes> message{};
    int bytes = 0;
    MPI_Get_count(&envelope, MPI_BYTE, &bytes);
    std::int32_t code = 0;
    if (bytes < static_cast<int>(sizeof(code)) || bytes > static_cast<int>(message.size()) ||
        MPI_Recv(message.data(), bytes, MPI_BYTE, envelope.MPI_SOURCE, kPoisonTag, comm_,
                 MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return {ErrorCode::kCommunicatorPoisoned,
              fmt::format("rank {} failed, with a message of {} bytes that cannot be read",
                          envelope.MPI_SOURCE, bytes)};
    }
    std::memcpy(&code, message.data(), sizeof(code));
    const bool known = code > static_cast<std::int32_t>(ErrorCode::kOk) &&
                       code <= static_cast<std::int32_t>(ErrorCode::kInternal);
    return {
        known ? static_cast<ErrorCode>(code) : ErrorCode::kCommunicatorPoisoned,
        std::string(message.data() + sizeof(code), static_cast<std::size_t>(bytes) - sizeof(code))};
  }

 private:
  /// The list of one peer; valid as long as this object.
  [[nodiscard]] std::span<const int> only(int peer) const {
    const int index = peer < rank() ? peer : peer - 1;
    return std::span(others_).subspan(static_cast<std::size_t>(index), 1);
  }

  std::shared_ptr<MpiState> state_;
  std::vector<int> others_;  // all ranks but this, in order
  // Not freed before MPI is finalised. A peer may have failed in its last call and told this rank:
  // Open MPI 4.1 loses unrelated messages when one arrives for a freed communicator.
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::uint64_t exchanges_ = 0;
  std::shared_ptr<MpiExchange> exchange_ = std::make_shared<MpiExchange>();
  bool told_by_peer_ = false;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiEnvironment& environment,
                                                    Deadline deadline) {
  return std::make_unique<MpiCommunicator>(environment.state(), deadline);
}

}  // namespace tributary
