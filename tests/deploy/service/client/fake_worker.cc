#include "tests/deploy/service/client/fake_worker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "core/base/dtype.h"
#include "deploy/service/transport/data_transport.h"

namespace tributary::test {

FakeWorker::FakeWorker() : FakeWorker(make_data_transport(), "tcp://127.0.0.1:0") {}

FakeWorker::FakeWorker(const MakeTransport& make_transport, const std::string& listen)
    : owner_(make_transport(
          {.listen = listen, .secret_of = [](std::uint64_t id) { return token_of(id); }}, *this)),
      transport_(owner_.get()) {}

FakeWorker::~FakeWorker() {
  owner_.reset();
}

void FakeWorker::on_open(PeerId peer, const Proven& who) {
  const std::unique_lock lock(mutex_);
  opened_[peer] = who;
  proven_[peer] = {who.id};
}

std::optional<Landing> FakeWorker::on_message(PeerId peer, std::uint16_t type,
                                              std::span<const std::byte> header,
                                              std::size_t payload_bytes) {
  const std::unique_lock lock(mutex_);
  client_ = peer;
  const auto landed = std::make_shared<std::vector<std::byte>>(payload_bytes);
  const auto land = [&](auto answer) {
    return Landing{.pieces = {std::span(*landed)}, .done = [landed, answer](const Status& status) {
                     if (status.ok()) answer(std::span<const std::byte>(*landed));
                   }};
  };
  switch (static_cast<wire::MessageType>(type)) {
    case wire::MessageType::kHello: {
      const Hello hello{wire::decode<wire::Hello>(header), opened_.at(peer).id};
      received_.hellos.push_back(hello);
      changed_.notify_all();
      std::optional<wire::Welcome> welcome = wire::Welcome{.outcome = {}, .shape = hello.shape};
      if (on_hello) welcome = on_hello(hello);
      if (welcome) reply(wire::MessageType::kWelcome, wire::encode(*welcome));
      return std::nullopt;
    }
    case wire::MessageType::kProve: {
      received_.proofs.push_back(wire::decode<wire::Prove>(header));
      judgements_.push_back(judgement_of(peer, received_.proofs.back()));
      changed_.notify_all();
      if (!on_prove || on_prove(received_.proofs.back())) tell_judgements();
      return std::nullopt;
    }
    case wire::MessageType::kRows:
      return land([this, rows = wire::decode<wire::Rows>(header)](auto payload) {
        answer_rows(rows, payload);
      });
    case wire::MessageType::kLayerRequest:
      return land([this, round = wire::decode<wire::LayerRequest>(header)](auto payload) {
        answer_round(round, payload);
      });
    case wire::MessageType::kControl:
      answer_control(wire::decode<wire::Control>(header));
      return std::nullopt;
    default:
      ADD_FAILURE() << "message of type " << type;
      return std::nullopt;
  }
}

wire::ProveReply FakeWorker::judgement_of(PeerId peer, const wire::Prove& proofs) {
  wire::ProveReply judgement;
  for (const wire::Prove::Item& item : proofs.items) {
    const bool right =
        item.proof == proof::further_proof(token_of(item.sequence_id), opened_.at(peer).session,
                                           item.sequence_id);
    EXPECT_TRUE(right || forgeries);
    if (right) proven_[peer].insert(item.sequence_id);
    received_.wrong_proofs += right ? 0 : 1;
    judgement.items.push_back({right ? ErrorCode::kOk : ErrorCode::kPermissionDenied});
  }
  return judgement;
}

void FakeWorker::judge() {
  const std::unique_lock lock(mutex_);
  tell_judgements();
}

void FakeWorker::tell_judgements() {
  for (const wire::ProveReply& judgement : std::exchange(judgements_, {})) {
    reply(wire::MessageType::kProveReply, wire::encode(judgement));
  }
}

bool FakeWorker::allowed(std::uint64_t id) {
  const std::unique_lock lock(mutex_);
  return !forgeries || proven_[client_].contains(id);
}

void FakeWorker::answer_rows(const wire::Rows& rows, std::span<const std::byte> payload) {
  EXPECT_EQ(wire::crc32c(payload), rows.crc32c);
  {
    const std::scoped_lock lock(mutex_);
    received_.rows.push_back(rows);
    received_.row_payloads.emplace_back(payload.begin(), payload.end());
    changed_.notify_all();
  }
  std::optional<wire::RowsReply> answer = wire::RowsReply{};
  if (on_rows) answer = on_rows(rows);
  if (!answer) return;
  answer->request = rows.request;
  reply(wire::MessageType::kRowsReply, wire::encode(*answer));
}

void FakeWorker::answer_round(const wire::LayerRequest& round, std::span<const std::byte> payload) {
  EXPECT_EQ(wire::crc32c(payload), round.crc32c);
  {
    const std::scoped_lock lock(mutex_);
    received_.rounds.push_back(round);
    changed_.notify_all();
  }
  std::optional<RoundAnswer> answer;
  if (on_round) {
    answer = on_round(round, payload);
  } else {
    std::vector<float> output;
    answer.emplace();
    for (const StepItem& item : round.items) {
      answer->reply.items.push_back(allowed(item.id) ? ErrorCode::kOk
                                                     : ErrorCode::kPermissionDenied);
      if (answer->reply.items.back() != ErrorCode::kOk) continue;
      output.resize(output.size() + static_cast<std::size_t>(item.tokens) * kSmallOutput,
                    static_cast<float>(item.id));
    }
    const auto bytes = std::as_bytes(std::span(output));
    answer->payload.assign(bytes.begin(), bytes.end());
  }
  if (!answer) return;
  if (answer->reply.request == 0) answer->reply.request = round.request;
  send(*answer);
}

void FakeWorker::answer_control(const wire::Control& control) {
  const wire::ControlItem& first = control.items.at(0);
  if (first.op != wire::ControlOp::kRenew || first.epoch != 0) {
    received_.controls.push_back(control);
    changed_.notify_all();
  }
  std::optional<wire::ControlReply> answer;
  if (on_control) {
    answer = on_control(control);
  } else {
    answer.emplace();
    answer->message = "not the token";
    for (const wire::ControlItem& item : control.items) {
      const bool cut = item.op == wire::ControlOp::kTruncate;
      const bool good = !forgeries || proven_[client_].contains(item.sequence_id);
      answer->items.push_back({good ? ErrorCode::kOk : ErrorCode::kPermissionDenied,
                               item.epoch + (cut ? 1 : 0), item.length});
    }
  }
  if (!answer) return;
  answer->request = control.request;
  reply(wire::MessageType::kControlReply, wire::encode(*answer));
}

void FakeWorker::send(const RoundAnswer& answer) {
  wire::LayerReply header = answer.reply;
  if (header.crc32c == 0) header.crc32c = wire::crc32c(answer.payload);
  reply(wire::MessageType::kLayerReply, wire::encode(header),
        std::make_shared<std::vector<std::byte>>(answer.payload));
}

void FakeWorker::send_raw(std::uint16_t type, std::vector<std::byte> header) {
  reply(static_cast<wire::MessageType>(type), std::move(header));
}

void FakeWorker::reply(wire::MessageType type, std::vector<std::byte> header,
                       std::shared_ptr<std::vector<std::byte>> payload) {
  std::span<const std::byte> bytes;
  if (payload) bytes = *payload;
  transport_->send(client_, {.type = static_cast<std::uint16_t>(type),
                             .header = std::move(header),
                             .payload = {bytes},
                             .sent = [payload](const Status&) {}});
}

void FakeWorker::disconnect() {
  transport_->disconnect(client_);
}

void FakeWorker::on_disconnect(PeerId /*peer*/, const Status& /*reason*/) {
  const std::unique_lock lock(mutex_);
  ++received_.ends;
  changed_.notify_all();
}

FakeWorker::Received FakeWorker::wait_until(const std::function<bool(const Received&)>& enough) {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [&] { return enough(received_); }));
  return received_;
}

FakeWorker::Received FakeWorker::received() {
  const std::scoped_lock lock(mutex_);
  return received_;
}

PoolShape small_shape() {
  PoolShape shape;
  shape.heads = 2;
  shape.kv_lora_rank = 4;
  shape.qk_rope_head_dim = 2;
  shape.layers = 3;
  shape.leaf_tokens = 64;
  shape.row_format = RowFormat::kF32;
  shape.query_dtype = DType::kF32;
  shape.softmax_scale = 0.5F;
  return shape;
}

wire::Token token_of(std::uint64_t id) {
  return {static_cast<std::uint8_t>(id)};
}

SequenceHandle small_sequence(std::uint64_t id, std::span<const std::string> addresses,
                              std::int64_t prompt_tokens, std::int64_t extent) {
  SequenceHandle sequence;
  sequence.id = id;
  sequence.epoch = 3;
  sequence.token = token_of(id);
  sequence.pool = "fake";
  sequence.prompt_tokens = prompt_tokens;
  sequence.max_new_tokens = 100;
  sequence.length = prompt_tokens;
  int rank = 0;
  for (std::int64_t begin = 0; begin < prompt_tokens; begin += extent) {
    sequence.extents.push_back({begin, std::min(begin + extent, prompt_tokens), rank});
    rank = (rank + 1) % static_cast<int>(addresses.size());
  }
  sequence.addresses.assign(addresses.begin(), addresses.end());
  sequence.shape = small_shape();
  sequence.lease_ms = 60'000;
  return sequence;
}

}  // namespace tributary::test
