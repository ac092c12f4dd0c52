#include "core/sequencer/sequences.h"

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/page_cuts.h"
#include "core/sequencer/block_names.h"
#include "core/sequencer/members.h"
#include "core/sequencer/shared_place.h"

namespace tributary {
namespace {

void check_lengths(const AdmitRequest& request, std::int64_t tag) {
  constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;
  if (request.prompt_tokens < 0 || request.prompt_tokens >= kMaxTokens ||
      request.max_new_tokens < 0 || request.max_new_tokens >= kMaxTokens ||
      request.prompt_tokens + request.max_new_tokens < 1) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: {} prompt tokens and {} new ones, expected below 2^31 of each and at least "
         "1 in all",
         tag, request.prompt_tokens, request.max_new_tokens);
  }
}

/// Placement counts these as present at admission: a leaf for the first token at least.
std::int64_t placed_tokens(const AdmitRequest& request) {
  return std::max<std::int64_t>(request.prompt_tokens, 1);
}

/// A request needs these pages up to its limit.
std::int64_t pages_of(const AdmitRequest& request) {
  return ceil_div(request.prompt_tokens + request.max_new_tokens, std::int64_t{kPageTokens});
}

}  // namespace

Sequences::Sequences(std::uint32_t incarnation, PoolLedger& ledger, SequenceBlocks& blocks,
                     const OpenSteps& steps, LeafMoves& moves, PendingCopies& copies,
                     const Order& order)
    : incarnation_(incarnation),
      ledger_(ledger),
      blocks_(blocks),
      steps_(steps),
      moves_(moves),
      copies_(copies),
      order_(order),
      page_waits_(ledger.load().pages_per_worker()) {}

/// Where a new sequence fits, beside what moves under way will have made of the pool: a worker that
/// leaves are on their way to only looks idle. If need be into pages that moves hold: these are
/// cancelled then.
std::optional<Assignment> Sequences::place(const AdmitRequest& request) {
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  const PageCut page_cut = page_waits_.may_cut(pages_of(request));
  const auto place_on = [&](const PoolLoad& load) {
    return ledger_.placement().place(placed_tokens(request), limit, request.spread, load, page_cut);
  };
  if (moves_.running().empty()) return place_on(ledger_.load());
  auto assignment = place_on(moves_.load_afterwards());
  if (assignment) return assignment;
  PoolLoad freed = ledger_.load();
  std::vector<SequenceId> moving;
  for (const RunningMove& move : moves_.running()) {
    const std::int32_t to = move.move.to;
    if (ledger_.draining(to)) continue;
    freed.set_available_pages(to, freed.workers()[static_cast<std::size_t>(to)].available_pages +
                                      std::ssize(move.to_pages) + move.promised);
    moving.push_back(move.move.id);
  }
  assignment = place_on(freed);
  if (!assignment) return assignment;
  for (const SequenceId id : moving) moves_.cancel(id);
  return assignment;
}

void Sequences::check(const AdmitRequest& request, std::int64_t tag) const {
  check_lengths(request, tag);
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  const int workers = members(ledger_);
  const std::int32_t pages = ledger_.pools().front().total();
  if (!fits_empty_pool(limit, request.spread, workers, pages, ledger_.table().leaf_tokens())) {
    fail(ErrorCode::kTooLarge,
         "request {}: {} tokens need {} pages with spread {}; the pool holds {} on each of {} "
         "workers, in leaves of {}",
         tag, limit, pages_of(request), spread_policy_name(request.spread), pages, workers,
         ledger_.table().leaf_tokens() / kPageTokens);
  }
}

std::optional<SequenceId> Sequences::admit(const AdmitRequest& request, const AdmitAs& as) {
  check_lengths(request, as.tag);
  check_prefix(request.prefix, request.prompt_tokens, ledger_.table().leaf_tokens());
  const auto is_closed = [&] {
    return std::ranges::any_of(closed_, [&](const Closed& c) { return c.sequence.id == as.id; });
  };
  if (as.id != 0 && (ledger_.table().contains(as.id) || is_closed())) {
    fail(ErrorCode::kAlreadyExists, "request {}: sequence {} is already in the pool", as.tag,
         as.id);
  }
  if (as.id == 0 && counter_ == std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorCode::kFailedPrecondition, "request {}: incarnation {} has given all {} sequence ids",
         as.tag, incarnation_, counter_);
  }
  const bool is_fork = request.parent.id != 0;
  if (is_fork) check_parent(request, as.tag);
  if (waits_for_room(ledger_)) {
    check(request, as.tag);
    return std::nullopt;
  }
  std::vector<std::string> names = block_names(request.prefix);
  auto begun = is_fork ? begin_as_fork(request) : begin_by_names(request, names);
  if (!begun) {
    check(request, as.tag);
    const bool waits = !is_fork && request.spread == SpreadPolicy::kAuto;
    if (waits) page_waits_.refused(pages_of(request));
    return std::nullopt;
  }
  if (!is_fork) page_waits_.admitted(pages_of(request));

  Sequence& s = begun->sequence;
  s.id = as.id != 0 ? as.id : (static_cast<std::uint64_t>(incarnation_) << 32) | ++counter_;
  s.epoch = 1;
  s.lost_since = 0;  // not its parent's
  s.tag = as.tag;
  s.prompt_tokens = request.prompt_tokens;
  s.limit_tokens = request.prompt_tokens + request.max_new_tokens;
  s.length = request.prompt_tokens;
  // First of all: room for others is made of idle blocks.
  for (NamedBlock* const block : begun->blocks) ledger_.pages().share_block(*block);
  if (begun->blocks.empty()) {
    for (const Leaf& leaf : s.leaves) ledger_.pages().share(leaf.owner, leaf.pages);
  }
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    Leaf& leaf = s.leaves[i];
    const std::int64_t shared = std::ssize(leaf.pages);
    ledger_.pages().reserve(leaf.owner, ledger_.leaf_pages(s, i, s.limit_tokens) - shared);
    const auto own = ledger_.pages().take(leaf.owner, ledger_.leaf_pages(s, i, s.length) - shared);
    leaf.pages.insert(leaf.pages.end(), own.begin(), own.end());
  }
  if (begun->copied_page >= 0) {
    const int leaf_tokens = ledger_.table().leaf_tokens();
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(s.present_tokens / leaf_tokens)];
    const std::int64_t row = s.present_tokens % leaf_tokens;
    copies_.add({.from = leaf.owner,
                 .from_page = begun->copied_page,
                 .to = leaf.owner,
                 .to_page = leaf.pages[static_cast<std::size_t>(row / kPageTokens)],
                 .rows = static_cast<std::int32_t>(row % kPageTokens)});
  }
  const SequenceId id = s.id;
  ledger_.begin(std::move(s), begun->spread);
  blocks_.begin(id, request.prefix.block_tokens, std::move(names), std::move(begun->blocks));
  return id;
}

/// Where placement wants the sequence, or where its first blocks lie.
std::optional<Sequences::Beginning> Sequences::begin_by_names(
    const AdmitRequest& request, const std::vector<std::string>& names) {
  auto found = place_with_blocks(ledger_, request, names, place(request));
  if (!found) return {};
  Beginning begun{.spread = request.spread, .blocks = std::move(found->shared)};
  Sequence& s = begun.sequence;
  s.home = found->assignment.home;
  s.present_tokens = std::ssize(begun.blocks) * request.prefix.block_tokens;
  for (const std::int32_t owner : found->assignment.leaf_owner) s.leaves.push_back({owner, {}});
  for (std::size_t k = 0; k < begun.blocks.size(); ++k) {
    const auto begin = static_cast<std::int64_t>(k) * request.prefix.block_tokens;
    Leaf& leaf = s.leaves[static_cast<std::size_t>(begin / ledger_.table().leaf_tokens())];
    const std::vector<std::int32_t>& pages = begun.blocks[k]->pages;
    leaf.pages.insert(leaf.pages.end(), pages.begin(), pages.end());
  }
  return begun;
}

void Sequences::check_parent(const AdmitRequest& request, std::int64_t tag) const {
  const Parent& parent = request.parent;
  const Sequence& s = ledger_.table().at(parent.id);
  if (const Status same = check_epoch(s, parent.epoch); !same.ok()) {
    fail(same.code(), "request {}: fork of {}", tag, same.message());
  }
  if (ledger_.running().at(parent.id).arriving) {
    fail(ErrorCode::kFailedPrecondition,
         "request {}: fork of sequence {}, whose prompt is arriving", tag, parent.id);
  }
  if (parent.length < 1 || parent.length > s.length) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: fork of {} tokens of sequence {}, expected 1 .. {}", tag, parent.length,
         parent.id, s.length);
  }
  if (parent.length > request.prompt_tokens ||
      parent.length == request.prompt_tokens + request.max_new_tokens) {
    fail(ErrorCode::kInvalidArgument,
         "request {}: a fork of {} tokens has a prompt of as many at least, and room for one more: "
         "{} + {}",
         tag, parent.length, request.prompt_tokens, request.max_new_tokens);
  }
  // An order reads all pages before it writes any.
  const int leaf_tokens = ledger_.table().leaf_tokens();
  const Leaf& leaf = s.leaves[static_cast<std::size_t>((parent.length - 1) / leaf_tokens)];
  const auto page = static_cast<std::size_t>((parent.length - 1) % leaf_tokens / kPageTokens);
  if (copies_.is_copied_to(leaf.owner, leaf.pages[page])) {
    fail(ErrorCode::kUnavailable, "request {}: fork of sequence {}, whose last rows are copied",
         tag, parent.id);
  }
}

/// The parent's whole pages, whoever has named them: a fork holds no blocks.
std::optional<Sequences::Beginning> Sequences::begin_as_fork(const AdmitRequest& request) const {
  const Sequence& parent = ledger_.table().at(request.parent.id);
  const std::int64_t length = request.parent.length;
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  const int leaf_tokens = ledger_.table().leaf_tokens();
  Beginning begun{.sequence = parent, .spread = ledger_.running().at(parent.id).spread};
  Sequence& s = begun.sequence;
  s.present_tokens = length;
  s.leaves.resize(static_cast<std::size_t>(ceil_div(length, leaf_tokens)));
  std::vector<std::int32_t>& last = s.leaves.back().pages;
  const std::int64_t rows = length - (std::ssize(s.leaves) - 1) * leaf_tokens;
  const auto whole = static_cast<std::size_t>(rows / kPageTokens);
  if (rows % kPageTokens != 0) begun.copied_page = last[whole];
  last.resize(whole);
  const std::int64_t last_rows =
      std::min<std::int64_t>(leaf_tokens, limit - (std::ssize(s.leaves) - 1) * leaf_tokens);
  const auto owners = owners_of_more(
      s, limit, ceil_div(last_rows, std::int64_t{kPageTokens}) - static_cast<std::int64_t>(whole));
  if (!owners) return {};
  for (const std::int32_t owner : *owners) s.leaves.push_back({owner, {}});
  return begun;
}

void Sequences::prompt_arrived(SequenceId id) {
  ledger_.prompt_arrived(id);
  const auto found = ledger_.running().find(id);
  if (found != ledger_.running().end() && !found->second.arriving) blocks_.prompt_arrived(id);
}

void Sequences::name_blocks(SequenceId id, const Prefix& names, std::int64_t first) {
  const Sequence& s = ledger_.table().at(id);
  if (ledger_.running().at(id).arriving) {
    fail(ErrorCode::kFailedPrecondition, "names of blocks of sequence {}: its prompt is arriving",
         id);
  }
  if (names.keys.empty()) return;
  const std::int64_t tokens = std::max<std::int64_t>(names.block_tokens, 1);
  if (first < 0 || first > s.length / tokens) {
    fail(ErrorCode::kInvalidArgument,
         "names of blocks of sequence {} from block {} on: it has {} tokens", id, first, s.length);
  }
  check_prefix(names, s.length - first * tokens, ledger_.table().leaf_tokens());
  blocks_.name(id, names.block_tokens, block_names(names), first);
}

/// The owners of the leaves that a limit adds, the newest owner first: what it keeps needs no
/// exchange. No value where the workers lack pages; `last` is what the last leaf needs more.
std::optional<std::vector<std::int32_t>> Sequences::owners_of_more(const Sequence& s,
                                                                   std::int64_t limit_tokens,
                                                                   std::int64_t last) const {
  const std::int64_t leaf_tokens = ledger_.table().leaf_tokens();
  std::vector<std::int64_t> available;
  for (const WorkerLoad& worker : ledger_.load().workers()) {
    available.push_back(worker.available_pages);
  }
  const auto at = [&](std::int32_t worker) -> std::int64_t& {
    return available[static_cast<std::size_t>(worker)];
  };
  const std::int32_t newest = s.leaves.back().owner;
  const SpreadPolicy spread = ledger_.running().at(s.id).spread;
  // A leaf has one owner, also where that is being emptied and gets no other leaf.
  if (ledger_.pools()[static_cast<std::size_t>(newest)].available() < last) return {};
  at(newest) -= last;
  std::vector<std::int32_t> owners;
  for (std::int64_t begin = std::ssize(s.leaves) * leaf_tokens; begin < limit_tokens;
       begin += leaf_tokens) {
    const std::int64_t pages =
        ceil_div(std::min(leaf_tokens, limit_tokens - begin), std::int64_t{kPageTokens});
    const std::int32_t before = owners.empty() ? newest : owners.back();
    const auto most = std::ranges::max_element(available) - available.begin();
    const bool stays = at(before) >= pages || spread == SpreadPolicy::kSingle;
    owners.push_back(stays ? before : static_cast<std::int32_t>(most));
    if ((at(owners.back()) -= pages) < 0) return {};
  }
  return owners;
}

bool Sequences::raise_limit(SequenceId id, std::int64_t limit_tokens) {
  const Sequence& s = ledger_.table().at(id);
  if (limit_tokens <= s.limit_tokens) return true;
  if (ledger_.waiting().contains(id)) return false;
  check({.prompt_tokens = s.prompt_tokens,
         .max_new_tokens = limit_tokens - s.prompt_tokens,
         .spread = ledger_.running().at(id).spread},
        s.tag);
  const std::int64_t leaf_tokens = ledger_.table().leaf_tokens();
  const std::int64_t last_begin = (std::ssize(s.leaves) - 1) * leaf_tokens;
  const std::int64_t last =
      ceil_div(std::min(leaf_tokens, limit_tokens - last_begin), std::int64_t{kPageTokens}) -
      ledger_.leaf_pages(s, s.leaves.size() - 1, s.limit_tokens);
  auto owners = owners_of_more(s, limit_tokens, last);
  if (!owners) return false;
  moves_.cancel_newest(id);  // it took room for the limit of before
  const std::size_t leaves = s.leaves.size();
  ledger_.pages().reserve(s.leaves.back().owner, last);
  ledger_.decide(RaiseLimitOp{id, limit_tokens, std::move(*owners)});
  for (std::size_t i = leaves; i < s.leaves.size(); ++i) {
    ledger_.pages().reserve(s.leaves[i].owner, ledger_.leaf_pages(s, i, limit_tokens));
  }
  return true;
}

void Sequences::truncate(SequenceId id, std::int64_t length) {
  const Sequence& s = ledger_.table().at(id);
  steps_.check_not_open(id);
  if (length < 0 || length > s.length) {
    fail(ErrorCode::kInvalidArgument, "truncate of sequence {} to {} tokens: length is {}", id,
         length, s.length);
  }
  if (!ledger_.running().at(id).lost.empty()) {
    fail(ErrorCode::kFailedPrecondition,
         "truncate of sequence {}: rows that were lost have not come again", id);
  }
  moves_.cancel(id);
  // Pages that others go on to use are not given back: as many others are promised for them.
  std::map<std::int32_t, std::int32_t> left_to_others;
  const auto is_shared = [&](const Leaf& leaf, std::int32_t page) {
    const int own = copies_.is_copied_to(leaf.owner, page) ? 2 : 1;
    return ledger_.pools()[static_cast<std::size_t>(leaf.owner)].reference_count(page) > own;
  };
  const auto kept_of = [&](std::size_t leaf) {
    return static_cast<std::size_t>(ledger_.leaf_pages(s, leaf, length));
  };
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const Leaf& leaf = s.leaves[i];
    for (std::size_t p = kept_of(i); p < leaf.pages.size(); ++p) {
      if (is_shared(leaf, leaf.pages[p])) ++left_to_others[leaf.owner];
    }
  }
  const auto last = static_cast<std::size_t>(length / ledger_.table().leaf_tokens());
  // Rows of a block that this sequence does not hold stay, even if nobody uses the block now.
  const auto is_named = [&](const Leaf& leaf, std::int32_t page) {
    return ledger_.pools()[static_cast<std::size_t>(leaf.owner)].kept(page) &&
           !blocks_.holds(id, length);
  };
  const auto must_copy = [&](const Leaf& leaf) {
    const std::int32_t page = leaf.pages[kept_of(last) - 1];
    const bool others = is_shared(leaf, page) || is_named(leaf, page);
    if (others && copies_.is_copied_to(leaf.owner, page)) {
      fail(ErrorCode::kUnavailable,
           "truncate of sequence {} to {} tokens: its rows there are copied, try again", id,
           length);
    }
    return others;
  };
  const bool copies = length % kPageTokens != 0 && length < s.length && must_copy(s.leaves[last]);
  if (copies) ++left_to_others[s.leaves[last].owner];
  for (const auto& [worker, pages] : left_to_others) {
    const PagePool& pool = ledger_.pools()[static_cast<std::size_t>(worker)];
    if (pages <= pool.available()) continue;
    fail(ErrorCode::kPoolFull,
         "truncate of sequence {} to {} tokens: {} pages are left to others, and worker {} has no "
         "room for as many ({})",
         id, length, pages, worker, pool.available());
  }
  blocks_.drop_from(id, length);
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const Leaf& leaf = s.leaves[i];
    if (kept_of(i) >= leaf.pages.size()) continue;
    const auto dropped = std::span(leaf.pages).subspan(kept_of(i));
    for (const std::int32_t page : dropped) copies_.drop(leaf.owner, page);
    ledger_.pages().release(leaf.owner, dropped);
    ledger_.pages().reserve(leaf.owner, std::ssize(dropped));
  }
  TruncateOp op{id, s.epoch + 1, length};
  if (copies) {
    const std::int32_t worker = s.leaves[last].owner;
    const std::int32_t page = s.leaves[last].pages[kept_of(last) - 1];
    ledger_.pages().reserve(worker, 1);
    op.copied_page = ledger_.pages().take(worker, 1).front();
    copies_.add({.from = worker,
                 .from_page = page,
                 .to = worker,
                 .to_page = op.copied_page,
                 .rows = static_cast<std::int32_t>(length % kPageTokens)});
    ledger_.pages().release(worker, std::span(&page, 1));
  }
  ledger_.decide(op);
}

/// Gives back all pages of a sequence, and those still promised to it.
void Sequences::release_pages(const Sequence& s) {
  for (std::size_t i = 0; i < s.leaves.size(); ++i) release_leaf(s, i);
}

void Sequences::release_leaf(const Sequence& s, std::size_t i) {
  const Leaf& leaf = s.leaves[i];
  if (leaf.owner == kNoWorker) return;
  ledger_.pages().release(leaf.owner, leaf.pages);
  ledger_.pages().unreserve(leaf.owner,
                            ledger_.leaf_pages(s, i, s.limit_tokens) - std::ssize(leaf.pages));
}

void Sequences::lose(SequenceId id, std::vector<std::int32_t> leaves, LostRows how) {
  const Sequence& s = ledger_.table().at(id);
  moves_.cancel(id);
  bool rows = how.new_epoch;
  bool given_up = false;
  Closed closed{.round = order_.round, .sequence = s, .ends = false};
  for (Leaf& leaf : closed.sequence.leaves) leaf = {kNoWorker, {}};
  for (const std::int32_t l : leaves) {
    const auto i = static_cast<std::size_t>(l);
    const Leaf& leaf = s.leaves.at(i);
    rows = rows || std::int64_t{l} * ledger_.table().leaf_tokens() < s.length;
    blocks_.lose(id, l, how.keep_blocks);
    for (const std::int32_t page : leaf.pages) copies_.drop(leaf.owner, page);
    if (leaf.owner == kNoWorker || ledger_.pages().lost(leaf.owner)) {
      release_leaf(s, i);
    } else {
      closed.sequence.leaves[i] = leaf;
      given_up = true;
    }
  }
  if (given_up) closed_.push_back(std::move(closed));
  ledger_.decide(LoseOp{id, s.epoch + (rows ? 1U : 0U), std::move(leaves)});
}

/// The sequence is no more; its pages are left to the caller.
void Sequences::end(SequenceId id) {
  moves_.cancel(id);
  ledger_.end(id);
}

void Sequences::free(SequenceId id) {
  const Sequence& s = ledger_.table().at(id);
  steps_.check_not_open(id);
  blocks_.end(id);
  release_pages(s);
  end(id);
}

void Sequences::close(SequenceId id) {
  const Sequence& s = ledger_.table().at(id);
  steps_.check_not_open(id);
  closed_.push_back({.round = order_.round, .sequence = s, .ends = true});
  end(id);
}

void Sequences::lose_closed(std::int32_t worker) {
  for (Closed& closed : closed_) {
    Sequence& s = closed.sequence;
    for (std::size_t i = 0; i < s.leaves.size(); ++i) {
      if (s.leaves[i].owner != worker) continue;
      if (closed.ends) blocks_.lose(s.id, static_cast<std::int64_t>(i), false);
      release_leaf(s, i);
      s.leaves[i] = {kNoWorker, {}};
    }
  }
}

void Sequences::release_closed(std::uint64_t drained_round) {
  while (!closed_.empty() && closed_.front().round <= drained_round) {
    if (closed_.front().ends) blocks_.end(closed_.front().sequence.id);
    release_pages(closed_.front().sequence);
    closed_.pop_front();
  }
}

}  // namespace tributary
