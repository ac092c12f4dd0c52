#include "deploy/client/control_call.h"

#include <algorithm>
#include <map>

namespace tributary {
namespace {

struct ControlMessage {
  std::size_t call_index = 0;
  std::vector<std::size_t> requests;  // indices
};

/// As many messages as wire::kMaxItems asks for.
void send(WorkerConnections::Call& call, const std::string& address,
          std::span<const ControlRequest> requests, std::span<const std::size_t> indices,
          std::vector<ControlMessage>& messages) {
  for (std::size_t begin = 0; begin < indices.size(); begin += wire::kMaxItems) {
    const auto part = indices.subspan(begin, std::min(wire::kMaxItems, indices.size() - begin));
    ControlMessage message{.requests = {part.begin(), part.end()}};
    message.call_index = call.send(address, wire::MessageType::kControl, [&](std::uint64_t number) {
      wire::Control control{.request = number, .items = {}};
      for (const std::size_t index : part) {
        const ControlRequest& request = requests[index];
        control.items.push_back({.op = request.op,
                                 .sequence_id = request.sequence->id,
                                 .epoch = request.sequence->epoch,
                                 .token = request.sequence->token,
                                 .length = request.length});
      }
      return wire::encode(control);
    });
    messages.push_back(std::move(message));
  }
}

void receive(WorkerConnections::Call& call, const ControlMessage& message,
             std::vector<ControlOutcome>& outcomes) {
  const Status status = call.wait(message.call_index);
  const auto* reply = std::get_if<wire::ControlReply>(&call.reply(message.call_index).message);
  for (std::size_t i = 0; i < message.requests.size(); ++i) {
    ControlOutcome& outcome = outcomes[message.requests[i]];
    if (!status.ok()) {
      outcome.status = status;
    } else if (reply == nullptr || reply->items.size() != message.requests.size()) {
      outcome.status = {ErrorCode::kMalformedInput, "a worker answered for other sequences"};
    } else {
      const wire::ControlReply::Item& item = reply->items[i];
      if (item.code != ErrorCode::kOk) outcome.status = {item.code, reply->message};
      outcome.epoch = item.epoch;
      outcome.length = item.length;
    }
  }
}

}  // namespace

const std::string& rank_address(const SequenceHandle& sequence, int rank) {
  if (rank < 0 || static_cast<std::size_t>(rank) >= sequence.addresses.size()) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: rank {}, its pool has {} workers", sequence.id,
         rank, sequence.addresses.size());
  }
  return sequence.addresses[static_cast<std::size_t>(rank)];
}

const std::string& home_address(const SequenceHandle& sequence) {
  return rank_address(sequence, sequence.home);
}

WorkerConnections::Greeting greeting_for(const SequenceHandle& sequence,
                                         const std::string& address) {
  return {.address = address,
          .shape = sequence.shape,
          .sequence_id = sequence.id,
          .token = sequence.token};
}

std::vector<ControlOutcome> control(WorkerConnections& connections,
                                    std::span<const ControlRequest> requests, Deadline deadline) {
  std::map<std::string, std::vector<std::size_t>> by_home;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    by_home[home_address(*requests[i].sequence)].push_back(i);
  }
  std::vector<ControlOutcome> outcomes(requests.size());
  WorkerConnections::Call call(connections, deadline);
  std::vector<ControlMessage> messages;
  for (const auto& [address, indices] : by_home) {
    const auto greeting = greeting_for(*requests[indices.front()].sequence, address);
    const Status connected =
        status_of([&] { connections.connect(std::span(&greeting, 1), deadline); });
    if (connected.ok()) {
      send(call, address, requests, indices, messages);
    } else {
      for (const std::size_t index : indices) outcomes[index].status = connected;
    }
  }
  for (const ControlMessage& message : messages) receive(call, message, outcomes);
  return outcomes;
}

}  // namespace tributary
