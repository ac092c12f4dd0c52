// The control plane is killed at each message of a pool's life, and started again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/deploy/service/control/simulated_tier.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Clients that ask until they have an answer, under one key each, as the client library does; a
/// worker that is emptied, lost and replaced meanwhile.
class KilledAtAMessage {
 public:
  static constexpr int kClients = 4;

  KilledAtAMessage() {
    tier_.add_pool({});
    tier_.pass(milliseconds(10));
    first_ = tier_.messages();
    for (int i = 0; i < kClients; ++i) clients_.push_back({.key = fmt::format("key{}", i)});
  }

  /// Returns how many messages arrived. The control plane is killed at one of them, if at any.
  int run(int number, bool before) {
    tier_.restart_control_at(first_ + number, before);
    for (int step = 0; step < 400; ++step) {
      tier_.pass(milliseconds(1));
      act(step);
      for (Client& client : clients_) ask(client);
    }
    const int messages = tier_.messages() - first_;
    tier_.pass(seconds(5));  // the pool registers, and says which keys it holds
    for (Client& client : clients_) ask(client);
    tier_.pass(milliseconds(10));
    check();
    return messages;
  }

 private:
  struct Client {
    std::string key;
    std::shared_ptr<SimulatedTier::Admission> asked = {};
    int restarts = 0;  // before it asked
    SequenceId id = 0;
  };

  static AdmitRequest request_of(const Client& client) {
    return {10, 10, SpreadPolicy::kAuto, client.key, "secret"};
  }

  void act(int step) {
    TierPool& pool = *tier_.pools.front();
    if (step == 10) drain(true);
    if (step == 14) drain(false);
    if (step == 18) pool.model.lose(1);
    if (step == 20) pool.tell(pool.model.beat());
    if (step == 24) pool.tell(pool.model.take_in(1, kNewAddress));
    if (step == 26) pool.tell(pool.model.beat());
  }
  void drain(bool begins) {
    tier_.control->links.call("a", DrainWorker{0, 1, begins}, tier_.clock.now() + seconds(10),
                              [](const PoolReply&) {});
  }
  /// The connection of who waits ends with the control plane, and it asks the next one.
  void ask(Client& client) {
    const bool admitted =
        client.asked && client.asked->answers > 0 && client.asked->result.status.ok();
    if (admitted) client.id = client.asked->result.sequence.id;
    const bool waits =
        client.asked && client.asked->answers == 0 && client.restarts == tier_.restarts();
    if (client.id != 0 || waits) return;
    client.asked = tier_.admit(request_of(client));
    client.restarts = tier_.restarts();
  }

  void check() {
    const TierPool& pool = *tier_.pools.front();
    ASSERT_TRUE(pool.registered());
    std::set<SequenceId> mine;
    for (Client& client : clients_) {
      ASSERT_NE(client.id, 0) << client.key;
      EXPECT_TRUE(tier_.queried(client.id).ok());
      EXPECT_EQ(tier_.admitted(request_of(client)).sequence.id, client.id) << client.key;
      mine.insert(client.id);
    }
    std::set<SequenceId> held;
    for (const auto& [id, sequence] : pool.model.sequences()) held.insert(id);
    EXPECT_EQ(held, mine) << "one sequence for each key";
    const Pool& known = *tier_.control->registry.find("a");
    EXPECT_EQ(std::set<SequenceId>(known.sequences.begin(), known.sequences.end()), held);
    EXPECT_EQ(known.about.workers.at(1).address, kNewAddress);
    EXPECT_FALSE(known.heartbeat->workers.at(1).lost);
    EXPECT_EQ(tier_.control->admissions.pending(), 0U);
    EXPECT_EQ(tier_.control->links.calls(), 0U);
    EXPECT_EQ(known.pages_asked, 0);
  }

  static constexpr const char* kNewAddress = "tcp://127.0.0.1:6001";
  SimulatedTier tier_;
  int first_ = 0;
  std::vector<Client> clients_;
};

TEST(KilledControl, AnswersNothingTwiceAtWhicheverMessageItIsKilled) {
  const int messages = KilledAtAMessage().run(-1, true);
  ASSERT_GE(messages, 2 * KilledAtAMessage::kClients + 7);
  for (int number = 0; number < messages; ++number) {
    for (const bool before : {true, false}) {
      SCOPED_TRACE(fmt::format("killed {} message {}", before ? "before" : "after", number));
      KilledAtAMessage().run(number, before);
    }
  }
}

}  // namespace
}  // namespace tributary
