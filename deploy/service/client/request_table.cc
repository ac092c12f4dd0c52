#include "deploy/service/client/request_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tributary {

void RequestTable::add(const Request& request, Time now) {
  request->since = now;
  pending_[request->number] = request;
}

RequestTable::Request RequestTable::find(std::uint64_t number) const {
  const auto found = pending_.find(number);
  return found == pending_.end() ? nullptr : found->second;
}

std::vector<RequestTable::Request> RequestTable::sent_to(PeerId peer) const {
  std::vector<Request> requests;
  for (const auto& [number, request] : pending_) {
    if (request->peer == peer) requests.push_back(request);
  }
  return requests;
}

std::vector<RequestTable::Request> RequestTable::at(const std::string& address) const {
  std::vector<Request> requests;
  for (const auto& [number, request] : pending_) {
    if (request->address == address) requests.push_back(request);
  }
  return requests;
}

void RequestTable::repeat(const Request& request, Time when, Status reason) {
  request->peer = 0;
  request->refusal = std::move(reason);
  later_.emplace(when, request);
}

bool RequestTable::repeats(const Request& request, const WorkerReply& reply, Time now) {
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  if (const auto* rows = std::get_if<wire::RowsReply>(&reply)) {
    code = rows->outcome.code;
    message = rows->outcome.message;
    // Our first message may still be on its way there.
    if (code != ErrorCode::kUnavailable || request->repeats == 0) return false;
  } else if (const auto* pull = std::get_if<wire::PullReply>(&reply)) {
    code = pull->outcome.code;
    message = pull->outcome.message;
    if (code != ErrorCode::kPoolFull) return false;
  } else if (const auto* layer = std::get_if<wire::LayerReply>(&reply)) {
    if (layer->items.empty() || !layer->moved.empty()) return false;
    code = layer->items.front();
    message = layer->message;
    const auto same = [code](ErrorCode other) { return other == code; };
    if (!std::ranges::all_of(layer->items, same)) return false;
    // A worker without room has done nothing; our first message may still wait for its round.
    const bool before = request->repeats > 0 || request->sent_before;
    const bool waits = code == ErrorCode::kFailedPrecondition && before;
    if (code != ErrorCode::kPoolFull && !waits) return false;
  } else if (const auto* control = std::get_if<wire::ControlReply>(&reply)) {
    code = ErrorCode::kPoolFull;
    message = control->message;
    const auto is_full = [](const auto& item) { return item.code == ErrorCode::kPoolFull; };
    if (!request->waits_for_room || control->items.empty() ||
        !std::ranges::all_of(control->items, is_full)) {
      return false;
    }
  } else {
    return false;
  }
  ++request->repeats;
  repeat(request, now + pause_after(request->repeats),
         {code, fmt::format("worker {}: {}", request->address, message)});
  return true;
}

std::vector<RequestTable::Request> RequestTable::take_due(Time now) {
  std::vector<Request> due;
  while (!later_.empty() && later_.begin()->first <= now) {
    Request request = std::move(later_.extract(later_.begin()).mapped());
    if (!request->done) due.push_back(std::move(request));
  }
  return due;
}

Time RequestTable::next_due() const {
  return later_.empty() ? Time::max() : later_.begin()->first;
}

std::vector<SilentWorker> RequestTable::silent(Time now) const {
  std::map<std::string, SilentWorker> silent;
  for (const auto& [number, request] : pending_) {
    if (request->since + kSilence > now && !absences_.failing(request->address)) continue;
    SilentWorker& worker = silent[request->address];
    worker.address = request->address;
    for (const Greeting& greeting : request->greetings) {
      if (worker.greetings.size() == SilentWorker::kMostNamed) break;
      if (std::ranges::find(worker.greetings, greeting.sequence_id, &Greeting::sequence_id) ==
          worker.greetings.end()) {
        worker.greetings.push_back(greeting);
      }
    }
  }
  std::vector<SilentWorker> workers;
  workers.reserve(silent.size());
  for (auto& [address, worker] : silent) workers.push_back(std::move(worker));
  return workers;
}

Status late_status(const WorkerRequest& request) {
  if (!request.refusal.ok() && request.peer == 0) {
    return {request.refusal.code(),
            fmt::format("{}; tried again until the deadline", request.refusal.message())};
  }
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("worker {}: no answer {}", request.address,
                      request.peer == 0 ? "to the greeting" : "before the deadline")};
}

}  // namespace tributary
