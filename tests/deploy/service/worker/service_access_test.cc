// The peers that may connect to a serving pool, the requests that its control plane may make, and
// the pool's end.
#include <gtest/gtest.h>

#include "comm/wire/codec.h"
#include "deploy/service/protocol/worker_messages.h"
#include "tests/deploy/service/worker/pool_user.h"

namespace tributary::test {
namespace {

TEST(ServiceAccess, HelloIsChecked) {
  ServicePool pool(1, small_options());
  RawClient client;
  const SequenceInfo sequence = pool.admit(10, 4);
  const PoolShape shape = pool.card().shape;
  const auto say = [&](const std::function<void(wire::Hello&)>& change) {
    wire::Hello hello;
    hello.shape = shape;
    change(hello);
    const PeerId peer = client.connect(pool.address(0), sequence);
    const wire::Outcome outcome = client.hello(peer, hello).outcome;
    EXPECT_TRUE(outcome.ok() || !client.wait_disconnect(peer).ok());
    return outcome;
  };
  EXPECT_TRUE(say([](wire::Hello&) {}).ok());
  const auto other_shape = say([](wire::Hello& hello) { hello.shape.heads = 3; });
  EXPECT_EQ(other_shape.code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(other_shape.message, "heads: the client says 3, the pool has 16");
  EXPECT_EQ(say([](wire::Hello& hello) { hello.shape.row_format = RowFormat::kF32; }).message,
            "row_dtype: the client says f32, the pool has bf16");
  EXPECT_EQ(say([](wire::Hello& hello) { hello.shape.softmax_scale *= 2; }).code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(say([](wire::Hello& hello) { hello.version = wire::kVersion + 1; }).code,
            ErrorCode::kUnsupported);
}

TEST(ServiceAccess, WhoHasNoTokenGetsNoWordIn) {
  ServicePool pool(1, small_options());
  RawClient client;
  const SequenceInfo sequence = pool.admit(10, 4);
  const auto refused = [&](const std::function<void(SequenceInfo&)>& change) {
    SequenceInfo stranger = sequence;
    change(stranger);
    return client.wait_disconnect(client.connect(pool.address(0), stranger)).code() ==
           ErrorCode::kPermissionDenied;
  };
  EXPECT_TRUE(refused([](SequenceInfo& info) { info.token[0] ^= 1; }));
  EXPECT_TRUE(refused([](SequenceInfo& info) { ++info.id; }));
  EXPECT_TRUE(refused([](SequenceInfo& info) { info.id = wire::kPoolItself; }));
  EXPECT_TRUE(refused([](SequenceInfo& info) { info.token = {}; }));
}

TEST(ServiceAccess, AnythingElseEndsTheConnection) {
  ServicePool pool(2, small_options());
  RawClient client;
  const SequenceInfo known = pool.admit(10, 4);
  const auto refused = [&](wire::MessageType type, std::vector<std::byte> header) {
    const PeerId peer = client.connect(pool.address(0), known);
    client.send(peer, type, std::move(header), std::vector<std::byte>(100));
    EXPECT_FALSE(client.wait_disconnect(peer).ok());
  };
  refused(wire::MessageType::kHello, std::vector<std::byte>(40, std::byte{0xff}));
  refused(wire::MessageType::kLayerRequest, {});
  refused(wire::MessageType::kBeat, {});
  refused(static_cast<wire::MessageType>(999), {});
  refused(wire::MessageType::kJoin, encode(wire::Join{.rank = 1}));
  // An admitted client may not send a worker's messages.
  PoolUser user(pool);
  const UserSequence sequence = user.start(1, 10, 4);
  const PeerId peer = user.peer(0, sequence);
  user.client.send(peer, wire::MessageType::kBeat, encode(wire::Beat{}));
  EXPECT_FALSE(user.client.wait_disconnect(peer).ok());
}

// However many it has, and whether it has introduced itself or not.
TEST(ServiceAccess, TheConnectionsOfAnEndedSequenceEnd) {
  ServicePool pool(1, small_options());
  RawClient client;
  const SequenceInfo ended = pool.admit(10, 4);
  const SequenceInfo running = pool.admit(10, 4);
  const PoolShape shape = pool.card().shape;
  const PeerId stays = client.enter(pool.address(0), shape, running);
  std::vector<PeerId> go{client.enter(pool.address(0), shape, ended)};
  pool.free(ended.id);
  for (int i = 0; i < 5; ++i) go.push_back(client.connect(pool.address(0), ended));
  for (const PeerId peer : go) EXPECT_FALSE(client.wait_disconnect(peer).ok());
  EXPECT_EQ(client.control(stays, {{.op = wire::ControlOp::kRenew, .sequence_id = running.id}})
                .items.size(),
            1U);
}

TEST(ServiceAccess, AControlIsJudgedItemByItem) {
  ServicePool pool(2, small_options());
  PoolUser user(pool);
  const UserSequence good = user.start(1, 10, 4);
  const PeerId peer = user.peer(good.info.home, good);
  const wire::ControlItem renewal{
      .op = wire::ControlOp::kRenew, .sequence_id = good.info.id, .epoch = good.epoch, .length = 0};
  wire::ControlItem stranger = renewal;
  stranger.sequence_id = pool.admit(10, 4).id;
  wire::ControlItem ended = renewal;
  ended.op = wire::ControlOp::kCommit;
  ++ended.epoch;
  const auto codes = [&](const std::vector<wire::ControlItem>& items, const std::string& message) {
    const wire::ControlReply reply = user.client.control(peer, items);
    EXPECT_EQ(reply.message, message);
    std::vector<ErrorCode> codes;
    for (const auto& item : reply.items) codes.push_back(item.code);
    return codes;
  };
  constexpr auto kOk = ErrorCode::kOk;
  constexpr auto kDenied = ErrorCode::kPermissionDenied;
  constexpr auto kStale = ErrorCode::kStaleEpoch;
  const std::string denied =
      fmt::format("the connection has not proven sequence {}", stranger.sequence_id);
  const std::string stale = fmt::format("sequence {}: epoch 2 is over, now is 1", good.info.id);
  EXPECT_EQ(codes({stranger, renewal, ended}, denied), (std::vector{kDenied, kOk, kStale}));
  EXPECT_EQ(codes({renewal, ended, stranger}, stale), (std::vector{kOk, kStale, kDenied}));
  EXPECT_EQ(codes({stranger, stranger}, denied), (std::vector{kDenied, kDenied}));
}

TEST(ServiceControl, AdmitsQueriesFreesDrains) {
  ServicePool pool(2, small_options());
  const auto admit = [&](SequenceId id, std::int64_t tokens, const std::string& key = "") {
    Admit request;
    request.id = id;
    request.wanted.prompt_tokens = tokens;
    request.wanted.max_new_tokens = 1;
    request.wanted.idempotency_key = key;
    request.wanted.idempotency_secret = "secret";
    return pool.ask(request);
  };
  const PoolReply first = admit(100, 200, "key");
  ASSERT_EQ(first.code, ErrorCode::kOk) << first.message;
  EXPECT_EQ(first.sequence->id, 100U);
  EXPECT_EQ(first.sequence->extents.front().begin, 0);
  EXPECT_EQ(first.sequence->extents.back().end, 200);
  EXPECT_EQ(admit(100, 200, "key").code, ErrorCode::kOk);  // the answer was lost
  EXPECT_EQ(admit(100, 200, "other").code, ErrorCode::kAlreadyExists);
  EXPECT_EQ(admit(0, 200).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(admit(101, 100'000).code, ErrorCode::kTooLarge);
  EXPECT_EQ(admit(102, 18'400).code, ErrorCode::kPoolFull);
  Query query;
  query.id = 100;
  EXPECT_EQ(pool.ask(query).sequence->state, SequenceState::kFilling);
  EXPECT_NE(pool.ask(query).sequence->missing, "");
  query.id = 101;
  EXPECT_EQ(pool.ask(query).code, ErrorCode::kNotFound);
  SetDraining drain;
  drain.draining = true;
  EXPECT_EQ(pool.ask(drain).code, ErrorCode::kOk);
  EXPECT_TRUE(pool.heartbeat().draining);
  EXPECT_EQ(admit(103, 10).code, ErrorCode::kUnavailable);
  drain.draining = false;
  EXPECT_EQ(pool.ask(drain).code, ErrorCode::kOk);
  EXPECT_EQ(admit(103, 10).code, ErrorCode::kOk);
  EXPECT_EQ(pool.card().sequences.size(), 2U);
  EXPECT_EQ(pool.card().sequences.front().idempotency_secret, "secret");
  pool.free(103);
  pool.free(100);
  Free again;
  again.id = 100;
  EXPECT_EQ(pool.ask(again).code, ErrorCode::kNotFound);
  pool.expect_all_free();
  EXPECT_EQ(pool.heartbeat().workers.size(), 2U);
}

TEST(ServiceControl, EndsInOrderWhenTheLastSequenceHasEnded) {
  WorkerOptions options = small_options();
  options.leader.drain_timeout_ms = 30'000;
  ServicePool pool(2, options);
  const SequenceInfo sequence = pool.admit(10, 4);
  std::jthread stopping([&] { pool.stop(); });
  while (!pool.heartbeat().draining) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pool.free(sequence.id);
}

TEST(ServiceControl, AModelThatIsNotThereKeepsThePoolFromStarting) {
  WorkerOptions options = small_options();
  options.model = "/nowhere/at-all.safetensors";
  try {
    ServicePool pool(2, options);
    ADD_FAILURE() << "it started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
  }
}

}  // namespace
}  // namespace tributary::test
