#include "deploy/local/local_pool.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/elements.h"
#include "core/base/error.h"
#include "core/layer/head_projection.h"
#include "deploy/runtime/backends.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

constexpr int kLayers = 2;
constexpr int kPrompt = 300;  // five leaves
constexpr int kTokens = 3;
constexpr auto kFar = std::chrono::seconds(30);

WorkerOptions small_pool() {
  WorkerOptions options = local_options();
  options.given_shape = MlaShape{.name = "small",
                                 .heads = 4,
                                 .kv_lora_rank = 128,
                                 .qk_rope_head_dim = 16,
                                 .layers = kLayers,
                                 .softmax_scale = 0.25};
  options.row_format = RowFormat::kF32;
  options.query_dtype = DType::kF32;
  options.kv_gib = 0.005;  // 72 pages
  options.leaf_tokens = 64;
  options.threads = 1;
  options.leader.canary_interval_ms = 1;
  return options;
}

/// Values that differ from place to place, and are the same in every run.
std::vector<float> values(std::size_t count, unsigned seed) {
  std::vector<float> result(count);
  unsigned state = seed * 2654435761U + 1;
  for (float& value : result) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) / float{1 << 23} - 1;
  }
  return result;
}

SequenceHandle start(TierClient& client, SpreadPolicy spread) {
  SequenceHandle sequence =
      client.admit({.prompt_tokens = kPrompt, .max_new_tokens = 8 * kTokens, .spread = spread},
                   Deadline::after(kFar));
  const auto width = static_cast<std::size_t>(sequence.shape.latent_dim());
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto rows = values(kPrompt * width, static_cast<unsigned>(layer));
    client.push_rows(sequence, layer, 0, std::as_bytes(std::span(rows)), Deadline::after(kFar));
  }
  client.wait_ready(sequence, Deadline::after(kFar));
  return sequence;
}

/// All layers of one step, committed.
std::vector<float> decode(TierClient& client, SequenceHandle& sequence) {
  const auto width = static_cast<std::size_t>(sequence.shape.latent_dim());
  const auto heads = static_cast<std::size_t>(sequence.shape.heads);
  const std::size_t record = heads * (static_cast<std::size_t>(sequence.shape.kv_lora_rank) + 1);
  std::vector<float> outputs(kLayers * kTokens * record);
  for (int layer = 0; layer < kLayers; ++layer) {
    const auto query = values(kTokens * heads * width, 10U + static_cast<unsigned>(layer));
    const auto row = values(kTokens * width, 20U + static_cast<unsigned>(layer));
    const LayerItem item{
        .sequence = &sequence,
        .tokens = kTokens,
        .query = {query.data(), 0},
        .row = {row.data(), 0},
        .output = outputs.data() + static_cast<std::size_t>(layer) * kTokens * record};
    client.attend(std::span(&item, 1), layer, Deadline::after(kFar));
  }
  SequenceHandle* handle = &sequence;
  const std::int32_t accepted = kTokens;
  client.commit(std::span(&handle, 1), std::span(&accepted, 1), Deadline::after(kFar));
  return outputs;
}

TEST(LocalPool, OutputsDoNotDependOnTheWorkers) {
  std::vector<float> first;
  for (const int workers : {1, 2, 4}) {
    LocalPool pool(workers, small_pool());
    const auto client = pool.make_client({});
    SequenceHandle sequence = start(*client, SpreadPolicy::kAll);
    EXPECT_EQ(sequence.addresses.size(), static_cast<std::size_t>(workers));
    EXPECT_EQ(sequence.addresses.front().substr(0, 8), "local://");
    const std::vector<float> outputs = decode(*client, sequence);
    EXPECT_EQ(sequence.length, kPrompt + kTokens);
    if (first.empty()) first = outputs;
    EXPECT_EQ(outputs, first) << workers << " workers";
    for (const auto& worker : pool.heartbeat().workers) {
      EXPECT_GT(worker.pages_used + worker.pages_reserved, 0) << worker.rank;
    }
    client->free(sequence);
  }
}

/// By a client that serves the sequence's owner, and by another one.
TEST(LocalPool, AMadeUpHandleDoesNothingAndItsVictimGoesOn) {
  LocalPool pool(2, small_pool());
  const auto owner = pool.make_client({});
  const auto other = pool.make_client({});
  SequenceHandle victim = start(*owner, SpreadPolicy::kAll);
  SequenceHandle mine = start(*other, SpreadPolicy::kAll);
  std::vector<SequenceHandle> forgeries(4, victim);
  forgeries[0].token = {};
  forgeries[1] = mine;
  forgeries[1].id = victim.id;
  forgeries[2].token = {};
  forgeries[2].epoch = 9;
  forgeries[3].token.back() ^= 1;
  forgeries[3].prompt_tokens = forgeries[3].length = 64;
  for (SequenceHandle forged : forgeries) {
    decode(*owner, victim);
    for (TierClient* client : {owner.get(), other.get()}) {
      const Deadline far = Deadline::after(kFar);
      static_cast<void>(status_of([&] { client->adopt(forged); }));
      EXPECT_EQ(code_of([&] { client->wait_ready(forged, far); }), ErrorCode::kPermissionDenied);
      EXPECT_EQ(code_of([&] { client->truncate(forged, 64, far); }), ErrorCode::kPermissionDenied);
      EXPECT_EQ(code_of([&] { decode(*client, forged); }), ErrorCode::kPermissionDenied);
      EXPECT_EQ(code_of([&] { client->free(forged, far); }), ErrorCode::kPermissionDenied);
      client->release(forged);
    }
    decode(*owner, victim);
  }
  EXPECT_EQ(victim.length, kPrompt + 8 * kTokens);
  EXPECT_EQ(owner->query(victim).epoch, 1U);
  SequenceHandle elsewhere = victim;
  elsewhere.addresses[1] = "local://nowhere";
  EXPECT_EQ(code_of([&] { owner->adopt(elsewhere); }), ErrorCode::kPermissionDenied);
  owner->free(victim);
  other->free(mine);
}

constexpr int kNope = 24;
constexpr int kValue = 20;

/// One layer of one step that is sent again: outputs of `floats` a token.
using AttendCall = void (TierClient::*)(std::span<const LayerItem>, int, std::optional<Deadline>);
std::vector<float> attended(TierClient& client, AttendCall call, SequenceHandle& sequence,
                            const std::vector<std::byte>& queries, std::size_t floats) {
  const auto row = values(kTokens * static_cast<std::size_t>(sequence.shape.latent_dim()), 21);
  std::vector<float> outputs(kTokens * floats);
  const LayerItem item{.sequence = &sequence,
                       .tokens = kTokens,
                       .query = {queries.data(), 0},
                       .row = {row.data(), 0},
                       .output = outputs.data()};
  (client.*call)(std::span(&item, 1), 1, Deadline::after(kFar));
  return outputs;
}

TEST(LocalPool, UnabsorbedQueriesGiveTheBitsOfAbsorbingThem) {
  const auto backend = make_backend("cpu", 1);
  WorkerOptions options = small_pool();
  const MlaShape model = *options.given_shape;
  const KvBShape weights{.heads = model.heads,
                         .nope = kNope,
                         .rope = model.qk_rope_head_dim,
                         .value = kValue,
                         .latent = model.kv_lora_rank};
  const auto heads = static_cast<std::size_t>(model.heads);
  auto given = std::make_shared<GivenHeadWeights>(
      GivenHeadWeights{.qk_nope_head_dim = kNope, .v_head_dim = kValue, .kv_b_proj = {}});
  for (unsigned layer = 0; layer < kLayers; ++layer) {
    given->kv_b_proj.push_back(values(
        heads * (kNope + kValue) * static_cast<std::size_t>(model.kv_lora_rank), 30 + layer));
  }
  options.given_head_weights = given;
  const HeadProjection projection(*backend, weights, given->kv_b_proj.back());
  for (const DType type : {DType::kF32, DType::kBF16}) {
    options.query_dtype = type;
    const auto stored = [type](std::span<const float> from) {
      std::vector<std::byte> bytes(from.size() * dtype_bytes(type));
      store_elements(type, from, bytes.data());
      return bytes;
    };
    PoolShape shape;
    shape.heads = model.heads;
    shape.kv_lora_rank = model.kv_lora_rank;
    shape.qk_rope_head_dim = model.qk_rope_head_dim;
    shape.qk_nope_head_dim = kNope;
    std::vector<float> queries =
        values(kTokens * heads * static_cast<std::size_t>(shape.unabsorbed_width()), 11);
    round_elements(type, queries);
    std::vector<float> absorbed(kTokens * heads * static_cast<std::size_t>(shape.latent_dim()));
    std::vector<Call> calls;
    projection.add_absorbed(kTokens, queries.data(), absorbed.data(), calls);
    backend->call(calls);
    const std::size_t projected_floats = heads * (kValue + 1);
    std::vector<float> first;
    for (const int workers : {1, 2, 4}) {
      LocalPool pool(workers, options);
      const auto client = pool.make_client({});
      SequenceHandle sequence = start(*client, SpreadPolicy::kAll);
      const std::vector<float> states =
          attended(*client, &TierClient::attend, sequence, stored(absorbed),
                   shape.state_shape().record_floats());
      std::vector<float> expected(kTokens * projected_floats);
      calls.clear();
      projection.add_projected(kTokens, states.data(), expected.data(), calls);
      backend->call(calls);
      const std::vector<float> outputs = attended(*client, &TierClient::attend_unabsorbed, sequence,
                                                  stored(queries), projected_floats);
      EXPECT_EQ(outputs, expected) << workers << " workers, queries of " << dtype_name(type);
      if (first.empty()) first = outputs;
      EXPECT_EQ(outputs, first) << workers << " workers";
      EXPECT_EQ(code_of([&] {
                  (void)attended(*client, &TierClient::forward, sequence, stored(queries), 1);
                }),
                ErrorCode::kFailedPrecondition)
          << "no model";
      client->free(sequence);
    }
  }
}

TEST(LocalPool, AClosedPoolEndsCallsAndTakesNoMore) {
  LocalPool pool(2, small_pool());
  const auto client = pool.make_client({});
  SequenceHandle sequence = start(*client, SpreadPolicy::kAuto);
  std::atomic<bool> running = false;
  Status end;
  std::thread user([&] {
    end = status_of([&] {
      while (true) {
        client->truncate(sequence, 1, Deadline::after(kFar));
        running = true;
      }
    });
  });
  while (!running) std::this_thread::yield();
  pool.close();
  user.join();
  EXPECT_EQ(end.code(), ErrorCode::kPoolLost) << end.message();
  pool.close();
  const Status refused = status_of(
      [&] { static_cast<void>(client->admit({.prompt_tokens = 1}, Deadline::after(kFar))); });
  EXPECT_EQ(refused.code(), ErrorCode::kPoolLost);
  EXPECT_EQ(refused.message(), "the pool is closed");
  client->free(sequence);  // it is gone
  EXPECT_EQ(status_of([&] { static_cast<void>(pool.heartbeat()); }).code(), ErrorCode::kPoolLost);
}

TEST(LocalPool, PoolsEndSideBySideAndMayBeWaitedForAgain) {
  LocalPool first(1, small_pool());
  LocalPool second(1, small_pool());
  first.terminate();
  second.terminate();
  for (LocalPool* pool : {&first, &second}) {
    // A begin whose limit is over: whoever has not ended by now is not waited for.
    const Status at_once = status_of([&] { pool->close(Time()); });
    EXPECT_TRUE(at_once.ok() || at_once.code() == ErrorCode::kDeadlineExceeded)
        << at_once.message();
    pool->close();
    EXPECT_EQ(status_of([&] { static_cast<void>(pool->heartbeat()); }).message(),
              "the pool is closed");
  }
}

TEST(LocalPool, WhatCannotStartSaysWhy) {
  WorkerOptions options = small_pool();
  EXPECT_EQ(status_of([&] { LocalPool(0, options); }).message(), "0 workers: expected 1 .. 1024");
  options.backend = "abacus";
  EXPECT_THAT(status_of([&] { LocalPool(2, options); }).message(), testing::HasSubstr("abacus"));
  options = small_pool();
  options.kv_gib = 1e-9;
  EXPECT_EQ(status_of([&] { LocalPool(1, options); }).code(), ErrorCode::kInvalidArgument);
  options = small_pool();
  options.given_shape->heads = 0;
  EXPECT_THAT(status_of([&] { LocalPool(1, options); }).message(),
              testing::HasSubstr("heads is 0"));
  options = small_pool();
  options.leaf_tokens = 100;
  EXPECT_EQ(status_of([&] { LocalPool(2, options); }).code(), ErrorCode::kInvalidArgument);
}

std::ptrdiff_t threads_of_this_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

/// To write into a FIFO: -1 where nobody has opened it for reading by then, as a plain open() would
/// wait for without end.
int open_for_reader(const std::string& fifo, const Deadline& deadline) {
  while (true) {
    const int writer = open(fifo.c_str(), O_WRONLY | O_NONBLOCK);
    if (writer >= 0 || errno != ENXIO || deadline.expired()) return writer;
    std::this_thread::yield();
  }
}

TEST(LocalPool, AFifoThatNobodyReadsIsNotWaitedForWithoutEnd) {
  const std::string fifo = testing::TempDir() + "local_pool_nobody." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(open_for_reader(fifo, Deadline::after(std::chrono::milliseconds(5))), -1);
  std::filesystem::remove(fifo);
}

/// A pool whose shape never comes, then does: what waits for a disk that does not answer.
TEST(LocalPool, AStartThatTakesTooLongEndsAndSoDoesThePool) {
  const std::string fifo = testing::TempDir() + "local_pool_shape." + std::to_string(getpid());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::ptrdiff_t before = threads_of_this_process();
  WorkerOptions options = small_pool();
  options.given_shape.reset();
  options.shape = fifo;
  const Status status =
      status_of([&] { LocalPool(1, options, {.start = std::chrono::milliseconds(50)}); });
  EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "a pool of 1 workers in this process does not serve after 50 ms");
  // It comes up all the same, with nobody there, once its reader has the shape.
  const Deadline deadline = Deadline::after(kFar);
  const int writer = open_for_reader(fifo, deadline);
  std::filesystem::remove(fifo);
  ASSERT_GE(writer, 0) << "nobody reads the shape";
  const std::string_view shape = R"({"heads": 4, "kv_lora_rank": 128, "qk_rope_head_dim": 16,
                                     "layers": 2, "softmax_scale": 0.25})";
  EXPECT_EQ(write(writer, shape.data(), shape.size()), static_cast<ssize_t>(shape.size()));
  close(writer);
  while (threads_of_this_process() > before && !deadline.expired()) std::this_thread::yield();
  EXPECT_LE(threads_of_this_process(), before);
}

TEST(LocalPool, AForkKnowsThatThePoolIsNotThere) {
  auto pool = std::make_unique<LocalPool>(2, small_pool());
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Status status = status_of([&] { pool->check_process(); });
    pool->close();
    pool.reset();
    _exit(status.code() == ErrorCode::kFailedPrecondition ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  pool->check_process();
  const auto client = pool->make_client({});
  client->free(start(*client, SpreadPolicy::kAll));
}

}  // namespace
}  // namespace tributary
