#include "deploy/client/layer_call.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "deploy/client/control_call.h"

namespace tributary {
namespace {

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

/// Per token, see wire::RoundMode.
struct TokenBytes {
  std::size_t in = 0;
  std::size_t out = 0;
};

TokenBytes token_bytes(const wire::Shape& shape, wire::RoundMode mode) {
  const std::size_t width = size(shape.kv_lora_rank) + size(shape.qk_rope_head_dim);
  const std::size_t heads = size(shape.heads);
  const std::size_t attend_in = heads * width * dtype_bytes(static_cast<DType>(shape.query_dtype)) +
                                width * dtype_bytes(static_cast<DType>(shape.row_dtype));
  switch (mode) {
    case wire::RoundMode::kAttend:
      return {attend_in, heads * (size(shape.kv_lora_rank) + 1) * sizeof(float)};
    case wire::RoundMode::kAttendProjected:
      return {attend_in, heads * size(shape.v_head_dim) * sizeof(float)};
    case wire::RoundMode::kForward:
      return {size(shape.hidden_size) * sizeof(float), size(shape.hidden_size) * sizeof(float)};
  }
  return {};
}

void check(const LayerItem& item, wire::RoundMode mode, int layer) {
  if (item.sequence == nullptr || item.input == nullptr || item.output == nullptr) {
    fail(ErrorCode::kInvalidArgument, "an item without a sequence, an input or an output");
  }
  const wire::Shape& shape = item.sequence->shape;
  if (item.tokens < 1 || item.tokens > kMaxStepTokens) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: {} tokens in a step, expected 1 to {}",
         item.sequence->id, item.tokens, kMaxStepTokens);
  }
  if (layer < 0 || layer >= shape.layers) {
    fail(ErrorCode::kInvalidArgument, "layer {}: the pool has {}", layer, shape.layers);
  }
  if (mode != wire::RoundMode::kAttend && shape.v_head_dim == 0) {
    fail(ErrorCode::kFailedPrecondition, "pool {} has no weights: it serves attend alone",
         item.sequence->pool);
  }
}

/// Items of one home that travel together.
struct LayerMessage {
  std::span<const std::size_t> items;  // indices
  std::size_t call_index = 0;
};

class LayerCall {
 public:
  LayerCall(WorkerConnections& connections, wire::RoundMode mode, std::span<const LayerItem> items,
            int layer, Deadline deadline)
      : mode_(mode),
        items_(items),
        layer_(layer),
        deadline_(deadline),
        call_(connections, deadline) {
    std::vector<WorkerConnections::Greeting> greetings;
    for (std::size_t i = 0; i < items.size(); ++i) {
      check(items[i], mode, layer);
      const std::string& address = home_address(*items[i].sequence);
      auto& home = by_home_[address];
      if (home.empty()) greetings.push_back(greeting_for(*items[i].sequence, address));
      home.push_back(i);
    }
    connections.connect(greetings, deadline);
  }

  void run() {
    for (const auto& [address, indices] : by_home_) {
      for (std::size_t begin = 0; begin < indices.size(); begin += wire::kMaxItems) {
        send(address,
             std::span(indices).subspan(begin, std::min(wire::kMaxItems, indices.size() - begin)));
      }
    }
    Status first;
    for (const LayerMessage& message : messages_) {
      const Status status = receive(message);
      if (first.ok()) first = status;
    }
    first.throw_if_error();
  }

 private:
  [[nodiscard]] std::size_t bytes_of(const LayerItem& item, bool in) const {
    const TokenBytes bytes = token_bytes(item.sequence->shape, mode_);
    return size(item.tokens) * (in ? bytes.in : bytes.out);
  }

  void send(const std::string& address, std::span<const std::size_t> indices) {
    std::size_t in = 0;
    std::size_t out = 0;
    for (const std::size_t i : indices) {
      in += bytes_of(items_[i], true);
      out += bytes_of(items_[i], false);
    }
    // A copy: a call whose deadline passes returns while its bytes may still be on their way.
    const auto payload = std::make_shared<OwnedBytes>(in);
    std::byte* next = payload->data.get();
    for (const std::size_t i : indices) {
      std::memcpy(next, items_[i].input, bytes_of(items_[i], true));
      next += bytes_of(items_[i], true);
    }
    const auto encode = [&](std::uint64_t number) {
      wire::Round round{.request = number,
                        .deadline_us = remaining_us(),
                        .mode = mode_,
                        .head_begin = 0,
                        .head_end = items_[indices.front()].sequence->shape.heads,
                        .crc32c = wire::crc32c(payload->span()),
                        .items = {}};
      for (const std::size_t i : indices) {
        const SequenceHandle& sequence = *items_[i].sequence;
        round.items.push_back({.sequence_id = sequence.id,
                               .epoch = sequence.epoch,
                               .token = sequence.token,
                               .base_length = sequence.length,
                               .tokens = items_[i].tokens,
                               .layer = layer_});
      }
      return wire::encode(round);
    };
    const std::size_t index =
        call_.send(address, wire::MessageType::kRound, encode, payload->span(), payload, out);
    messages_.push_back({indices, index});
  }

  [[nodiscard]] std::uint32_t remaining_us() const {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline_.when() -
                                                                            Deadline::Clock::now());
    return static_cast<std::uint32_t>(
        std::clamp<std::int64_t>(left.count(), 1, std::numeric_limits<std::uint32_t>::max()));
  }

  /// Outputs of the items that succeeded go to their places; the status of the first that did not.
  Status receive(const LayerMessage& message) {
    Status status = call_.wait(message.call_index);
    if (!status.ok()) return status;
    const WorkerReply& reply = call_.reply(message.call_index);
    const auto* round = std::get_if<wire::RoundReply>(&reply.message);
    std::size_t expected = 0;
    const bool fits = round != nullptr && round->items.size() == message.items.size();
    if (fits) {
      for (std::size_t k = 0; k < message.items.size(); ++k) {
        if (round->items[k] == ErrorCode::kOk) {
          expected += bytes_of(items_[message.items[k]], false);
        } else if (status.ok()) {
          status = {round->items[k],
                    fmt::format("sequence {}: {}", items_[message.items[k]].sequence->id,
                                round->message)};
        }
      }
    }
    if (!fits || reply.payload.size != expected) {
      return {ErrorCode::kMalformedInput,
              fmt::format("a worker answered a round with {} bytes of output, expected {}",
                          reply.payload.size, expected)};
    }
    const std::byte* next = reply.payload.data.get();
    for (std::size_t k = 0; k < message.items.size(); ++k) {
      if (round->items[k] != ErrorCode::kOk) continue;
      const LayerItem& item = items_[message.items[k]];
      std::memcpy(item.output, next, bytes_of(item, false));
      next += bytes_of(item, false);
    }
    return status;
  }

  wire::RoundMode mode_;
  std::span<const LayerItem> items_;
  int layer_;
  Deadline deadline_;
  std::map<std::string, std::vector<std::size_t>> by_home_;
  std::vector<LayerMessage> messages_;
  WorkerConnections::Call call_;
};

}  // namespace

void run_layer(WorkerConnections& connections, wire::RoundMode mode,
               std::span<const LayerItem> items, int layer, Deadline deadline) {
  LayerCall(connections, mode, items, layer, deadline).run();
}

}  // namespace tributary
