// Each collective between a download and an upload. A backend that fails fails the collective.
#include "comm/staged/staged_communicator.h"

namespace tributary {

StagedCommunicator::StagedCommunicator(Backend& backend, Communicator& host)
    : Communicator(host.rank(), host.size()),
      backend_(backend),
      host_(host),
      name_(fmt::format("staged/{}", host.name())) {}

Status StagedCommunicator::fetch(std::span<const std::byte> device, Deadline deadline) {
  return status_of([&] {
    send_.resize(device.size());
    backend_.synchronize(deadline);
    backend_.download(send_, device.data());
  });
}

Status StagedCommunicator::deliver(std::span<std::byte> device) {
  return status_of([&] { backend_.upload(device.data(), recv_); });
}

Status StagedCommunicator::do_broadcast(std::span<std::byte> data, int root, Deadline deadline) {
  recv_.resize(data.size());
  if (rank() == root) {
    Status status = fetch(data, deadline);
    return status.ok() ? host_.broadcast(send_, root, deadline) : status;
  }
  Status status = host_.broadcast(recv_, root, deadline);
  return status.ok() ? deliver(data) : status;
}

Status StagedCommunicator::do_all_gather(std::span<const std::byte> send, std::span<std::byte> recv,
                                         std::span<const std::size_t> counts, Deadline deadline) {
  Status status = fetch(send, deadline);
  recv_.resize(recv.size());
  if (status.ok()) status = host_.all_gather(send_, recv_, counts, deadline);
  return status.ok() ? deliver(recv) : status;
}

Status StagedCommunicator::do_all_to_all(std::span<const std::byte> send,
                                         std::span<const std::size_t> send_counts,
                                         std::span<std::byte> recv,
                                         std::span<const std::size_t> recv_counts,
                                         Deadline deadline) {
  Status status = fetch(send, deadline);
  recv_.resize(recv.size());
  if (status.ok()) {
    status = host_.all_to_all(send_, send_counts, recv_, recv_counts, deadline);
  }
  return status.ok() ? deliver(recv) : status;
}

}  // namespace tributary
