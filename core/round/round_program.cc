#include "core/round/round_program.h"

#include <algorithm>
#include <array>

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

}  // namespace

std::span<const RoundProgram::Stage> RoundProgram::stages() noexcept {
  using Program = RoundProgram;
  static constexpr std::array kStages{
      Stage{.phase = Phase::kProject, .client = &Program::write_tokens},
      Stage{.phase = Phase::kQueryExchange,
            .planned = &Program::tokens_travel,
            .add_calls = &Program::add_gather,
            .exchange = &Program::exchange_tokens},
      Stage{.phase = Phase::kAttend, .add_calls = &Program::add_attend, .kind = &most_tokens},
      Stage{.phase = Phase::kPartialExchange,
            .planned = &Program::states_travel,
            .exchange = &Program::exchange_states},
      Stage{.phase = Phase::kCombine, .add_calls = &Program::add_combine},
  };
  static_assert(kStages.size() < Backend::kMarks, "a mark before the first, and one after each");
  return kStages;
}

RoundProgram::RoundProgram(const AttentionShape& shape, Backend& backend,
                           Communicator& communicator, Cache& cache)
    : shape_(shape),
      backend_(backend),
      communicator_(communicator),
      cache_(cache),
      tokens_(backend),
      outgoing_tokens_(backend),
      states_(backend) {}

void RoundProgram::reserve(const RankPlan& plan) {
  const std::size_t token = shape_.token_record_bytes();
  tokens_.reserve(scaled(plan.total_tokens(), token));
  outgoing_tokens_.reserve(plan.token_send_index.size() * token);
  states_.reserve(scaled(plan.total_states(), shape_.state_shape().record_bytes()));
}

void RoundProgram::trim(Deadline::Clock::time_point now) {
  tokens_.trim(now);
  outgoing_tokens_.trim(now);
  states_.trim(now);
}

bool RoundProgram::planned(const Stage& stage, const RankPlan& plan) const {
  return stage.planned == nullptr || (this->*stage.planned)(plan);
}

void RoundProgram::client_part(const Stage& stage, const RankPlan& plan, Layers item_layer,
                               PoolClient& client) const {
  if (!planned(stage, plan) || stage.client == nullptr) return;
  (this->*stage.client)(plan, item_layer, client);
}

std::span<const Call> RoundProgram::calls(const Stage& stage, const RankPlan& plan,
                                          Layers item_layer) {
  calls_.clear();
  if (planned(stage, plan) && stage.add_calls != nullptr) {
    (this->*stage.add_calls)(plan, item_layer);
  }
  return calls_;
}

Status RoundProgram::exchange(const Stage& stage, const RankPlan& plan, Deadline deadline) {
  if (!planned(stage, plan) || stage.exchange == nullptr) return {};
  return (this->*stage.exchange)(plan, deadline);
}

void RoundProgram::write_tokens(const RankPlan& plan, Layers item_layer, PoolClient& client) const {
  if (plan.homed.empty()) return;
  client.write_tokens(plan.homed, item_layer, tokens_.data(), shape_.token_record_bytes());
}

/// Gathers the records of an all-to-all, grouped by receiver.
void RoundProgram::add_gather(const RankPlan& plan, Layers /*item_layer*/) {
  if (plan.token_send_index.empty()) return;
  calls_.emplace_back(GatherArgs{.index = plan.token_send_index,
                                 .src = tokens_.data(),
                                 .dst = outgoing_tokens_.data(),
                                 .record_bytes = shape_.token_record_bytes()});
}

/// Adds a rank's calls between the two exchanges: appends, leaves and their merges. The same calls
/// come at every layer, and at most steps, with other pages and rows.
void RoundProgram::add_attend(const RankPlan& plan, Layers item_layer) {
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

AttendArgs RoundProgram::attend_call(const RankPlan& plan, Layers item_layer) const {
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

void RoundProgram::add_combine(const RankPlan& plan, Layers /*item_layer*/) {
  const MergeArgs merge = merges(plan.home_merges);
  if (!merge.empty()) calls_.emplace_back(merge);
}

MergeArgs RoundProgram::merges(const MergeSchedule& schedule) {
  merge_ops_.clear();
  for (const std::vector<MergeOp>& ops : schedule.levels()) {
    merge_ops_.insert(merge_ops_.end(), ops.begin(), ops.end());
  }
  return {.ops = merge_ops_,
          .shape = shape_.state_shape(),
          .states = states_.as<float>(),
          .levels = merge_ops_.empty() ? 1 : merge_ops_.back().level + 1};
}

Status RoundProgram::exchange_tokens(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.token_record_bytes();
  to_bytes(plan.token_send_counts, record, send_bytes_);
  to_bytes(plan.token_recv_counts, record, recv_bytes_);
  const std::span received(tokens_.data() + scaled(plan.local_tokens, record),
                           scaled(plan.received_tokens, record));
  if (plan.exchange == Exchange::kAllGather) {
    const std::size_t own = recv_bytes_[static_cast<std::size_t>(communicator_.rank())];
    return transfer({tokens_.data(), own}, received, plan, deadline);
  }
  return transfer({outgoing_tokens_.data(), plan.token_send_index.size() * record}, received, plan,
                  deadline);
}

Status RoundProgram::exchange_states(const RankPlan& plan, Deadline deadline) {
  const std::size_t record = shape_.state_shape().record_bytes();
  to_bytes(plan.state_send_counts, record, send_bytes_);
  to_bytes(plan.state_recv_counts, record, recv_bytes_);
  std::byte* base = states_.data();
  return transfer({base + scaled(plan.send_begin(), record), scaled(plan.sent_states, record)},
                  {base + scaled(plan.recv_begin(), record), scaled(plan.received_states, record)},
                  plan, deadline);
}

/// `send` is grouped by receiver; for an all-gather it is this rank's one block.
Status RoundProgram::transfer(std::span<const std::byte> send, std::span<std::byte> recv,
                              const RankPlan& plan, Deadline deadline) {
  const bool gathers = plan.exchange == Exchange::kAllGather;
  const auto kind = gathers ? CollectiveKind::kAllGather : CollectiveKind::kAllToAll;
  const std::uint64_t before = communicator_.traffic()[kind];
  Status status = gathers
                      ? communicator_.all_gather(send, recv, recv_bytes_, deadline)
                      : communicator_.all_to_all(send, send_bytes_, recv, recv_bytes_, deadline);
  exchanged_bytes_ += communicator_.traffic()[kind] - before;
  return status;
}

}  // namespace tributary
