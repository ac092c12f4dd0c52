// Random calls of a sequencer whose sequences share blocks, against a model of the pages' contents:
// every row that a sequence may read is its own, whoever wrote it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/limits.h"
#include "core/cache/leaves.h"
#include "core/sequencer/members.h"
#include "core/sequencer/sequencer.h"
#include "tests/core/base/expect_error.h"
#include "tests/dice.h"

namespace tributary {
namespace {

using test::Dice;

struct SharedCase {
  int workers;
  std::int32_t pages;
  std::uint64_t seed;
  bool losses = false;  // of workers, and others in their place
};

class SharedBlocksRandom : public testing::TestWithParam<SharedCase> {
 protected:
  static constexpr int kLeaf = 256;
  using Tokens = std::vector<std::uint64_t>;
  /// A running sequence: the content of each of its rows, and which of its prompt are here.
  struct Running {
    Tokens tokens;
    std::int64_t prompt = 0;
    std::vector<bool> here = {};  // by row
    bool arrived = false;
    std::int32_t open = 0;
    Tokens step = {};  // of the open step
  };

  static SequencerConfig config() {
    return {.placement = {.workers = GetParam().workers, .model = default_cost_model(kLeaf)},
            .pages_per_worker = GetParam().pages};
  }

  /// The key of a block whose last token is `end` - 1: of all tokens up to there.
  static std::string key(const Tokens& tokens, std::int64_t end) {
    std::uint64_t hash = 7;
    for (std::int64_t i = 0; i < end; ++i) {
      hash = mix64(hash ^ tokens[static_cast<std::size_t>(i)]);
    }
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &hash, sizeof(hash));
    return bytes;
  }

  void name_blocks(AdmitRequest& request, const Tokens& tokens) {
    request.prefix.block_tokens = 64 << (dice_.one_in(9) ? dice_.roll(3) : tokens.front() % 3);
    if (dice_.one_in(9)) request.prefix.cache_salt = "apart";
    for (std::int64_t end = request.prefix.block_tokens; end <= request.prompt_tokens;
         end += request.prefix.block_tokens) {
      request.prefix.add_key(key(tokens, end));
    }
  }

  std::uint64_t& row(std::int32_t worker, std::int32_t page, std::int64_t slot) {
    return contents_[{worker, page}][static_cast<std::size_t>(slot)];
  }
  std::uint64_t& row_of(const Sequence& s, std::int64_t position) {
    const Leaf& leaf = s.leaves[static_cast<std::size_t>(position / kLeaf)];
    return row(leaf.owner, leaf.pages[static_cast<std::size_t>(position % kLeaf / kPageTokens)],
               position % kPageTokens);
  }
  const Sequence& at(SequenceId id) { return sequencer_.ledger().table().at(id); }

  SequenceId any() {
    auto it = running_.begin();
    std::advance(it, dice_.roll(std::ssize(running_)));
    return it->first;
  }

  void admit() {
    Tokens tokens;
    if (!prompts_.empty() && !dice_.one_in(8)) {
      const Tokens& known = prompts_[static_cast<std::size_t>(dice_.roll(std::ssize(prompts_)))];
      tokens.assign(known.begin(),
                    known.begin() + dice_.between(std::ssize(known) / 2, std::ssize(known)));
    }
    for (auto more = dice_.between(tokens.empty() ? 1 : 0, 1000 - std::ssize(tokens)); more > 0;
         --more) {
      tokens.push_back(dice_.draw());
    }
    constexpr std::array kPolicies{SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll};
    AdmitRequest request{.prompt_tokens = std::ssize(tokens),
                         .max_new_tokens = dice_.between(0, 200),
                         .spread = kPolicies[static_cast<std::size_t>(dice_.roll(3))]};
    if (request.prompt_tokens + request.max_new_tokens == 0) return;
    if (!dice_.one_in(8)) {
      name_blocks(request, tokens);
    }
    std::optional<SequenceId> id;
    const ErrorCode code = code_of([&] { id = sequencer_.sequences().admit(request); });
    if (code == ErrorCode::kTooLarge) return;
    ASSERT_EQ(code, ErrorCode::kOk);
    if (!id) return;
    ASSERT_TRUE(sequencer_.ledger().waiting().empty());
    ++admitted_;
    const Sequence& s = at(*id);
    present_ += s.present_tokens;
    Running one{.tokens = tokens, .prompt = request.prompt_tokens};
    one.here.assign(tokens.size(), false);
    std::fill_n(one.here.begin(), s.present_tokens, true);
    one.arrived = s.present_tokens == s.prompt_tokens;
    for (std::int64_t p = 0; p < s.present_tokens; ++p) {
      ASSERT_EQ(row_of(s, p), tokens[static_cast<std::size_t>(p)]) << "present row " << p;
    }
    // What is not here yet may hold anything: whoever had the page before.
    for (std::int64_t p = s.present_tokens; p < s.length; ++p) row_of(s, p) = dice_.draw();
    running_.emplace(*id, std::move(one));
    if (prompts_.size() < 6) {
      prompts_.push_back(std::move(tokens));
    } else {
      prompts_[static_cast<std::size_t>(dice_.roll(6))] = std::move(tokens);
    }
  }

  /// A sequence that begins with rows of another one, and goes on with some of its own; some name
  /// their blocks.
  void fork() {
    const SequenceId from = any();
    const Running& parent = running_.at(from);
    if (parent.tokens.empty()) return;
    AdmitRequest request{.max_new_tokens = dice_.between(1, 200)};
    request.parent = {
        .id = from, .epoch = at(from).epoch, .length = dice_.between(1, std::ssize(parent.tokens))};
    Running one{.tokens = {parent.tokens.begin(), parent.tokens.begin() + request.parent.length}};
    if (dice_.one_in(2)) {
      for (auto more = dice_.roll(200); more > 0; --more) one.tokens.push_back(dice_.draw());
    }
    request.prompt_tokens = one.prompt = std::ssize(one.tokens);
    if (dice_.one_in(2)) name_blocks(request, one.tokens);
    std::optional<SequenceId> id;
    const ErrorCode code = code_of([&] { id = sequencer_.sequences().admit(request); });
    if (!parent.arrived) {
      ASSERT_EQ(code, ErrorCode::kFailedPrecondition);
      return;
    }
    if (code == ErrorCode::kUnavailable && sequencer_.copies().size() > 0) return;
    if (code == ErrorCode::kTooLarge) return;
    ASSERT_EQ(code, ErrorCode::kOk);
    if (!id) return;
    ++forked_;
    ASSERT_EQ(at(*id).present_tokens, request.parent.length);
    one.here.assign(one.tokens.size(), false);
    std::fill_n(one.here.begin(), request.parent.length, true);
    one.arrived = at(*id).present_tokens == one.prompt;
    running_.emplace(*id, std::move(one));
  }

  void push() {
    const SequenceId id = any();
    Running& one = running_.at(id);
    if (one.arrived) return;
    const auto missing = std::ranges::find(one.here, false) - one.here.begin();
    const auto begin =
        static_cast<std::size_t>(dice_.one_in(3) ? dice_.roll(std::ssize(one.here)) : missing);
    const auto end =
        dice_.one_in(2) ? one.here.size() : begin + static_cast<std::size_t>(dice_.roll(200));
    for (std::size_t p = begin; p < std::min(end, one.here.size()); ++p) {
      if (at(id).leaves[p / kLeaf].pages.empty()) continue;  // it waits for room
      if (!one.here[p]) row_of(at(id), static_cast<std::int64_t>(p)) = one.tokens[p];
      one.here[p] = true;
    }
    if (std::ranges::count(one.here, false) > 0) return;
    one.arrived = true;
    sequencer_.sequences().prompt_arrived(id);
  }

  void open() {
    const SequenceId id = any();
    Running& one = running_.at(id);
    const Sequence& s = at(id);
    const std::int64_t room = std::min<std::int64_t>(s.limit_tokens - s.length, kMaxStepTokens);
    if (!one.arrived || one.open > 0 || room == 0 || in_round_ != 0) return;
    const StepItem item = next_item(s, static_cast<std::int32_t>(dice_.between(1, room)));
    const auto open = [&] { sequencer_.steps().open(std::span(&item, 1)); };
    const auto end = static_cast<std::size_t>((s.length + item.tokens - 1) / kLeaf) + 1;
    if (std::ranges::count(std::span(s.leaves).first(end), kNoWorker, &Leaf::owner) > 0) {
      EXPECT_EQ(code_of(open), ErrorCode::kUnavailable);
      return;
    }
    open();
    one.open = item.tokens;
    sequencer_.steps().order_round(std::span(&item, 1));
    one.step.clear();
    for (std::int32_t i = 0; i < one.open; ++i) one.step.push_back(dice_.draw());
    in_round_ = id;
  }

  void commit() {
    const SequenceId id = any();
    Running& one = running_.at(id);
    if (one.open == 0) return;
    const auto accepted =
        in_round_ == id ? 0 : static_cast<std::int32_t>(dice_.between(0, one.open));
    sequencer_.steps().commit(id, accepted);
    one.tokens.insert(one.tokens.end(), one.step.begin(), one.step.begin() + accepted);
    one.here.resize(one.tokens.size(), true);
    one.open = 0;
    if (in_round_ == id) in_round_ = {};
  }

  void truncate() {
    const SequenceId id = any();
    Running& one = running_.at(id);
    if (!one.arrived || one.open > 0) return;
    const std::int64_t length = dice_.between(at(id).length / 3, at(id).length);
    const ErrorCode code = code_of([&] { sequencer_.sequences().truncate(id, length); });
    if (code == ErrorCode::kPoolFull) {
      ++no_room_;
      return;
    }
    ASSERT_EQ(code, ErrorCode::kOk);
    one.tokens.resize(static_cast<std::size_t>(length));
    one.here.resize(one.tokens.size());
  }

  void end() {
    const SequenceId id = any();
    Running& one = running_.at(id);
    if (!one.arrived && !dice_.one_in(6)) return;
    if (one.open > 0) {
      sequencer_.steps().commit(id, 0);
      if (in_round_ == id) in_round_ = {};
    }
    closing_.push_back(at(id));
    sequencer_.sequences().close(id);
    running_.erase(id);
  }

  void move() {
    const SequenceId id = any();
    const auto full = static_cast<std::int32_t>(at(id).length / kLeaf);
    const bool newest = full == 0 || dice_.one_in(2);
    const auto first = newest ? full : static_cast<std::int32_t>(dice_.roll(full));
    const auto end = newest ? full + 1 : static_cast<std::int32_t>(dice_.between(first + 1, full));
    const auto to = static_cast<std::int32_t>(dice_.roll(GetParam().workers));
    moves_ += code_of([&] {
                sequencer_.moves().begin({id, first, end, to});
              }) == ErrorCode::kOk
                  ? 1
                  : 0;
  }

  /// One worker at most is being emptied.
  void drain() {
    const auto worker = static_cast<std::int32_t>(dice_.roll(GetParam().workers));
    for (std::int32_t w = 0; w < GetParam().workers; ++w) {
      if (sequencer_.ledger().pages().lost(w)) {
        ASSERT_EQ(code_of([&] { sequencer_.moves().drain_worker(w, w % 2 == 0); }),
                  ErrorCode::kFailedPrecondition);
      } else if (sequencer_.ledger().draining(w)) {
        sequencer_.moves().drain_worker(w, false);
        return;
      }
    }
    if (GetParam().workers > 1 && !sequencer_.ledger().pages().lost(worker)) {
      sequencer_.moves().drain_worker(worker, true);
    }
  }

  /// Rows of leaves that have no pages any more are not here; what a page holds that comes instead
  /// is anything. Returns the sequences that lost some.
  std::vector<SequenceId> note_changes(const std::map<SequenceId, Sequence>& before,
                                       std::vector<SequenceId>& epochs) {
    std::vector<SequenceId> lost;
    for (auto& [id, one] : running_) {
      bool any = false;
      for (std::int64_t p = 0; p < at(id).length; ++p) {
        const auto i = static_cast<std::size_t>(p / kLeaf);
        const bool had = !before.at(id).leaves[i].pages.empty();
        const bool has = !at(id).leaves[i].pages.empty();
        if (had && !has) one.here[static_cast<std::size_t>(p)] = false;
        if (!had && has) row_of(at(id), p) = dice_.draw();
        any = any || (had && !has);
      }
      if (at(id).epoch != before.at(id).epoch) epochs.push_back(id);
      EXPECT_TRUE(!any || at(id).epoch == before.at(id).epoch + 1);
      if (!any) continue;
      one.arrived = false;
      lost.push_back(id);
    }
    return lost;
  }

  std::map<SequenceId, Sequence> snapshot() {
    std::map<SequenceId, Sequence> all;
    for (const auto& [id, one] : running_) all.emplace(id, at(id));
    return all;
  }

  void lose() {
    const auto worker = static_cast<std::int32_t>(dice_.roll(GetParam().workers));
    const PoolLedger& ledger = sequencer_.ledger();
    if (ledger.pages().lost(worker) || members(ledger) == 1) {
      ASSERT_EQ(code_of([&] { (void)sequencer_.losses().lose_worker(worker); }),
                ErrorCode::kFailedPrecondition);
      return;
    }
    ++lost_;
    const auto before = snapshot();
    const bool copies = sequencer_.copies().size() > 0;
    const Loss loss = sequencer_.losses().lose_worker(worker);
    for (auto& [place, rows] : contents_) {
      if (place.first == worker) std::ranges::generate(rows, [&] { return dice_.draw(); });
    }
    std::vector<SequenceId> epochs;
    std::vector<SequenceId> changed = note_changes(before, epochs);
    ASSERT_EQ(epochs, loss.epochs);
    changed.insert(changed.end(), loss.steps.begin(), loss.steps.end());
    std::ranges::sort(changed);
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    ASSERT_EQ(changed, epochs);
    for (const SequenceId id : loss.steps) {
      running_.at(id).open = 0;
      if (in_round_ == id) in_round_ = 0;
    }
    std::vector<SequenceId> homes;
    for (auto& [id, one] : running_) {
      const Sequence& s = at(id);
      const Sequence& was = before.at(id);
      if (was.home == worker) homes.push_back(id);
      ASSERT_EQ(s.home == was.home, was.home != worker);
      ASSERT_FALSE(ledger.pages().lost(s.home));
      bool open_rows = was.home == worker;
      for (std::size_t i = 0; i < s.leaves.size(); ++i) {
        const bool there = was.leaves[i].owner == worker;
        const bool lost = s.leaves[i].owner == kNoWorker && was.leaves[i].owner != kNoWorker;
        ASSERT_TRUE(!there || lost);
        ASSERT_TRUE(!lost || there || copies);
        ASSERT_TRUE(lost || s.leaves[i].pages == was.leaves[i].pages);
        open_rows = open_rows || (lost && std::cmp_less(i * kLeaf, s.length + one.open));
      }
      ASSERT_TRUE(one.open == 0 || !open_rows);
      ASSERT_EQ(sequencer_.steps().open_tokens(id), one.open);
      give_up(was, s, worker);
    }
    ASSERT_EQ(homes, loss.homes);
    for (Sequence& s : closing_) {
      for (Leaf& leaf : s.leaves) {
        if (leaf.owner == worker) leaf = {kNoWorker, {}};
      }
    }
  }

  /// Pages that a sequence has lost on workers that are there stay out of use for a while.
  void give_up(const Sequence& was, const Sequence& s, std::int32_t lost) {
    Sequence left = was;
    for (std::size_t i = 0; i < s.leaves.size(); ++i) {
      const bool goes = s.leaves[i].owner == kNoWorker && was.leaves[i].owner != lost;
      if (!goes) left.leaves[i] = {kNoWorker, {}};
    }
    closing_.push_back(std::move(left));
  }

  void take() {
    const auto worker = static_cast<std::int32_t>(dice_.roll(GetParam().workers));
    const bool lost = sequencer_.ledger().pages().lost(worker);
    ASSERT_EQ(code_of([&] { sequencer_.losses().take_worker(worker); }),
              lost ? ErrorCode::kOk : ErrorCode::kFailedPrecondition);
  }

  void give_room() {
    const auto before = snapshot();
    const std::vector<SequenceId> changed = sequencer_.losses().give_room();
    std::vector<SequenceId> epochs;
    const std::vector<SequenceId> gave_up = note_changes(before, epochs);
    ASSERT_EQ(epochs, gave_up);
    for (const auto& [id, was] : before) {
      const bool waited = std::ranges::count(was.leaves, kNoWorker, &Leaf::owner) > 0;
      const bool waits = std::ranges::count(at(id).leaves, kNoWorker, &Leaf::owner) > 0;
      ASSERT_EQ(waits, sequencer_.ledger().waiting().contains(id));
      ASSERT_TRUE(waited || !waits);
      placed_ += waited && !waits ? 1 : 0;
      const bool is_same =
          std::ranges::equal(was.leaves, at(id).leaves, {}, &Leaf::owner, &Leaf::owner);
      ASSERT_EQ(is_same, std::ranges::count(changed, id) == 0);
      give_up(was, at(id), kNoWorker);
    }
    ASSERT_LE(gave_up.size(), 1U);
    ASSERT_TRUE(gave_up.empty() || sequencer_.ledger().waiting().size() == running_.size());
  }

  void order() {
    (void)sequencer_.moves().order_copies(dice_.roll(400));
    const Order order = sequencer_.take_order();
    const bool ok = !dice_.one_in(6);
    for (const PageCopy& copy : order.copies) {
      ASSERT_FALSE(sequencer_.ledger().pages().lost(copy.from) ||
                   sequencer_.ledger().pages().lost(copy.to));
    }
    for (const TableOp& op : order.ops) {
      const auto* moved = std::get_if<MoveOp>(&op);
      moved_newest_ += moved != nullptr && moved->pages.size() % (kLeaf / kPageTokens) != 0 ? 1 : 0;
      moved_homes_ += std::holds_alternative<HomeOp>(op) ? 1 : 0;
    }
    if (ok) {
      std::vector<std::array<std::uint64_t, kPageTokens>> read;
      for (const PageCopy& copy : order.copies)
        read.push_back(contents_[{copy.from, copy.from_page}]);
      for (std::size_t i = 0; i < read.size(); ++i) {
        const PageCopy& copy = order.copies[i];
        std::copy_n(read[i].begin(), copy.rows, contents_[{copy.to, copy.to_page}].begin());
        copied_ += copy.from == copy.to ? 1 : 0;
      }
    }
    for (const StepItem& item : order.step) {
      Running& one = running_.at(item.id);
      if (!ok) {
        sequencer_.steps().commit(item.id, 0);
        one.open = 0;
        continue;
      }
      for (std::int32_t i = 0; i < item.tokens; ++i) {
        row_of(at(item.id), item.base_length + i) = one.step[static_cast<std::size_t>(i)];
      }
    }
    in_round_ = {};
    sequencer_.order_ended(ok);
    (void)sequencer_.give_away([this](SequenceId id) { return dice_.one_in(4) || id % 8 == 0; });
    failed_order_ = !ok;
    if (ok) {
      sequencer_.sequences().release_closed(order.round);
      closing_.clear();
    }
    if (GetParam().losses) give_room();
  }

  void check_pages() {
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> references;
    std::map<std::int32_t, std::int64_t> reserved;
    const auto count = [&](const Sequence& s) {
      for (std::size_t i = 0; i < s.leaves.size(); ++i) {
        const Leaf& leaf = s.leaves[i];
        if (leaf.owner == kNoWorker) continue;
        for (const std::int32_t page : leaf.pages) ++references[{leaf.owner, page}];
        reserved[leaf.owner] +=
            sequencer_.ledger().leaf_pages(s, i, s.limit_tokens) - std::ssize(leaf.pages);
      }
    };
    for (const auto& [id, one] : running_) count(at(id));
    for (const Sequence& s : closing_) count(s);
    for (const RunningMove& move : sequencer_.moves().running()) {
      for (const std::int32_t page : move.to_pages) ++references[{move.move.to, page}];
      reserved[move.move.to] += move.promised;
    }
    for (std::int32_t w = 0; w < GetParam().workers; ++w) {
      const PagePool& pool = sequencer_.ledger().pools()[static_cast<std::size_t>(w)];
      std::int32_t used = 0;
      std::int32_t idle = 0;
      for (std::int32_t page = 0; page < pool.total(); ++page) {
        const auto found = references.find({w, page});
        const std::int32_t expected = found == references.end() ? 0 : found->second;
        // A page of which or to which rows are to be copied is used until they are.
        const bool used_here = pool.reference_count(page) > 0;
        if (sequencer_.copies().size() == 0) {
          ASSERT_EQ(pool.reference_count(page), expected) << "worker " << w << " page " << page;
        }
        ASSERT_GE(pool.reference_count(page), expected) << "worker " << w << " page " << page;
        used += used_here ? 1 : 0;
        idle += !used_here && pool.kept(page) ? 1 : 0;
      }
      ASSERT_EQ(pool.used(), used);
      ASSERT_EQ(pool.idle(), idle);
      ASSERT_EQ(pool.used() + pool.idle() + pool.free(), pool.total());
      ASSERT_EQ(pool.reserved(), reserved[w]) << "worker " << w;
      ASSERT_LE(pool.reserved(), pool.free() + pool.idle());
      ASSERT_TRUE(!sequencer_.ledger().draining(w) || idle == 0);
      ASSERT_TRUE(!sequencer_.ledger().pages().lost(w) || pool.free() == pool.total());
    }
  }

  /// While an order has failed, pages that it should have copied are not there yet: no step has run
  /// since.
  void check_rows() {
    if (failed_order_) return;
    for (const auto& [id, one] : running_) {
      const Sequence& s = at(id);
      ASSERT_EQ(s.length, std::ssize(one.tokens));
      for (std::int64_t p = 0; p < s.length; ++p) {
        if (!one.here[static_cast<std::size_t>(p)]) continue;
        ASSERT_EQ(row_of(s, p), one.tokens[static_cast<std::size_t>(p)])
            << "sequence " << id << " row " << p << " of " << s.length;
      }
    }
  }

  Dice dice_{GetParam().seed};
  Sequencer sequencer_{config()};
  std::map<SequenceId, Running> running_;
  std::vector<Sequence> closing_;
  std::vector<Tokens> prompts_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::array<std::uint64_t, kPageTokens>> contents_;
  SequenceId in_round_ = 0;  // the one whose step the next order runs
  bool failed_order_ = false;
  std::int64_t admitted_ = 0, present_ = 0, copied_ = 0, moves_ = 0, no_room_ = 0, forked_ = 0;
  std::int64_t moved_newest_ = 0, moved_homes_ = 0;
  std::int64_t lost_ = 0, placed_ = 0;
};

TEST_P(SharedBlocksRandom, EveryRowIsItsSequencesOwn) {
  for (int i = 0; i < 33'334; ++i) {
    switch (dice_.roll(running_.empty() ? 2 : 14)) {
      case 0:
      case 1:
        admit();
        break;
      case 2:
      case 3:
      case 4:
        push();
        break;
      case 5:
        open();
        break;
      case 6:
        commit();
        break;
      case 7:
        truncate();
        break;
      case 8:
        end();
        break;
      case 9:
        move();
        break;
      case 10:
        if (dice_.one_in(20)) drain();
        break;
      case 11:
        fork();
        break;
      default:
        order();
        check_rows();
    }
    if (GetParam().losses && dice_.one_in(400)) {
      do lose();
      while (dice_.one_in(2));
    }
    if (GetParam().losses && dice_.one_in(200)) take();
    if (i % 8 == 0) check_pages();
    if (HasFatalFailure()) FAIL() << "after " << i << " calls";
  }
  while (!running_.empty()) end();
  do order();
  while (failed_order_);
  check_pages();
  for (const PagePool& pool : sequencer_.ledger().pools()) {
    EXPECT_EQ(pool.used(), 0);
    EXPECT_EQ(pool.reserved(), 0);
  }
  for (std::int32_t w = 0; w < GetParam().workers; ++w) {
    if (sequencer_.ledger().pages().lost(w)) sequencer_.losses().take_worker(w);
    sequencer_.moves().drain_worker(w, true);
  }
  EXPECT_EQ(sequencer_.ledger().pages().blocks().size(), 0U);
  check_pages();
  EXPECT_GT(admitted_, 700);
  EXPECT_GT(present_, 100 * admitted_ / 10);
  EXPECT_GT(copied_, 10);
  EXPECT_GT(forked_, 200);
  if (GetParam().workers == 1) return;
  EXPECT_GT(moves_, 50);
  EXPECT_GT(moved_newest_, 20);
  EXPECT_GT(moved_homes_, 5);
  if (!GetParam().losses) return;
  EXPECT_GT(lost_, 30);
  EXPECT_GT(placed_, 100);
}

INSTANTIATE_TEST_SUITE_P(Pools, SharedBlocksRandom,
                         testing::Values(SharedCase{1, 120, 4}, SharedCase{2, 60, 2},
                                         SharedCase{4, 40, 3}, SharedCase{2, 60, 7, true},
                                         SharedCase{5, 30, 6, true}));

}  // namespace
}  // namespace tributary
