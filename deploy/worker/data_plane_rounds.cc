// Rounds and controls of clients at their sequences' home.
#include <fmt/format.h>

#include <utility>

#include "core/base/error.h"
#include "deploy/worker/data_plane.h"

namespace tributary {

using wire::MessageType;

namespace {

/// Controls that wait for the leader; a client has few at a time.
constexpr std::size_t kMaxControls = 16'384;

}  // namespace

Status DataPlane::check_round(const wire::Round& round, std::size_t payload_bytes) {
  if (round.items.empty()) return {ErrorCode::kInvalidArgument, "a round without items"};
  if (round.head_begin != 0 || round.head_end != model_.wire.heads) {
    return {ErrorCode::kUnsupported,
            fmt::format("heads {} .. {}: a round takes all of them, 0 .. {}", round.head_begin,
                        round.head_end, model_.wire.heads)};
  }
  if (round.mode != wire::RoundMode::kAttend && model_.layers.empty()) {
    return {ErrorCode::kUnsupported, "this pool has no weights: it serves attend alone"};
  }
  std::size_t tokens = 0;
  for (const wire::RoundItem& item : round.items) {
    if (item.tokens < 1 || item.tokens > kMaxStepTokens) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("{} new tokens, expected 1 .. {}", item.tokens, kMaxStepTokens)};
    }
    if (item.layer < 0 || item.layer >= model_.wire.layers) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("layer {}, expected 0 .. {}", item.layer, model_.wire.layers - 1)};
    }
    if (!access_.allowed(item.sequence_id, item.token)) {
      return {ErrorCode::kPermissionDenied,
              fmt::format("the token is not that of sequence {:#x}", item.sequence_id)};
    }
    tokens += static_cast<std::size_t>(item.tokens);
  }
  const std::size_t expected = tokens * round_input_bytes(model_, round.mode);
  if (payload_bytes != expected) {
    return {ErrorCode::kInvalidArgument, fmt::format("a payload of {} bytes, {} tokens take {}",
                                                     payload_bytes, tokens, expected)};
  }
  return {};
}

std::optional<Landing> DataPlane::receive_round(PeerId peer, const wire::Round& round,
                                                std::size_t payload_bytes) {
  const Status status = check_round(round, payload_bytes);
  if (!status.ok()) {
    refuse_round(peer, round, status);
    return {};
  }
  auto held = queue_.open(peer, round, round_input_bytes(model_, round.mode),
                          round_output_bytes(model_, round.mode));
  if (!held) {
    refuse_round(peer, round,
                 {ErrorCode::kPoolFull, "too many rounds wait at this worker; try again"});
    return {};
  }
  const auto input = held->input.span();
  return Landing{{input}, [this, held = std::move(held)](const Status& landed) {
                   round_landed(held, landed);
                 }};
}

void DataPlane::round_landed(const std::shared_ptr<HomeRound>& round, const Status& status) {
  if (!status.ok()) return;  // the client is gone
  const std::uint32_t crc = wire::crc32c(round->input.span());
  if (crc != round->round.crc32c) {
    refuse_round(
        round->peer, round->round,
        {ErrorCode::kCorrupt, fmt::format("checksum of the payload {:#010x}, expected {:#010x}",
                                          crc, round->round.crc32c)});
    return;
  }
  const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(
      std::chrono::steady_clock::now() - round->arrival);
  if (spent.count() >= round->round.deadline_us) {
    refuse_round(round->peer, round->round,
                 {ErrorCode::kDeadlineExceeded, "the payload came after the round's deadline"});
    return;
  }
  wire::Items items{
      .ticket = 0,
      .deadline_us = round->round.deadline_us - static_cast<std::uint32_t>(spent.count()),
      .items = round->round.items};
  wire::ItemsRefused refused{
      .ticket = 0, .items = {}, .outcome = {ErrorCode::kPoolFull, "the pool's leader is behind"}};
  for (std::uint32_t i = 0; i < items.items.size(); ++i) refused.items.push_back(i);
  // From here on the leader may run the items, and their round end, at any moment.
  items.ticket = refused.ticket = queue_.submit(round);
  if (!post_items(std::move(items))) queue_.refuse(refused);
}

void DataPlane::refuse_round(PeerId peer, const wire::Round& round, const Status& status) {
  send(peer, MessageType::kRoundReply,
       encode(wire::RoundReply{.request = round.request,
                               .crc32c = wire::crc32c({}),
                               .items = std::vector<ErrorCode>(round.items.size(), status.code()),
                               .message = status.message()}));
}

void DataPlane::reply(const std::shared_ptr<HomeRound>& round) {
  if (stopping_) return;
  const auto [reply, payload] = finish_reply(*round);
  // The round is held until its output may be used again.
  transport_->send(round->peer, {.type = static_cast<std::uint16_t>(MessageType::kRoundReply),
                                 .header = encode(reply),
                                 .payload = payload,
                                 .sent = [round](const Status& /*status*/) {}});
}

void DataPlane::receive_control(PeerId peer, const wire::Control& control) {
  wire::ControlReply refused{.request = control.request, .items = {}, .message = {}};
  for (const wire::ControlItem& item : control.items) {
    if (access_.allowed(item.sequence_id, item.token)) continue;
    refused.items.assign(control.items.size(), {.code = ErrorCode::kPermissionDenied});
    refused.message = fmt::format("the token is not that of sequence {:#x}", item.sequence_id);
    send(peer, MessageType::kControlReply, encode(refused));
    return;
  }
  std::uint64_t ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    if (controls_.size() < kMaxControls) {
      ticket = ++last_control_;
      controls_.emplace(ticket, Control{peer, control.request});
    }
  }
  if (ticket != 0 && post_forward({.ticket = ticket, .items = control.items})) return;
  refused.items.assign(control.items.size(), {.code = ErrorCode::kPoolFull});
  refused.message = "the pool's leader is behind";
  send(peer, MessageType::kControlReply, encode(refused));
  const std::lock_guard lock(mutex_);
  controls_.erase(ticket);
}

void DataPlane::answer_control(const wire::ForwardReply& reply) {
  Control control;
  {
    const std::lock_guard lock(mutex_);
    const auto found = controls_.find(reply.ticket);
    if (found == controls_.end()) return;
    control = found->second;
    controls_.erase(found);
  }
  send(control.peer, MessageType::kControlReply,
       encode(wire::ControlReply{
           .request = control.request, .items = reply.items, .message = reply.message}));
}

}  // namespace tributary
