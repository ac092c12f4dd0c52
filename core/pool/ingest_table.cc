#include "core/pool/ingest_table.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"

namespace tributary {
namespace {

/// The first of `ranges` (ascending, disjoint) that ends behind `position`.
template <typename Ranges>
auto first_behind(Ranges& ranges, std::int64_t position) {
  return std::partition_point(ranges.begin(), ranges.end(),
                              [&](const auto& range) { return range.end <= position; });
}

/// Adds a range that overlaps none, and joins it with its neighbours.
template <typename Range>
void insert(std::vector<Range>& ranges, Range range) {
  auto next = first_behind(ranges, range.begin);
  if (next != ranges.end() && next->begin == range.end) {
    range.end = next->end;
    next = ranges.erase(next);
  }
  if (next != ranges.begin() && std::prev(next)->end == range.begin) {
    std::prev(next)->end = range.end;
  } else {
    ranges.insert(next, range);
  }
}

/// Takes a range away, where it is.
template <typename Range>
void remove(std::vector<Range>& ranges, Range range) {
  std::vector<Range> left;
  for (const Range& held : ranges) {
    if (held.begin < std::min(held.end, range.begin)) {
      left.push_back({held.begin, std::min(held.end, range.begin)});
    }
    if (std::max(held.begin, range.end) < held.end) {
      left.push_back({std::max(held.begin, range.end), held.end});
    }
  }
  ranges = std::move(left);
}

template <typename Range>
std::int64_t rows_of(const std::vector<Range>& ranges) {
  std::int64_t rows = 0;
  for (const Range& range : ranges) rows += range.end - range.begin;
  return rows;
}

}  // namespace

IngestTable::IngestTable(int rank, int layers, int leaf_tokens)
    : rank_(rank), layers_(layers), leaf_tokens_(leaf_tokens) {
  if (rank < 0 || layers < 1 || leaf_tokens < 1) {
    fail(ErrorCode::kInvalidArgument,
         "ingest table of worker {}: {} layers, leaves of {} tokens, expected at least 1", rank,
         layers, leaf_tokens);
  }
}

void IngestTable::open(const Sequence& sequence) {
  Entry entry;
  entry.epoch = sequence.epoch;
  entry.lost_since = sequence.lost_since;
  entry.home = sequence.home;
  entry.present_tokens = sequence.present_tokens;
  entry.layers.resize(static_cast<std::size_t>(layers_));
  const auto add = [&](const Leaf& leaf, const LeafPart& part) {
    if (leaf.owner != rank_) return;
    entry.leaf_pages.emplace(part.leaf, leaf.pages);
    insert(entry.share, Range{part.begin, part.end});
    entry.rows += part.rows();
  };
  for_each_leaf(sequence, sequence.present_tokens, sequence.prompt_tokens, leaf_tokens_, add);
  if (entry.rows == 0) entry.complete = entry.layers.size();
  const std::lock_guard lock(mutex_);
  if (!entries_.emplace(sequence.id, std::move(entry)).second) {
    fail(ErrorCode::kAlreadyExists, "rows of sequence {} are expected already", sequence.id);
  }
}

void IngestTable::close(SequenceId id, std::uint64_t round) {
  const std::lock_guard lock(mutex_);
  if (entries_.erase(id) == 0) return;
  for (auto& [ticket, flight] : flights_) {
    if (flight.id != id || flight.closed_round != 0) continue;
    flight.closed_round = round;
    ++closed_[round];
  }
}

/// Transfers into the leaf's pages go on and count no more: the pages stay out of use until they
/// have ended.
void IngestTable::drop_leaf(SequenceId id, Entry& entry, std::int64_t leaf, std::uint64_t round) {
  const Range gone{leaf * leaf_tokens_, (leaf + 1) * leaf_tokens_};
  const auto overlaps = [&](const Message& m) {
    return m.range.begin < gone.end && gone.begin < m.range.end;
  };
  for (auto& [ticket, flight] : flights_) {
    if (flight.id != id || flight.closed_round != 0 || !overlaps(flight.message)) continue;
    flight.closed_round = round;
    ++closed_[round];
  }
  for (Layer& layer : entry.layers) {
    if (layer.rows == entry.rows) layer.arrived = entry.share;
    remove(layer.arrived, gone);
    std::erase_if(layer.messages, [&](const auto& message) { return overlaps(message.second); });
    std::erase_if(layer.under_way, overlaps);
  }
  remove(entry.share, gone);
  entry.leaf_pages.erase(leaf);
  recount(entry);
}

/// The share, or what has arrived of it in layers that say so, was changed.
void IngestTable::recount(Entry& entry) {
  entry.rows = rows_of(entry.share);
  entry.rows_done = 0;
  for (Layer& layer : entry.layers) {
    layer.rows = rows_of(layer.arrived);
    entry.rows_done += layer.rows;
    if (layer.rows == entry.rows) layer.arrived = {};
  }
  const auto incomplete = std::ranges::find_if(
      entry.layers, [&](const Layer& layer) { return layer.rows != entry.rows; });
  entry.complete = static_cast<std::size_t>(incomplete - entry.layers.begin());
}

void IngestTable::lose(const LoseOp& op, std::uint64_t round) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(op.id);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  if (entry.lost_since == 0 && op.epoch != entry.epoch) entry.lost_since = entry.epoch;
  entry.epoch = op.epoch;
  for (const std::int32_t leaf : op.leaves) drop_leaf(op.id, entry, leaf, round);
}

void IngestTable::expect(const Sequence& sequence, std::int64_t leaf) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(sequence.id);
  if (found == entries_.end()) {
    fail(ErrorCode::kNotFound, "sequence {} expects no rows on worker {}", sequence.id, rank_);
  }
  Entry& entry = found->second;
  for (Layer& layer : entry.layers) {
    if (layer.rows == entry.rows) layer.arrived = entry.share;
  }
  insert(entry.share,
         Range{leaf * leaf_tokens_, std::min((leaf + 1) * leaf_tokens_, sequence.length)});
  entry.leaf_pages[leaf] = sequence.leaves.at(static_cast<std::size_t>(leaf)).pages;
  recount(entry);
}

void IngestTable::set_home(SequenceId id, int home) {
  const std::lock_guard lock(mutex_);
  if (const auto found = entries_.find(id); found != entries_.end()) found->second.home = home;
}

std::optional<int> IngestTable::home(SequenceId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? std::nullopt : std::optional(found->second.home);
}

std::uint64_t IngestTable::drained_round() const {
  const std::lock_guard lock(mutex_);
  return closed_.empty() ? std::numeric_limits<std::uint64_t>::max() : closed_.begin()->first - 1;
}

std::vector<std::uint64_t> IngestTable::closed_transfers() const {
  std::vector<std::uint64_t> tickets;
  const std::lock_guard lock(mutex_);
  for (const auto& [ticket, flight] : flights_) {
    if (flight.closed_round != 0) tickets.push_back(ticket);
  }
  return tickets;
}

IngestTable::Transfer IngestTable::begin(SequenceId id, std::uint32_t epoch, int layer,
                                         std::int64_t begin, std::int64_t count,
                                         std::optional<std::uint32_t> crc32c) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    fail(ErrorCode::kNotFound, "sequence {} expects no rows on worker {}", id, rank_);
  }
  Entry& entry = found->second;
  Sequence known;
  known.id = id;
  known.epoch = entry.epoch;
  known.lost_since = entry.lost_since;
  check_epoch(known, epoch).throw_if_error();
  check_share(id, entry, layer, begin, count);
  const auto l = static_cast<std::size_t>(layer);
  const Message message{{begin, begin + count}, crc32c};
  const auto before = entry.layers[l].messages.find(begin);
  if (before != entry.layers[l].messages.end() && same(before->second, message)) return {};
  check_new(id, entry.layers[l], entry, layer, message);
  Transfer transfer{last_ticket_ + 1, page_runs(entry, message.range)};
  flights_.emplace(transfer.ticket, Flight{id, l, message, 0});
  entry.layers[l].under_way.push_back(message);
  last_ticket_ = transfer.ticket;
  return transfer;
}

bool IngestTable::same(const Message& a, const Message& b) {
  return a.crc32c && a.crc32c == b.crc32c && a.range.begin == b.range.begin &&
         a.range.end == b.range.end;
}

void IngestTable::check_share(SequenceId id, const Entry& entry, int layer, std::int64_t begin,
                              std::int64_t count) const {
  if (layer < 0 || layer >= layers_) {
    fail(ErrorCode::kInvalidArgument, "rows of sequence {}: layer {}, expected 0 .. {}", id, layer,
         layers_ - 1);
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (begin < 0 || begin > kMost || count < 1 || count > kMost) {
    fail(ErrorCode::kInvalidArgument,
         "sequence {}: {} rows from {} on, expected 1 .. {}, from 0 on", id, count, begin, kMost);
  }
  const std::int64_t end = begin + count;
  const auto mine = first_behind(entry.share, begin);
  if (mine == entry.share.end() || mine->begin > begin || mine->end < end) {
    if (begin < entry.present_tokens) {
      fail(ErrorCode::kAlreadyExists,
           "sequence {}, layer {}: some of the rows {} .. {} are shared with another one: below {}",
           id, layer, begin, end - 1, entry.present_tokens);
    }
    fail(ErrorCode::kInvalidArgument, "sequence {}: not all rows {} .. {} belong to worker {}", id,
         begin, end - 1, rank_);
  }
}

void IngestTable::check_new(SequenceId id, const Layer& rows, const Entry& entry, int layer,
                            const Message& message) const {
  const auto [begin, end] = message.range;
  const auto arrived = first_behind(rows.arrived, begin);
  if (rows.rows == entry.rows || (arrived != rows.arrived.end() && arrived->begin < end)) {
    fail(ErrorCode::kAlreadyExists,
         "sequence {}, layer {}: some of the rows {} .. {} have arrived before", id, layer, begin,
         end - 1);
  }
  for (const Message& other : rows.under_way) {
    if (other.range.begin >= end || other.range.end <= begin) continue;
    fail(same(other, message) ? ErrorCode::kUnavailable : ErrorCode::kAlreadyExists,
         "sequence {}, layer {}: some of the rows {} .. {} are on their way", id, layer, begin,
         end - 1);
  }
}

std::vector<PageRun> IngestTable::page_runs(const Entry& entry, Range range) const {
  std::vector<PageRun> runs;
  for_each_leaf(range.begin, range.end, leaf_tokens_, [&](const LeafPart& part) {
    append_page_runs(entry.leaf_pages.at(part.leaf), part.first_row, part.rows(), runs);
  });
  return runs;
}

IngestTable::Progress IngestTable::end(std::uint64_t ticket, bool arrived) {
  const std::lock_guard lock(mutex_);
  const auto found = flights_.find(ticket);
  if (found == flights_.end()) {
    fail(ErrorCode::kNotFound, "transfer {} into worker {} is not under way", ticket, rank_);
  }
  const Flight flight = found->second;
  flights_.erase(found);
  if (flight.closed_round != 0) {
    const auto closed = closed_.find(flight.closed_round);
    if (--closed->second == 0) closed_.erase(closed);
    return {};
  }
  Entry& entry = entries_.at(flight.id);
  Layer& layer = entry.layers[flight.layer];
  const Range range = flight.message.range;
  std::erase_if(layer.under_way, [&](const Message& m) { return m.range.begin == range.begin; });
  if (arrived) {
    if (flight.message.crc32c) layer.messages.emplace(range.begin, flight.message);
    insert(layer.arrived, range);
    const std::int64_t count = range.end - range.begin;
    layer.rows += count;
    entry.rows_done += count;
    if (layer.rows == entry.rows) layer.arrived = {};
    while (entry.complete < entry.layers.size() &&
           entry.layers[entry.complete].rows == entry.rows) {
      ++entry.complete;
    }
  }
  return progress_of(entry);
}

std::optional<std::int64_t> IngestTable::first_missing(SequenceId id, int layer, std::int64_t begin,
                                                       std::int64_t end) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return {};
  const Entry& entry = found->second;
  return first_missing(entry, entry.layers.at(static_cast<std::size_t>(layer)), {begin, end});
}

std::optional<std::int64_t> IngestTable::first_missing(const Entry& entry, const Layer& rows,
                                                       Range range) {
  if (rows.rows == entry.rows) return {};
  for (auto share = first_behind(entry.share, range.begin); share != entry.share.end(); ++share) {
    const Range wanted{std::max(share->begin, range.begin), std::min(share->end, range.end)};
    if (wanted.begin >= wanted.end) break;
    // Neighbours were joined: one range covers what is whole.
    const auto arrived = first_behind(rows.arrived, wanted.begin);
    const bool begun = arrived != rows.arrived.end() && arrived->begin <= wanted.begin;
    if (!begun) return wanted.begin;
    if (arrived->end < wanted.end) return arrived->end;
  }
  return {};
}

IngestTable::Progress IngestTable::progress(SequenceId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) {
    fail(ErrorCode::kNotFound, "sequence {} expects no rows on worker {}", id, rank_);
  }
  return progress_of(found->second);
}

IngestTable::Progress IngestTable::progress_of(const Entry& entry) const {
  Progress progress{.counted = true,
                    .epoch = entry.epoch,
                    .rows_done = entry.rows_done,
                    .rows_total = entry.rows * layers_};
  if (entry.complete == entry.layers.size()) return progress;
  progress.missing_layer = static_cast<std::int32_t>(entry.complete);
  progress.missing_position =
      first_missing(entry, entry.layers[entry.complete], {0, entry.share.back().end}).value_or(-1);
  return progress;
}

}  // namespace tributary
