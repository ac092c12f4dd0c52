#include "tests/deploy/local/simulation/seeded_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "comm/mesh/mesh_messages.h"
#include "core/base/hash.h"
#include "deploy/runtime/run_workers.h"
#include "deploy/service/protocol/dispatch_message.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary::test {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr Time kOutset{std::chrono::hours(1)};
constexpr int kActions = 260;  // of all clients
constexpr int kLayers = 2;
/// The longest that a message is under way, or a thread or a process is held up.
constexpr Duration kLongestFault = milliseconds(700);
/// A call that ends at its deadline goes through a few threads, each of which may be held up.
constexpr Duration kGrace = 4 * kLongestFault;

MlaShape tiny_shape() {
  return {.name = "tiny",
          .heads = 2,
          .kv_lora_rank = 16,
          .qk_rope_head_dim = 8,
          .layers = kLayers,
          .softmax_scale = 0.25};
}

/// One seed in four loses worker 0, which leads; two lose other workers.
int draw_victims(std::uint64_t seed, int workers, Dice& dice) {
  return seed % 2 == 1 ? 0 : static_cast<int>(dice.between(1, 2 * (workers - 1)));
}

}  // namespace

SeededTier::SeededTier(std::uint64_t seed)
    : dice_(seed),
      clock_(seed, kOutset, [this](int process) { return draw_hold_up(process); }),
      network_(clock_,
               {.delay = [this] { return draw_delay(); },
                .header =
                    [this](int process, std::uint16_t type, std::span<const std::byte> header) {
                      ++events_;
                      note_message(process, type, header);
                    },
                .payload =
                    [this](int process, std::uint16_t type, std::span<const std::byte> header,
                           std::span<const std::byte> payload) {
                      note_message(process, type, payload);
                      static_cast<void>(wire::dispatch<wire::PoolOrder>(
                          static_cast<wire::MessageType>(type), header,
                          [&](const wire::PoolOrder&) { take_order(process, payload); }));
                    }}),
      workers_(static_cast<int>(dice_.between(2, 4))),
      leader_dies_(seed % 4 == 3),
      victims_(draw_victims(seed, workers_, dice_)),
      options_(draw_options()),
      control_(clock_),
      orders_(workers_, options_.leaf_tokens),
      process_of_(static_cast<std::size_t>(workers_)),
      ranks_(static_cast<std::size_t>(workers_)),
      clients_(static_cast<std::size_t>(dice_.between(3, 5))) {
  std::iota(process_of_.begin(), process_of_.end(), 1);
}

SeededTier::~SeededTier() = default;

double SeededTier::simulated_seconds() const {
  return seconds_between(kOutset, clock_.now());
}

std::uint64_t SeededTier::digest() const {
  return mix64(digest_ ^ clock_.digest());
}

WorkerOptions SeededTier::draw_options() {
  WorkerOptions options;
  options.name = "simulated";
  options.transport = TransportChoice::kLocal;
  options.backend = "reference";
  options.given_shape = tiny_shape();
  options.row_format = RowFormat::kF32;
  options.query_dtype = DType::kF32;
  options.leaf_tokens = dice_.one_in(2) ? 64 : 128;
  options.kv_gib = static_cast<double>(dice_.between(12, 40)) * kLayers * 64 * 24 * 4 / 0x1p30;
  options.threads = 1;
  options.start_timeout_ms = 60'000;
  options.leader.max_batch = static_cast<int>(dice_.between(1, 8));
  options.leader.lease_ms = 8'000;
  options.leader.canary_interval_ms = 100;
  if (dice_.one_in(2)) options.sequencer.move_bytes_per_s = 1e9;
  return options;
}

Duration SeededTier::draw_hold_up(int process) {
  const auto still = still_until_.find(process);
  if (still != still_until_.end() && clock_.now() < still->second) {
    return still->second - clock_.now();
  }
  if (!calm_ && dice_.one_in(250)) {
    ++faults_;
    return dice_.up_to(kLongestFault);
  }
  return dice_.up_to(microseconds(30));
}

Duration SeededTier::draw_delay() {
  if (!calm_ && dice_.one_in(50)) {
    ++faults_;
    return dice_.up_to(kLongestFault);
  }
  return microseconds(dice_.between(20, 300));
}

void SeededTier::note(std::uint64_t value) {
  digest_ = mix64(digest_ ^ (value + kGoldenGamma));
}

/// What a collective carries may be drawn by the system (the pool's key) or measured.
void SeededTier::note_message(int process, std::uint16_t type, std::span<const std::byte> bytes) {
  note(static_cast<std::uint64_t>(process));
  note(type);
  if (static_cast<mesh::MessageType>(type) == mesh::MessageType::kBlock) return;
  for (const std::byte byte : bytes) note(static_cast<std::uint64_t>(byte));
}

void SeededTier::pass(Duration duration) {
  Condition nothing;
  std::unique_lock lock(mutex_);
  clock_.wait_until(nothing, lock, clock_.now() + duration, [] { return false; });
}

void SeededTier::start(Process& process, int number, std::function<void()> body) {
  clock_.as_process(number, [&] {
    process.thread = clock_.start([this, &process, body = std::move(body)] {
      Status status = status_of(body);
      const std::lock_guard lock(mutex_);
      process.status = std::move(status);
      process.ended = true;
      changed_.notify_all();
    });
  });
}

bool SeededTier::wait_end(const Process& process, Duration limit) {
  std::unique_lock lock(mutex_);
  return clock_.wait_until(changed_, lock, clock_.now() + limit,
                           [&] { return process.ended || process.killed; });
}

/// The first order of a newcomer has the table: its slot is taken.
void SeededTier::take_order(int process, std::span<const std::byte> payload) {
  const auto rank = static_cast<int>(std::ranges::find(process_of_, process) - process_of_.begin());
  const Order order = orders_.take(rank, payload);
  if (!order.table || expected_.erase(rank) == 0) return;
  ++newcomers_;
}

void SeededTier::work(int rank) {
  WorkerEvents events;
  events.log = [](const std::string&) {};
  events.serving = [this](const RegisterPool&) {
    const std::lock_guard lock(mutex_);
    serving_ = true;
    changed_.notify_all();
  };
  const MakeTransport make_transport = network_.of(rank_process(rank));
  const Status end = status_of([&] {
    MeshDoor door;
    MeshConfig mesh = mesh_of(rank);
    if (rank == 0) mesh.door = &door;
    const auto communicator =
        join_mesh(mesh, make_transport, Deadline::after(clock_.now(), seconds(60)), clock_);
    run_worker_of(*communicator, [&](Communicator& all) {
      run_worker(
          options_, {all, rank == 0 ? &door : nullptr}, make_transport, events,
          [this](RegisterPool pool, ControlLinkHandlers handlers) {
            return connect(std::move(pool), std::move(handlers));
          },
          clock_);
    });
  });
  if (rank == 0) control_.lose(end);
  end.throw_if_error();
}

MeshConfig SeededTier::mesh_of(int rank) const {
  MeshConfig config{.rank = rank, .ranks = workers_};
  config.leader = [] { return "local://mesh:1"; };
  config.transport.listen = rank == 0 ? "local://mesh:1" : "local://mesh:0";
  return config;
}

/// The tier's side of the channel, which a killed worker does not take with it.
std::unique_ptr<ControlChannel> SeededTier::connect(RegisterPool pool,
                                                    ControlLinkHandlers handlers) {
  class Line final : public ControlChannel {
   public:
    explicit Line(std::unique_ptr<ControlChannel>& other) : other_(other) {}
    ~Line() override { other_.reset(); }
    void tell(const FromPool& word) override { other_->tell(word); }

   private:
    std::unique_ptr<ControlChannel>& other_;
  };
  request_ = handlers.request;
  ranks_.front().channel = control_.connect(std::move(pool), std::move(handlers));
  return std::make_unique<Line>(ranks_.front().channel);
}

void SeededTier::be_client(int client) {
  const std::shared_ptr<ControlPlane> control(std::shared_ptr<void>(), &control_);
  TierClientConfig config;
  config.waiting = [](const std::string&) {};
  TierClient tier(config, network_.of(client_process(client)), control, clock_);
  SimulatedClient user({.clock = clock_,
                        .dice = dice_,
                        .orders = orders_,
                        .broken = [this] { return broken_; },
                        .lost_workers = [this] { return lost_workers_; },
                        .watched = [this] { return watched(); },
                        .note = [this](std::uint64_t value) { note(value); },
                        .grace = kGrace},
                       tier);
  user.run(kActions / static_cast<int>(clients_.size()));
  events_ += user.calls();
  present_tokens_ += user.present_tokens();
  forks_ += user.forks();
  rows_again_ += user.rows_again();
}

void SeededTier::run() {
  clock_.run([this] {
    for (int rank = 0; rank < workers_; ++rank) {
      start(ranks_[static_cast<std::size_t>(rank)], rank_process(rank),
            [this, rank] { work(rank); });
    }
    {
      std::unique_lock lock(mutex_);
      ASSERT_TRUE(
          clock_.wait_until(changed_, lock, kOutset + seconds(30), [this] { return serving_; }));
    }
    calm_ = false;
    for (std::size_t c = 0; c < clients_.size(); ++c) {
      start(clients_[c], client_process(static_cast<int>(c)),
            [this, c] { be_client(static_cast<int>(c)); });
    }
    weather();
    for (Process& process : clients_)
      process.killed ? process.thread.detach() : process.thread.join();
    for (Process& process : ranks_)
      process.killed ? process.thread.detach() : process.thread.join();
    for (Process& process : dead_) process.killed ? process.thread.detach() : process.thread.join();
    network_.forget_killed();
  });
}

/// Until all clients have ended, and the pool after them.
void SeededTier::weather() {
  const std::int64_t killing_at = dice_.between(1000, 1100);  // events
  bool client_killed = false;
  while (!std::ranges::all_of(clients_, [](const Process& c) { return c.ended || c.killed; })) {
    pass(milliseconds(dice_.between(20, 200)));
    if (clock_.now() > kOutset + std::chrono::hours(1)) FAIL() << "clients do not end";
    if (leader_dies_ && events_ >= killing_at && faults_ >= 50) return kill_leader();
    if (lost_workers_ < victims_ && events_ >= 200 && dice_.one_in(10)) {
      dice_.one_in(3) ? cut_off_worker() : kill_worker();
    }
    if (!leader_dies_ && dice_.one_in(10)) replace_worker();
    check_heartbeat();
    if (dice_.one_in(12)) stand_still();
    if (dice_.one_in(6)) cut();
    if (dice_.one_in(10)) drain();
    if (!std::exchange(client_killed, client_killed || (events_ >= 500 && dice_.one_in(8)))) {
      if (client_killed) kill_client();
    }
  }
  calm_ = true;
  if (draining_) drain();
  wait_for_newcomers();
  check_idle();
  end_pool();
}

void SeededTier::stand_still() {
  const std::int64_t which = dice_.roll(workers_ + std::ssize(clients_));
  const int process = which < workers_ ? rank_process(static_cast<int>(which))
                                       : client_process(static_cast<int>(which) - workers_);
  still_until_[process] = clock_.now() + dice_.up_to(kLongestFault);
  ++faults_;
}

void SeededTier::cut() {
  const auto client = static_cast<int>(dice_.roll(std::ssize(clients_)));
  if (clients_[static_cast<std::size_t>(client)].killed) return;
  if (network_.cut(client_process(client), static_cast<std::size_t>(dice_.roll(1000)))) ++faults_;
}

/// One worker at a time is emptied, for a while.
void SeededTier::drain() {
  const bool begins = !draining_;
  const int worker = begins ? static_cast<int>(dice_.roll(workers_)) : *draining_;
  if (!request_(DrainWorker{.request = 0, .worker = worker, .draining = begins})) return;
  draining_ = begins ? std::optional(worker) : std::nullopt;
}

void SeededTier::kill_client() {
  const auto client = static_cast<std::size_t>(dice_.roll(std::ssize(clients_)));
  if (clients_[client].ended) return;
  clients_[client].killed = true;
  network_.kill(client_process(static_cast<int>(client)));
  ++faults_;
}

void SeededTier::kill_leader() {
  const Time since = clock_.now();
  broken_ = true;
  ++faults_;
  ranks_.front().killed = true;
  network_.kill(rank_process(0));
  ranks_.front().channel.reset();
  control_.lose({ErrorCode::kPoolLost, "its connection has ended"});
  end_broken_pool(since);
}

/// The pool goes on.
void SeededTier::kill_worker() {
  const auto victim = static_cast<std::size_t>(dice_.between(1, workers_ - 1));
  if (ranks_[victim].killed) return;
  ++lost_workers_;
  ++faults_;
  expected_.erase(static_cast<int>(victim));
  ranks_[victim].killed = true;
  network_.kill(rank_process(static_cast<int>(victim)));
}

/// Another process is started for the slot of one that was killed, or has ended when it was cut
/// off.
void SeededTier::replace_worker() {
  replace_worker(static_cast<int>(dice_.between(1, workers_ - 1)));
}

void SeededTier::replace_worker(int rank) {
  Process& old = ranks_[static_cast<std::size_t>(rank)];
  if (!old.killed && !old.ended) return;
  if (!old.killed) check_cut_off(rank);
  dead_.push_back(std::move(old));
  old = {};
  process_of_[static_cast<std::size_t>(rank)] = 100 + static_cast<int>(std::ssize(dead_));
  expected_.insert(rank);
  start(old, rank_process(rank), [this, rank] { work(rank); });
}

void SeededTier::wait_for_newcomers() {
  const Time limit = clock_.now() + seconds(60);
  while (!expected_.empty() && clock_.now() < limit) {
    pass(milliseconds(100));
    for (const int rank : std::set(expected_)) replace_worker(rank);
  }
  for (const int rank : expected_) {
    const Process& late = ranks_[static_cast<std::size_t>(rank)];
    ADD_FAILURE() << "worker " << rank << " did not come in: " << late.status.message();
  }
}

/// One of a worker's connections with the others ends, and all live: the leader closes a slot.
void SeededTier::cut_off_worker() {
  const auto rank = static_cast<std::size_t>(dice_.between(1, workers_ - 1));
  if (ranks_[rank].killed || ranks_[rank].ended) return;
  // Its mesh has the first of its transports.
  if (!network_.cut(rank_process(static_cast<int>(rank)),
                    static_cast<std::size_t>(dice_.roll(1000)))) {
    return;
  }
  ++lost_workers_;
  ++cut_off_;
  ++faults_;
}

void SeededTier::check_heartbeat() {
  const Heartbeat heartbeat = control_.heartbeat();
  ASSERT_EQ(std::ssize(heartbeat.workers), workers_);
  for (const Heartbeat::Worker& worker : heartbeat.workers) {
    EXPECT_GE(worker.pages_used, 0);
    EXPECT_GE(worker.pages_reserved, 0);
    const bool is_empty = worker.pages_used + worker.pages_reserved + worker.homes == 0;
    if (worker.draining && is_empty && watched() && orders_.running() > 0) ++emptied_;
    note(static_cast<std::uint64_t>(worker.pages_used));
  }
}

/// Nobody has a sequence any more: what killed clients had ends with their leases.
void SeededTier::check_idle() {
  pass(milliseconds(options_.leader.lease_ms) + seconds(3));
  EXPECT_TRUE(!watched() || orders_.running() == 0U);
  for (const Heartbeat::Worker& worker : control_.heartbeat().workers) {
    EXPECT_EQ(worker.pages_used, 0) << "worker " << worker.rank;
    EXPECT_EQ(worker.pages_reserved, 0) << "worker " << worker.rank;
  }
}

void SeededTier::end_pool() {
  control_.terminate();
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(wait_end(ranks_[r], milliseconds(options_.leader.drain_timeout_ms) + seconds(5)));
    if (!ranks_[r].killed && !ranks_[r].status.ok()) check_cut_off(static_cast<int>(r));
  }
}

/// One that has ended: it hears that the pool goes on without it, or only that the leader has
/// closed its connection; while it came, that a connection was.
void SeededTier::check_cut_off(int rank) {
  const Status& status = ranks_[static_cast<std::size_t>(rank)].status;
  // Or that it came before the end of the connection of the process that it was.
  if (status.code() == ErrorCode::kAlreadyExists && expected_.contains(rank)) return;
  const bool came = status.code() == ErrorCode::kWorkerFailed && expected_.contains(rank);
  EXPECT_TRUE(came || status.code() == ErrorCode::kPoolLost) << status.message();
  EXPECT_GE(--cut_off_, 0) << "worker " << rank << ": " << status.message();
}

/// Whether somebody else than worker 0 gets orders.
bool SeededTier::watched() {
  Heartbeat heartbeat;
  if (!status_of([&] { heartbeat = control_.heartbeat(); }).ok()) return false;
  for (int rank = 1; rank < workers_; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const bool lost = ranks_[r].killed || heartbeat.workers[r].lost;
    if (!lost && !expected_.contains(rank)) return true;
  }
  return false;
}

/// All others notice, and say so, within the time that they wait for an order at most.
void SeededTier::end_broken_pool(Time since) {
  const Duration limit = 2 * milliseconds(options_.failure_timeout_ms) + 2 * kGrace;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ASSERT_TRUE(wait_end(ranks_[r], since + limit - clock_.now())) << "worker " << r;
    EXPECT_NE(ranks_[r].killed, !ranks_[r].status.ok()) << "worker " << r;
  }
  for (const Process& client : clients_) ASSERT_TRUE(wait_end(client, seconds(120)));
  calm_ = true;
}

}  // namespace tributary::test
