#include "deploy/service/client/control_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "comm/wire/codec.h"
#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

struct ControlMessage {
  std::size_t call_index = 0;
  std::vector<std::size_t> requests;  // indices
};

wire::BlockNames names_of(const ControlRequest& request) {
  if (request.names == nullptr) return {};
  const Prefix& prefix = *request.names;
  wire::BlockNames names{
      .block_tokens = prefix.block_tokens, .cache_salt = prefix.cache_salt, .keys = {}};
  for (std::int64_t i = request.length; i < prefix.blocks(); ++i) {
    names.keys.push_back({std::string(prefix.key(i))});
  }
  return names;
}

/// Sends as many messages as wire::kMaxItems requires.
void send(WorkerCall& call, const std::string& address, std::span<const ControlRequest> requests,
          std::span<const std::size_t> indices, std::vector<ControlMessage>& messages) {
  for (std::size_t begin = 0; begin < indices.size(); begin += wire::kMaxItems) {
    const auto part = indices.subspan(begin, std::min(wire::kMaxItems, indices.size() - begin));
    ControlMessage message{.requests = {part.begin(), part.end()}};
    WorkerMessage sent{.address = address, .greetings = {}};
    wire::Control control;
    for (const std::size_t index : part) {
      const ControlRequest& request = requests[index];
      sent.greetings.push_back(greeting_of(*request.sequence));
      // A commit to the same length and a second renewal change nothing.
      if (request.op == wire::ControlOp::kTruncate) sent.repeatable = false;
      if (request.op == wire::ControlOp::kExtend) sent.waits_for_room = false;
      control.items.push_back({.op = request.op,
                               .sequence_id = request.sequence->id,
                               .epoch = request.sequence->epoch,
                               .length = request.length,
                               .names = names_of(request)});
    }
    message.call_index = call.send(std::move(sent), std::move(control));
    messages.push_back(std::move(message));
  }
}

std::string without_words(const ControlRequest& request, ErrorCode code) {
  return fmt::format("sequence {}: {}", request.sequence->id, error_code_name(code));
}

void receive(WorkerCall& call, const ControlMessage& message,
             std::span<const ControlRequest> requests, std::vector<ControlOutcome>& outcomes) {
  const Status status = call.wait(message.call_index);
  const auto* reply = std::get_if<wire::ControlReply>(&call.reply(message.call_index));
  bool told = false;  // the reply's words, which are about the first that failed
  for (std::size_t i = 0; i < message.requests.size(); ++i) {
    ControlOutcome& outcome = outcomes[message.requests[i]];
    if (!status.ok()) {
      outcome.status = status;
    } else if (reply == nullptr || reply->items.size() != message.requests.size()) {
      outcome.status = {ErrorCode::kMalformedInput, "a worker answered for other sequences"};
    } else {
      const wire::ControlReply::Item& item = reply->items[i];
      if (item.code != ErrorCode::kOk) {
        outcome.status = {item.code, std::exchange(told, true)
                                         ? without_words(requests[message.requests[i]], item.code)
                                         : reply->message};
      }
      outcome.epoch = item.epoch;
      outcome.length = item.length;
      const auto workers = requests[message.requests[i]].sequence->addresses.size();
      if (item.home >= 0 && std::cmp_less(item.home, workers)) outcome.home = item.home;
    }
  }
}

}  // namespace

std::vector<ControlOutcome> control(WorkerConnections& connections,
                                    std::span<const ControlRequest> requests, Deadline deadline) {
  std::map<std::string, std::vector<std::size_t>> by_home;
  std::vector<ControlOutcome> outcomes(requests.size());
  WorkerCall call(connections, deadline);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    outcomes[i].home = requests[i].sequence->home;
    outcomes[i].status = status_of([&] {
      const std::string& home = home_address(*requests[i].sequence);
      call.check(home, *requests[i].sequence).throw_if_error();
      by_home[home].push_back(i);
    });
  }
  std::vector<ControlMessage> messages;
  for (auto& [address, indices] : by_home) {
    const auto alone = std::stable_partition(indices.begin(), indices.end(),
                                             [&](std::size_t i) { return !requests[i].alone; });
    send(call, address, requests, {indices.begin(), alone}, messages);
    for (auto one = alone; one != indices.end(); ++one) {
      send(call, address, requests, std::span(&*one, 1), messages);
    }
  }
  for (const ControlMessage& message : messages) receive(call, message, requests, outcomes);
  return outcomes;
}

}  // namespace tributary
