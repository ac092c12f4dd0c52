#include "core/pool/pool_worker.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/placement/exchange_load.h"
#include "core/pool/copy_pages.h"
#include "core/pool/gather_all.h"
#include "core/pool/pool_handshake.h"

namespace tributary {
namespace {

/// A rank that was held up hears the others for so long before it ends the pool for their silence.
/// Processes that were stopped together, as a container or a virtual machine is, go on within
/// milliseconds of each other; on a machine with 25 times more work than cores, within a second.
constexpr std::chrono::seconds kHearing{2};

/// How one rank tells the others how the round went for it.
struct Agreement {
  PhaseTimes phase_us{};
  double copy_us = 0;
  std::uint64_t exchanged_bytes = 0;
  std::uint64_t drained_round = 0;
  std::uint64_t canary_checked = 0;
  double canary_error = 0;
  std::uint64_t completed_round = 0;
};

/// A plan is valid for every layer.
bool same_plan(const StepItem& a, const StepItem& b) {
  return a.id == b.id && a.tokens == b.tokens && a.epoch == b.epoch &&
         a.base_length == b.base_length;
}

}  // namespace

Worker::Worker(const WorkerConfig& config, Backend& backend, Communicator& communicator,
               PoolClient& client, IngestTable& ingest, Communicator* exchange,
               OrderChannel* orders, Clock& clock)
    : config_(config),
      backend_(backend),
      communicator_(&communicator),
      exchange_(exchange != nullptr ? exchange : &communicator),
      client_(client),
      ingest_(ingest),
      orders_(orders),
      clock_(clock),
      builder_(communicator.size(), communicator.rank(), config.leaf_tokens) {
  set_up();
}

Worker::~Worker() = default;

/// All ranks come to the handshake, also those that have nothing to offer.
void Worker::set_up() {
  const AttentionShape& a = config_.attention;
  const Status own = status_of([&] {
    check_attention_shape(a);
    check_exchange(backend_, *communicator_, *exchange_);
    table_.emplace(config_.leaf_tokens);
    cache_ = backend_.make_cache({.layers = config_.layers,
                                  .pages = config_.pages,
                                  .kv_lora_rank = a.kv_lora_rank,
                                  .qk_rope_head_dim = a.qk_rope_head_dim,
                                  .row_format = a.row_format});
    executor_ = std::make_unique<RoundExecutor>(a, backend_, *exchange_, *cache_);
  });
  handshake(config_, backend_.name(), own, *communicator_, deadline_in(config_.start_timeout));
}

Deadline Worker::deadline_in(Duration timeout) const {
  return Deadline(clock_.now() + timeout, std::min<Duration>(kHearing, timeout));
}

RoundReport Worker::lead(const Order& order) {
  if (communicator_->rank() != 0 || orders_ == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "worker {} cannot lead: worker 0 does, over a channel",
         communicator_->rank());
  }
  RoundReport report;
  const Status sent = orders_->send(encode_order(order), deadline_in(config_.round_timeout));
  if (!sent.ok()) leave(sent);  // the others have it, or are lost
  perform(order, report);
  return report;
}

RoundReport Worker::follow(const std::function<bool()>& between_orders) {
  if (communicator_->rank() == 0 || orders_ == nullptr) {
    fail(ErrorCode::kFailedPrecondition, "worker {} cannot follow: others do, over a channel",
         communicator_->rank());
  }
  RoundReport report;
  const bool was_broken = communicator_->poisoned() || exchange_->poisoned();
  report.status = orders_->wait(order_bytes_, deadline_in(config_.order_timeout), [&] {
    if (between_orders && between_orders()) orders_->wake();
    if (was_broken) return Status();  // the next order says who goes on
    Status status = communicator_->look_for_failure();
    if (status.ok()) status = exchange_->look_for_failure();
    report.broken = !status.ok();
    return status;
  });
  // Another rank's failure that was found while waiting: this pool does not go on.
  if (report.status.code() == ErrorCode::kWorkerFailed) {
    report.status = {ErrorCode::kCommunicatorPoisoned, report.status.message()};
  }
  Order order;
  if (report.status.ok() && order_bytes_.empty()) {
    report.stop = true;
    leave({ErrorCode::kCommunicatorPoisoned, "the worker has left its pool"});
    return report;
  }
  if (report.status.ok()) {
    report.status = status_of([&] { order = decode_order(order_bytes_); });
  }
  if (report.status.ok()) {
    perform(order, report);
  } else {
    if (report.broken) report.waited_for = waited_for();
    report.generation = generation_;
    leave(report.status);
  }
  return report;
}

std::vector<int> Worker::waited_for() const {
  std::vector<int> ranks = communicator_->waited_for();
  return ranks.empty() ? exchange_->waited_for() : ranks;
}

void Worker::interrupt(int lost, const Status& reason) {
  const std::lock_guard lock(communicators_);
  if (stopping_ || !std::ranges::binary_search(communicator_->members(), lost)) return;
  communicator_->interrupt(reason);
  exchange_->interrupt(reason);
}

RoundReport Worker::perform(const Order& order) {
  RoundReport report;
  perform(order, report);
  return report;
}

void Worker::perform(const Order& order, RoundReport& report) {
  const Deadline deadline = deadline_in(config_.round_timeout);
  report.stop = order.stop;
  if (order.stop) {
    const std::lock_guard lock(communicators_);
    stopping_ = true;
  }
  times_ = {};
  Status outcome;
  const Status own = status_of([&] {
    if (!order.members.empty()) regroup(order);
    executor_->trim(clock_.now());
    if (!std::exchange(has_table_, true) && order.table) {
      begin_with(*order.table);
    } else {
      for (const TableOp& op : order.ops) apply(op, order.round, report);
    }
    drained_round_ = std::min(ingest_.drained_round(), order.round);
    const Time begin = clock_.now();
    copy_us_ = 0;
    if (!order.copies.empty()) {
      Duration took{};
      outcome = copy_pages(order.copies, backend_, *cache_, *communicator_, deadline, clock_,
                           failure_, took);
      copy_us_ = std::chrono::duration<double, std::micro>(took).count();
    }
    if (outcome.ok()) {
      outcome = order.step.empty() ? agree(order.round, deadline, report)
                                   : round(order, deadline, report);
    }
    report.step_us = seconds_between(begin, clock_.now()) * 1e6;
  });
  // Only a table or a plan that does not match the others' fails so.
  if (!own.ok()) leave(own);
  report.status = own.ok() ? outcome : own;
  report.broken = own.ok() && !outcome.ok() && (communicator_->poisoned() || exchange_->poisoned());
  // The pool goes on in another way than after a failure of one rank's own.
  if (report.broken && outcome.code() == ErrorCode::kWorkerFailed) {
    report.status = {ErrorCode::kCommunicatorPoisoned, outcome.message()};
  }
  if (report.broken) {
    report.waited_for = waited_for();
    leave(outcome);
    report.interrupted = order.step;
  }
  report.generation = generation_;
  report.regrouped = !order.members.empty() && !report.broken;
  copies_made_ = order.copies.empty() || report.status.ok();
}

/// Those that it names go on, under the ranks that they have.
void Worker::regroup(const Order& order) {
  const std::span<const std::int32_t> members = order.members;
  if (!std::ranges::binary_search(members, communicator_->rank())) {
    fail(ErrorCode::kPoolLost, "worker {} was given up by its pool, which goes on without it",
         communicator_->rank());
  }
  generation_ = order.generation;
  const bool one = communicator_ == exchange_;
  auto next = communicator_->survivors(members, generation_);
  auto exchange = one ? nullptr : exchange_->survivors(members, generation_);
  const std::lock_guard lock(communicators_);
  survivors_ = std::move(next);
  communicator_ = survivors_.get();
  exchanging_survivors_ = std::move(exchange);
  exchange_ = one ? communicator_ : exchanging_survivors_.get();
  executor_->use(*exchange_);
}

/// This rank cannot follow the others into their collectives any more.
void Worker::leave(const Status& reason) {
  communicator_->poison(reason);
  exchange_->poison(reason);
}

/// This process has come in the place of a lost one, and has no rows.
void Worker::begin_with(std::span<const Sequence> table) {
  table_->restore(table);
  for (const Sequence& sequence : table) {
    ingest_.open(sequence);
    arriving_.insert(sequence.id);
  }
}

void Worker::apply(const TableOp& op, std::uint64_t round, RoundReport& report) {
  const bool comes_again = table_->gives_rows_back(op);
  table_->apply(op);
  const SequenceId id = std::visit(
      [](const auto& change) {
        if constexpr (std::is_same_v<std::decay_t<decltype(change)>, AdmitOp>) {
          return change.sequence.id;
        } else {
          return change.id;
        }
      },
      op);
  if (std::ranges::find(planned_, id, &StepItem::id) != planned_.end()) planned_.clear();
  if (const auto* admit = std::get_if<AdmitOp>(&op)) {
    ingest_.open(admit->sequence);
    arriving_.insert(id);
  }
  if (const auto* moved = std::get_if<HomeOp>(&op)) ingest_.set_home(id, moved->home);
  if (const auto* lost = std::get_if<LoseOp>(&op)) {
    LoseOp rows = *lost;
    std::erase_if(rows.leaves, [&](std::int32_t leaf) {
      return std::int64_t{leaf} * table_->leaf_tokens() >= table_->at(id).length;
    });
    ingest_.lose(rows, round);
    report.rows_changed.push_back(id);
  }
  if (comes_again) {
    report.rows_changed.push_back(id);
    const auto& extend = std::get<ExtendOp>(op);
    if (extend.owner != communicator_->rank()) return;
    ingest_.expect(table_->at(id), extend.leaf);
    arriving_.insert(id);
  }
  if (!std::holds_alternative<FreeOp>(op)) return;
  arriving_.erase(id);
  ingest_.close(id, round);
}

/// Throws where rows of an item have not arrived here.
void Worker::check_rows(std::span<const StepItem> items) {
  for (const StepItem& item : items) {
    if (!arriving_.contains(item.id)) continue;
    const IngestTable::Progress progress = ingest_.progress(item.id);
    if (progress.missing_layer >= 0) {
      fail(ErrorCode::kFailedPrecondition,
           "rows of sequence {} have not arrived: {} of {}, the first missing one is of layer "
           "{}, position {}",
           item.id, progress.rows_total - progress.rows_done, progress.rows_total,
           progress.missing_layer, progress.missing_position);
    }
    arriving_.erase(item.id);
  }
}

/// Throws, on every rank alike, for an order that is not one round. Lists the items' layers.
void Worker::check_round(const Order& order) {
  item_layer_.clear();
  for (const StepItem& item : order.step) {
    item_layer_.push_back(item.layer);
    if (item.layer >= 0 && item.layer < config_.layers) continue;
    fail(ErrorCode::kInvalidArgument, "layer of an item is {}, expected 0 .. {}", item.layer,
         config_.layers - 1);
  }
  const CanaryOrder& canary = order.canary;
  if (canary.item < 0) return;
  if (std::cmp_greater_equal(canary.item, order.step.size()) || canary.head < 0 ||
      canary.head >= config_.attention.heads) {
    fail(ErrorCode::kInvalidArgument, "canary of item {}, head {}: {} items of {} heads",
         canary.item, canary.head, order.step.size(), config_.attention.heads);
  }
}

/// Makes the plan of `items`, unless it is at hand.
void Worker::prepare(std::span<const StepItem> items, RoundReport& report) {
  const PhaseTimer timer(times_, Phase::kPlan);
  const int workers = communicator_->size();
  report.plan_reused = std::ranges::equal(items, planned_, same_plan);
  if (!report.plan_reused) {
    planned_.clear();
    build_routing(*table_, items, workers, routing_);
    Exchange exchange = config_.exchange;
    if (exchange == Exchange::kAuto) {
      exchange = choose_exchange(config_.cost_model(), routing_, workers);
    }
    builder_.build(routing_, exchange, plan_);
    volume_ = exchange_volume(routing_, workers, exchange);
    planned_.assign(items.begin(), items.end());
  }
  report.worker_rows = routing_.worker_rows;
  report.exchange = plan_.exchange;
  report.mean_spread =
      static_cast<double>(routing_.spread.size()) / static_cast<double>(routing_.items.size());
}

/// One round, each item at its layer.
Status Worker::round(const Order& order, Deadline deadline, RoundReport& report) {
  const Status good = status_of([&] { check_round(order); });
  if (!good.ok()) {  // the same on every rank: none goes on
    if (failure_.ok()) failure_ = good;
    return agree(order.round, deadline, report);
  }
  if (failure_.ok()) failure_ = status_of([&] { check_rows(order.step); });
  prepare(order.step, report);
  Status status = executor_->run(plan_, item_layer_, client_, deadline, failure_, times_);
  if (!status.ok()) communicator_->poison(status);  // the others need not wait for this rank
  if (status.ok() && order.canary.item >= 0) {
    const CanaryInput input{.shape = config_.attention,
                            .routing = routing_,
                            .plan = plan_,
                            .item_layer = item_layer_,
                            .attended = executor_->attend_call(plan_, item_layer_),
                            .states = executor_->states(),
                            .leaf_tokens = config_.leaf_tokens,
                            .most_rows = config_.canary_rows};
    status = run_canary(order.canary, input, backend_, *communicator_, *cache_, deadline, failure_,
                        canary_);
  }
  if (status.ok()) status = agree(order.round, deadline, report);
  if (!status.ok()) return status;
  const AttentionShape& a = config_.attention;
  const std::uint64_t state_bytes =
      static_cast<std::uint64_t>(volume_.state_records) * a.state_shape().record_bytes();
  ++report.rounds;
  report.planned_bytes +=
      static_cast<std::uint64_t>(volume_.token_records) * a.token_record_bytes() + state_bytes;
  report.state_bytes += state_bytes;
  // The others learn of it at the end of the next order.
  failure_ = status_of([&] { client_.read_states(plan_.homed, item_layer_, executor_->states()); });
  completed_round_ = order.round;
  return {};
}

/// Ends a round: every rank learns whether all succeeded, and rank 0 how long each phase took.
Status Worker::agree(std::uint64_t round, Deadline deadline, RoundReport& report) {
  const Agreement mine{.phase_us = times_,
                       .copy_us = copy_us_,
                       .exchanged_bytes = executor_->exchanged_bytes() - exchanged_before_,
                       .drained_round = drained_round_,
                       .canary_checked = canary_.checked ? 1U : 0U,
                       .canary_error = canary_.error,
                       .completed_round = completed_round_};
  exchanged_before_ = executor_->exchanged_bytes();
  canary_ = {};
  std::vector<RankReport<Agreement>> all;
  Status status = gather_reports(*communicator_, std::exchange(failure_, {}), mine, all, deadline);
  if (!status.ok()) return status;
  report.drained_round = drained_round_;
  report.worker_attend_us.assign(all.size(), 0);
  report.completed_rounds.assign(all.size(), 0);
  report.members = static_cast<int>(communicator_->members().size());
  for (const int member : communicator_->members()) {
    const auto r = static_cast<std::size_t>(member);
    const Agreement& other = all[r].value;
    report.drained_round = std::min(report.drained_round, other.drained_round);
    if (other.canary_checked != 0) {
      report.canary_checked = true;
      report.canary_error = other.canary_error;
    }
    report.copy_us = std::max(report.copy_us, other.copy_us);
    report.exchanged_bytes += other.exchanged_bytes;
    for (std::size_t p = 0; p < kPhases; ++p) {
      report.phase_us[p] = std::max(report.phase_us[p], other.phase_us[p]);
    }
    report.worker_attend_us[r] = other.phase_us[static_cast<std::size_t>(Phase::kAttend)];
    report.completed_rounds[r] = other.completed_round;
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].ok()) continue;
    const Status failure = all[r].status();
    return {ErrorCode::kWorkerFailed,
            fmt::format("worker {} failed in round {}: {}: {}", r, round,
                        error_code_name(failure.code()), failure.message())};
  }
  return {};
}

}  // namespace tributary
