#include "tests/deploy/service/worker/pool_user.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "core/base/elements.h"
#include "deploy/runtime/backends.h"

namespace tributary::test {
namespace {

void append(std::vector<std::byte>& bytes, DType dtype, const std::vector<float>& values) {
  const std::size_t size = bytes.size();
  bytes.resize(size + values.size() * dtype_bytes(dtype));
  store_elements(dtype, values, bytes.data() + size);
}

void append_row(std::vector<std::byte>& bytes, const AttentionShape& shape,
                const std::vector<float>& values) {
  const std::size_t size = bytes.size();
  bytes.resize(size + shape.row_bytes());
  shape.row().encode(values, bytes.data() + size);
}

}  // namespace

PoolUser::PoolUser(ServicePool& pool)
    : pool_(pool), shape_(pool.card().shape), attention_(shape_) {}

PeerId PoolUser::peer(int rank, const UserSequence& sequence) {
  const auto found = peers_.find(rank);
  if (found != peers_.end()) {
    if (proven_.emplace(found->second, sequence.info.id).second) {
      client.prove(found->second, sequence.info);
    }
    return found->second;
  }
  const PeerId peer = client.enter(pool_.address(rank), shape_, sequence.info);
  peers_.emplace(rank, peer);
  proven_.emplace(peer, sequence.info.id);
  return peer;
}

UserSequence PoolUser::admit(std::int64_t tag, std::int64_t prompt, std::int64_t new_tokens,
                             SpreadPolicy spread) {
  const SequenceInfo info = pool_.admit(prompt, new_tokens, spread);
  return {.tag = tag, .epoch = info.epoch, .length = prompt, .info = info};
}

UserSequence PoolUser::start(std::int64_t tag, std::int64_t prompt, std::int64_t new_tokens,
                             SpreadPolicy spread, std::int64_t piece) {
  UserSequence sequence = admit(tag, prompt, new_tokens, spread);
  for (int layer = 0; layer < shape_.layers; ++layer) {
    for (std::int64_t begin = 0; begin < prompt; begin += piece) {
      for (const auto& refused : push(sequence, layer, begin, std::min(begin + piece, prompt))) {
        ADD_FAILURE() << refused.message;
      }
    }
  }
  return sequence;
}

wire::Rows PoolUser::rows_header(const UserSequence& sequence, int layer, std::int64_t begin,
                                 std::int64_t end) const {
  return {.request = 0,
          .sequence_id = sequence.info.id,
          .epoch = sequence.epoch,
          .layer = layer,
          .begin = begin,
          .count = end - begin};
}

std::vector<std::byte> PoolUser::rows(const UserSequence& sequence, int layer, std::int64_t begin,
                                      std::int64_t end) const {
  std::vector<std::byte> bytes;
  for (std::int64_t p = begin; p < end; ++p) {
    append_row(bytes, attention_, pool_row(attention_, sequence.tag, layer, p));
  }
  return bytes;
}

std::vector<wire::Outcome> PoolUser::push(const UserSequence& sequence, int layer,
                                          std::int64_t begin, std::int64_t end) {
  std::vector<std::uint64_t> requests;
  for (const Extent& extent : sequence.info.extents) {
    const std::int64_t from = std::max(begin, extent.begin);
    const std::int64_t to = std::min(end, extent.end);
    if (from >= to) continue;
    requests.push_back(client.send_rows(peer(extent.rank, sequence),
                                        rows_header(sequence, layer, from, to),
                                        rows(sequence, layer, from, to)));
  }
  std::vector<wire::Outcome> refused;
  for (const std::uint64_t request : requests) {
    const auto reply = client.wait_rows(request);
    if (!reply.outcome.ok()) refused.push_back(reply.outcome);
  }
  return refused;
}

wire::LayerRequest PoolUser::round_header(const std::vector<Part>& parts) const {
  wire::LayerRequest round;
  round.deadline_us = 20'000'000;
  for (const Part& part : parts) {
    round.items.push_back({.id = part.sequence->info.id,
                           .tokens = part.tokens,
                           .layer = part.layer,
                           .epoch = part.sequence->epoch,
                           .base_length = part.sequence->length});
  }
  return round;
}

std::vector<std::byte> PoolUser::round_payload(const std::vector<Part>& parts) const {
  std::vector<std::byte> payload;
  for (const Part& part : parts) {
    for (std::int32_t t = 0; t < part.tokens; ++t) {
      const std::int64_t position = part.sequence->length + t;
      append(payload, attention_.query_dtype,
             pool_query(attention_, part.sequence->tag, part.layer, position));
      append_row(payload, attention_,
                 pool_row(attention_, part.sequence->tag, part.layer, position));
      if (attention_.topk == 0) continue;
      const auto selected = pool_selection(attention_, part.sequence->tag, part.layer, position);
      const auto bytes = std::as_bytes(std::span(selected));
      payload.insert(payload.end(), bytes.begin(), bytes.end());
    }
  }
  return payload;
}

std::uint64_t PoolUser::send_attend(const std::vector<Part>& parts) {
  const UserSequence& first = *parts.front().sequence;
  for (const Part& part : parts) (void)peer(first.info.home, *part.sequence);
  return client.send_round(peer(first.info.home, first), round_header(parts), round_payload(parts));
}

RawClient::RoundResult PoolUser::attend(const std::vector<Part>& parts) {
  return client.wait_round(send_attend(parts));
}

void PoolUser::collect(const std::vector<Part>& parts, const std::vector<float>& values,
                       PoolOutputs& outputs) const {
  const std::size_t record = attention_.state_shape().record_floats();
  auto next = values.begin();
  for (const Part& part : parts) {
    for (std::int32_t t = 0; t < part.tokens; ++t) {
      ASSERT_GE(values.end() - next, static_cast<std::ptrdiff_t>(record));
      const auto end = next + static_cast<std::ptrdiff_t>(record);
      outputs[{part.sequence->tag, part.layer, part.sequence->length + t}] = {next, end};
      next = end;
    }
  }
}

void PoolUser::decode(UserSequence& sequence, std::int32_t tokens, PoolOutputs& outputs) {
  for (int layer = 0; layer < shape_.layers; ++layer) {
    const std::vector<Part> parts{{&sequence, tokens, layer}};
    RawClient::RoundResult result = attend(parts);
    while (!result.reply.moved.empty()) {
      sequence.info.home = result.reply.moved.front().home;
      result = attend(parts);
    }
    ASSERT_EQ(result.reply.items, std::vector{ErrorCode::kOk}) << result.reply.message;
    collect(parts, result.floats(), outputs);
  }
  const auto reply = control(sequence, wire::ControlOp::kCommit, sequence.length + tokens);
  ASSERT_EQ(reply.items.at(0).code, ErrorCode::kOk) << reply.message;
  sequence.length = reply.items[0].length;
}

wire::ControlReply PoolUser::control(const UserSequence& sequence, wire::ControlOp op,
                                     std::int64_t length) {
  return client.control(
      peer(sequence.info.home, sequence),
      {{.op = op, .sequence_id = sequence.info.id, .epoch = sequence.epoch, .length = length}});
}

PoolOutputs outputs_without_service(const PoolShape& shape,
                                    const std::vector<PoolRequest>& requests,
                                    std::int32_t tokens_per_step) {
  PoolSetup setup;
  setup.shape = shape;
  setup.layers = shape.layers;
  setup.leaf_tokens = shape.leaf_tokens;
  setup.pages = 256;
  setup.backend = [](int) { return make_backend("cpu", 1); };
  const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
    leader.decode(requests,
                  {.tokens = [&](std::int64_t, std::int64_t) { return tokens_per_step; }});
  });
  return result.outputs;
}

}  // namespace tributary::test
