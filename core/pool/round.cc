#include "core/pool/round.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace tributary {
namespace {

/// For a device to end what was enqueued behind a collective that was given up: a round's kernels
/// take milliseconds, and the peers, who were told before, do not wait for this.
constexpr auto kDrainTimeout = std::chrono::seconds(10);

/// Kinds of rounds that follow each other in any order: with and without new rows, some numbers of
/// new tokens, some heights of trees.
constexpr std::size_t kRecordings = 32;

/// Runs this rank's own work unless it failed before; keeps the first failure.
template <typename Work>
void attempt(Status& failure, const Work& work) {
  if (failure.ok()) failure = status_of(work);
}

void to_bytes(const std::vector<std::int64_t>& records, std::size_t record_bytes,
              std::vector<std::size_t>& bytes) {
  bytes.resize(records.size());
  std::transform(records.begin(), records.end(), bytes.begin(), [record_bytes](std::int64_t count) {
    return static_cast<std::size_t>(count) * record_bytes;
  });
}

std::size_t scaled(std::int64_t records, std::size_t record_bytes) {
  return static_cast<std::size_t>(records) * record_bytes;
}

}  // namespace

RoundExecutor::RoundExecutor(const AttentionShape& shape, Backend& backend,
                             Communicator& communicator, Cache& cache)
    : shape_(shape),
      backend_(backend),
      communicator_(communicator),
      cache_(cache),
      tokens_(backend),
      outgoing_tokens_(backend),
      states_(backend),
      recorded_(backend, kRecordings) {}

void RoundExecutor::trim(Deadline::Clock::time_point now) {
  tokens_.trim(now);
  outgoing_tokens_.trim(now);
  states_.trim(now);
}

void RoundExecutor::reserve(const RankPlan& plan) {
  const std::size_t token_bytes = shape_.token_record_bytes();
  tokens_.reserve(scaled(plan.total_tokens(), token_bytes));
  outgoing_tokens_.reserve(static_cast<std::size_t>(plan.token_send_index.size()) * token_bytes);
  states_.reserve(scaled(plan.total_states(), shape_.state_shape().record_bytes()));
}

Status RoundExecutor::run(const RankPlan& plan, std::span<const std::int32_t> item_layer,
                          PoolClient& client, Deadline deadline, Status& failure,
                          PhaseTimes& times) {
  PhaseTimes own{};
  Status status;
  const Status thrown =
      status_of([&] { status = execute(plan, item_layer, client, deadline, failure, own); });
  if (!thrown.ok()) {
    communicator_.poison(thrown);
    status = thrown;
  }
  if (!status.ok()) {
    // The communicator has given up its collectives, so that a stream comes to what lies behind
    // them, which still writes into the arenas. The failure to tell is the communicator's.
    (void)status_of([&] { backend_.synchronize(Deadline::after(kDrainTimeout)); });
  } else if (failure.ok()) {
    failure = status_of([&] { take_device_times(own); });
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) times[phase] += own[phase];
  return status;
}

/// Throws where the rank cannot enter the collectives: that ends the communicator.
Status RoundExecutor::execute(const RankPlan& plan, std::span<const std::int32_t> item_layer,
                              PoolClient& client, Deadline deadline, Status& failure,
                              PhaseTimes& times) {
  reserve(plan);
  ended_.clear();
  if (communicator_.on_stream()) attempt(failure, [&] { backend_.mark(0); });
  {
    const PhaseTimer timer(times, Phase::kProject);
    attempt(failure, [&] {
      if (plan.homed.empty()) return;
      client.write_tokens(plan.homed, item_layer, tokens_.data(), shape_.token_record_bytes());
      synchronize_unless_ordered(deadline);
    });
    end_phase(Phase::kProject, failure);
  }
  if (plan.tokens_travel) {
    const PhaseTimer timer(times, Phase::kQueryExchange);
    attempt(failure, [&] {
      if (plan.exchange != Exchange::kAllToAll) return;
      gather_tokens(plan);
      synchronize_unless_ordered(deadline);
    });
    Status status = exchange_tokens(plan, deadline);
    if (!status.ok()) return status;
    end_phase(Phase::kQueryExchange, failure);
  }
  {
    const PhaseTimer timer(times, Phase::kAttend);
    attempt(failure, [&] {
      attend(plan, item_layer);
      synchronize_unless_ordered(deadline);
    });
    end_phase(Phase::kAttend, failure);
  }
  if (plan.states_travel) {
    const PhaseTimer timer(times, Phase::kPartialExchange);
    Status status = exchange_states(plan, deadline);
    if (!status.ok()) return status;
    end_phase(Phase::kPartialExchange, failure);
  }
  const PhaseTimer timer(times, Phase::kCombine);
  attempt(failure, [&] { combine(plan.home_merges); });
  end_phase(Phase::kCombine, failure);
  Status status = communicator_.complete(deadline);
  if (!status.ok()) return status;
  // Also after a failure: the work before it uses buffers that the next round may replace.
  const Status waited = status_of([&] { backend_.synchronize(deadline); });
  if (failure.ok()) failure = waited;
  return {};
}

/// What a communicator reads must be there when it is called, unless the stream sees to that.
void RoundExecutor::synchronize_unless_ordered(Deadline deadline) {
  if (!communicator_.on_stream()) backend_.synchronize(deadline);
}

/// The host does not wait at the end of a phase on a stream: there the device has to tell.
void RoundExecutor::end_phase(Phase phase, Status& failure) {
  if (!communicator_.on_stream()) return;
  attempt(failure, [&] {
    ended_.push_back(phase);
    backend_.mark(static_cast<int>(ended_.size()));
  });
}

void RoundExecutor::take_device_times(PhaseTimes& times) {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    const int mark = static_cast<int>(i);
    const std::optional<double> taken = backend_.microseconds_between(mark, mark + 1);
    if (taken) times[static_cast<std::size_t>(ended_[i])] = *taken;
  }
}

/// `send` is grouped by receiver, or for an all-gather this rank's one block.
Status RoundExecutor::exchange(std::span<const std::byte> send, std::span<std::byte> recv,
                               const RankPlan& plan, Deadline deadline) {
  const Traffic before = communicator_.traffic();
  Status status = plan.exchange == Exchange::kAllGather
                      ? communicator_.all_gather(send, recv, recv_bytes_, deadline)
                      : communicator_.all_to_all(send, send_bytes_, recv, recv_bytes_, deadline);
  const Traffic& after = communicator_.traffic();
  exchanged_bytes_ += after.all_gather_bytes - before.all_gather_bytes;
  exchanged_bytes_ += after.all_to_all_bytes - before.all_to_all_bytes;
  return status;
}

Status RoundExecutor::exchange_tokens(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.token_record_bytes();
  to_bytes(plan.token_send_counts, record, send_bytes_);
  to_bytes(plan.token_recv_counts, record, recv_bytes_);
  const std::span received(tokens_.data() + scaled(plan.local_tokens, record),
                           scaled(plan.received_tokens, record));
  if (plan.exchange == Exchange::kAllGather) {
    const std::size_t own = recv_bytes_[static_cast<std::size_t>(communicator_.rank())];
    return exchange({tokens_.data(), own}, received, plan, deadline);
  }
  return exchange({outgoing_tokens_.data(), plan.token_send_index.size() * record}, received, plan,
                  deadline);
}

Status RoundExecutor::exchange_states(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.state_shape().record_bytes();
  to_bytes(plan.state_send_counts, record, send_bytes_);
  to_bytes(plan.state_recv_counts, record, recv_bytes_);
  std::byte* base = states_.data();
  return exchange({base + scaled(plan.send_begin(), record), scaled(plan.sent_states, record)},
                  {base + scaled(plan.recv_begin(), record), scaled(plan.received_states, record)},
                  plan, deadline);
}

/// Appends, leaves and their merges: what a rank computes between the two exchanges. The same calls
/// come at every layer, and at most steps, with other pages and rows.
void RoundExecutor::attend(const RankPlan& plan, std::span<const std::int32_t> item_layer) {
  if (plan.appends.empty() && plan.tasks.empty()) return;
  const auto most = std::ranges::max_element(plan.tasks, {}, &LeafTask::tokens);
  CallsKey key{key_of(tokens_.data()), plan.appends.empty() ? 0U : 1U,
               most == plan.tasks.end() ? 0U : static_cast<std::uint64_t>(most->tokens)};
  add_merges(plan.local_merges, key);
  recorded_.run(key, [&] { make_attend(plan, item_layer); });
}

void RoundExecutor::make_attend(const RankPlan& plan, std::span<const std::int32_t> item_layer) {
  if (!plan.appends.empty()) {
    backend_.append(cache_, {.tasks = plan.appends,
                             .item_layer = item_layer,
                             .source = tokens_.data() + shape_.query_bytes(),
                             .source_stride_bytes = shape_.token_record_bytes()});
  }
  if (!plan.tasks.empty()) {
    backend_.attend(cache_, {.tasks = plan.tasks,
                             .block_table = plan.block_table,
                             .item_layer = item_layer,
                             .queries = tokens_.data(),
                             .query_stride_bytes = shape_.token_record_bytes(),
                             .query_dtype = shape_.query_dtype,
                             .heads = shape_.heads,
                             .softmax_scale = shape_.softmax_scale,
                             .states = states_.as<float>()});
  }
  merge(plan.local_merges);
}

/// The records of an all-to-all, grouped by receiver.
void RoundExecutor::gather_tokens(const RankPlan& plan) {
  backend_.gather({plan.token_send_index, tokens_.data(), outgoing_tokens_.data(),
                   shape_.token_record_bytes()});
}

void RoundExecutor::combine(const MergeSchedule& schedule) {
  if (std::ranges::all_of(schedule.levels(), &std::vector<MergeOp>::empty)) return;
  CallsKey key{};
  add_merges(schedule, key);
  recorded_.run(key, [&] { merge(schedule); });
}

/// Where states are, and which levels have anything to merge.
void RoundExecutor::add_merges(const MergeSchedule& schedule, CallsKey& key) const {
  key.add(key_of(states_.data()));
  for (const auto& ops : schedule.levels()) key.add(ops.empty() ? 0 : 1);
}

void RoundExecutor::merge(const MergeSchedule& schedule) {
  for (const auto& ops : schedule.levels()) {
    if (!ops.empty()) backend_.merge({ops, shape_.state_shape(), states_.as<float>()});
  }
}

}  // namespace tributary
