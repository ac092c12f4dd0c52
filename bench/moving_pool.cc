#include "bench/moving_pool.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/pool/gather_all.h"
#include "deploy/app/bench/prompt_filler.h"
#include "deploy/app/bench/timing.h"

namespace tributary::bench {
namespace {

/// The bytes of an order of copy_alone(): as much as the schedule of moves puts into one at 1 GB/s.
constexpr double kAloneBytes = 10e6;
constexpr int kAloneOrders = 20;
/// Times the tokens of a worker: the leaves that travel are at both ends while they do.
constexpr double kRoom = 2;

std::int32_t pages_of(const MovingPoolConfig& config, int workers) {
  std::int64_t total = 0;
  std::int64_t longest = 0;
  for (const std::int64_t prompt : config.prompts) {
    const std::int64_t pages = ceil_div(prompt + config.steps, kPageTokens);
    total += pages;
    longest = std::max(longest, pages);
  }
  return static_cast<std::int32_t>(kRoom * static_cast<double>(total) / workers) +
         static_cast<std::int32_t>(longest);
}

WorkerConfig worker_config(const MovingPoolConfig& config, int workers) {
  if (workers < 2) {
    fail(ErrorCode::kInvalidArgument, "moves between {} worker: expected at least 2", workers);
  }
  if (std::ranges::all_of(config.prompts,
                          [&](std::int64_t prompt) { return prompt < config.leaf_tokens; })) {
    fail(ErrorCode::kInvalidArgument, "no sequence has a full leaf of {} tokens to move",
         config.leaf_tokens);
  }
  return {.attention = config.attention,
          .layers = config.layers,
          .pages = pages_of(config, workers),
          .leaf_tokens = config.leaf_tokens,
          .workers_per_node = workers};
}

SequencerConfig sequencer_config(const MovingPoolConfig& config, int workers) {
  const WorkerConfig worker = worker_config(config, workers);
  return {.placement = {.workers = workers, .model = worker.cost_model()},
          .pages_per_worker = worker.pages,
          .incarnation = 1};
}

/// Rank 0's order, on every rank.
std::vector<std::byte> share(std::vector<std::byte> order, Communicator& communicator) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  std::uint64_t size = order.size();
  communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), 0, deadline).throw_if_error();
  order.resize(size);
  communicator.broadcast(order, 0, deadline).throw_if_error();
  return order;
}

}  // namespace

void MovingClient::write_tokens(std::span<const HomedItem> items,
                                std::span<const std::int32_t> item_layer, std::byte* records,
                                std::size_t record_bytes) {
  std::vector<std::byte> record(tokens_.shape().token_record_bytes());
  for (const HomedItem& item : items) {
    const int layer = item_layer[static_cast<std::size_t>(item.item)];
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      tokens_.write_record(item.tag, layer, item.position + t, record.data());
      backend_.upload(records + static_cast<std::size_t>(item.token_record + t) * record_bytes,
                      record);
    }
  }
}

void MovingClient::read_states(std::span<const HomedItem> items,
                               std::span<const std::int32_t> item_layer, const float* states) {
  const StateShape shape = tokens_.shape().state_shape();
  std::vector<float> state(shape.record_floats());
  for (const HomedItem& item : items) {
    const int layer = item_layer[static_cast<std::size_t>(item.item)];
    for (std::int32_t t = 0; t < item.tokens; ++t) {
      const float* record =
          states + static_cast<std::size_t>(item.state + t) * shape.record_floats();
      backend_.download(std::as_writable_bytes(std::span(state)),
                        reinterpret_cast<const std::byte*>(record));
      tokens_.take_output(item.tag, layer, item.position + t,
                          std::span(state).first(static_cast<std::size_t>(shape.heads) *
                                                 static_cast<std::size_t>(shape.width)));
    }
  }
}

MovingPool::MovingPool(const MovingPoolConfig& config, Backend& backend, Communicator& communicator)
    : config_(config),
      backend_(backend),
      communicator_(communicator),
      client_(config.attention, backend),
      ingest_(communicator.rank(), config.layers, config.leaf_tokens),
      worker_(worker_config(config, communicator.size()), backend, communicator, client_, ingest_),
      sequencer_(sequencer_config(config, communicator.size())) {
  if (communicator.rank() == 0) admit();
}

/// The longest first, so that the homes are even.
void MovingPool::admit() {
  std::ranges::sort(config_.prompts, std::ranges::greater());
  for (std::size_t i = 0; i < config_.prompts.size(); ++i) {
    const auto id = sequencer_.sequences().admit({.prompt_tokens = config_.prompts[i],
                                                  .max_new_tokens = config_.steps,
                                                  .spread = SpreadPolicy::kSingle},
                                                 {.tag = static_cast<std::int64_t>(i)});
    if (!id) fail(ErrorCode::kPoolFull, "sequence {} of {}", i, config_.prompts.size());
    ids_.push_back(*id);
    (void)lead();
    sequencer_.sequences().prompt_arrived(*id);
  }
}

std::size_t MovingPool::page_copy_bytes() const {
  return kPageTokens * config_.attention.row_bytes();
}

MoveSchedule MovingPool::make_mover(double move_bytes_per_s) {
  return {move_schedule_config(move_bytes_per_s, config_.attention.row_bytes()), sequencer_};
}

PhaseFigures MovingPool::run(MoveSchedule* move_schedule) {
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    sequencer_.sequences().truncate(ids_[i], config_.prompts[i]);  // which ends its move, too
  }
  (void)lead();
  PhaseFigures figures;
  const std::uint64_t copies = sequencer_.moves().totals().page_copies;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < config_.steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    step(move_schedule);
    figures.step_us.push_back(seconds_since(start) * 1e6);
  }
  figures.seconds = seconds_since(begin);
  figures.copied_bytes = static_cast<double>(sequencer_.moves().totals().page_copies - copies) *
                         static_cast<double>(page_copy_bytes());
  return figures;
}

void MovingPool::step(MoveSchedule* move_schedule) {
  std::vector<StepItem> items;
  for (const SequenceId id : ids_) items.push_back({id, 1});
  sequencer_.steps().open(items);
  for (int layer = 0; layer < config_.layers; ++layer) {
    for (StepItem& item : items) item.layer = layer;
    sequencer_.steps().order_round(items);
    if (move_schedule != nullptr) order_copies(*move_schedule);
    const RoundReport report = lead();
    if (move_schedule != nullptr) move_schedule->order_ended(report.copy_us);
  }
  for (const SequenceId id : ids_) sequencer_.steps().commit(id, 1);
}

/// As many as the schedule allows: it has moves under way that are not all ordered, always.
void MovingPool::order_copies(MoveSchedule& move_schedule) {
  const auto now = std::chrono::steady_clock::now();
  const auto layers = static_cast<std::size_t>(config_.layers);
  for (;;) {
    move_schedule.prepare(now);
    const bool left =
        std::ranges::any_of(sequencer_.moves().running(), [&](const RunningMove& move) {
          return std::cmp_less(move.ordered, move.from_pages.size() * layers);
        });
    if (left || !begin_move()) return;
  }
}

/// Moves leaves of any sequence from the worker with the most tokens to the worker with the fewest.
/// Moves under way count as done. False if no leaf can move.
bool MovingPool::begin_move() {
  std::vector<std::int64_t> tokens;
  for (const WorkerLoad& load : sequencer_.ledger().load().workers()) tokens.push_back(load.tokens);
  for (const RunningMove& move : sequencer_.moves().running()) {
    const std::int64_t moved =
        std::int64_t{move.move.end_leaf - move.move.first_leaf} * config_.leaf_tokens;
    tokens[static_cast<std::size_t>(move.from)] -= moved;
    tokens[static_cast<std::size_t>(move.move.to)] += moved;
  }
  const auto least_busy_beside = [&](std::int32_t from) {
    std::int32_t best = from == 0 ? 1 : 0;
    for (std::int32_t w = 0; std::cmp_less(w, tokens.size()); ++w) {
      if (w != from && tokens[static_cast<std::size_t>(w)] < tokens[static_cast<std::size_t>(best)])
        best = w;
    }
    return best;
  };
  std::vector<LeafMove> found;
  std::int64_t most = -1;
  for (std::size_t i = 0; i < ids_.size(); ++i) {
    const auto full = static_cast<std::int32_t>(config_.prompts[i] / config_.leaf_tokens);
    const bool moving = std::ranges::any_of(
        sequencer_.moves().running(), [&](const RunningMove& m) { return m.move.id == ids_[i]; });
    if (full == 0 || moving) continue;
    const std::int32_t first = std::max(0, full - kMoveLeaves);
    const std::int32_t from =
        sequencer_.ledger().table().at(ids_[i]).leaves[static_cast<std::size_t>(first)].owner;
    const std::int64_t busy = tokens[static_cast<std::size_t>(from)];
    if (busy < most) continue;
    if (busy > most) found.clear();
    most = busy;
    found.push_back({ids_[i], first, full, least_busy_beside(from)});
  }
  if (found.empty()) return false;
  sequencer_.moves().begin(found[random_() % found.size()]);
  return true;
}

double MovingPool::copy_alone() {
  std::vector<double> rates;
  const auto copy_bytes = static_cast<double>(page_copy_bytes());
  const auto most = std::max<std::int64_t>(1, static_cast<std::int64_t>(kAloneBytes / copy_bytes));
  for (int order = 0; order < kAloneOrders; ++order) {
    std::int64_t copies = 0;
    do {
      copies += sequencer_.moves().order_copies(most - copies);
    } while (copies < most && begin_move());
    const auto start = std::chrono::steady_clock::now();
    (void)lead();
    rates.push_back(static_cast<double>(copies) * copy_bytes / seconds_since(start));
  }
  return median(std::move(rates));
}

/// Takes part in an order; fills this rank's pages of the sequences that it admits.
RoundReport MovingPool::perform(const Order& order) {
  RoundReport report = worker_.perform(order);
  report.status.throw_if_error();
  for (const TableOp& op : order.ops) {
    const auto* admit = std::get_if<AdmitOp>(&op);
    if (admit == nullptr) continue;
    const Sequence& s = admit->sequence;
    fill_prompt(s, communicator_.rank(), config_.layers, config_.leaf_tokens, ingest_, backend_,
                worker_.cache(),
                [&](int layer, std::int64_t begin, std::int64_t count, std::byte* rows) {
                  client_.tokens().write_rows(s.tag, layer, begin, count, rows);
                });
  }
  // Every rank counts the rounds, so each knows where a phase ends.
  rounds_ += report.rounds;
  if (rounds_ == config_.steps * config_.layers) {
    rounds_ = 0;
    digests_.push_back(client_.digest() - digest_before_);
    digest_before_ = client_.digest();
  }
  return report;
}

RoundReport MovingPool::lead(bool stop) {
  Order order = sequencer_.take_order();
  order.stop = stop;
  share(encode_order(order), communicator_);
  const RoundReport report = perform(order);
  sequencer_.order_ended(true);
  return report;
}

void MovingPool::stop() {
  (void)lead(/*stop=*/true);
}

void MovingPool::follow() {
  while (!perform(decode_order(share({}, communicator_))).stop) {
  }
}

std::vector<std::uint64_t> MovingPool::digests() const {
  std::vector<std::uint64_t> all;
  gather_all(communicator_, std::span(digests_), all, Deadline::after(std::chrono::seconds(60)))
      .throw_if_error();
  std::vector<std::uint64_t> sums(digests_.size(), 0);
  for (std::size_t i = 0; i < all.size(); ++i) sums[i % sums.size()] += all[i];
  return sums;
}

}  // namespace tributary::bench
