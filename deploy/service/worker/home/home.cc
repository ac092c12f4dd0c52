#include "deploy/service/worker/home/home.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/base/limits.h"
#include "deploy/service/protocol/layer_bytes.h"
#include "deploy/service/protocol/selection.h"

namespace tributary {
namespace {

Status not_proven(std::uint64_t sequence_id) {
  return {ErrorCode::kPermissionDenied,
          fmt::format("the connection has not proven sequence {}", sequence_id)};
}

}  // namespace

Status Home::check(const wire::LayerRequest& request, std::size_t payload_bytes) const {
  if (request.items.empty()) return {ErrorCode::kInvalidArgument, "a request without items"};
  if (const auto missing = wire::missing_weights(model_.served, request.mode); !missing.empty()) {
    return {ErrorCode::kUnsupported, fmt::format("this pool has no {}", missing)};
  }
  std::size_t tokens = 0;
  for (const StepItem& item : request.items) {
    if (item.tokens < 1 || item.tokens > kMaxStepTokens) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("{} new tokens, expected 1 .. {}", item.tokens, kMaxStepTokens)};
    }
    tokens += static_cast<std::size_t>(item.tokens);
  }
  const std::size_t expected = tokens * wire::token_bytes(model_.served, request.mode).input();
  if (payload_bytes != expected) {
    return {ErrorCode::kInvalidArgument, fmt::format("a payload of {} bytes, {} tokens take {}",
                                                     payload_bytes, tokens, expected)};
  }
  return {};
}

Home::Verdict Home::check(PeerId peer, const StepItem& item) const {
  const auto refused = [](ErrorCode code, std::string text) {
    return Verdict{{code, std::move(text)}};
  };
  if (item.layer < 0 || item.layer >= model_.served.layers) {
    return refused(ErrorCode::kInvalidArgument,
                   fmt::format("layer {}, expected 0 .. {}", item.layer, model_.served.layers - 1));
  }
  if (!access_.allowed(peer, item.id)) return {not_proven(item.id)};
  const std::optional<int> home = sequences_.home(item.id);
  if (!home) {
    return refused(ErrorCode::kNotFound, fmt::format("sequence {}: not here", item.id));
  }
  if (*home != rank_) {
    return {{ErrorCode::kFailedPrecondition,
             fmt::format("worker {} is not the home of sequence {}: worker {} is", rank_, item.id,
                         *home)},
            *home};
  }
  return {};
}

Status Home::check_input(const HomeRequest& request, std::size_t item) const {
  const StepItem& asked = request.asked.items[item];
  const wire::TokenBytes bytes = wire::token_bytes(model_.served, request.asked.mode);
  std::vector<std::int32_t> list(bytes.selected / sizeof(std::int32_t));
  for (std::int64_t token = 0; token < asked.tokens; ++token) {
    const std::byte* record =
        request.input_of(item).data() + static_cast<std::size_t>(token) * bytes.input();
    const auto fault = model_.served.row().fault({record + bytes.query, bytes.row});
    if (!fault.empty()) {
      return {ErrorCode::kInvalidArgument, fmt::format("token {}: {}", token, fault)};
    }
    if (list.empty()) continue;
    std::memcpy(list.data(), record + bytes.query + bytes.row, bytes.selected);
    const Status good = wire::check_selection(list, asked.base_length + token);
    if (!good.ok()) return {good.code(), fmt::format("token {}: {}", token, good.message())};
  }
  return {};
}

std::optional<Landing> Home::receive(PeerId peer, const wire::LayerRequest& request,
                                     std::size_t payload_bytes) {
  const Status good = check(request, payload_bytes);
  if (!good.ok()) {
    refuse(peer, request, good);
    return {};
  }
  std::vector<Verdict> may_run;
  for (const StepItem& item : request.items) may_run.push_back(check(peer, item));
  const auto first =
      std::ranges::find_if(may_run, [](const Verdict& verdict) { return verdict.status.ok(); });
  if (first == may_run.end()) {
    refuse(peer, request, may_run);
    return {};
  }
  const wire::TokenBytes bytes = wire::token_bytes(model_.served, request.mode);
  const auto payer = static_cast<std::size_t>(first - may_run.begin());
  auto held = queue_.open(peer, request, clock_.now(), bytes.input(), bytes.output,
                          [&](std::size_t i) { return may_run[i].status.ok() ? i : payer; });
  if (!held) {
    refuse(peer, request,
           {ErrorCode::kPoolFull, "too many requests wait at this worker; try again"});
    return {};
  }
  for (std::size_t i = 0; i < may_run.size(); ++i) {
    const auto& [status, home] = may_run[i];
    if (!status.ok()) held->end(i, status.code(), status.message(), home);
  }
  const auto input = held->input.span();
  const auto crc = std::make_shared<std::uint32_t>(0);
  return Landing{
      {input},
      [this, held = std::move(held), crc](const Status& status) { landed(held, *crc, status); },
      [crc](std::span<const std::byte> part) { *crc = wire::crc32c(part, *crc); }};
}

void Home::landed(const std::shared_ptr<HomeRequest>& request, std::uint32_t crc,
                  const Status& status) {
  if (!status.ok()) return;  // the client is gone
  const wire::LayerRequest& asked = request->asked;
  if (crc != asked.crc32c) {
    refuse(request->peer, asked,
           {ErrorCode::kCorrupt,
            fmt::format("checksum of the payload {:#010x}, expected {:#010x}", crc, asked.crc32c)});
    return;
  }
  const auto spent =
      std::chrono::duration_cast<std::chrono::microseconds>(clock_.now() - request->arrival);
  if (spent.count() >= asked.deadline_us) {
    refuse(request->peer, asked,
           {ErrorCode::kDeadlineExceeded, "the payload came after the request's deadline"});
    return;
  }
  for (std::size_t i = 0; i < asked.items.size(); ++i) {
    if (request->ended[i]) continue;
    const Status good = check_input(*request, i);
    if (!good.ok()) request->end(i, good.code(), good.message());
  }
  if (request->running == 0) {
    send_reply(peers_, request);
    return;
  }
  wire::Items items{.ticket = 0,
                    .deadline_us = asked.deadline_us - static_cast<std::uint32_t>(spent.count()),
                    .part = asked.part,
                    .items = asked.items};
  for (std::size_t i = 0; i < asked.items.size(); ++i) {
    if (request->ended[i]) items.items[i].tokens = 0;
  }
  // From here on the leader may run the items, and the request end, at any moment.
  items.ticket = queue_.submit(request);
  leader_.post(std::move(items));
}

void Home::refuse(PeerId peer, const wire::LayerRequest& request, const Status& status) {
  refuse(peer, request,
         std::vector<Verdict>(std::max<std::size_t>(request.items.size(), 1), {status}));
}

void Home::refuse(PeerId peer, const wire::LayerRequest& request,
                  const std::vector<Verdict>& reasons) {
  wire::LayerReply reply{.request = request.request,
                         .crc32c = wire::crc32c({}),
                         .items = {},
                         .message = reasons.front().status.message()};
  for (std::uint32_t i = 0; i < request.items.size(); ++i) {
    reply.items.push_back(reasons[i].status.code());
    if (reasons[i].home >= 0) reply.moved.push_back({i, reasons[i].home});
  }
  peers_.send(peer, reply);
}

void Home::receive(PeerId peer, const wire::Control& control) {
  wire::ControlReply reply{.request = control.request, .items = {}, .message = {}};
  wire::ControlRelay relay;
  for (const wire::ControlItem& item : control.items) {
    if (access_.allowed(peer, item.sequence_id)) {
      reply.items.push_back({});
      relay.items.push_back(item);
      continue;
    }
    reply.items.push_back({.code = ErrorCode::kPermissionDenied});
    if (reply.message.empty()) reply.message = not_proven(item.sequence_id).message();
  }
  if (relay.items.empty()) {
    peers_.send(peer, reply);
    return;
  }
  relay.ticket = relays_.open(peer, access_.opened_as(peer), std::move(reply));
  if (relay.ticket != 0) leader_.post(std::move(relay));
}

void send_reply(Peers& peers, const std::shared_ptr<HomeRequest>& request) {
  const auto payload = finish_reply(*request);
  // The request is held until its output may be used again.
  peers.send(request->peer, request->reply, payload, [request](const Status& /*status*/) {});
}

}  // namespace tributary
