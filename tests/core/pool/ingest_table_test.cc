#include "core/pool/ingest_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/cache/sequence_table.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

constexpr int kLayers = 3;
constexpr int kLeafTokens = 128;
constexpr std::uint64_t kNone = UINT64_MAX;

/// Pages are numbered by sequence, leaf and page, so that no two are equal.
Sequence sequence(SequenceId id, std::int64_t prompt, const std::vector<std::int32_t>& owners) {
  Sequence s{.id = id,
             .epoch = 1,
             .prompt_tokens = prompt,
             .limit_tokens = prompt + 10,
             .length = prompt,
             .leaves = {}};
  auto page = static_cast<std::int32_t>(id * 1000);
  for (std::size_t l = 0; l < owners.size(); ++l) {
    Leaf leaf{owners[l], {}};
    const std::int64_t begin = static_cast<std::int64_t>(l) * kLeafTokens;
    for (std::int64_t p = begin; p < std::min(begin + kLeafTokens, prompt); p += kPageTokens) {
      leaf.pages.push_back(page++);
    }
    s.leaves.push_back(std::move(leaf));
  }
  return s;
}

class IngestTableTest : public testing::Test {
 protected:
  /// Leaves 0, 1 and 3 of 4 are this rank's: rows 0 .. 255 and 384 .. 449.
  IngestTableTest() { table_.open(sequence(1, 450, {0, 0, 1, 0})); }

  ErrorCode refusal(SequenceId id, std::uint32_t epoch, int layer, std::int64_t begin,
                    std::int64_t count) {
    return code_of([&] { (void)table_.begin(id, epoch, layer, begin, count); });
  }
  IngestTable::Progress receive(int layer, std::int64_t begin, std::int64_t count) {
    return table_.end(table_.begin(1, 1, layer, begin, count).ticket, true);
  }

  IngestTable table_{0, kLayers, kLeafTokens};
};

TEST_F(IngestTableTest, TellsWhereRowsLie) {
  const auto transfer = table_.begin(1, 1, 0, 100, 130);  // over pages and a leaf
  ASSERT_EQ(transfer.runs.size(), 3U);
  EXPECT_EQ(transfer.runs[0].page, 1001);
  EXPECT_EQ(transfer.runs[0].slot, 36);
  EXPECT_EQ(transfer.runs[0].count, 28);
  EXPECT_EQ(transfer.runs[1].page, 1002);
  EXPECT_EQ(transfer.runs[1].count, 64);
  EXPECT_EQ(transfer.runs[2].page, 1003);
  EXPECT_EQ(transfer.runs[2].count, 38);
}

TEST_F(IngestTableTest, TellsARepetitionFromOtherRowsByTheChecksum) {
  const auto first = table_.begin(1, 1, 0, 0, 100, 7U);
  EXPECT_EQ(code_of([&] { (void)table_.begin(1, 1, 0, 0, 100, 7U); }), ErrorCode::kUnavailable)
      << "not yet";
  EXPECT_EQ(code_of([&] { (void)table_.begin(1, 1, 0, 0, 100, 8U); }), ErrorCode::kAlreadyExists);
  (void)table_.end(first.ticket, false);
  EXPECT_NE(table_.begin(1, 1, 0, 100, 10, 7U).ticket, 0U);
  const auto again = table_.begin(1, 1, 0, 0, 100, 7U);
  ASSERT_NE(again.ticket, 0U) << "it had not arrived";
  EXPECT_EQ(table_.end(again.ticket, true).rows_done, 100);
  EXPECT_EQ(table_.begin(1, 1, 0, 0, 100, 7U).ticket, 0U);
  EXPECT_EQ(table_.progress(1).rows_done, 100);
  for (const auto& [begin, count, crc] : std::vector<std::tuple<std::int64_t, std::int64_t, int>>{
           {0, 100, 8}, {0, 99, 7}, {1, 99, 7}, {0, 101, 7}}) {
    EXPECT_EQ(code_of([&, begin = begin, count = count, crc = crc] {
                (void)table_.begin(1, 1, 0, begin, count, static_cast<std::uint32_t>(crc));
              }),
              ErrorCode::kAlreadyExists);
  }
  EXPECT_NE(table_.begin(1, 1, 1, 0, 100, 7U).ticket, 0U) << "another layer";
}

TEST_F(IngestTableTest, KnowsARepetitionWhenAllRowsAreThere) {
  for (const std::int64_t begin : {0, 384}) {
    const std::int64_t count = begin == 0 ? 256 : 66;
    (void)table_.end(table_.begin(1, 1, 0, begin, count, 5U).ticket, true);
  }
  EXPECT_EQ(table_.begin(1, 1, 0, 0, 256, 5U).ticket, 0U);
  EXPECT_EQ(code_of([&] { (void)table_.begin(1, 1, 0, 0, 256, 6U); }), ErrorCode::kAlreadyExists);
}

TEST_F(IngestTableTest, RefusesWhatItDoesNotExpect) {
  EXPECT_EQ(refusal(2, 1, 0, 0, 1), ErrorCode::kNotFound);
  EXPECT_EQ(refusal(1, 2, 0, 0, 1), ErrorCode::kStaleEpoch);
  EXPECT_EQ(refusal(1, 0, 0, 0, 1), ErrorCode::kStaleEpoch);
  for (const int layer : {-1, kLayers}) {
    EXPECT_EQ(refusal(1, 1, layer, 0, 1), ErrorCode::kInvalidArgument);
  }
  constexpr std::int64_t kMost = INT64_MAX;
  for (const auto& [begin, count] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 0},
                                                          {0, -1},
                                                          {-1, 2},
                                                          {449, 2},
                                                          {450, 1},
                                                          {kMost, kMost},
                                                          {1, kMost},
                                                          {INT64_MIN, 1},
                                                          {255, 2},
                                                          {256, 1},
                                                          {383, 1},
                                                          {383, 2},
                                                          {0, 450}}) {
    EXPECT_EQ(refusal(1, 1, 0, begin, count), ErrorCode::kInvalidArgument) << begin << " " << count;
  }
  EXPECT_EQ(code_of([&] { table_.open(sequence(1, 10, {0})); }), ErrorCode::kAlreadyExists);
  EXPECT_EQ(code_of([&] { (void)table_.progress(2); }), ErrorCode::kNotFound);
  EXPECT_EQ(code_of([&] { (void)table_.end(1, true); }), ErrorCode::kNotFound);
  EXPECT_EQ(table_.progress(1).rows_done, 0);
}

TEST_F(IngestTableTest, RowsOfALostLeafComeAgainForTheNewEpoch) {
  for (int layer = 0; layer < kLayers; ++layer) {
    (void)receive(layer, 0, 256);
    (void)receive(layer, 384, 66);
  }
  ASSERT_EQ(table_.progress(1).missing_layer, -1);
  Sequence s = sequence(1, 450, {0, 0, 1, 0});
  // Leaf 2, of another worker, comes here; it has 40 rows more than the prompt by now.
  s.epoch = 2;
  s.length = 490;
  table_.lose({1, 2, {2}}, 5);
  EXPECT_EQ(table_.progress(1).rows_total, kLayers * 322) << "not here yet";
  EXPECT_EQ(refusal(1, 2, 0, 256, 128), ErrorCode::kInvalidArgument);
  s.leaves[2] = {0, {70, 71}};
  table_.expect(s, 2);
  EXPECT_EQ(table_.progress(1).rows_total, kLayers * 450);
  EXPECT_EQ(table_.progress(1).missing_layer, 0);
  EXPECT_EQ(table_.progress(1).missing_position, 256);
  EXPECT_EQ(refusal(1, 1, 0, 256, 128), ErrorCode::kWorkerLost);
  EXPECT_EQ(refusal(1, 3, 0, 256, 128), ErrorCode::kStaleEpoch);
  EXPECT_EQ(refusal(1, 2, 0, 255, 2), ErrorCode::kAlreadyExists) << "row 255 is not missing";
  const auto transfer = table_.begin(1, 2, 0, 256, 128);
  ASSERT_EQ(transfer.runs.size(), 2U);
  EXPECT_EQ(transfer.runs[0].page, 70);
  EXPECT_EQ(table_.end(transfer.ticket, true).missing_layer, 1);
  // The newest leaf, here before, is given up and comes back: with the rows that were generated.
  table_.lose({1, 3, {3}}, 6);
  EXPECT_EQ(table_.progress(1).rows_total, kLayers * 384);
  s.leaves[3].pages = {80, 81};
  table_.expect(s, 3);
  EXPECT_EQ(table_.progress(1).rows_total, kLayers * 490);
  EXPECT_EQ(table_.begin(1, 3, 0, 450, 40).runs.at(0).page, 81);
  EXPECT_EQ(code_of([&] { table_.expect(sequence(2, 10, {0}), 0); }), ErrorCode::kNotFound);
  table_.lose({2, 2, {0}}, 7);  // unknown: ignored
}

TEST_F(IngestTableTest, ATransferIntoALeafThatIsGivenUpKeepsItsPages) {
  const auto across = table_.begin(1, 1, 0, 100, 100, 9U);  // leaves 0 and 1
  const auto beside = table_.begin(1, 1, 1, 0, 100);        // leaf 0 alone
  table_.lose({1, 2, {1}}, 5);
  EXPECT_EQ(table_.drained_round(), 4U);
  EXPECT_EQ(table_.closed_transfers(), std::vector<std::uint64_t>{across.ticket});
  EXPECT_FALSE(table_.end(across.ticket, true).counted);
  EXPECT_EQ(table_.drained_round(), kNone);
  EXPECT_EQ(table_.end(beside.ticket, true).rows_done, 100);
  EXPECT_NE(table_.begin(1, 2, 0, 100, 28, 9U).ticket, 0U) << "they did not count";
}

/// Against a plain list of which row has arrived.
TEST(IngestTableLosses, AnyOrderOfLossesAndRows) {
  std::mt19937_64 random(3);
  const auto roll = [&](std::int64_t below) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(below));
  };
  for (int run = 0; run < 100; ++run) {
    constexpr std::int64_t kLength = 4 * kLeafTokens - 20;
    Sequence s = sequence(1, kLength, {0, 0, 1, 0});
    IngestTable table(0, kLayers, kLeafTokens);
    table.open(s);
    std::vector<std::vector<int>> here(kLayers, std::vector<int>(kLength, -1));  // -1: not ours
    const auto set = [&](std::int64_t leaf, int value) {
      for (auto& rows : here) {
        for (auto p = leaf * kLeafTokens; p < std::min((leaf + 1) * kLeafTokens, kLength); ++p) {
          rows[static_cast<std::size_t>(p)] = value;
        }
      }
    };
    for (const std::int64_t leaf : {0, 1, 3}) set(leaf, 0);
    for (int i = 0; i < 200; ++i) {
      const std::int64_t leaf = roll(4);
      const auto l = static_cast<std::size_t>(leaf);
      if (i % 20 == 19) {
        table.lose({1, ++s.epoch, {static_cast<std::int32_t>(leaf)}}, 1);
        s.leaves[l] = {kNoWorker, {}};
        set(leaf, -1);
        if (roll(4) > 0) {
          s.leaves[l] = {0, {500, 501}};
          table.expect(s, leaf);
          set(leaf, 0);
        }
        continue;
      }
      const auto layer = static_cast<std::size_t>(roll(kLayers));
      const std::int64_t begin = roll(kLength);
      const std::int64_t count = 1 + roll(std::min<std::int64_t>(kLength - begin, 200));
      const std::span rows =
          std::span(here[layer])
              .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
      const bool ours = std::ranges::count(rows, -1) == 0;
      const bool all_new = std::ranges::count(rows, 1) == 0;
      std::uint64_t ticket = 0;
      const ErrorCode code = code_of(
          [&] { ticket = table.begin(1, s.epoch, static_cast<int>(layer), begin, count).ticket; });
      ASSERT_EQ(code, !ours      ? ErrorCode::kInvalidArgument
                      : !all_new ? ErrorCode::kAlreadyExists
                                 : ErrorCode::kOk);
      if (code != ErrorCode::kOk) continue;
      const IngestTable::Progress progress = table.end(ticket, true);
      std::ranges::fill(rows, 1);
      std::int64_t done = 0;
      std::int64_t total = 0;
      for (const auto& one : here) {
        done += std::ranges::count(one, 1);
        total += std::ranges::count_if(one, [](int row) { return row >= 0; });
      }
      ASSERT_EQ(progress.rows_done, done);
      ASSERT_EQ(progress.rows_total, total);
      const auto missing = std::ranges::find_if(
          here, [](const auto& one) { return std::ranges::count(one, 0) > 0; });
      ASSERT_EQ(progress.missing_layer, missing == here.end() ? -1 : missing - here.begin());
      if (missing == here.end()) continue;
      ASSERT_EQ(progress.missing_position, std::ranges::find(*missing, 0) - missing->begin());
    }
  }
}

TEST_F(IngestTableTest, RowsComeOnce) {
  const auto transfer = table_.begin(1, 1, 0, 10, 20);
  EXPECT_EQ(refusal(1, 1, 0, 29, 5), ErrorCode::kAlreadyExists) << "on its way";
  EXPECT_EQ(table_.end(transfer.ticket, false).rows_done, 0);
  EXPECT_EQ(receive(0, 29, 5).rows_done, 5);
  EXPECT_EQ(refusal(1, 1, 0, 10, 20), ErrorCode::kAlreadyExists);
  EXPECT_EQ(receive(0, 10, 19).rows_done, 24);
  EXPECT_EQ(refusal(1, 1, 0, 33, 1), ErrorCode::kAlreadyExists);
  EXPECT_EQ(receive(1, 10, 20).rows_done, 44) << "another layer";
}

TEST_F(IngestTableTest, TellsWhatIsMissing) {
  EXPECT_EQ(table_.progress(1).rows_total, kLayers * 322);
  EXPECT_EQ(table_.progress(1).missing_position, 0);
  EXPECT_EQ(receive(0, 1, 255).missing_position, 0);
  EXPECT_EQ(receive(0, 0, 1).missing_position, 384) << "rows of the other rank are not missing";
  EXPECT_EQ(receive(0, 384, 60).missing_position, 444);
  EXPECT_EQ(receive(2, 0, 256).missing_layer, 0);
  EXPECT_EQ(receive(2, 384, 66).missing_layer, 0);
  EXPECT_EQ(receive(0, 444, 6).missing_layer, 1);
  EXPECT_EQ(refusal(1, 1, 0, 444, 6), ErrorCode::kAlreadyExists);
  EXPECT_EQ(receive(1, 384, 66).missing_position, 0);
  const auto whole = receive(1, 0, 256);
  EXPECT_EQ(whole.missing_layer, -1);
  EXPECT_EQ(whole.missing_position, -1);
  EXPECT_EQ(whole.rows_done, whole.rows_total);
}

TEST_F(IngestTableTest, ASequenceWithoutRowsHereIsWhole) {
  table_.open(sequence(2, 300, {1, 1, 1}));
  table_.open(sequence(3, 0, {0}));
  for (const SequenceId id : {2U, 3U}) {
    EXPECT_EQ(table_.progress(id).missing_layer, -1);
    EXPECT_EQ(table_.progress(id).rows_total, 0);
    EXPECT_EQ(refusal(id, 1, 0, 0, 1), ErrorCode::kInvalidArgument);
  }
}

TEST_F(IngestTableTest, AClosedSequenceIsDrainedWhenItsTransfersHaveEnded) {
  table_.open(sequence(2, 100, {0}));
  EXPECT_EQ(table_.drained_round(), kNone);
  const auto a = table_.begin(1, 1, 0, 0, 10);
  const auto b = table_.begin(1, 1, 1, 0, 10);
  const auto c = table_.begin(2, 1, 0, 0, 10);
  EXPECT_EQ(table_.drained_round(), kNone) << "nothing was closed";
  table_.close(1, 5);
  table_.close(99, 5);
  EXPECT_EQ(table_.drained_round(), 4U);
  EXPECT_EQ(refusal(1, 1, 2, 0, 10), ErrorCode::kNotFound);
  table_.close(2, 7);
  EXPECT_FALSE(table_.end(a.ticket, true).counted);
  EXPECT_EQ(table_.drained_round(), 4U);
  EXPECT_FALSE(table_.end(b.ticket, false).counted);
  EXPECT_EQ(table_.drained_round(), 6U);
  EXPECT_EQ(code_of([&] { (void)table_.end(b.ticket, false); }), ErrorCode::kNotFound);
  EXPECT_FALSE(table_.end(c.ticket, true).counted);
  EXPECT_EQ(table_.drained_round(), kNone);
}

/// A bit for every row.
class IngestModel {
 public:
  struct Entry {
    std::vector<bool> share;
    std::map<std::tuple<int, std::int64_t>, int> rows;  // 1: on its way, 2: arrived
  };
  struct Flight {
    SequenceId id;
    int layer;
    std::int64_t begin, count;
    std::uint64_t closed;
  };

  void open(const Sequence& s, int rank) {
    Entry entry;
    for (std::int64_t p = 0; p < s.prompt_tokens; ++p) {
      entry.share.push_back(s.leaves[static_cast<std::size_t>(p / kLeafTokens)].owner == rank);
    }
    entries.emplace(s.id, std::move(entry));
  }
  ErrorCode begin(SequenceId id, int layer, std::int64_t begin, std::int64_t count) {
    Entry& entry = entries.at(id);
    bool taken = false;
    for (std::int64_t p = begin; p < begin + count; ++p) {
      if (p < 0 || p >= static_cast<std::int64_t>(entry.share.size()) ||
          !entry.share[static_cast<std::size_t>(p)]) {
        return ErrorCode::kInvalidArgument;
      }
      taken = taken || entry.rows[{layer, p}] != 0;
    }
    if (taken) return ErrorCode::kAlreadyExists;
    for (std::int64_t p = begin; p < begin + count; ++p) entry.rows[{layer, p}] = 1;
    return ErrorCode::kOk;
  }
  /// Rows from `begin` on that may be sent.
  std::int64_t gap(SequenceId id, int layer, std::int64_t begin) {
    Entry& entry = entries.at(id);
    std::int64_t p = begin;
    while (p < std::ssize(entry.share) && entry.share[static_cast<std::size_t>(p)] &&
           entry.rows[{layer, p}] == 0) {
      ++p;
    }
    return p - begin;
  }
  void end(const Flight& flight, bool arrived) {
    if (flight.closed != 0) return;
    for (std::int64_t p = flight.begin; p < flight.begin + flight.count; ++p) {
      entries.at(flight.id).rows[{flight.layer, p}] = arrived ? 2 : 0;
    }
  }
  void check(SequenceId id, const IngestTable::Progress& progress) {
    Entry& entry = entries.at(id);
    IngestTable::Progress expected;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (std::size_t p = 0; p < entry.share.size(); ++p) {
        if (!entry.share[p]) continue;
        ++expected.rows_total;
        const auto position = static_cast<std::int64_t>(p);
        if (entry.rows[{layer, position}] == 2) {
          ++expected.rows_done;
        } else if (expected.missing_layer < 0) {
          expected.missing_layer = layer;
          expected.missing_position = position;
        }
      }
    }
    ASSERT_TRUE(progress.counted);
    ASSERT_EQ(progress.rows_total, expected.rows_total);
    ASSERT_EQ(progress.rows_done, expected.rows_done);
    ASSERT_EQ(progress.missing_layer, expected.missing_layer);
    ASSERT_EQ(progress.missing_position, expected.missing_position);
  }

  std::map<SequenceId, Entry> entries;
  std::map<std::uint64_t, Flight> flights;
};

TEST(IngestTableRandom, StaysAtOneWithABitmap) {
  std::mt19937 random(5);
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  IngestTable table(0, kLayers, kLeafTokens);
  IngestModel model;
  SequenceId next = 1;
  std::uint64_t round = 0;
  int whole = 0, repeated = 0;
  for (int i = 0; i < 20000; ++i) {
    const auto draw = between(0, 99);
    if (model.entries.size() < 2 || (draw < 1 && model.entries.size() < 5)) {
      std::vector<std::int32_t> owners;
      for (int l = 0; l < 3; ++l) owners.push_back(between(0, 2) == 0 ? 1 : 0);
      const Sequence s = sequence(next++, between(257, 384), owners);
      table.open(s);
      model.open(s, 0);
      continue;
    }
    auto it = model.entries.begin();
    std::advance(it, between(0, static_cast<std::int64_t>(model.entries.size()) - 1));
    const SequenceId id = it->first;
    if (draw < 2) {
      if (table.progress(id).missing_layer >= 0 && between(0, 5) > 0) continue;
      table.close(id, ++round);
      for (auto& [ticket, flight] : model.flights) {
        if (flight.id == id) flight.closed = round;
      }
      model.entries.erase(id);
    } else if (draw < 50 && !model.flights.empty()) {
      auto flight = model.flights.begin();
      std::advance(flight, between(0, static_cast<std::int64_t>(model.flights.size()) - 1));
      const bool arrived = between(0, 9) > 0;
      const auto progress = table.end(flight->first, arrived);
      model.end(flight->second, arrived);
      ASSERT_EQ(progress.counted, flight->second.closed == 0);
      whole += progress.counted && progress.missing_layer < 0 ? 1 : 0;
      if (progress.counted) model.check(flight->second.id, progress);
      model.flights.erase(flight);
    } else {
      const int layer = static_cast<int>(between(0, kLayers - 1));
      // Often the first missing rows, so that sequences become complete.
      auto begin = between(0, 380);
      if (const auto progress = table.progress(id);
          between(0, 1) == 0 && progress.missing_layer == layer) {
        begin = progress.missing_position;
      }
      auto count = between(1, between(0, 1) == 0 ? 130 : 20);
      if (between(0, 3) > 0)
        count = std::clamp<std::int64_t>(model.gap(id, layer, begin), 1, count);
      IngestTable::Transfer transfer;
      const ErrorCode code = code_of([&] { transfer = table.begin(id, 1, layer, begin, count); });
      ASSERT_EQ(code, model.begin(id, layer, begin, count)) << begin << " " << count;
      repeated += code == ErrorCode::kAlreadyExists ? 1 : 0;
      if (code == ErrorCode::kOk) {
        std::int64_t rows = 0;
        for (const PageRun& run : transfer.runs) rows += run.count;
        ASSERT_EQ(rows, count);
        ASSERT_TRUE(
            model.flights.emplace(transfer.ticket, IngestModel::Flight{id, layer, begin, count, 0})
                .second);
      }
    }
    std::uint64_t drained = kNone;
    for (const auto& [ticket, flight] : model.flights) {
      if (flight.closed != 0) drained = std::min(drained, flight.closed - 1);
    }
    ASSERT_EQ(table.drained_round(), drained);
    if (i % 20 == 0) {
      for (auto& entry : model.entries) model.check(entry.first, table.progress(entry.first));
    }
    if (testing::Test::HasFatalFailure()) FAIL() << "after call " << i;
  }
  EXPECT_GT(whole, 10);
  EXPECT_GT(repeated, 100);
}

TEST(IngestTableThreads, RowsAreSeenByTheOneWhoAsks) {
  // One thread writes plain memory under transfers, the other reads it once all have arrived.
  constexpr std::int64_t kPrompt = 384;
  constexpr SequenceId kSequences = 40;
  IngestTable table(0, kLayers, kLeafTokens);
  std::vector<std::vector<int>> memory(kSequences + 1, std::vector<int>(kLayers * kPrompt, 0));
  std::atomic<SequenceId> opened{0};
  std::thread receiver([&] {
    for (SequenceId id = 1; id <= kSequences; ++id) {
      opened.wait(id - 1);
      for (int layer = 0; layer < kLayers; ++layer) {
        for (std::int64_t begin = 0; begin < kPrompt; begin += 24) {
          IngestTable::Transfer transfer;
          if (code_of([&] { transfer = table.begin(id, 1, layer, begin, 24); }) != ErrorCode::kOk) {
            continue;  // the sequence was closed meanwhile
          }
          for (std::int64_t p = begin; p < begin + 24; ++p) {
            memory[id][static_cast<std::size_t>(layer * kPrompt + p)] += 1;
          }
          (void)table.end(transfer.ticket, true);
        }
      }
    }
  });
  for (SequenceId id = 1; id <= kSequences; ++id) {
    table.open(sequence(id, kPrompt, {0, 0, 0}));
    opened = id;
    opened.notify_one();
    const bool abandon = id % 4 == 0;
    while (!abandon && table.progress(id).missing_layer >= 0) std::this_thread::yield();
    table.close(id, id);
    while (table.drained_round() < id) std::this_thread::yield();
    const int least = abandon ? 0 : 1;
    for (int& row : memory[id]) {
      ASSERT_GE(row, least);
      ASSERT_LE(row, 1);
      row = 7;  // as the page's next owner would; no transfer may write into it any more
    }
  }
  receiver.join();
  for (SequenceId id = 1; id <= kSequences; ++id) {
    EXPECT_EQ(std::set<int>(memory[id].begin(), memory[id].end()), std::set<int>{7});
  }
}

TEST_F(IngestTableTest, TheFirstMissingRowOfARangeIsThatOfThisRanksShare) {
  const auto missing = [&](std::int64_t begin, std::int64_t end) {
    return table_.first_missing(1, 1, begin, end);
  };
  EXPECT_EQ(missing(0, 450), 0);
  EXPECT_EQ(missing(256, 384), std::nullopt) << "another rank's";
  EXPECT_EQ(missing(256, 450), 384);
  EXPECT_EQ(missing(450, 460), std::nullopt) << "behind the prompt";
  (void)receive(1, 10, 90);
  EXPECT_EQ(missing(0, 20), 0);
  EXPECT_EQ(missing(10, 100), std::nullopt);
  EXPECT_EQ(missing(50, 101), 100);
  EXPECT_EQ(table_.first_missing(1, 0, 10, 100), 10) << "of another layer";
  (void)receive(1, 0, 10);
  (void)receive(1, 100, 156);
  EXPECT_EQ(missing(0, 450), 384);
  const auto under_way = table_.begin(1, 1, 1, 384, 66);
  EXPECT_EQ(missing(400, 450), 400) << "on its way";
  (void)table_.end(under_way.ticket, true);
  EXPECT_EQ(missing(0, 450), std::nullopt);
  table_.close(1, 1);
  EXPECT_EQ(missing(0, 450), std::nullopt);
}

}  // namespace
}  // namespace tributary
