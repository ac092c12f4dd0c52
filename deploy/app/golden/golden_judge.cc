#include "deploy/app/golden/golden_judge.h"

#include <fmt/format.h>

#include <utility>

#include "core/reference/error_measures.h"

namespace tributary {
namespace {

/// Bounds on the relative Frobenius error (lse: on the absolute error) of a group. They are those
/// that the vectors' own README suggests for fp32 arithmetic: some 20 times the differences between
/// correct programs. The rope part of a row is judged with the outputs, since its angles are.
struct Bounds {
  double output = 0;
  double row = 0;  // worst row of an output
  double cache_kv = 0;
  double lse = 0;
};

Bounds exact_bounds(const GoldenGroup& group) {
  const bool bf16_rows = group.row_format == RowFormat::kBF16;
  return bf16_rows ? Bounds{5e-4, 2e-3, 5e-4, 5e-4} : Bounds{3e-5, 1e-4, 1e-6, 5e-5};
}

Bounds bounds_of(const GoldenGroup& group, const AttentionShape& pool) {
  Bounds bounds = exact_bounds(group);
  if (pool.query_dtype == DType::kBF16) {
    // Rounding a query to 8 bits moves a score by up to 2^-8 of its terms.
    bounds.output = 1.5e-2;
    bounds.row = 5e-2;
    bounds.lse = 1.5e-2;
  }
  return bounds;
}

/// Columns [begin, end) of rows of `width`.
std::vector<float> columns(const std::vector<float>& values, std::size_t width, std::size_t begin,
                           std::size_t end) {
  std::vector<float> result;
  for (std::size_t row = 0; row + width <= values.size(); row += width) {
    result.insert(result.end(), values.begin() + static_cast<std::ptrdiff_t>(row + begin),
                  values.begin() + static_cast<std::ptrdiff_t>(row + end));
  }
  return result;
}

class Judge {
 public:
  Judge(std::string file, std::string group, std::vector<VerifyRow>& rows)
      : file_(std::move(file)), group_(std::move(group)), rows_(rows) {}

  void relative(const std::string& tensor, const std::vector<float>& got,
                const std::vector<double>& expected, int width, double bound, double row_bound) {
    const TensorError error = measure_error(got, expected, width);
    rows_.push_back(
        {file_, group_, tensor, error.relative_frobenius, error.worst_row, bound, row_bound});
  }
  void absolute(const std::string& tensor, const std::vector<float>& got,
                const std::vector<double>& expected, double bound) {
    const TensorError error = measure_error(got, expected, 1);
    rows_.push_back({file_, group_, tensor, error.max_absolute, error.max_absolute, bound, bound});
  }

 private:
  std::string file_, group_;
  std::vector<VerifyRow>& rows_;
};

}  // namespace

void judge_all(const GoldenCase& golden, const GoldenGroup& group, const AttentionShape& pool,
               const GoldenResults& results, std::vector<VerifyRow>& rows) {
  const ModelShape& model = golden.shape;
  const Bounds bounds = bounds_of(group, pool);
  const auto c = static_cast<std::size_t>(model.kv_lora_rank);
  const auto width = static_cast<std::size_t>(model.latent_dim());
  Judge judge(golden.name, group.name, rows);
  // Rounded queries do not affect values that are computed before the attention over the pool.
  const Bounds exact = exact_bounds(group);
  judge.relative("prefill.output", results.prefill_output, group.prefill_output, model.hidden_size,
                 exact.output, exact.row);
  judge.relative("cache.kv", columns(results.cache, width, 0, c), group.cache_kv,
                 model.kv_lora_rank, exact.cache_kv, exact.row);
  judge.relative("cache.pe", columns(results.cache, width, c, width), group.cache_pe,
                 model.qk_rope_head_dim, exact.output, exact.row);
  judge.relative("decode.q_nope_absorbed", columns(results.query, width, 0, c),
                 group.decode_q_absorbed, model.kv_lora_rank, exact.output, exact.row);
  judge.relative("decode.q_pe", columns(results.query, width, c, width), group.decode_q_pe,
                 model.qk_rope_head_dim, exact.output, exact.row);
  judge.relative("decode.latent", results.latent, group.decode_latent,
                 model.num_attention_heads * model.kv_lora_rank, bounds.output, bounds.row);
  judge.absolute("decode.lse", results.lse, group.decode_lse, bounds.lse);
  judge.relative("decode.output", results.decode_output, group.decode_output, model.hidden_size,
                 bounds.output, bounds.row);
}

void judge_forward(const GoldenCase& golden, const GoldenGroup& group, const AttentionShape& pool,
                   const std::vector<float>& output, std::vector<VerifyRow>& rows) {
  const Bounds bounds = bounds_of(group, pool);
  Judge(golden.name, group.name, rows)
      .relative("forward.output", output, group.decode_output, golden.shape.hidden_size,
                bounds.output, bounds.row);
}

void judge_selection(const GoldenSelection& golden, const AttentionShape& pool,
                     const std::vector<float>& latent, const std::vector<float>& lse,
                     std::vector<VerifyRow>& rows) {
  // A decode kernel alone, on the stored rows and queries: some ten times the differences between
  // correct programs. Kernels for bf16 queries round the weights of values, as on dense rows.
  const Bounds bounds = pool.query_dtype == DType::kBF16 ? Bounds{1.5e-2, 5e-2, 0, 1.5e-2}
                                                         : Bounds{3e-6, 1e-5, 0, 5e-6};
  const bool dense = pool.topk == 0;
  Judge judge(golden.name, row_format_name(pool.row_format), rows);
  judge.relative(dense ? "dense.latent" : "decode.latent", latent,
                 dense ? golden.dense_latent : golden.latent, golden.heads * golden.kv_lora_rank,
                 bounds.output, bounds.row);
  judge.absolute(dense ? "dense.lse" : "decode.lse", lse, dense ? golden.dense_lse : golden.lse,
                 bounds.lse);
}

std::string to_text(const std::vector<VerifyRow>& rows) {
  std::string text = fmt::format("{:<10}{:<11}{:<24}{:>12}{:>12}{:>12}\n", "file", "group",
                                 "tensor", "error", "worst row", "bound");
  for (const VerifyRow& row : rows) {
    text +=
        fmt::format("{:<10}{:<11}{:<24}{:>12.2e}{:>12.2e}{:>12.2e}{}\n", row.file, row.group,
                    row.tensor, row.error, row.worst_row, row.bound, row.ok() ? "" : "  TOO LARGE");
  }
  return text;
}

}  // namespace tributary
