// A client of a simulated tier: decodes sequences of made-up rows, and knows what each answer must
// be.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "core/interface/clock.h"
#include "deploy/service/client/tier_client.h"
#include "tests/deploy/local/simulation/order_watch.h"
#include "tests/dice.h"

namespace tributary::test {

class SimulatedClient {
 public:
  struct Tier {
    Clock& clock;
    Dice& dice;
    const OrderWatch& orders;
    /// Whether worker 0 was killed: calls may say that the pool is lost from then on.
    std::function<bool()> broken;
    /// How many other workers were killed.
    std::function<int()> lost_workers;
    /// Whether `orders` has all: worker 0 alone sends itself none.
    std::function<bool()> watched;
    /// Into the digest of the run.
    std::function<void(std::uint64_t)> note;
    /// A call returns so long after its deadline at the latest.
    Duration grace;
  };
  SimulatedClient(Tier tier, TierClient& client) : tier_(std::move(tier)), client_(client) {}

  /// Takes `actions` actions, or stops where the pool is lost. Its sequences end with it.
  void run(int actions);
  [[nodiscard]] int calls() const noexcept { return calls_; }
  /// Of its prompts, that were there at admission.
  [[nodiscard]] std::int64_t present_tokens() const noexcept { return present_tokens_; }
  [[nodiscard]] int forks() const noexcept { return forks_; }
  /// Rows of a layer that it pushed again since they were lost with a worker.
  [[nodiscard]] std::int64_t rows_again() const noexcept { return rows_again_; }

 private:
  /// Rows and queries of one position of one layer.
  using Values = std::vector<float>;
  struct Held {
    SequenceHandle handle;
    std::vector<std::vector<Values>> rows = {};  // [layer][position]
    Prefix prefix = {};                          // names of its full blocks
    /// A call of the open step, or of one before it, was given up: until it has ended, the pool may
    /// refuse others.
    bool given_up = false;
    bool recovered = false;  // since its last step began; another epoch has ended that
    bool gone = false;       // given up: it found no room
  };

  [[nodiscard]] Status call(const char* what, Duration patience,
                            const std::function<void(Deadline)>& work, bool may_be_refused = false);
  /// The same call until it is answered: a fault ends it at its deadline, and may do so again, and
  /// `held`, if there is one, may have lost a worker.
  bool insist(Held* held, const char* what, const std::function<void(Deadline)>& work,
              bool may_be_refused = false);
  void pass(Duration duration);
  [[nodiscard]] Values draw(std::size_t count);

  [[nodiscard]] static Values row_of(int layer, std::int64_t position, std::size_t width);
  void name_blocks(Held& held, std::int64_t tokens, std::int64_t common);

  void act();
  void start();
  void fork(Held& parent);
  [[nodiscard]] bool admit(Held& held, const AdmitRequest& wanted);
  void fill(Held held);
  void give_up(const Held& held);
  /// Pushes the rows again that went with a worker.
  void recover(Held& held);
  void step(Held& held);
  [[nodiscard]] bool attend(Held& held, int layer, std::int32_t tokens);
  void check_output(const Held& held, int layer, std::span<const float> query,
                    std::span<const float> output, std::int64_t position) const;
  /// What comes back is what was acknowledged, bit for bit.
  void pull(Held& held);
  void truncate(Held& held);
  void extend(Held& held);
  void leave(std::size_t index);
  /// Nothing acknowledged is lost: what the leader says of the sequence.
  void check_leader(Held& held);
  /// The same: what the workers know when they have run an item of it.
  void check_workers(const Held& held) const;

  Tier tier_;
  TierClient& client_;
  std::vector<Held> held_;
  Held last_;          // one that has ended: its rows and the names of its blocks
  bool lost_ = false;  // the pool
  int calls_ = 0;
  int forks_ = 0;
  std::int64_t present_tokens_ = 0;
  std::int64_t rows_again_ = 0;
};

}  // namespace tributary::test
