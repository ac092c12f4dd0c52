// The options of `tributary bench`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deploy/runtime/shared_options.h"

namespace tributary {

/// A batch of sequences of one length.
struct BenchStep {
  int batch = 1;
  std::int64_t context = 4096;
};

struct BenchOptions {
  int workers = 0;
  std::string backend = "cpu";
  int threads = 0;
  std::string shape = "deepseek-v2-lite";  // whose heads the steps have
  RowFormat row_format = RowFormat::kBF16;
  int leaf_tokens = 2048;
  double seconds = 0.2;
  std::vector<BenchStep> steps = {{1, 4096}, {8, 1024}, {4, 4096}};
  std::optional<std::filesystem::path> json;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    visit_workers(v, workers);
    visit_backend(v, backend, threads);
    visit_shape(v, shape);
    visit_rows(v, row_format);
    visit_leaf_tokens(v, leaf_tokens);
    v(seconds, "--seconds", {0.001, 60}, "Time for each line of the tables");
    v(steps, "--steps", "LIST", "Steps to measure, each BATCHxCONTEXT");
    v(json, "--json", "FILE",
      "Write the report to this file as JSON, with the constants that `tributary plan` reads");
  }
};

/// `8x4096`: batch x context. Throws kInvalidArgument.
void read_value(const std::string& text, BenchStep& step);
[[nodiscard]] std::string value_text(const BenchStep& step);

}  // namespace tributary
