#include "core/cache/block_store.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/workload/trace.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

TEST(BlockStore, HasOneBlockOfANameOnAWorker) {
  BlockStore store(2);
  EXPECT_TRUE(store.copies("a").empty());
  NamedBlock& a = store.add("a", 0, {3, 1});
  EXPECT_EQ(code_of([&] { store.add("a", 0, {5}); }), ErrorCode::kAlreadyExists);
  NamedBlock& copy = store.add("a", 1, {7});
  EXPECT_EQ(store.size(), 2U);
  EXPECT_EQ(store.copies("a").size(), 2U);
  EXPECT_EQ(store.find("a", 0), &a);
  EXPECT_EQ(store.find("a", 1), &copy);
  EXPECT_EQ(store.find("b", 0), nullptr);
  EXPECT_EQ(code_of([&] { store.erase(a); }), ErrorCode::kInternal);
  store.release(a);
  EXPECT_EQ(code_of([&] { store.release(a); }), ErrorCode::kInternal);
  store.erase(a);
  EXPECT_EQ(store.find("a", 0), nullptr);
  EXPECT_EQ(store.find("a", 1), &copy);
  EXPECT_EQ(store.size(), 1U);
}

TEST(BlockStore, KnowsWhichBlockIsIdleForTheLongestTime) {
  BlockStore store(2);
  EXPECT_EQ(store.longest_idle(0), nullptr);
  NamedBlock& a = store.add("a", 0, {});
  NamedBlock& b = store.add("b", 0, {});
  NamedBlock& c = store.add("c", 1, {});
  EXPECT_EQ(store.longest_idle(1), nullptr);
  store.release(c);
  store.release(b);
  store.hold(a);
  store.release(a);  // one user is left
  EXPECT_EQ(store.idle(), 2U);
  EXPECT_EQ(store.longest_idle(1), &c);
  EXPECT_EQ(store.longest_idle(0), &b);
  store.hold(c);
  EXPECT_EQ(store.longest_idle(1), nullptr);
  store.release(a);
  store.release(c);
  EXPECT_EQ(store.longest_idle(0), &b);
  store.erase(b);
  EXPECT_EQ(store.longest_idle(0), &a);
  EXPECT_EQ(store.idle(), 2U);
}

/// The share of rows that need no push, as blocks.py counts it; `requests` in their order, `most`
/// at once, each for its output's length of time.
std::string replay(const std::vector<TraceRequest>& requests, std::size_t most,
                   std::int64_t idle_rows) {
  using Run = std::tuple<std::int64_t, std::size_t, std::vector<NamedBlock*>, std::int64_t>;
  const auto later = [](const Run& a, const Run& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) > std::tie(std::get<0>(b), std::get<1>(b));
  };
  std::priority_queue<Run, std::vector<Run>, decltype(later)> running(later);
  BlockStore store(1);
  std::int64_t now = 0;
  std::int64_t saved = 0;
  std::int64_t total = 0;
  std::int64_t held = 0;
  double rows = 0;
  for (std::size_t number = 0; number < requests.size(); ++number) {
    if (running.size() == most) {
      const Run ended = running.top();
      running.pop();
      now = std::get<0>(ended);
      held -= std::get<3>(ended);
      const std::vector<NamedBlock*>& blocks = std::get<2>(ended);
      for (std::size_t i = blocks.size(); i-- > 0;) store.release(*blocks[i]);
      while (std::cmp_greater(store.idle() * kHashBlockTokens, idle_rows)) {
        store.erase(*store.longest_idle(0));
      }
    }
    const TraceRequest& request = requests[number];
    total += request.input_length;
    std::vector<NamedBlock*> blocks;
    bool found = true;
    for (std::int64_t i = 0; i < request.input_length / kHashBlockTokens; ++i) {
      const std::string name = std::to_string(request.hash_ids[static_cast<std::size_t>(i)]);
      NamedBlock* block = store.find(name, 0);
      found = found && block != nullptr;
      if (found) saved += kHashBlockTokens;
      if (block != nullptr) store.hold(*block);
      blocks.push_back(block != nullptr ? block : &store.add(name, 0, {}));
    }
    const std::int64_t own = request.input_length + request.output_length;
    held += own;
    rows += static_cast<double>(held);
    running.emplace(now + request.output_length, number, std::move(blocks), own);
  }
  return fmt::format("{:4} running ({:.2f}M rows), {:9} idle rows: {:.3f}% not pushed\n", most,
                     rows / static_cast<double>(requests.size()) / 1e6, idle_rows,
                     100 * static_cast<double>(saved) / static_cast<double>(total));
}

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe != nullptr) {
    const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (count == 0) break;
    text.append(buffer.data(), count);
  }
  return text;
}

TEST(BlockStore, SavesAsManyRowsOfTheTraceAsTheScriptBesideItCounts) {
  const std::filesystem::path script = test::shared_file("traces/blocks.py");
  if (!std::filesystem::exists(script)) GTEST_SKIP() << "absent: " << script;
  const auto requests = read_trace(script.parent_path() / "conversation_trace.jsonl");
  std::string text;
  for (const std::size_t most : {64, 256}) {
    for (const std::int64_t idle : {0, 1, 2, 4, 8, 16}) {
      text += replay(requests, most, idle * 1'000'000);
    }
  }
  EXPECT_EQ(text, output_of(fmt::format("python3 '{}'", script.string())));
}

}  // namespace
}  // namespace tributary
