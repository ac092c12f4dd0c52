#include "deploy/service/worker/home/home.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "comm/wire/crc32c.h"
#include "core/base/limits.h"
#include "deploy/service/protocol/layer_bytes.h"

namespace tributary {
namespace {

Status not_the_token(std::uint64_t sequence_id) {
  return {ErrorCode::kPermissionDenied,
          fmt::format("the token is not that of sequence {}", sequence_id)};
}

}  // namespace

Status Home::check(const wire::LayerRequest& request, std::size_t payload_bytes) const {
  if (request.items.empty()) return {ErrorCode::kInvalidArgument, "a request without items"};
  if (const auto missing = wire::missing_weights(model_.served, request.mode); !missing.empty()) {
    return {ErrorCode::kUnsupported, fmt::format("this pool has no {}", missing)};
  }
  std::size_t tokens = 0;
  for (const wire::RequestItem& item : request.items) {
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

Status Home::check(const wire::RequestItem& item) {
  if (item.layer < 0 || item.layer >= model_.served.layers) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("layer {}, expected 0 .. {}", item.layer, model_.served.layers - 1)};
  }
  if (!access_.allowed(item.sequence_id, item.token)) return not_the_token(item.sequence_id);
  return {};
}

std::optional<Landing> Home::receive(PeerId peer, const wire::LayerRequest& request,
                                     std::size_t payload_bytes) {
  const Status good = check(request, payload_bytes);
  if (!good.ok()) {
    refuse(peer, request, good);
    return {};
  }
  const wire::TokenBytes bytes = wire::token_bytes(model_.served, request.mode);
  auto held = queue_.open(peer, request, bytes.input(), bytes.output);
  if (!held) {
    refuse(peer, request,
           {ErrorCode::kPoolFull, "too many requests wait at this worker; try again"});
    return {};
  }
  for (std::size_t i = 0; i < request.items.size(); ++i) {
    const Status may_run = check(request.items[i]);
    if (!may_run.ok()) held->end(i, may_run.code(), may_run.message());
  }
  if (held->running == 0) {
    send_reply(peers_, held);
    return {};
  }
  const auto input = held->input.span();
  return Landing{{input},
                 [this, held = std::move(held)](const Status& status) { landed(held, status); }};
}

void Home::landed(const std::shared_ptr<HomeRequest>& request, const Status& status) {
  if (!status.ok()) return;  // the client is gone
  const wire::LayerRequest& asked = request->asked;
  const std::uint32_t crc = wire::crc32c(request->input.span());
  if (crc != asked.crc32c) {
    refuse(request->peer, asked,
           {ErrorCode::kCorrupt,
            fmt::format("checksum of the payload {:#010x}, expected {:#010x}", crc, asked.crc32c)});
    return;
  }
  const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - request->arrival);
  if (spent.count() >= asked.deadline_us) {
    refuse(request->peer, asked,
           {ErrorCode::kDeadlineExceeded, "the payload came after the request's deadline"});
    return;
  }
  wire::Items items{.ticket = 0,
                    .deadline_us = asked.deadline_us - static_cast<std::uint32_t>(spent.count()),
                    .part = asked.part,
                    .items = {}};
  for (std::uint32_t i = 0; i < asked.items.size(); ++i) {
    if (!request->items[i].ended) items.items.push_back({i, asked.items[i]});
  }
  // From here on the leader may run the items, and the request end, at any moment.
  items.ticket = queue_.submit(request);
  leader_.post(std::move(items));
}

void Home::refuse(PeerId peer, const wire::LayerRequest& request, const Status& status) {
  peers_.send(peer,
              wire::LayerReply{.request = request.request,
                               .crc32c = wire::crc32c({}),
                               .items = std::vector<ErrorCode>(request.items.size(), status.code()),
                               .message = status.message()});
}

void Home::receive(PeerId peer, const wire::Control& control) {
  wire::ControlReply reply{.request = control.request, .items = {}, .message = {}};
  wire::ControlRelay relay;
  for (const wire::ControlItem& item : control.items) {
    if (access_.allowed(item.sequence_id, item.token)) {
      reply.items.push_back({});
      relay.items.push_back(item);
      continue;
    }
    reply.items.push_back({.code = ErrorCode::kPermissionDenied});
    if (reply.message.empty()) reply.message = not_the_token(item.sequence_id).message();
  }
  if (relay.items.empty()) {
    peers_.send(peer, reply);
    return;
  }
  relay.ticket = relays_.open(peer, std::move(reply));
  if (relay.ticket != 0) leader_.post(std::move(relay));
}

void send_reply(Peers& peers, const std::shared_ptr<HomeRequest>& request) {
  const HomeReply reply = finish_reply(*request);
  // The request is held until its output may be used again.
  peers.send(request->peer, reply.header, reply.payload, [request](const Status& /*status*/) {});
}

}  // namespace tributary
