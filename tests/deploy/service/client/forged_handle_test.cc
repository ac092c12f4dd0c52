// Handles that somebody has made up, in a client that serves the sequence's owner too: whatever is
// done with them, the owner's calls go on.
#include <algorithm>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/proven_sequences.h"
#include "deploy/service/transport/data_transport.h"
#include "tests/deploy/service/client/client_fixture.h"

namespace tributary {
namespace {

using test::expect_error;
using test::FakeWorker;
using test::kFar;
using test::kSmallRowBytes;

/// Knows the tier's workers; every sequence runs.
class ListedWorkers final : public ControlPlane {
 public:
  SequenceHandle admit(const AdmitRequest& /*wanted*/, Deadline /*deadline*/) override {
    return admitted;
  }
  SequenceHandle query(SequenceId /*id*/, Deadline /*deadline*/) override { return {}; }
  void free(SequenceId /*id*/, const std::string& /*pool*/, Deadline /*deadline*/) override {
    ++freed;
  }
  std::vector<std::string> workers(Deadline /*deadline*/) override {
    ++asked;
    if (down) fail(ErrorCode::kUnavailable, "the control plane is down");
    return listed;
  }

  std::vector<std::string> listed;
  SequenceHandle admitted;
  bool down = false;
  int asked = 0;
  int freed = 0;
};

class ForgedHandle : public test::ClientFixture {
 protected:
  void SetUp() override {
    worker_.forgeries = true;
    control_->listed = {worker_.address()};
    client_ = std::make_unique<TierClient>(test::without_control_plane(), make_data_transport(),
                                           control_);
  }

  void attend(SequenceHandle& sequence) {
    std::vector<float> output;
    const LayerItem one = item(sequence, output);
    client_->attend(std::span(&one, 1), 0, Deadline::after(kFar));
    EXPECT_THAT(output, testing::Each(static_cast<float>(sequence.id)));
  }
  void commit(SequenceHandle& sequence) {
    SequenceHandle* one = &sequence;
    const std::int32_t accepted = 1;
    client_->commit(std::span(&one, 1), std::span(&accepted, 1), Deadline::after(kFar));
  }
  /// Everything that can be asked with it.
  void expect_refused(SequenceHandle forged) {
    const auto refused = [&](const auto& call) {
      expect_error(ErrorCode::kPermissionDenied, "sequence 7", call);
    };
    const Deadline far = Deadline::after(kFar);
    refused([&] { client_->truncate(forged, 100, far); });
    refused([&] { client_->wait_ready(forged, far); });
    refused([&] { client_->extend(forged, 500, far); });
    refused([&] { commit(forged); });
    refused([&] { attend(forged); });
    refused([&] { client_->push_rows(forged, 0, 0, std::vector<std::byte>(kSmallRowBytes), far); });
    refused([&] { client_->free(forged, far); });
    client_->release(forged);
  }
  /// What the worker has done for whoever asked, but for renewals.
  [[nodiscard]] std::size_t served() {
    const auto received = worker_.received();
    return received.rounds.size() + received.rows.size() +
           static_cast<std::size_t>(std::ranges::count_if(received.controls, [](const auto& sent) {
             return sent.items[0].op != wire::ControlOp::kRenew;
           }));
  }

  std::shared_ptr<ListedWorkers> control_ = std::make_shared<ListedWorkers>();
};

struct Forgery {
  const char* name;
  void (*change)(SequenceHandle&);
};

class ForgedHandleOf : public ForgedHandle, public testing::WithParamInterface<Forgery> {};

TEST_P(ForgedHandleOf, IsRefusedByTheClientWhereItsVictimIsProven) {
  SequenceHandle victim = sequence(7);
  client_->adopt(victim);
  attend(victim);
  SequenceHandle forged = victim;
  GetParam().change(forged);
  const std::size_t before = served();
  expect_error(ErrorCode::kPermissionDenied, "sequence 7", [&] { client_->adopt(forged); });
  expect_refused(forged);
  EXPECT_EQ(served(), before) << "the worker heard nothing of it";
  EXPECT_EQ(worker_.received().wrong_proofs, 0);
  EXPECT_EQ(control_->freed, 0);
  attend(victim);
  commit(victim);
  EXPECT_EQ(victim.length, 201);
}

TEST_P(ForgedHandleOf, IsRefusedByTheWorkerBeforeItsVictimIsProven) {
  SequenceHandle mine = sequence(8);
  attend(mine);
  SequenceHandle victim = sequence(7);
  SequenceHandle forged = victim;
  GetParam().change(forged);
  client_->adopt(forged);  // nobody here knows better
  const Deadline far = Deadline::after(kFar);
  const auto denied = [&](const auto& call) {
    EXPECT_EQ(code_of(call), ErrorCode::kPermissionDenied);
  };
  denied([&] { client_->wait_ready(forged, far); });
  denied([&] { client_->truncate(forged, 100, far); });
  denied([&] { client_->free(forged, far); });
  EXPECT_GT(worker_.received().wrong_proofs, 0);
  attend(victim);
  commit(victim);
  EXPECT_EQ(victim.length, 201);
  expect_refused(forged);
  commit(victim);
}

INSTANTIATE_TEST_SUITE_P(
    All, ForgedHandleOf,
    testing::Values(Forgery{"Token", [](SequenceHandle& handle) { handle.token = {}; }},
                    Forgery{"ABitOfTheToken",
                            [](SequenceHandle& handle) { handle.token.back() ^= 1; }},
                    Forgery{"Id", [](SequenceHandle& handle) { handle.token = test::token_of(8); }},
                    Forgery{"Epoch",
                            [](SequenceHandle& handle) {
                              handle.token = {};
                              handle.epoch = 9;
                            }},
                    Forgery{"Length",
                            [](SequenceHandle& handle) {
                              handle.token = {};
                              handle.prompt_tokens = handle.length = 100;
                              handle.extents = {{0, 100, 0}};
                            }}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(ForgedHandle, OfACallOnManyIsRefusedAlone) {
  SequenceHandle victim = sequence(7), forged = victim, mine = sequence(8);
  forged.token = {};
  attend(victim);
  const std::vector<SequenceHandle*> all = {&mine, &forged, &victim};
  const auto failed_of = [](const auto& call) {
    std::vector<std::size_t> failed;
    try {
      call();
    } catch (const ItemsError& error) {
      for (const ItemFailure& item : error.failed()) failed.push_back(item.index);
    }
    return failed;
  };
  EXPECT_EQ(failed_of([&] {
              client_->commit(all, std::vector<std::int32_t>{1, 1, 1});
            }),
            (std::vector<std::size_t>{1}));
  std::vector<float> x, y, z;
  const std::vector<LayerItem> items = {item(mine, x), item(forged, y), item(victim, z)};
  EXPECT_EQ(failed_of([&] { client_->attend(items, 0); }), (std::vector<std::size_t>{1}));
  EXPECT_THAT(y, testing::Each(-1));
  EXPECT_THAT(z, testing::Each(7));
  const std::vector<std::byte> rows(kSmallRowBytes);
  const std::vector<PromptRows> parts = {
      {&mine, 0, 0, rows}, {&forged, 0, 0, rows}, {&victim, 0, 0, rows}};
  EXPECT_EQ(failed_of([&] { client_->push_rows(parts); }), (std::vector<std::size_t>{1}));
}

TEST_F(ForgedHandle, WaitsForTheJudgementOfTheRightOne) {
  worker_.on_prove = [](const wire::Prove&) { return false; };
  SequenceHandle mine = sequence(8), victim = sequence(7), forged = victim;
  forged.token = {};
  attend(mine);
  std::vector<float> output;
  const LayerItem one = item(victim, output);
  worker_.on_round = [](const wire::LayerRequest&, auto) {
    return std::optional<FakeWorker::RoundAnswer>();
  };
  auto owner = std::async(std::launch::async, [&] {
    return code_of([&] { client_->attend(std::span(&one, 1), 0, Deadline::after(kFar)); });
  });
  const auto asked = worker_.wait_until([](const auto& r) { return r.rounds.size() == 2; });
  auto forger = std::async(std::launch::async, [&] {
    return code_of([&] { client_->truncate(forged, 100, Deadline::after(kFar)); });
  });
  while (forger.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    worker_.judge();
  }
  EXPECT_EQ(forger.get(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(served(), 2U);
  FakeWorker::RoundAnswer answer;
  answer.reply.request = asked.rounds[1].request;
  answer.reply.items = {ErrorCode::kOk};
  answer.payload.resize(test::kSmallOutput * sizeof(float));
  worker_.send(answer);
  EXPECT_EQ(owner.get(), ErrorCode::kOk);
}

TEST_F(ForgedHandle, KeepsTheRightOneWaitingForItsJudgementAlone) {
  SequenceHandle mine = sequence(8), victim = sequence(7), forged = victim;
  forged.token = {};
  attend(mine);
  worker_.on_prove = [](const wire::Prove&) { return false; };
  auto forger = std::async(std::launch::async, [&] {
    return code_of([&] { client_->truncate(forged, 100, Deadline::after(kFar)); });
  });
  worker_.wait_until([](const auto& r) { return r.proofs.size() == 1; });
  auto owner = std::async(std::launch::async, [&] {
    return code_of([&] { client_->truncate(victim, 100, Deadline::after(kFar)); });
  });
  EXPECT_EQ(forger.get(), ErrorCode::kPermissionDenied);  // by the worker
  while (owner.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    worker_.judge();
  }
  EXPECT_EQ(owner.get(), ErrorCode::kOk);
  EXPECT_EQ(victim.length, 100);
}

TEST_F(ForgedHandle, IsFoundOutOnAConnectionThatHasServedAsManyAsItRemembers) {
  SequenceHandle victim = sequence(7), forged = victim;
  forged.token = {};
  attend(victim);
  std::vector<SequenceHandle> many;
  for (std::uint64_t id = 100; many.size() < ProvenSequences::kMost; ++id) {
    many.push_back(sequence(id));
  }
  std::vector<const SequenceHandle*> all;
  all.reserve(many.size());
  for (const SequenceHandle& one : many) all.push_back(&one);
  // Not all in one call: on a slow machine the last messages would wait longer for the worker to
  // check the proofs before them than a transport lets a message wait.
  constexpr std::size_t kOfACall = 4096;
  for (std::size_t i = 0; i < all.size(); i += kOfACall) {
    client_->wait_ready(std::span(all).subspan(i, kOfACall), Deadline::after(kFar));
  }
  EXPECT_EQ(worker_.received().hellos.size(), 1U);
  const std::size_t before = served();
  expect_error(ErrorCode::kPermissionDenied, "sequence 7", [&] { client_->adopt(forged); });
  SequenceHandle mine = sequence(8);
  attend(mine);  // on a connection of its own, which knows nothing of the victim yet
  EXPECT_EQ(worker_.received().hellos.size(), 2U);
  expect_error(ErrorCode::kPermissionDenied, "not the token",
               [&] { client_->truncate(forged, 100, Deadline::after(kFar)); });
  EXPECT_EQ(served(), before + 2);
  attend(victim);
}

TEST_F(ForgedHandle, NamesNoWorkersButTheTiers) {
  SequenceHandle elsewhere = sequence(7);
  FakeWorker stranger;
  elsewhere.addresses.push_back(stranger.address());
  const auto adopt = [&] { client_->adopt(elsewhere); };
  expect_error(ErrorCode::kPermissionDenied, "sequence 7: no worker of this tier has the address",
               adopt);
  EXPECT_EQ(control_->asked, 1);
  control_->listed.push_back(stranger.address());  // a pool that has just registered
  adopt();
  EXPECT_EQ(control_->asked, 2);
  elsewhere.addresses.emplace_back("tcp://127.0.0.1:1");
  control_->down = true;
  EXPECT_EQ(code_of(adopt), ErrorCode::kUnavailable);
}

TEST_F(ForgedHandle, IsToldFromOthersWithoutTheControlPlane) {
  FakeWorker of_another_pool;
  control_->listed.push_back(of_another_pool.address());
  control_->admitted = sequence(8);
  (void)client_->admit({.prompt_tokens = 1, .max_new_tokens = 1, .idempotency_key = {}});
  (void)client_->admit({.prompt_tokens = 1, .max_new_tokens = 1, .idempotency_key = {}});
  EXPECT_EQ(control_->asked, 1) << "once, for the workers that were new";
  control_->down = true;
  SequenceHandle handed = sequence(7);
  handed.addresses = {of_another_pool.address()};
  client_->adopt(handed);
  handed.addresses = {"tcp://127.0.0.1:1"};
  EXPECT_EQ(code_of([&] { client_->adopt(handed); }), ErrorCode::kUnavailable);
  client_->adopt_trusted(handed);
}

}  // namespace
}  // namespace tributary
