// The recording handler.
#include "tests/comm/transport/transport_endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tributary::testing_support {
namespace {

constexpr std::size_t kGap = 13;  // odd: pieces are not aligned
constexpr std::byte kUntouched{0xA5};

}  // namespace

std::vector<std::byte> test_bytes(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> data(bytes);
  std::uint64_t state = seed * 0x9E3779B97F4A7C15ULL + 1;
  for (std::byte& byte : data) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<std::byte>(state >> 56);
  }
  return data;
}

std::vector<std::byte> to_bytes(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::function<void(const Status&)> Completion::callback() {
  return [state = state_](const Status& status) {
    const std::lock_guard lock(state->mutex);
    if (++state->calls == 1) state->status = status;
    state->failures += status.ok() ? 0 : 1;
    state->called.notify_all();
  };
}

Status Completion::wait() const {
  std::unique_lock lock(state_->mutex);
  if (!state_->called.wait_for(lock, kAmple, [&] { return state_->calls > 0; })) {
    return {ErrorCode::kInternal, "the test waited in vain"};
  }
  return state_->status;
}

int Completion::calls() const {
  const std::lock_guard lock(state_->mutex);
  return state_->calls;
}

bool Completion::wait_all_ok(int n) const {
  std::unique_lock lock(state_->mutex);
  return state_->called.wait_for(lock, kAmple, [&] { return state_->calls == n; }) &&
         state_->failures == 0;
}

/// Memory that a payload lands in: pieces with gaps of kUntouched around them.
struct Endpoint::Slot {
  Received message;
  std::vector<std::byte> memory;
  std::vector<std::span<std::byte>> pieces;
  std::list<Slot>::iterator self;
};

Endpoint::Endpoint(const Make& make, const TransportConfig& config, Hook hook)
    : hook_(std::move(hook)) {
  const std::lock_guard lock(ready_mutex_);
  transport_ = make(config, *this);
}

Endpoint::~Endpoint() {
  stop();
  EXPECT_TRUE(slots_.empty()) << "a `done` was never called";
}

void Endpoint::set_piece_bytes(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  piece_bytes_ = bytes;
}

void Endpoint::set_drop(bool drop) {
  const std::lock_guard lock(mutex_);
  drop_ = drop;
}

void Endpoint::send(PeerId peer, std::uint16_t type, const std::string& header,
                    std::span<const std::byte> payload, std::function<void(const Status&)> sent) {
  transport_->send(
      peer,
      {.type = type, .header = to_bytes(header), .payload = {payload}, .sent = std::move(sent)});
}

void Endpoint::on_open(PeerId peer, const Proven& who) {
  const std::lock_guard lock(mutex_);
  EXPECT_TRUE(opened_.emplace(peer, who).second);
  changed_.notify_all();
}

Proven Endpoint::wait_open(PeerId peer) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kAmple, [&] { return opened_.contains(peer); }));
  return opened_[peer];
}

std::optional<Landing> Endpoint::on_message(PeerId peer, std::uint16_t type,
                                            std::span<const std::byte> header,
                                            std::size_t payload_bytes) {
  { const std::lock_guard ready(ready_mutex_); }
  if (hook_ && hook_(*this, peer, type, header, payload_bytes)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  Received message{.peer = peer,
                   .type = type,
                   .header = {header.begin(), header.end()},
                   .payload = {},
                   .inspected = {},
                   .status = {}};
  if (payload_bytes == 0 || drop_) {
    received_.push_back(std::move(message));
    ++messages_;
    changed_.notify_all();
    return std::nullopt;
  }
  const std::size_t piece_bytes = piece_bytes_ == 0 ? payload_bytes : piece_bytes_;
  const std::size_t pieces = (payload_bytes + piece_bytes - 1) / piece_bytes;
  Slot& slot = slots_.emplace_back();
  slot.self = std::prev(slots_.end());
  slot.message = std::move(message);
  slot.memory.assign(payload_bytes + (pieces + 1) * kGap, kUntouched);
  std::size_t at = kGap;
  for (std::size_t left = payload_bytes; left > 0;) {
    const std::size_t bytes = std::min(left, piece_bytes);
    slot.pieces.push_back(std::span(slot.memory).subspan(at, bytes));
    at += bytes + kGap;
    left -= bytes;
  }
  return Landing{.pieces = slot.pieces,
                 .done = [this, &slot](const Status& status) { finish(slot, status); },
                 .inspect =
                     [&inspected = slot.message.inspected](std::span<const std::byte> part) {
                       inspected.insert(inspected.end(), part.begin(), part.end());
                     }};
}

void Endpoint::finish(Slot& slot, const Status& status) {
  const std::lock_guard lock(mutex_);
  std::size_t untouched = 0;
  std::size_t at = 0;
  for (const auto& piece : slot.pieces) {
    const auto begin = static_cast<std::size_t>(piece.data() - slot.memory.data());
    for (; at < begin; ++at) untouched += slot.memory[at] == kUntouched ? 1 : 0;
    at += piece.size();
    slot.message.payload.insert(slot.message.payload.end(), piece.begin(), piece.end());
  }
  for (; at < slot.memory.size(); ++at) untouched += slot.memory[at] == kUntouched ? 1 : 0;
  if (untouched != (slot.pieces.size() + 1) * kGap) ++touched_gaps_;
  slot.message.status = status;
  received_.push_back(std::move(slot.message));
  slots_.erase(slot.self);
  ++messages_;
  changed_.notify_all();
}

void Endpoint::on_disconnect(PeerId peer, const Status& reason) {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) EXPECT_NE(slot.message.peer, peer) << "`done` comes before it";
  EXPECT_FALSE(reason.ok());
  EXPECT_FALSE(disconnects_.contains(peer)) << "more than once";
  disconnects_.emplace(peer, reason);
  changed_.notify_all();
}

Received Endpoint::receive() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kAmple, [&] { return !received_.empty(); })) {
    ADD_FAILURE() << "no message in time";
    return {};
  }
  Received message = std::move(received_.front());
  received_.pop_front();
  return message;
}

bool Endpoint::wait_for_messages(std::size_t n) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kAmple, [&] { return messages_ >= n; });
}

Status Endpoint::wait_disconnect(PeerId peer) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kAmple, [&] { return disconnects_.contains(peer); })) {
    return {ErrorCode::kInternal, "the test waited in vain"};
  }
  return disconnects_.find(peer)->second;
}

bool Endpoint::wait_disconnects(std::size_t n) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kAmple, [&] { return disconnects_.size() >= n; });
}

std::size_t Endpoint::disconnects() {
  const std::lock_guard lock(mutex_);
  return disconnects_.size();
}

std::size_t Endpoint::opens() {
  const std::lock_guard lock(mutex_);
  return opened_.size();
}

std::size_t Endpoint::landings_touched_in_gaps() {
  const std::lock_guard lock(mutex_);
  return touched_gaps_;
}

}  // namespace tributary::testing_support
