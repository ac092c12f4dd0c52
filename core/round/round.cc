#include "core/round/round.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

namespace tributary {
namespace {

std::size_t scaled(std::int64_t records, std::size_t record_bytes) {
  return static_cast<std::size_t>(records) * record_bytes;
}

void to_bytes(const std::vector<std::int64_t>& records, std::size_t record_bytes,
              std::vector<std::size_t>& bytes) {
  bytes.resize(records.size());
  std::ranges::transform(records, bytes.begin(), [record_bytes](std::int64_t count) {
    return scaled(count, record_bytes);
  });
}

/// A backend may launch other kernels for more new tokens.
std::uint64_t most_tokens(const RankPlan& plan) {
  const auto most = std::ranges::max_element(plan.tasks, {}, &LeafTask::tokens);
  return most == plan.tasks.end() ? 0U : static_cast<std::uint64_t>(most->tokens);
}

/// The time for a device to end the work enqueued behind an abandoned collective: a round's kernels
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

}  // namespace

std::span<const RoundExecutor::Stage> RoundExecutor::stages() noexcept {
  using Round = RoundExecutor;
  static constexpr std::array kStages{
      Stage{.phase = Phase::kProject, .client = &Round::write_tokens},
      Stage{.phase = Phase::kQueryExchange,
            .planned = &RankPlan::tokens_travel,
            .add_calls = &Round::add_gather,
            .exchange = &Round::exchange_tokens},
      Stage{.phase = Phase::kAttend, .add_calls = &Round::add_attend, .kind = &most_tokens},
      Stage{.phase = Phase::kPartialExchange,
            .planned = &RankPlan::states_travel,
            .exchange = &Round::exchange_states},
      Stage{.phase = Phase::kCombine, .add_calls = &Round::add_combine},
  };
  static_assert(kStages.size() < Backend::kMarks, "a mark before the first, and one after each");
  return kStages;
}

RoundExecutor::RoundExecutor(const AttentionShape& shape, Backend& backend,
                             Communicator& communicator, Cache& cache)
    : shape_(shape),
      backend_(backend),
      communicator_(&communicator),
      cache_(cache),
      tokens_(backend),
      outgoing_tokens_(backend),
      states_(backend),
      recorded_(backend, kRecordings) {}

Status RoundExecutor::run(const RankPlan& plan, Layers item_layer, PoolClient& client,
                          Deadline deadline, Status& failure, PhaseTimes& times) {
  PhaseTimes own{};
  Status status;
  const Status thrown =
      status_of([&] { status = execute(plan, item_layer, client, deadline, failure, own); });
  if (!thrown.ok()) {
    communicator_->poison(thrown);
    status = thrown;
  }
  if (!status.ok()) {
    // The communicator has given up its collectives, so the stream reaches the work behind them,
    // which still writes into the arenas. The failure to report is the communicator's.
    (void)status_of([&] { backend_.synchronize(Deadline::after(kDrainTimeout)); });
  } else if (failure.ok()) {
    failure = status_of([&] { take_device_times(own); });
  }
  for (std::size_t phase = 0; phase < kPhases; ++phase) times[phase] += own[phase];
  return status;
}

/// Throws if the rank cannot enter the collectives; that ends the communicator.
Status RoundExecutor::execute(const RankPlan& plan, Layers item_layer, PoolClient& client,
                              Deadline deadline, Status& failure, PhaseTimes& times) {
  reserve(plan);
  ended_.clear();
  if (communicator_->on_stream()) attempt(failure, [&] { backend_.mark(0); });
  for (const Stage& stage : stages()) {
    if (stage.planned != nullptr && !(plan.*stage.planned)) continue;
    const PhaseTimer timer(times, stage.phase);
    attempt(failure, [&] {
      if (stage.client != nullptr) (this->*stage.client)(plan, item_layer, client);
      calls_.clear();
      if (stage.add_calls != nullptr) (this->*stage.add_calls)(plan, item_layer);
      recorded_.run(calls_, stage.kind != nullptr ? stage.kind(plan) : 0);
      synchronize_unless_ordered(deadline);
    });
    if (stage.exchange != nullptr) {
      Status status = (this->*stage.exchange)(plan, deadline);
      if (!status.ok()) return status;
    }
    end_phase(stage.phase, failure);
  }
  const PhaseTimer timer(times, stages().back().phase);
  Status status = communicator_->complete(deadline);
  if (!status.ok()) return status;
  // Also after a failure: the work before it uses buffers that the next round may replace.
  const Status waited = status_of([&] { backend_.synchronize(deadline); });
  if (failure.ok()) failure = waited;
  return {};
}

/// Waits until the communicator's input is there, unless the stream orders the two.
void RoundExecutor::synchronize_unless_ordered(Deadline deadline) {
  if (!communicator_->on_stream()) backend_.synchronize(deadline);
}

/// On a stream the host does not wait at the end of a phase: the device has to tell when it was.
void RoundExecutor::end_phase(Phase phase, Status& failure) {
  if (!communicator_->on_stream()) return;
  attempt(failure, [&] {
    ended_.push_back(phase);
    backend_.mark(static_cast<int>(ended_.size()));
  });
}

/// The device's time of a phase replaces the host's if the device measures it.
void RoundExecutor::take_device_times(PhaseTimes& times) {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    const int mark = static_cast<int>(i);
    const std::optional<double> taken = backend_.microseconds_between(mark, mark + 1);
    if (!taken) continue;
    double& time = times[static_cast<std::size_t>(ended_[i])];
    const bool goes_on = i > 0 && ended_[i - 1] == ended_[i];
    time = (goes_on ? time : 0) + *taken;
  }
}

void RoundExecutor::reserve(const RankPlan& plan) {
  const std::size_t token = shape_.token_record_bytes();
  tokens_.reserve(scaled(plan.total_tokens(), token));
  outgoing_tokens_.reserve(plan.token_send_index.size() * token);
  states_.reserve(scaled(plan.total_states(), shape_.state_shape().record_bytes()));
}

void RoundExecutor::trim(Time now) {
  tokens_.trim(now);
  outgoing_tokens_.trim(now);
  states_.trim(now);
}

void RoundExecutor::write_tokens(const RankPlan& plan, Layers item_layer,
                                 PoolClient& client) const {
  if (plan.homed.empty()) return;
  client.write_tokens(plan.homed, item_layer, tokens_.data(), shape_.token_record_bytes());
}

/// Gathers the records of an all-to-all, grouped by receiver.
void RoundExecutor::add_gather(const RankPlan& plan, Layers /*item_layer*/) {
  if (plan.token_send_index.empty()) return;
  calls_.emplace_back(GatherArgs{.index = plan.token_send_index,
                                 .src = tokens_.data(),
                                 .dst = outgoing_tokens_.data(),
                                 .record_bytes = shape_.token_record_bytes()});
}

/// Adds a rank's calls between the two exchanges: appends, leaves and their merges. The same calls
/// come at every layer, and at most steps, with other pages and rows.
void RoundExecutor::add_attend(const RankPlan& plan, Layers item_layer) {
  if (!plan.appends.empty()) {
    calls_.emplace_back(AppendArgs{.cache = &cache_,
                                   .tasks = plan.appends,
                                   .item_layer = item_layer,
                                   .source = tokens_.data() + shape_.query_bytes(),
                                   .source_stride_bytes = shape_.token_record_bytes()});
  }
  if (plan.tasks.empty()) return;  // no leaves, no merges
  const AttendArgs attend = attend_call(plan, item_layer);
  const MergeArgs merge = merges(plan.local_merges);
  if (merge.empty()) {
    calls_.emplace_back(attend);
  } else {
    calls_.emplace_back(AttendMergeArgs{attend, merge});
  }
}

AttendArgs RoundExecutor::attend_call(const RankPlan& plan, Layers item_layer) const {
  SelectedRows selected;
  if (shape_.topk > 0) {
    selected = {
        .data = reinterpret_cast<const std::int32_t*>(tokens_.data() + shape_.selected_offset()),
        .stride_bytes = shape_.token_record_bytes(),
        .most = shape_.topk};
  }
  return {.cache = &cache_,
          .tasks = plan.tasks,
          .block_table = plan.block_table,
          .item_layer = item_layer,
          .queries = tokens_.data(),
          .query_stride_bytes = shape_.token_record_bytes(),
          .query_dtype = shape_.query_dtype,
          .heads = shape_.heads,
          .softmax_scale = shape_.softmax_scale,
          .states = states_.as<float>(),
          .selected = selected};
}

void RoundExecutor::add_combine(const RankPlan& plan, Layers /*item_layer*/) {
  const MergeArgs merge = merges(plan.home_merges);
  if (!merge.empty()) calls_.emplace_back(merge);
}

MergeArgs RoundExecutor::merges(const MergeSchedule& schedule) {
  merge_ops_.clear();
  for (const std::vector<MergeOp>& ops : schedule.levels()) {
    merge_ops_.insert(merge_ops_.end(), ops.begin(), ops.end());
  }
  return {.ops = merge_ops_,
          .shape = shape_.state_shape(),
          .states = states_.as<float>(),
          .levels = merge_ops_.empty() ? 1 : merge_ops_.back().level + 1};
}

Status RoundExecutor::exchange_tokens(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.token_record_bytes();
  to_bytes(plan.token_send_counts, record, send_bytes_);
  to_bytes(plan.token_recv_counts, record, recv_bytes_);
  const std::span received(tokens_.data() + scaled(plan.local_tokens, record),
                           scaled(plan.received_tokens, record));
  if (plan.exchange == Exchange::kAllGather) {
    const std::size_t own = recv_bytes_[static_cast<std::size_t>(communicator_->rank())];
    return transfer({tokens_.data(), own}, received, plan, deadline);
  }
  return transfer({outgoing_tokens_.data(), plan.token_send_index.size() * record}, received, plan,
                  deadline);
}

Status RoundExecutor::exchange_states(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.state_shape().record_bytes();
  to_bytes(plan.state_send_counts, record, send_bytes_);
  to_bytes(plan.state_recv_counts, record, recv_bytes_);
  std::byte* base = states_.data();
  return transfer({base + scaled(plan.send_begin(), record), scaled(plan.sent_states, record)},
                  {base + scaled(plan.recv_begin(), record), scaled(plan.received_states, record)},
                  plan, deadline);
}

/// `send` is grouped by receiver; for an all-gather it is this rank's one block.
Status RoundExecutor::transfer(std::span<const std::byte> send, std::span<std::byte> recv,
                               const RankPlan& plan, Deadline deadline) {
  const bool gathers = plan.exchange == Exchange::kAllGather;
  const auto kind = gathers ? CollectiveKind::kAllGather : CollectiveKind::kAllToAll;
  const std::uint64_t before = communicator_->traffic()[kind];
  Status status = gathers
                      ? communicator_->all_gather(send, recv, recv_bytes_, deadline)
                      : communicator_->all_to_all(send, send_bytes_, recv, recv_bytes_, deadline);
  exchanged_bytes_ += communicator_->traffic()[kind] - before;
  return status;
}

}  // namespace tributary
