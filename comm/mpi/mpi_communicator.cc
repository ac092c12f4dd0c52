// Collectives as exchanges of blocks; and the news of a failure.
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

enum Kind : int { kBroadcast, kAllGather, kAllToAll };

/// Messages that carry the cause of a failure to the peers; exchanges have tags from 1 up.
constexpr int kPoisonTag = 0;
/// Small enough to be sent eagerly (at once, whatever the receiver does) by every MPI transport.
constexpr std::size_t kMaxPoisonBytes = 1024;

void copy_block(std::span<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

class MpiCommunicator::Impl {
 public:
  Impl(std::shared_ptr<MpiState> state, Deadline deadline) : state_(std::move(state)) {
    for (int peer = 0; peer < state_->size; ++peer) {
      if (peer != state_->rank) others_.push_back(peer);
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

  Status broadcast(std::span<std::byte> data, int root, Deadline deadline) {
    if (Status status = begin(kBroadcast, "broadcast", deadline); !status.ok()) return status;
    if (root == state_->rank) {
      exchange_->send(others_, data);
    } else {
      exchange_->receive(only(root), data);
    }
    Status status = exchange_->start();
    return status.ok() ? finish(deadline) : status;
  }

  Status all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                    std::span<const std::size_t> counts, Deadline deadline) {
    if (Status status = begin(kAllGather, "all_gather", deadline); !status.ok()) return status;
    exchange_->send(others_, send);
    const std::span<std::byte> own = receive_all(recv, counts);
    Status status = exchange_->start();
    if (!status.ok()) return status;
    copy_block(own, send);
    return finish(deadline);
  }

  Status all_to_all(std::span<const std::byte> send, std::span<const std::size_t> send_counts,
                    std::span<std::byte> recv, std::span<const std::size_t> recv_counts,
                    Deadline deadline) {
    const auto self = static_cast<std::size_t>(state_->rank);
    if (send_counts[self] != recv_counts[self]) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("all_to_all: rank {} sends {} bytes to itself, which expects {}",
                          state_->rank, send_counts[self], recv_counts[self])};
    }
    if (Status status = begin(kAllToAll, "all_to_all", deadline); !status.ok()) return status;
    std::span<const std::byte> own;
    for (int peer = 0; peer < state_->size; ++peer) {
      const std::size_t count = send_counts[static_cast<std::size_t>(peer)];
      if (peer == state_->rank) {
        own = send.first(count);
      } else {
        exchange_->send(only(peer), send.first(count));
      }
      send = send.subspan(count);
    }
    const std::span<std::byte> own_target = receive_all(recv, recv_counts);
    Status status = exchange_->start();
    if (!status.ok()) return status;
    copy_block(own_target, own);
    return finish(deadline);
  }

  Status look_for_failure() { return look_for_poison(); }

  void poison(const Status& reason) {
    if (state_->finalized) return;
    state_->failed = true;
    // MPI goes on with what is pending.
    state_->abandoned.push_back(std::exchange(exchange_, std::make_shared<MpiExchange>()));
    if (told_by_peer_) return;  // who told this rank told the others
    const std::string text = fmt::format("rank {}: {}", state_->rank, reason.message());
    const auto code = static_cast<std::int32_t>(reason.code());
    const auto message = std::make_shared<std::array<char, kMaxPoisonBytes>>();
    const std::size_t text_bytes = std::min(text.size(), message->size() - sizeof(code));
    std::memcpy(message->data(), &code, sizeof(code));
    std::copy_n(text.data(), text_bytes, message->data() + sizeof(code));
    for (const int peer : others_) {
      MPI_Request request = MPI_REQUEST_NULL;
      // An error is ignored: that peer cannot be reached and ends at its deadline.
      if (MPI_Isend(message->data(), static_cast<int>(sizeof(code) + text_bytes), MPI_BYTE, peer,
                    kPoisonTag, comm_, &request) == MPI_SUCCESS) {
        MPI_Request_free(&request);
      }
    }
    state_->abandoned.push_back(message);
  }

 private:
  /// The list of one peer; valid as long as this object.
  [[nodiscard]] std::span<const int> only(int peer) const {
    const int index = peer < state_->rank ? peer : peer - 1;
    return std::span(others_).subspan(static_cast<std::size_t>(index), 1);
  }

  /// Before anything is sent: the deadline has not passed, and no peer has failed.
  Status begin(Kind kind, std::string_view call, Deadline deadline) {
    if (deadline.expired()) {
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("{}: the deadline passed before it began", call)};
    }
    exchange_->begin(comm_, ++exchanges_, kind, call);
    return look_for_poison();
  }

  Status finish(Deadline deadline) {
    return exchange_->finish(deadline, [this] { return look_for_poison(); });
  }

  /// Receives every block but this rank's, whose place it returns.
  std::span<std::byte> receive_all(std::span<std::byte> recv, std::span<const std::size_t> counts) {
    std::span<std::byte> own;
    for (int peer = 0; peer < state_->size; ++peer) {
      const std::size_t count = counts[static_cast<std::size_t>(peer)];
      if (peer == state_->rank) {
        own = recv.first(count);
      } else {
        exchange_->receive(only(peer), recv.first(count));
      }
      recv = recv.subspan(count);
    }
    return own;
  }

  /// The cause that a peer sent, or ok.
  Status look_for_poison() {
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

  std::shared_ptr<MpiState> state_;
  std::vector<int> others_;  // all ranks but this, in order
  // Stays until MPI is finalised. A peer may have failed in its last call and told this rank; Open
  // MPI 4.1 loses unrelated messages when one arrives for a communicator that was freed.
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::uint64_t exchanges_ = 0;
  std::shared_ptr<MpiExchange> exchange_ = std::make_shared<MpiExchange>();
  bool told_by_peer_ = false;
};

MpiCommunicator::MpiCommunicator(const MpiEnvironment& environment, Deadline deadline)
    : Communicator(environment.rank(), environment.size()),
      impl_(std::make_unique<Impl>(environment.state_, deadline)) {}

MpiCommunicator::~MpiCommunicator() = default;

Status MpiCommunicator::do_broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  return impl_->broadcast(data, root, deadline);
}

Status MpiCommunicator::do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                      std::span<const std::size_t> counts, Deadline deadline) {
  return impl_->all_gather(send, recv, counts, deadline);
}

Status MpiCommunicator::do_all_to_all(std::span<const std::byte> send,
                                      std::span<const std::size_t> send_counts,
                                      std::span<std::byte> recv,
                                      std::span<const std::size_t> recv_counts, Deadline deadline) {
  return impl_->all_to_all(send, send_counts, recv, recv_counts, deadline);
}

void MpiCommunicator::do_poison(const Status& reason) {
  impl_->poison(reason);
}

Status MpiCommunicator::do_look_for_failure() {
  return impl_->look_for_failure();
}

}  // namespace tributary
