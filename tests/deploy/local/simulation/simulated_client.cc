#include "tests/deploy/local/simulation/simulated_client.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <span>
#include <utility>

#include "core/base/hash.h"
#include "core/base/limits.h"
#include "core/interface/condition.h"

namespace tributary::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

void SimulatedClient::run(int actions) {
  for (int i = 0; i < actions && !lost_; ++i) {
    act();
    pass(tier_.dice.up_to(milliseconds(20)));
  }
  std::erase_if(held_, [](const Held& held) { return held.gone; });
  while (!held_.empty() && !lost_) leave(held_.size() - 1);
}

void SimulatedClient::pass(Duration duration) {
  std::mutex mutex;
  Condition nothing;
  std::unique_lock lock(mutex);
  tier_.clock.wait_until(nothing, lock, tier_.clock.now() + duration, [] { return false; });
}

Status SimulatedClient::call(const char* what, Duration patience,
                             const std::function<void(Deadline)>& work, bool may_be_refused) {
  ++calls_;
  const Time begin = tier_.clock.now();
  Status status = status_of([&] { work(Deadline::after(begin, patience)); });
  const Duration took = tier_.clock.now() - begin;
  EXPECT_LE(took, patience + tier_.grace) << what << ": " << status.message();
  tier_.note(static_cast<std::uint64_t>(status.code()));
  tier_.note(static_cast<std::uint64_t>(took.count()));
  const ErrorCode code = status.code();
  if (code == ErrorCode::kPoolLost) lost_ = true;
  const bool again = code == ErrorCode::kFailedPrecondition &&
                     (may_be_refused || status.message().ends_with("until the deadline"));
  const bool usual = code == ErrorCode::kOk || code == ErrorCode::kDeadlineExceeded ||
                     code == ErrorCode::kUnavailable || code == ErrorCode::kPoolFull || again ||
                     (code == ErrorCode::kWorkerLost && tier_.lost_workers() > 0);
  EXPECT_TRUE(usual || (tier_.broken() && code == ErrorCode::kPoolLost))
      << what << ": " << error_code_name(code) << ": " << status.message();
  if (!usual) lost_ = true;
  return status;
}

bool SimulatedClient::insist(Held* held, const char* what,
                             const std::function<void(Deadline)>& work, bool may_be_refused) {
  Status status;
  for (int i = 0; i < 20 && !lost_; ++i) {
    status = call(what, milliseconds(tier_.dice.between(500, 4000)), work, may_be_refused);
    if (status.ok()) return true;
    if (status.code() == ErrorCode::kWorkerLost) {
      if (held == nullptr) return false;
      recover(*held);
      if (held->gone) return false;
    }
    if (status.code() == ErrorCode::kFailedPrecondition) pass(seconds(1));
    if (tier_.broken() && i >= 3) break;
  }
  EXPECT_TRUE(tier_.broken()) << what << ": " << status.message();
  lost_ = true;
  return false;
}

/// The sequence as its pool has it: its open step has ended, and rows that it lost come again. More
/// may be lost meanwhile.
void SimulatedClient::recover(Held& held) {
  const std::uint32_t epoch = held.handle.epoch;
  for (int i = 0; i < 60 && !lost_; ++i) {
    SequenceHandle now = held.handle;
    if (!insist(nullptr, "refresh",
                [&](Deadline deadline) { now = client_.query(now, deadline); })) {
      continue;
    }
    held.handle = now;
    held.recovered = held.recovered || now.epoch != epoch;
    for (auto& rows : held.rows) ASSERT_LE(now.length, std::ssize(rows));
    const bool waits = std::ranges::count(now.lost, -1, &Extent::rank) > 0;
    if (waits) {
      pass(milliseconds(200));
      continue;
    }
    bool pushed = true;
    for (const Extent& lost : now.lost) {
      for (int layer = 0; layer < now.shape.layers && pushed; ++layer) {
        std::vector<float> rows;
        for (std::int64_t p = lost.begin; p < lost.end; ++p) {
          const Values& row =
              held.rows[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)];
          rows.insert(rows.end(), row.begin(), row.end());
        }
        pushed = insist(nullptr, "push_rows again", [&](Deadline deadline) {
          client_.push_rows(held.handle, layer, lost.begin, std::as_bytes(std::span(rows)),
                            deadline);
        });
      }
      rows_again_ += pushed ? lost.end - lost.begin : 0;
    }
    if (pushed && insist(nullptr, "wait_ready again",
                         [&](Deadline deadline) { client_.wait_ready(held.handle, deadline); })) {
      return;
    }
  }
  // Others that wait, or those of this client, have the room that it needs.
  held.gone = true;
  give_up(held);
}

SimulatedClient::Values SimulatedClient::draw(std::size_t count) {
  Values values(count);
  for (float& value : values) value = tier_.dice.value();
  return values;
}

SimulatedClient::Values SimulatedClient::row_of(int layer, std::int64_t position,
                                                std::size_t width) {
  Dice dice(mix64(static_cast<std::uint64_t>(layer + 1) * kGoldenGamma) +
            static_cast<std::uint64_t>(position));
  Values values(width);
  for (float& value : values) value = dice.value();
  return values;
}

/// Gives names to the full blocks of `tokens` that have none: those of the first `common` tokens
/// have the same with all clients.
void SimulatedClient::name_blocks(Held& held, std::int64_t tokens, std::int64_t common) {
  held.prefix.block_tokens = kPageTokens;
  Prefix& prefix = held.prefix;
  const std::int64_t blocks = tokens / kPageTokens;
  if (prefix.blocks() > blocks) prefix.keys.resize(static_cast<std::size_t>(blocks * 16));
  while (prefix.blocks() < blocks) {
    const std::int64_t end = (prefix.blocks() + 1) * kPageTokens;
    prefix.add_key(end <= common ? fmt::format("the tier's,{:5}", end)
                                 : fmt::format("{:016x}", tier_.dice.draw()));
  }
}

void SimulatedClient::act() {
  std::erase_if(held_, [](const Held& held) { return held.gone; });
  const std::int64_t what = tier_.dice.roll(20);
  if (held_.empty() || (what == 0 && held_.size() < 3)) return start();
  const auto index = static_cast<std::size_t>(tier_.dice.roll(std::ssize(held_)));
  Held& held = held_[index];
  if (what == 1) return truncate(held);
  if (what == 2) return extend(held);
  if (what == 3) return leave(index);
  if (what <= 5) return pull(held);
  if (what == 6 && held_.size() < 5) return fork(held);
  const SequenceHandle& handle = held.handle;
  if (handle.length + 3 > handle.prompt_tokens + handle.max_new_tokens) return leave(index);
  step(held);
}

/// A prompt begins like others of the tier's clients, or goes on where an earlier sequence of this
/// one has ended; most admissions say so.
void SimulatedClient::start() {
  Held held;
  const bool next_turn = !last_.rows.empty() && tier_.dice.one_in(2);
  if (next_turn) held = std::exchange(last_, {});
  const std::int64_t known = next_turn ? std::ssize(held.rows.front()) : 0;
  const std::int64_t prompt = std::max(tier_.dice.between(40, 260), known);
  const std::int64_t common = prompt - tier_.dice.roll(prompt / 3 + 1);
  name_blocks(held, prompt, next_turn ? 0 : common);
  AdmitRequest wanted{.prompt_tokens = prompt,
                      .max_new_tokens = tier_.dice.between(3, 60),
                      .spread = static_cast<SpreadPolicy>(tier_.dice.roll(3))};
  if (!tier_.dice.one_in(6)) wanted.prefix = held.prefix;
  if (!admit(held, wanted)) return;
  const auto width = static_cast<std::size_t>(held.handle.shape.latent_dim());
  held.rows.resize(static_cast<std::size_t>(held.handle.shape.layers));
  const std::int64_t present = held.handle.present_tokens;
  EXPECT_LE(present, next_turn ? known : common);
  present_tokens_ += present;
  for (int layer = 0; layer < held.handle.shape.layers; ++layer) {
    auto& rows = held.rows[static_cast<std::size_t>(layer)];
    for (std::int64_t p = known; p < prompt; ++p) {
      rows.push_back(!next_turn && p < common ? row_of(layer, p, width) : draw(width));
    }
  }
  fill(std::move(held));
}

/// It begins with rows of another one, which goes on, and has some of its own.
void SimulatedClient::fork(Held& parent) {
  const std::int64_t length = parent.handle.length;
  if (length == 0) return;
  const std::int64_t shared = tier_.dice.between(1, length);
  Held held{.handle = {}, .rows = parent.rows, .prefix = parent.prefix};
  const std::int64_t prompt = shared + (tier_.dice.one_in(2) ? tier_.dice.roll(90) : 0);
  for (auto& rows : held.rows) {
    rows.resize(static_cast<std::size_t>(shared));
    while (std::ssize(rows) < prompt) rows.push_back(draw(rows.front().size()));
  }
  name_blocks(held, shared, 0);
  name_blocks(held, prompt, 0);
  AdmitRequest wanted{.prompt_tokens = prompt,
                      .max_new_tokens = tier_.dice.between(3, 60),
                      .parent = parent_of(parent.handle, shared)};
  if (tier_.dice.one_in(2)) wanted.prefix = held.prefix;
  if (!admit(held, wanted)) return;
  EXPECT_EQ(held.handle.present_tokens, shared);
  ++forks_;
  fill(std::move(held));
}

bool SimulatedClient::admit(Held& held, const AdmitRequest& wanted) {
  return call("admit", seconds(tier_.dice.between(1, 3)),
              [&](Deadline deadline) { held.handle = client_.admit(wanted, deadline); })
      .ok();
}

/// Pushes the prompt's rows that are not there.
void SimulatedClient::fill(Held held) {
  const std::int64_t present = held.handle.present_tokens;
  for (int layer = 0; layer < held.handle.shape.layers; ++layer) {
    const auto& rows = held.rows[static_cast<std::size_t>(layer)];
    std::vector<float> rest;
    for (std::int64_t p = present; p < held.handle.prompt_tokens; ++p) {
      const Values& row = rows[static_cast<std::size_t>(p)];
      rest.insert(rest.end(), row.begin(), row.end());
    }
    if (!rest.empty() && !insist(nullptr, "push_rows", [&](Deadline deadline) {
          client_.push_rows(held.handle, layer, present, std::as_bytes(std::span(rest)), deadline);
        })) {
      return give_up(held);
    }
  }
  if (!insist(nullptr, "wait_ready",
              [&](Deadline deadline) { client_.wait_ready(held.handle, deadline); })) {
    return give_up(held);
  }
  // It is ready, perhaps for another epoch: what else is asked of it says so.
  check_workers(held);
  held_.push_back(std::move(held));
}

/// A prompt that loses rows while they come is pushed as a new one.
void SimulatedClient::give_up(const Held& held) {
  if (lost_) return;
  static_cast<void>(
      call("free", seconds(3), [&](Deadline deadline) { client_.free(held.handle, deadline); }));
}

void SimulatedClient::step(Held& held) {
  held.recovered = false;
  const auto tokens = static_cast<std::int32_t>(tier_.dice.between(1, 3));
  const auto before = static_cast<std::size_t>(held.handle.length);
  const auto width = static_cast<std::size_t>(held.handle.shape.latent_dim());
  for (auto& rows : held.rows) {
    rows.resize(before);
    for (std::int32_t t = 0; t < tokens; ++t) rows.push_back(draw(width));
  }
  int layer = 0;
  while (layer < held.handle.shape.layers && attend(held, layer, tokens)) ++layer;
  if (lost_ || held.recovered || held.gone) return;
  const bool whole = layer == held.handle.shape.layers;
  const auto accepted = static_cast<std::int32_t>(whole ? tier_.dice.between(1, tokens) : 0);
  SequenceHandle* handle = &held.handle;
  if (!insist(
          &held, "commit",
          [&](Deadline deadline) {
            // The step has ended, in one way or the other; its answer may have been lost.
            if (held.recovered || std::cmp_not_equal(held.handle.length, before)) return;
            client_.commit(std::span(&handle, 1), std::span(&accepted, 1), deadline);
          },
          held.given_up)) {
    return;
  }
  const std::int64_t length = held.handle.length;
  EXPECT_TRUE(length == static_cast<std::int64_t>(before) + accepted ||
              (held.recovered && length == static_cast<std::int64_t>(before)))
      << length;
  check_leader(held);
}

/// Some of the calls are given up early: the same one may come again, or the step ends here.
bool SimulatedClient::attend(Held& held, int layer, std::int32_t tokens) {
  const auto heads = static_cast<std::size_t>(held.handle.shape.heads);
  const auto width = static_cast<std::size_t>(held.handle.shape.latent_dim());
  const std::size_t record = heads * (static_cast<std::size_t>(held.handle.shape.kv_lora_rank) + 1);
  const auto count = static_cast<std::size_t>(tokens);
  const Values query = draw(count * heads * width);
  std::vector<float> row;
  for (std::size_t t = 0; t < count; ++t) {
    const Values& one = held.rows[static_cast<std::size_t>(layer)]
                                 [static_cast<std::size_t>(held.handle.length) + t];
    row.insert(row.end(), one.begin(), one.end());
  }
  for (int i = 0; i < 3 && !lost_; ++i) {
    std::vector<float> output(count * record);
    const LayerItem item{.sequence = &held.handle,
                         .tokens = tokens,
                         .query = {query.data(), 0},
                         .row = {row.data(), 0},
                         .output = output.data()};
    const Duration patience = tier_.dice.one_in(15)
                                  ? Duration(milliseconds(tier_.dice.between(1, 20)))
                                  : Duration(milliseconds(tier_.dice.between(300, 3000)));
    const Status status = call(
        "attend", patience,
        [&](Deadline deadline) { client_.attend(std::span(&item, 1), layer, deadline); },
        held.given_up);
    if (status.code() == ErrorCode::kWorkerLost) {
      recover(held);
      if (held.recovered || held.gone) return false;
    }
    held.given_up = held.given_up || !status.ok();
    if (!status.ok()) continue;
    check_workers(held);
    for (std::size_t t = 0; t < count; ++t) {
      check_output(held, layer, std::span(query).subspan(t * heads * width, heads * width),
                   std::span(output).subspan(t * record, record),
                   held.handle.length + static_cast<std::int64_t>(t));
    }
    return true;
  }
  return false;
}

/// In float64, over the rows that were acknowledged, and those of the step.
void SimulatedClient::check_output(const Held& held, int layer, std::span<const float> query,
                                   std::span<const float> output, std::int64_t position) const {
  const auto heads = static_cast<std::size_t>(held.handle.shape.heads);
  const auto width = static_cast<std::size_t>(held.handle.shape.latent_dim());
  const auto rank = static_cast<std::size_t>(held.handle.shape.kv_lora_rank);
  const auto& rows = held.rows[static_cast<std::size_t>(layer)];
  for (std::size_t h = 0; h < heads; ++h) {
    std::vector<double> value(rank);
    double sum = 0;
    for (std::int64_t p = 0; p <= position; ++p) {
      const Values& row = rows[static_cast<std::size_t>(p)];
      double score = 0;
      for (std::size_t i = 0; i < width; ++i) score += double{query[h * width + i]} * row[i];
      const double weight = std::exp(score * held.handle.shape.softmax_scale);
      sum += weight;
      for (std::size_t i = 0; i < rank; ++i) value[i] += weight * row[i];
    }
    // Rounding of the sums of a few hundred terms, and of the result, to float.
    for (std::size_t i = 0; i < rank; ++i) {
      ASSERT_NEAR(output[h * rank + i], value[i] / sum, 1e-5) << "position " << position;
    }
    ASSERT_NEAR(output[heads * rank + h], std::log(sum), 1e-5) << "position " << position;
  }
}

void SimulatedClient::pull(Held& held) {
  if (held.handle.length == 0) return;
  const std::int64_t begin = tier_.dice.roll(held.handle.length);
  const std::int64_t end = tier_.dice.between(begin + 1, held.handle.length);
  const auto layer = static_cast<int>(tier_.dice.roll(held.handle.shape.layers));
  const auto width = static_cast<std::size_t>(held.handle.shape.latent_dim());
  std::vector<float> pulled(static_cast<std::size_t>(end - begin) * width);
  const PulledRows part{&held.handle, layer, begin, std::as_writable_bytes(std::span(pulled))};
  if (!insist(&held, "pull_rows",
              [&](Deadline deadline) { client_.pull_rows(std::span(&part, 1), deadline); })) {
    return;
  }
  for (std::int64_t p = begin; p < end; ++p) {
    const Values& row = held.rows[static_cast<std::size_t>(layer)][static_cast<std::size_t>(p)];
    const auto got = std::span(pulled).subspan(static_cast<std::size_t>(p - begin) * width, width);
    ASSERT_TRUE(std::ranges::equal(row, got)) << "layer " << layer << ", row " << p;
  }
}

void SimulatedClient::truncate(Held& held) {
  const std::uint32_t epoch = held.handle.epoch;
  const std::int64_t before = held.handle.length;
  const std::int64_t after = before - tier_.dice.roll(std::min<std::int64_t>(before + 1, 80));
  const Status status = call(
      "truncate", milliseconds(tier_.dice.between(200, 3000)),
      [&](Deadline deadline) { client_.truncate(held.handle, after, deadline); }, held.given_up);
  if (lost_) return;
  held.recovered = false;
  if (status.code() == ErrorCode::kWorkerLost) {
    recover(held);
    if (lost_ || held.gone) return;
  } else if (!status.ok()) {  // whether it was done is open, until the pool says so
    SequenceHandle now;
    for (int i = 0; i < 5; ++i) {  // it may be under way
      if (!insist(nullptr, "query",
                  [&](Deadline deadline) { now = client_.query(held.handle, deadline); })) {
        return;
      }
      if (now.epoch != epoch) break;
      pass(seconds(1));
    }
    held.handle.epoch = now.epoch;
    held.handle.length = now.length;
    if (!now.lost.empty()) {
      recover(held);
      if (lost_ || held.gone) return;
    }
  }
  name_blocks(held, std::min(held.handle.length, before), 0);
  EXPECT_TRUE(held.handle.length == after ||
              (!status.ok() && held.handle.length == before &&
               (held.handle.epoch == epoch || tier_.lost_workers() > 0)))
      << held.handle.length;
  check_leader(held);
}

void SimulatedClient::extend(Held& held) {
  const std::int64_t more = held.handle.max_new_tokens + tier_.dice.roll(40);
  static_cast<void>(call("extend", seconds(2),
                         [&](Deadline deadline) { client_.extend(held.handle, more, deadline); }));
}

/// What is left may be the beginning of the next one.
void SimulatedClient::leave(std::size_t index) {
  Held held = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  const bool names = tier_.dice.one_in(2);
  const std::int64_t length = held.handle.length;
  name_blocks(held, length, 0);
  const Prefix prefix = names ? held.prefix : Prefix{};
  const bool freed = insist(&held, "free", [&](Deadline deadline) {
    const SequenceHandle* one = &held.handle;
    client_.free(std::span(&one, 1), deadline, std::span(&prefix, 1));
  });
  if (!freed || length == 0) return;
  for (auto& rows : held.rows) rows.resize(static_cast<std::size_t>(length));
  last_ = {.handle = {}, .rows = std::move(held.rows), .prefix = std::move(held.prefix)};
}

void SimulatedClient::check_leader(Held& held) {
  if (!tier_.dice.one_in(3)) return;
  SequenceHandle now;
  if (!insist(nullptr, "query",
              [&](Deadline deadline) { now = client_.query(held.handle, deadline); })) {
    return;
  }
  if (tier_.lost_workers() > 0 && now.epoch > held.handle.epoch) return recover(held);
  EXPECT_EQ(now.epoch, held.handle.epoch) << "sequence " << now.id;
  EXPECT_EQ(now.length, held.handle.length) << "sequence " << now.id;
  std::int64_t end = 0;
  for (const Extent& extent : now.extents) {
    EXPECT_EQ(extent.begin, end) << "sequence " << now.id;
    end = extent.end;
  }
  EXPECT_EQ(end, now.length) << "sequence " << now.id << ": its rows lie somewhere";
}

void SimulatedClient::check_workers(const Held& held) const {
  if (!tier_.watched()) return;
  const SequenceId id = held.handle.id;
  ASSERT_TRUE(tier_.orders.table().contains(id)) << "sequence " << id << " is lost";
  const Sequence& s = tier_.orders.table().at(id);
  EXPECT_TRUE(s.epoch == held.handle.epoch ||
              (tier_.lost_workers() > 0 && s.epoch > held.handle.epoch))
      << "sequence " << id;
  EXPECT_EQ(s.length, held.handle.length) << "sequence " << id;
}

}  // namespace tributary::test
