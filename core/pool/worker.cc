#include "core/pool/worker.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "core/pool/handshake.h"

namespace tributary {
namespace {

/// How one rank tells the others how the round went for it.
struct Agreement {
  std::int32_t error = 0;
  PhaseTimes phase_us{};
  std::uint64_t exchanged_bytes = 0;
  std::uint64_t drained_round = 0;
  std::uint64_t canary_checked = 0;
  double canary_error = 0;
  Text message{};
};

/// An order travels as a block of fixed size, and a second one where it is longer.
constexpr std::size_t kFirstBlock = 4096;

Status send_order(Communicator& communicator, std::span<const std::byte> order, Deadline deadline) {
  std::array<std::byte, kFirstBlock> block{};
  const auto size = static_cast<std::uint64_t>(order.size());
  std::memcpy(block.data(), &size, sizeof(size));
  const std::size_t inlined = std::min(order.size(), kFirstBlock - sizeof(size));
  std::copy_n(order.begin(), inlined, block.begin() + sizeof(size));
  Status status = communicator.broadcast(block, 0, deadline);
  if (!status.ok() || inlined == order.size()) return status;
  std::vector<std::byte> rest(order.begin() + static_cast<std::ptrdiff_t>(inlined), order.end());
  return communicator.broadcast(rest, 0, deadline);
}

Status receive_order(Communicator& communicator, std::vector<std::byte>& order, Deadline first,
                     std::chrono::milliseconds rest_timeout) {
  std::array<std::byte, kFirstBlock> block{};
  Status status = communicator.broadcast(block, 0, first);
  if (!status.ok()) return status;
  std::uint64_t size = 0;
  std::memcpy(&size, block.data(), sizeof(size));
  order.resize(size);
  const std::size_t inlined = std::min(order.size(), kFirstBlock - sizeof(size));
  std::copy_n(block.begin() + sizeof(size), inlined, order.begin());
  if (inlined == order.size()) return status;
  return communicator.broadcast(std::span(order).subspan(inlined), 0,
                                Deadline::after(rest_timeout));
}

}  // namespace

Worker::Worker(const WorkerConfig& config, Backend& backend, Communicator& communicator,
               PoolClient& client, Communicator* exchange)
    : config_(config),
      backend_(backend),
      communicator_(communicator),
      exchange_(exchange != nullptr ? *exchange : communicator),
      client_(client),
      builder_(communicator.size(), communicator.rank(), config.leaf_tokens) {
  set_up();
}

Worker::~Worker() = default;

/// All ranks come to the handshake, also those that have nothing to offer.
void Worker::set_up() {
  const AttentionShape& a = config_.attention;
  const Status own = status_of([&] {
    check_attention_shape(a);
    check_exchange(backend_, communicator_, exchange_);
    table_.emplace(config_.leaf_tokens);
    cache_ = backend_.make_cache({.layers = config_.layers,
                                  .pages = config_.pages,
                                  .kv_lora_rank = a.kv_lora_rank,
                                  .qk_rope_head_dim = a.qk_rope_head_dim,
                                  .row_dtype = a.row_dtype});
    executor_ = std::make_unique<RoundExecutor>(a, backend_, exchange_, *cache_);
  });
  handshake(config_, backend_.name(), own, communicator_);
}

RoundReport Worker::lead(const Order& order) {
  if (communicator_.rank() != 0) {
    fail(ErrorCode::kFailedPrecondition, "worker {} cannot lead: worker 0 does",
         communicator_.rank());
  }
  RoundReport report;
  report.status =
      send_order(communicator_, encode_order(order), Deadline::after(config_.round_timeout));
  if (report.status.ok()) perform(order, report);
  return report;
}

RoundReport Worker::follow() {
  if (communicator_.rank() == 0) {
    fail(ErrorCode::kFailedPrecondition, "worker 0 leads, it cannot follow");
  }
  RoundReport report;
  std::vector<std::byte> bytes;
  report.status = receive_order(communicator_, bytes, Deadline::after(config_.order_timeout),
                                config_.round_timeout);
  if (!report.status.ok()) return report;
  Order order;
  report.status = status_of([&] { order = decode_order(bytes); });
  if (report.status.ok()) {
    perform(order, report);
  } else {
    communicator_.poison(report.status);
  }
  return report;
}

void Worker::perform(const Order& order, RoundReport& report) {
  const Deadline deadline = Deadline::after(config_.round_timeout);
  report.stop = order.stop;
  times_ = {};
  Status outcome;
  const Status own = status_of([&] {
    executor_->trim(Deadline::Clock::now());
    apply(order);
    drained_round_ = config_.ingest != nullptr
                         ? std::min(config_.ingest->drained_round(), order.round)
                         : std::numeric_limits<std::uint64_t>::max();
    const bool one_round = !order.item_layer.empty();
    const auto begin = Deadline::Clock::now();
    outcome = one_round ? round(order, deadline, report) : step(order, deadline, report);
    report.step_us =
        std::chrono::duration<double, std::micro>(Deadline::Clock::now() - begin).count();
    // The last word on the fills, or on what the clients made of the last layer. A round has no
    // time for it.
    if (outcome.ok() && !one_round) outcome = agree(order.round, deadline, report);
  });
  // Only a table or a plan that does not match the others' fails so; this rank cannot follow them
  // into their collectives any more.
  if (!own.ok()) {
    communicator_.poison(own);
    exchange_.poison(own);
  }
  report.status = own.ok() ? outcome : own;
}

void Worker::apply(const Order& order) {
  for (const auto& op : order.ops) {
    if (const auto* change = std::get_if<TableOp>(&op)) {
      apply_change(*change, order.round);
      continue;
    }
    const auto& fill_op = std::get<FillOp>(op);
    const Status status = status_of([&] { fill(fill_op); });
    if (status.ok()) continue;
    const std::string message =
        fmt::format("rows of sequence {:#x}: {}", fill_op.id, status.message());
    if (failure_.ok()) failure_ = Status(status.code(), message);
    unfilled_.insert_or_assign(fill_op.id, message);
  }
}

void Worker::apply_change(const TableOp& change, std::uint64_t round) {
  table_->apply(change);
  const SequenceId id = std::visit(
      [](const auto& op) {
        if constexpr (std::is_same_v<std::decay_t<decltype(op)>, AdmitOp>) {
          return op.sequence.id;
        } else {
          return op.id;
        }
      },
      change);
  if (std::ranges::find(planned_, id, &StepItem::id) != planned_.end()) planned_.clear();
  if (const auto* admit = std::get_if<AdmitOp>(&change); admit != nullptr) {
    if (!admit->sequence.pushed) return;
    if (config_.ingest != nullptr) {
      config_.ingest->open(admit->sequence);
      arriving_.insert(id);
    } else {
      unfilled_.insert_or_assign(
          id, fmt::format("rows of sequence {:#x} are pushed: this worker takes none in", id));
    }
  }
  if (!std::holds_alternative<FreeOp>(change)) return;
  unfilled_.erase(id);
  arriving_.erase(id);
  if (config_.ingest != nullptr) config_.ingest->close(id, round);
}

void Worker::fill(const FillOp& op) {
  const PhaseTimer timer(times_, Phase::kFill);
  const Sequence& s = table_->at(op.id);
  if (op.begin < 0 || op.begin > op.end || op.end > s.length) {
    fail(ErrorCode::kInvalidArgument, "fill of {} .. {}, expected within its {} rows", op.begin,
         op.end, s.length);
  }
  const std::size_t row_bytes = cache_->layout().row_bytes();
  const std::int64_t leaf_tokens = table_->leaf_tokens();
  std::vector<std::byte> host(static_cast<std::size_t>(leaf_tokens) * row_bytes);
  const auto device = backend_.allocate(host.size());
  std::vector<AppendTask> tasks;
  for (std::int64_t begin = op.begin; begin < op.end;) {
    const std::int64_t l = begin / leaf_tokens;
    const std::int64_t end = std::min((l + 1) * leaf_tokens, op.end);
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(l)];
    if (leaf.owner == communicator_.rank()) {
      tasks.clear();
      for (std::int64_t p = begin; p < end; ++p) {
        const auto row = static_cast<std::size_t>(p - l * leaf_tokens);
        tasks.push_back({0, leaf.pages[row / kPageTokens],
                         static_cast<std::int32_t>(row % kPageTokens), p - begin});
      }
      const auto bytes = std::span(host).first(static_cast<std::size_t>(end - begin) * row_bytes);
      for (std::int32_t layer = 0; layer < config_.layers; ++layer) {
        client_.fill_rows(s, layer, begin, end - begin, bytes.data());
        backend_.upload(device->data(), bytes);
        backend_.append(*cache_, {.tasks = tasks,
                                  .item_layer = std::span(&layer, 1),
                                  .source = device->data(),
                                  .source_stride_bytes = row_bytes});
        backend_.synchronize(Deadline::after(config_.round_timeout));
      }
    }
    begin = end;
  }
}

/// Throws where rows of an item have not arrived here.
void Worker::check_rows(std::span<const StepItem> items) {
  for (const StepItem& item : items) {
    const auto unfilled = unfilled_.find(item.id);
    if (unfilled != unfilled_.end()) {
      fail(ErrorCode::kFailedPrecondition, "never filled: {}", unfilled->second);
    }
    if (!arriving_.contains(item.id)) continue;
    const IngestTable::Progress progress = config_.ingest->progress(item.id);
    if (progress.missing_layer >= 0) {
      fail(ErrorCode::kFailedPrecondition,
           "rows of sequence {:#x} have not arrived: {} of {}, the first missing one is of layer "
           "{}, position {}",
           item.id, progress.rows_total - progress.rows_done, progress.rows_total,
           progress.missing_layer, progress.missing_position);
    }
    arriving_.erase(item.id);
  }
}

/// Throws, on every rank alike, for an order that is not one round.
void Worker::check_round(const Order& order) const {
  if (order.item_layer.size() != order.step.size()) {
    fail(ErrorCode::kInvalidArgument, "a round of {} items with layers of {}", order.step.size(),
         order.item_layer.size());
  }
  for (const std::int32_t layer : order.item_layer) {
    if (layer >= 0 && layer < config_.layers) continue;
    fail(ErrorCode::kInvalidArgument, "layer of an item is {}, expected 0 .. {}", layer,
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
  const AttentionShape& a = config_.attention;
  const int workers = communicator_.size();
  report.plan_reused =
      std::ranges::equal(items, planned_, [](const StepItem& x, const StepItem& y) {
        return x.id == y.id && x.epoch == y.epoch && x.tokens == y.tokens;
      });
  if (!report.plan_reused) {
    planned_.clear();
    build_routing(*table_, items, workers, routing_);
    Exchange exchange = config_.exchange;
    if (exchange == Exchange::kAuto) {
      exchange = choose_exchange(
          routing_, workers,
          {.token_record_bytes = static_cast<std::int64_t>(a.token_record_bytes()),
           .state_record_bytes = static_cast<std::int64_t>(a.state_shape().record_bytes())});
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

/// All layers of a step, a round each.
Status Worker::step(const Order& order, Deadline deadline, RoundReport& report) {
  if (order.step.empty()) return {};
  if (failure_.ok()) failure_ = status_of([&] { check_rows(order.step); });
  prepare(order.step, report);
  for (int layer = 0; layer < config_.layers; ++layer) {
    item_layer_.assign(order.step.size(), layer);
    Status status = run(order, deadline, report);
    if (!status.ok()) return status;
  }
  return {};
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
  item_layer_ = order.item_layer;
  return run(order, deadline, report);
}

/// The items of the plan at item_layer_.
Status Worker::run(const Order& order, Deadline deadline, RoundReport& report) {
  Status status = executor_->run(plan_, item_layer_, client_, deadline, failure_, times_);
  if (!status.ok()) communicator_.poison(status);  // the others need not wait for this rank
  if (status.ok() && order.canary.item >= 0 && !order.item_layer.empty()) {
    const CanaryInput input{.shape = config_.attention,
                            .routing = routing_,
                            .plan = plan_,
                            .item_layer = item_layer_,
                            .tokens = executor_->tokens(),
                            .states = executor_->states(),
                            .leaf_tokens = config_.leaf_tokens,
                            .most_rows = config_.canary_rows};
    status = run_canary(order.canary, input, backend_, communicator_, *cache_, deadline, failure_,
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
  // The others learn of it at the end of the next layer, of the step, or of the next order.
  failure_ = status_of([&] { client_.read_states(plan_.homed, item_layer_, executor_->states()); });
  return {};
}

/// Ends a round: every rank learns whether all succeeded, and rank 0 how long each phase took.
Status Worker::agree(std::uint64_t round, Deadline deadline, RoundReport& report) {
  Agreement mine{.error = static_cast<std::int32_t>(failure_.code()),
                 .phase_us = times_,
                 .exchanged_bytes = executor_->exchanged_bytes() - exchanged_before_,
                 .drained_round = drained_round_,
                 .canary_checked = canary_.checked ? 1U : 0U,
                 .canary_error = canary_.error,
                 .message = {}};
  exchanged_before_ = executor_->exchanged_bytes();
  set_text(mine.message, failure_.message());
  failure_ = {};
  canary_ = {};
  std::vector<Agreement> all;
  Status status = gather_all(communicator_, mine, all, deadline);
  if (!status.ok()) return status;
  report.drained_round = drained_round_;
  for (const Agreement& other : all) {
    report.drained_round = std::min(report.drained_round, other.drained_round);
    if (other.canary_checked != 0) {
      report.canary_checked = true;
      report.canary_error = other.canary_error;
    }
    report.exchanged_bytes += other.exchanged_bytes;
    for (std::size_t p = 0; p < kPhases; ++p) {
      report.phase_us[p] = std::max(report.phase_us[p], other.phase_us[p]);
    }
    report.worker_attend_us.push_back(other.phase_us[static_cast<std::size_t>(Phase::kAttend)]);
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].error == 0) continue;
    return {
        ErrorCode::kWorkerFailed,
        fmt::format("worker {} failed in round {}: {}: {}", r, round,
                    error_code_name(static_cast<ErrorCode>(all[r].error)), all[r].message.data())};
  }
  return {};
}

}  // namespace tributary
