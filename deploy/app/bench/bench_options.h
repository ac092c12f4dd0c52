// The options of `tributary bench`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tributary {

/// A batch of sequences of one length.
struct BenchStep {
  int batch = 1;
  std::int64_t context = 4096;
};

struct BenchOptions {
  int workers = 0;  // threads, where no launcher started the program
  std::string backend = "cpu";
  int threads = 0;
  std::string shape = "deepseek-v2-lite";  // whose heads the steps have
  int leaf_tokens = 2048;
  double seconds = 0.2;  // per line of a table
  std::vector<BenchStep> steps = {{1, 4096}, {8, 1024}, {4, 4096}};
  std::optional<std::filesystem::path> json;
};

/// `1x4096,8x4096`: batch x context. Throws kInvalidArgument.
[[nodiscard]] std::vector<BenchStep> parse_bench_steps(const std::string& text);
[[nodiscard]] std::string flag_text(const std::vector<BenchStep>& steps);

}  // namespace tributary
