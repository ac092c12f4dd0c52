// Compares the five forms of MLA decode on one layer of DeepSeek-V2's attention: time and memory of
// a step over batch and length, and the counted cost of each form for a cached token.
//
// It follows published comparisons of the forms of MLA for DeepSeek-V2 on a GPU. Names, code and
// numbers here are our own, on a CPU. `absorption --help` lists the flags.
#include <dnnl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/absorption_forms.h"
#include "core/base/error.h"
#include "core/model/model_shape.h"
#include "core/reference/error_measures.h"
#include "deploy/app/bench/machine_peak.h"

namespace tributary::bench {
namespace {

struct Options {
  bool quick = false;
  int threads = 1;            // 1 to 64
  double memory_gib = 16;     // weights, cache and workspace of one cell
  double cell_seconds = 120;  // a cell whose step is predicted to take longer is skipped
  std::filesystem::path out = ".";
};

struct Cell {
  Form form;
  std::int64_t batch, length;
  StepCost cost;  // medians
  Decoder::Memory memory;
  std::size_t weight_bytes = 0;
  std::string left_out;  // why it was not measured

  [[nodiscard]] double tokens() const { return static_cast<double>(batch * length); }
  [[nodiscard]] std::size_t bytes() const {
    return memory.cache_bytes + memory.workspace_bytes + weight_bytes;
  }
};

std::vector<float> random_hidden(std::int64_t count) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(generator);
  return values;
}

/// Runs all five forms on a small shape with the same cache contents. They compute the same
/// function and differ only in the rounding of fp32 sums and of stored bf16 keys and values. Throws
/// if they differ by more.
void check_agreement(Arithmetic& arithmetic) {
  ModelShape shape = model_preset("deepseek-v2");
  shape.hidden_size = 200;
  shape.num_attention_heads = 3;
  shape.q_lora_rank = 70;
  shape.kv_lora_rank = 90;
  shape.qk_nope_head_dim = 40;
  shape.qk_rope_head_dim = 24;
  shape.v_head_dim = 50;
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kLength = kDecompressChunk + 37;
  const std::int64_t width = shape.latent_dim();
  const Weights plain(shape, false, arithmetic);
  const Weights materialised(shape, true, arithmetic);
  const std::vector<float> hidden = random_hidden(kBatch * shape.hidden_size);
  const std::vector<float> rows = random_hidden(kBatch * kLength * width);
  std::vector<double> expected;
  fmt::print("Agreement with the compressed form, relative Frobenius error of the outputs:\n");
  for (const Form form : {Form::kCompressed, Form::kDecompressed, Form::kAbsorbedConcatenated,
                          Form::kAbsorbedAdded, Form::kMaterialised}) {
    Decoder decoder(form, shape, form == Form::kMaterialised ? materialised : plain, kBatch,
                    kLength, arithmetic);
    for (std::int64_t s = 0; s < kBatch; ++s) {
      for (std::int64_t t = 0; t < kLength; ++t) {
        decoder.store(s, t, rows.data() + (s * kLength + t) * width);
      }
    }
    std::vector<float> output(hidden.size());
    decoder.step(hidden.data(), output.data());
    if (expected.empty()) expected.assign(output.begin(), output.end());
    // fp32 sums of at most 300 terms: 1e-5 is a hundred roundings. bf16 keys and values: 2^-9 each.
    const double bound = form == Form::kDecompressed ? 1e-2 : 1e-5;
    const TensorError error = measure_error(output, expected, shape.hidden_size);
    fmt::print("  {:26} {:.1e} (bound {:.0e})\n", kForms.at(static_cast<std::size_t>(form)).name,
               error.relative_frobenius, bound);
    if (!(error.relative_frobenius <= bound)) {
      fail(ErrorCode::kInternal, "the forms do not agree: {}", error.text());
    }
  }
}

template <typename Get>
double median(std::vector<StepCost> costs, const Get& get) {
  const auto middle = costs.begin() + static_cast<std::ptrdiff_t>(costs.size() / 2);
  std::nth_element(costs.begin(), middle, costs.end(),
                   [&](const StepCost& a, const StepCost& b) { return get(a) < get(b); });
  return get(*middle);
}

/// One step for warm-up and up to seven more within three seconds. A step of more than a second is
/// measured once, without warm-up.
StepCost measure(Decoder& decoder, const std::vector<float>& hidden) {
  constexpr std::size_t kRepetitions = 7;
  constexpr double kBudgetSeconds = 3;
  std::vector<float> output(hidden.size());
  StepCost first = decoder.step(hidden.data(), output.data());
  if (first.seconds() > 1) return first;
  std::vector<StepCost> costs;
  double spent = 0;
  while (costs.size() < kRepetitions && spent < kBudgetSeconds) {
    costs.push_back(decoder.step(hidden.data(), output.data()));
    spent += costs.back().seconds();
  }
  first.project_seconds = median(costs, [](const StepCost& c) { return c.project_seconds; });
  first.attend_seconds = median(costs, [](const StepCost& c) { return c.attend_seconds; });
  return first;
}

/// Why the cell must be skipped, or no value. `before`: the form's largest cell so far.
std::string reason_to_leave_out(const Cell& cell, const std::optional<Cell>& before,
                                const Options& options) {
  const double gib = static_cast<double>(cell.bytes()) / (1U << 30);
  if (gib > options.memory_gib) {
    return fmt::format("needs {:.1f} GiB, more than --memory-gib {}", gib, options.memory_gib);
  }
  if (before) {
    const double seconds = before->cost.seconds() * cell.tokens() / before->tokens();
    if (seconds > options.cell_seconds) {
      return fmt::format("a step would take about {:.0f} s, more than --cell-seconds {}", seconds,
                         options.cell_seconds);
    }
  }
  return {};
}

std::vector<Cell> measure_all(const ModelShape& shape, const Options& options,
                              Arithmetic& arithmetic) {
  const std::vector<std::int64_t> batches = {1, 32};
  const std::vector<std::int64_t> lengths =
      options.quick ? std::vector<std::int64_t>{512, 1024}
                    : std::vector<std::int64_t>{512, 1024, 2048, 4096, 8192};
  std::vector<Cell> cells;
  std::optional<Weights> weights;
  for (const FormFigures& figures : kForms) {
    const bool materialised = figures.form == Form::kMaterialised;
    if (!weights || materialised) {
      weights.reset();  // both sets are never in memory at once
      weights.emplace(shape, materialised, arithmetic);
    }
    std::optional<Cell> largest;
    for (const std::int64_t batch : batches) {
      const std::vector<float> hidden = random_hidden(batch * shape.hidden_size);
      for (const std::int64_t length : lengths) {
        Cell cell{figures.form, batch, length, {}, {}, weights->bytes(), {}};
        cell.memory = Decoder::memory_needed(figures.form, shape, batch, length);
        cell.left_out = reason_to_leave_out(cell, largest, options);
        if (cell.left_out.empty()) {
          Decoder decoder(figures.form, shape, *weights, batch, length, arithmetic);
          if (decoder.memory() != cell.memory) {
            fail(ErrorCode::kInternal,
                 "{}: predicted {} bytes of cache and {} of workspace, not {} and {}", figures.name,
                 cell.memory.cache_bytes, cell.memory.workspace_bytes, decoder.memory().cache_bytes,
                 decoder.memory().workspace_bytes);
          }
          decoder.fill();
          cell.cost = measure(decoder, hidden);
          if (!largest || cell.tokens() >= largest->tokens()) largest = cell;
        }
        cells.push_back(cell);
        if (isatty(STDERR_FILENO) != 0) {
          fmt::print(stderr, "\r{:26} batch {:2} length {:5}", figures.name, batch, length);
        }
      }
    }
  }
  if (isatty(STDERR_FILENO) != 0) fmt::print(stderr, "\r{:60}\r", "");
  return cells;
}

/// Whether `counted` equals `figure` in all published digits.
bool matches(double counted, double figure, double last_digit) {
  return std::abs(counted - figure) <= last_digit / 2;
}

/// Prints the counts beside the published figures. False if one differs.
bool print_counts(const std::vector<Cell>& cells) {
  fmt::print(
      "\nPer cached token and layer, counted while running (bytes kept, bf16; FLOP of scores and\n"
      "values and of decompressing the token; 1 multiply-add = 2 FLOP), and the published figure:\n"
      "{:26} {:>12} {:>9} {:>15} {:>9}\n",
      "", "kB counted", "figure", "MFLOP counted", "figure");
  bool all_match = true;
  for (const FormFigures& figures : kForms) {
    for (const Cell& cell : cells) {
      if (cell.form != figures.form || !cell.left_out.empty()) continue;
      const double kilobytes = static_cast<double>(cell.memory.cache_bytes) / cell.tokens() / 1e3;
      const double megaflop = static_cast<double>(cell.cost.attend_flop) / cell.tokens() / 1e6;
      const bool match = matches(kilobytes, figures.cache_kilobytes, 1e-6) &&
                         matches(megaflop, figures.attend_megaflop, 0.01);
      all_match = all_match && match;
      const bool first = cell.batch == 1 && cell.length == 512;
      if (first || !match) {
        fmt::print("{:26} {:12.3f} {:9} {:15.5f} {:9}{}\n", figures.name, kilobytes,
                   figures.cache_kilobytes, megaflop, figures.attend_megaflop,
                   match ? "" : "  DIFFERS");
      }
    }
  }
  return all_match;
}

void print_cells(const std::vector<Cell>& cells) {
  fmt::print(
      "\nOne decode step of the layer. project: all products with weights; attend: everything "
      "over\n"
      "the cache, copies and conversions included. cache: bf16; weights and workspace: fp32.\n"
      "{:26} {:>5} {:>6} {:>11} {:>10} {:>10} {:>8} {:>9} {:>10} {:>10}\n",
      "", "batch", "length", "project ms", "attend ms", "step ms", "GFLOP/s", "cache MB",
      "weights MB", "work MB");
  for (const Cell& cell : cells) {
    const std::string_view name = kForms.at(static_cast<std::size_t>(cell.form)).name;
    if (!cell.left_out.empty()) {
      fmt::print("{:26} {:5} {:6}  left out: {}\n", name, cell.batch, cell.length, cell.left_out);
      continue;
    }
    const auto flop = static_cast<double>(cell.cost.project_flop + cell.cost.attend_flop);
    fmt::print("{:26} {:5} {:6} {:11.2f} {:10.2f} {:10.2f} {:8.1f} {:9.1f} {:10.1f} {:10.1f}\n",
               name, cell.batch, cell.length, cell.cost.project_seconds * 1e3,
               cell.cost.attend_seconds * 1e3, cell.cost.seconds() * 1e3,
               flop / cell.cost.seconds() / 1e9, static_cast<double>(cell.memory.cache_bytes) / 1e6,
               static_cast<double>(cell.weight_bytes) / 1e6,
               static_cast<double>(cell.memory.workspace_bytes) / 1e6);
  }
}

/// Ten blocks for gnuplot's `index`: the forms in order at batch 1, then at batch 32.
std::filesystem::path write_table(const std::vector<Cell>& cells, const Options& options) {
  std::filesystem::path path = options.out / "absorption.tsv";
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) fail(ErrorCode::kIo, "{}: cannot be written", path.string());
  std::map<std::int64_t, std::array<std::string, kForms.size()>> blocks;
  for (const Cell& cell : cells) {
    std::string& block = blocks[cell.batch].at(static_cast<std::size_t>(cell.form));
    if (!cell.left_out.empty()) {
      // gnuplot does not count a block without data.
      block += fmt::format("# left out: {}\n{}\tNaN\tNaN\tNaN\tNaN\tNaN\tNaN\tNaN\tNaN\n",
                           cell.left_out, cell.length);
      continue;
    }
    block +=
        fmt::format("{}\t{:.4f}\t{:.4f}\t{:.4f}\t{}\t{}\t{}\t{}\t{}\n", cell.length,
                    cell.cost.project_seconds * 1e3, cell.cost.attend_seconds * 1e3,
                    cell.cost.seconds() * 1e3, cell.memory.cache_bytes, cell.memory.workspace_bytes,
                    cell.weight_bytes, cell.cost.project_flop, cell.cost.attend_flop);
  }
  for (const auto& [batch, forms] : blocks) {
    for (std::size_t i = 0; i < forms.size(); ++i) {
      fmt::print(file,
                 "# {}, batch {}\n# length\tproject_ms\tattend_ms\tstep_ms\tcache_bytes\t"
                 "workspace_bytes\tweight_bytes\tproject_flop\tattend_flop\n{}\n\n",
                 kForms.at(i).name, batch, forms.at(i));
    }
  }
  if (std::fclose(file) != 0) fail(ErrorCode::kIo, "{}: cannot be written", path.string());
  return path;
}

/// Plots the table with gnuplot if it is installed.
void plot(const std::filesystem::path& table) {
  const std::string picture = std::filesystem::path(table).replace_extension(".png").string();
  std::string settings = fmt::format("table='{}'; picture='{}'", table.string(), picture);
  std::string program = "gnuplot";
  std::string flag = "-e";
  std::string script = TRIBUTARY_ABSORPTION_PLOT;
  const std::array<char*, 5> arguments = {program.data(), flag.data(), settings.data(),
                                          script.data(), nullptr};
  pid_t child = 0;
  int status = 0;
  if (posix_spawnp(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ) != 0) {
    fmt::print("No plot: gnuplot is not installed (package gnuplot-nox).\n");
  } else if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    fmt::print("Plot: {}\n", picture);
  } else {
    fmt::print("No plot: gnuplot failed on {}.\n", table.string());
  }
}

/// oneDNN takes its number of threads from the OpenMP runtime, which reads it once at load time. So
/// the program restarts itself with the wanted number.
void restart_with_threads(int threads, char** argv) {
  constexpr const char* kVariable = "OMP_NUM_THREADS";
  const std::string wanted = std::to_string(threads);
  const char* given = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe): still one thread
  if (given != nullptr && given == wanted) return;
  setenv(kVariable, wanted.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  // Otherwise its threads spin between products, on the cores that our own loops need.
  setenv("OMP_WAIT_POLICY", "passive", 1);  // NOLINT(concurrency-mt-unsafe)
  execv("/proc/self/exe", argv);
  fail(ErrorCode::kIo, "cannot restart with {}={}", kVariable, wanted);
}

int run(const Options& options) {
  const ModelShape& shape = model_preset("deepseek-v2");
  const dnnl_version_t* version = dnnl_version();
  fmt::print("{}; {} thread(s); oneDNN {}.{}.{} sgemm\n", describe_machine(), options.threads,
             version->major, version->minor, version->patch);
  fmt::print("Shape {}: {} heads, hidden {}, q_lora_rank {}, {} + {} latent, {}/{} per head\n",
             shape.name, shape.num_attention_heads, shape.hidden_size, shape.q_lora_rank,
             shape.kv_lora_rank, shape.qk_rope_head_dim, shape.qk_nope_head_dim, shape.v_head_dim);
  Arithmetic arithmetic(options.threads);
  check_agreement(arithmetic);
  const std::vector<Cell> cells = measure_all(shape, options, arithmetic);
  const bool match = print_counts(cells);
  print_cells(cells);
  const std::filesystem::path table = write_table(cells, options);
  fmt::print("\nTable: {}\n", table.string());
  plot(table);
  if (!match) fmt::print("A counted figure differs from the published one.\n");
  return match ? 0 : 1;
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  tributary::bench::Options options;
  CLI::App app{"Five forms of MLA decode on one layer of DeepSeek-V2's attention"};
  app.add_flag("--quick", options.quick, "lengths 512 and 1024 only");
  app.add_option("--threads", options.threads, "threads of every form")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--memory-gib", options.memory_gib,
                 "leave out what needs more for weights, cache and workspace")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--cell-seconds", options.cell_seconds,
                 "leave out what would take longer for one step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--out", options.out, "folder of absorption.tsv and absorption.png")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  try {
    app.parse(argc, argv);
    tributary::bench::restart_with_threads(options.threads, argv);
    return tributary::bench::run(options);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "absorption: {}\n", error.what());
    return 1;
  }
}
