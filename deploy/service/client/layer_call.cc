#include "deploy/service/client/layer_call.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/model/model_limits.h"
#include "deploy/service/client/pause.h"
#include "deploy/service/client/worker_call.h"
#include "deploy/service/protocol/layer_bytes.h"
#include "deploy/service/protocol/selection.h"

namespace tributary {
namespace {

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

/// Checks a part of every token: `bytes` each.
void check(const LayerItem& item, const char* what, const TokenData& part, std::size_t bytes) {
  if ((part.data == nullptr) != (bytes == 0)) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} {}", item.sequence->id,
         bytes == 0 ? "with" : "without", what);
  }
  if (part.stride != 0 && part.stride < bytes) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} of {} bytes, {} bytes from one to the next",
         item.sequence->id, what, bytes, part.stride);
  }
}

void check(const LayerItem& item, wire::LayerMode mode, int layer) {
  if (item.sequence == nullptr || (item.output == nullptr && item.tokens > 0)) {
    fail(ErrorCode::kInvalidArgument, "an item without a sequence or an output");
  }
  const PoolShape& shape = item.sequence->shape;
  if (item.tokens < 0 || item.tokens > kMaxStepTokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} tokens in a step, expected 0 to {}",
         item.sequence->id, item.tokens, kMaxStepTokens);
  }
  if (layer < 0 || layer >= shape.layers) {
    fail(ErrorCode::kInvalidArgument, "layer {}: the pool has {}", layer, shape.layers);
  }
  if (const std::string_view missing = wire::missing_weights(shape, mode); !missing.empty()) {
    fail(ErrorCode::kFailedPrecondition, "pool {} has no {}", item.sequence->pool, missing);
  }
  if (item.tokens == 0) return;
  const wire::TokenBytes bytes = wire::token_bytes(shape, mode);
  check(item, "queries", item.query, bytes.query);
  check(item, "rows", item.row, bytes.row);
}

/// Checks the form of an item's selections; the positions are their home's affair.
Status check_selections(const LayerItem& item) {
  const int topk = item.sequence->shape.topk;
  const auto refused = [&](const std::string& what) {
    return Status{ErrorCode::kInvalidArgument,
                  fmt::format("sequence {}: {}", item.sequence->id, what)};
  };
  if (topk == 0) {
    const bool given = item.selected.data != nullptr || item.selected_count != 0;
    return given ? refused("with selected positions, but the pool attends to all") : Status{};
  }
  if (item.selected.data == nullptr) return refused("without selected positions");
  if (item.selected_count < 1 || item.selected_count > topk) {
    return refused(
        fmt::format("{} selected positions, expected 1 to {}", item.selected_count, topk));
  }
  const std::size_t bytes = size(item.selected_count) * sizeof(std::int32_t);
  if (item.selected.stride != 0 && item.selected.stride < bytes) {
    return refused(fmt::format("selected positions of {} bytes, {} bytes from one to the next",
                               bytes, item.selected.stride));
  }
  return {};
}

/// The selections of an item's tokens in the form of the wire: in order, -1 behind the last.
std::vector<std::int32_t> in_order(const LayerItem& item) {
  const std::size_t topk = size(item.sequence->shape.topk);
  const std::size_t count = size(std::clamp(item.selected_count, 0, kMaxTopk));  // as was checked
  const std::size_t bytes = count * sizeof(std::int32_t);
  const std::size_t stride = item.selected.stride == 0 ? bytes : item.selected.stride;
  std::vector<std::int32_t> lists(size(item.tokens) * topk, -1);
  std::vector<std::int32_t> scratch;
  for (std::size_t t = 0; t < size(item.tokens); ++t) {
    const auto list = std::span(lists).subspan(t * topk, count);
    std::memcpy(list.data(), static_cast<const std::byte*>(item.selected.data) + t * stride, bytes);
    wire::order_selection(list, scratch);
  }
  return lists;
}

void append_token(std::vector<std::span<const std::byte>>& payload, const TokenData& part,
                  std::size_t bytes, std::int32_t token) {
  if (bytes == 0) return;
  const std::size_t stride = part.stride == 0 ? bytes : part.stride;
  append_piece(payload, {static_cast<const std::byte*>(part.data) + size(token) * stride, bytes});
}

/// Items of one home that travel together.
struct LayerMessage {
  const std::string& address;
  std::span<const std::size_t> items;  // indices
  std::size_t call_index = 0;
};

class LayerCall {
 public:
  LayerCall(WorkerConnections& connections, wire::LayerMode mode, std::span<const LayerItem> items,
            int layer, Deadline deadline)
      : mode_(mode),
        items_(items),
        layer_(layer),
        deadline_(deadline),
        connections_(connections),
        call_(connections, deadline) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      check(items[i], mode, layer);
      if (items[i].tokens == 0) continue;
      if (Status good = check_selections(items[i]); !good.ok()) {
        failed_.push_back({i, std::move(good)});
        continue;
      }
      static_cast<void>(home_address(*items[i].sequence));
      left_.push_back(i);
    }
  }

  /// Again for those whose home has moved meanwhile, until the deadline: at once, then after
  /// pauses, since a worker may know a moment before the other.
  void run() {
    constexpr std::chrono::milliseconds kLongestPause{50};
    std::chrono::milliseconds wait{};
    for (int pass = 0; !left_.empty(); ++pass) {
      if (pass > 1) {
        wait = std::clamp(2 * wait, std::chrono::milliseconds(1), kLongestPause);
        const Time now = connections_.clock().now();
        pause(connections_.clock(), std::min<Duration>(wait, deadline_.when() - now));
      }
      number_ = connections_.next_number();
      by_home_.clear();
      pool_messages_.clear();
      messages_.clear();
      for (const std::size_t i : std::exchange(left_, {})) find_home(i);
      for (auto& [address, indices] : by_home_) split(address, indices);
      for (LayerMessage& message : messages_) send(message);
      for (const LayerMessage& message : messages_) receive(message);
    }
    throw_if_failed(std::move(failed_));
  }

 private:
  void find_home(std::size_t item) {
    Status right = status_of([&] {
      const std::string& home = home_address(*items_[item].sequence);
      call_.check(home, *items_[item].sequence).throw_if_error();
      by_home_[home].push_back(item);
    });
    if (!right.ok()) failed_.push_back({item, std::move(right)});
  }

  [[nodiscard]] wire::TokenBytes bytes_of(std::size_t item) const {
    return wire::token_bytes(items_[item].sequence->shape, mode_);
  }

  /// Each message has items of one shape: a handle of an earlier pool at the address must not spoil
  /// the others' message.
  void split(const std::string& address, std::span<std::size_t> rest) {
    while (!rest.empty()) {
      const SequenceHandle& sequence = *items_[rest.front()].sequence;
      const auto same = [&](std::size_t i) { return items_[i].sequence->shape == sequence.shape; };
      const auto others = std::stable_partition(rest.begin(), rest.end(), same);
      const auto count = std::min(wire::kMaxItems, static_cast<std::size_t>(others - rest.begin()));
      messages_.push_back({.address = address, .items = rest.first(count)});
      ++pool_messages_[sequence.pool];
      rest = rest.subspan(count);
    }
  }

  void send(LayerMessage& message) {
    const std::span<const std::size_t> indices = message.items;
    const wire::CallPart part{
        .call = number_, .messages = pool_messages_.at(items_[indices.front()].sequence->pool)};
    std::vector<std::span<const std::byte>> payload;
    for (const std::size_t i : indices) {
      const LayerItem& item = items_[i];
      const std::vector<std::int32_t>& lists = selected_.emplace_back(
          bytes_of(i).selected > 0 ? in_order(item) : std::vector<std::int32_t>{});
      for (std::int32_t t = 0; t < item.tokens; ++t) {
        append_token(payload, item.query, bytes_of(i).query, t);
        append_token(payload, item.row, bytes_of(i).row, t);
        append_token(payload, {lists.data()}, bytes_of(i).selected, t);
      }
    }
    std::uint32_t crc = 0;
    for (const std::span<const std::byte> piece : payload) crc = wire::crc32c(piece, crc);
    wire::LayerRequest round{
        .deadline_us = microseconds_left(deadline_, connections_.clock().now()),
        .mode = mode_,
        .crc32c = crc,
        .part = part,
        .items = {}};
    std::vector<Greeting> greetings;
    for (const std::size_t i : indices) {
      const SequenceHandle& sequence = *items_[i].sequence;
      greetings.push_back(greeting_of(sequence));
      round.items.push_back({.id = sequence.id,
                             .tokens = items_[i].tokens,
                             .layer = layer_,
                             .epoch = sequence.epoch,
                             .base_length = sequence.length});
    }
    message.call_index = call_.send({.address = message.address,
                                     .greetings = std::move(greetings),
                                     .payload = std::move(payload),
                                     .landing =
                                         [this, indices](const WorkerReply& reply) {
                                           return land(indices, std::get<wire::LayerReply>(reply));
                                         },
                                     .sent_before = repeated_},
                                    std::move(round));
  }

  /// Copies outputs of the items that succeeded to their places.
  [[nodiscard]] std::vector<std::span<std::byte>> land(std::span<const std::size_t> indices,
                                                       const wire::LayerReply& reply) const {
    std::vector<std::span<std::byte>> pieces;
    for (std::size_t k = 0; k < std::min(indices.size(), reply.items.size()); ++k) {
      if (reply.items[k] != ErrorCode::kOk) continue;
      const LayerItem& item = items_[indices[k]];
      pieces.emplace_back(reinterpret_cast<std::byte*>(item.output),
                          size(item.tokens) * bytes_of(indices[k]).output);
    }
    return pieces;
  }

  /// Adds the message's items that failed.
  void receive(const LayerMessage& message) {
    Status status = call_.wait(message.call_index);
    repeated_ = repeated_ || call_.repeated(message.call_index);
    const auto* round = std::get_if<wire::LayerReply>(&call_.reply(message.call_index));
    if (status.ok() && (round == nullptr || round->items.size() != message.items.size())) {
      status = {ErrorCode::kMalformedInput, "a worker answered for other items"};
    }
    bool told = false;  // the reply's words, which are about the first that failed
    for (std::size_t k = 0; k < message.items.size(); ++k) {
      if (round == nullptr || !status.ok()) {
        failed_.push_back({message.items[k], status});
        continue;
      }
      const ErrorCode code = round->items[k];
      if (code == ErrorCode::kOk || follow(message.items[k], k, *round)) continue;
      const std::string_view words =
          std::exchange(told, true) ? error_code_name(code) : std::string_view(round->message);
      failed_.push_back(
          {message.items[k],
           {code, fmt::format("sequence {}: {}", items_[message.items[k]].sequence->id, words)}});
    }
  }

  /// Whether the item's home has moved: it is asked next, if there is time.
  bool follow(std::size_t item, std::size_t place, const wire::LayerReply& reply) {
    const auto moved = std::ranges::find(reply.moved, place, &wire::LayerReply::Moved::item);
    if (moved == reply.moved.end()) return false;
    SequenceHandle& sequence = *items_[item].sequence;
    if (moved->home < 0 || std::cmp_greater_equal(moved->home, sequence.addresses.size())) {
      failed_.push_back({item,
                         {ErrorCode::kMalformedInput,
                          fmt::format("sequence {} went to worker {}, its pool has {}", sequence.id,
                                      moved->home, sequence.addresses.size())}});
      return true;
    }
    Status other = check_other(sequence, moved->home, home_address(sequence));
    sequence.home = moved->home;
    if (!other.ok()) {
      failed_.push_back({item, std::move(other)});
    } else if (deadline_.expired(connections_.clock().now())) {
      failed_.push_back({item,
                         {ErrorCode::kDeadlineExceeded,
                          fmt::format("sequence {} went to worker {}, which was not asked before "
                                      "the deadline",
                                      sequence.id, sequence.home)}});
    } else {
      left_.push_back(item);
    }
    return true;
  }

  wire::LayerMode mode_;
  std::span<const LayerItem> items_;
  int layer_;
  Deadline deadline_;
  WorkerConnections& connections_;
  std::uint64_t number_ = 0;
  bool repeated_ = false;          // a message was: it may still wait where it was sent first
  std::vector<std::size_t> left_;  // items that are to be sent
  std::map<std::string, std::vector<std::size_t>> by_home_;
  std::map<std::string_view, std::uint16_t> pool_messages_;
  std::vector<LayerMessage> messages_;
  std::vector<ItemFailure> failed_;
  std::deque<std::vector<std::int32_t>> selected_;  // of items, while their messages travel
  WorkerCall call_;
};

}  // namespace

void run_layer(WorkerConnections& connections, wire::LayerMode mode,
               std::span<const LayerItem> items, int layer, Deadline deadline) {
  LayerCall(connections, mode, items, layer, deadline).run();
}

}  // namespace tributary
