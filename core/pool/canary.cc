#include "core/pool/canary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "core/base/elements.h"
#include "core/cache/leaves.h"
#include "core/pool/gather_all.h"
#include "core/reference/reference_attend.h"

namespace tributary {
namespace {

/// A record in the exchange: kPartial or why not, lse, o[kv_lora_rank].
constexpr double kPartial = 0;  // the state of a rank's rows; the empty one where it has none
constexpr double kNothing = 1;  // it has too many rows, or failed
constexpr std::size_t kHeader = 2;

/// Calls visit(leaf, part) for every leaf of a subtree root with rows that the first new token
/// sees.
template <typename Visit>
void for_each_seen_leaf(const Sequence& s, const TreeNode& root, std::int64_t leaf_tokens,
                        Visit visit) {
  const std::int64_t begin = root.first_leaf() * leaf_tokens;
  const std::int64_t end = std::min(root.end_leaf() * leaf_tokens, s.length + 1);
  if (begin >= end) return;
  for_each_leaf(s, begin, end, leaf_tokens,
                [&](const Leaf& leaf, const LeafPart& part) { visit(leaf, part); });
}

double norm_of(std::span<const double> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

/// The record of the item's first new token, as this rank has it.
std::size_t find_record(const CanaryOrder& order, const CanaryInput& input) {
  // Every rank with rows of the item attends to them, and its task says where the query lies.
  const AttendArgs& attended = input.attended;
  const auto task = std::ranges::find(attended.tasks, order.item, &LeafTask::item);
  if (task == attended.tasks.end()) {
    fail(ErrorCode::kInternal, "canary: no task of item {} on a worker with rows of it",
         order.item);
  }
  return static_cast<std::size_t>(task->query);
}

/// The positions that it selects, ascending.
std::vector<std::int32_t> load_selection(const CanaryOrder& order, const CanaryInput& input,
                                         Backend& backend) {
  const SelectedRows& selected = input.attended.selected;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(selected.most));
  backend.download(std::as_writable_bytes(std::span(positions)),
                   reinterpret_cast<const std::byte*>(selected.data) +
                       find_record(order, input) * selected.stride_bytes);
  std::erase(positions, -1);
  return positions;
}

/// The query of one head.
std::vector<double> load_query(const CanaryOrder& order, const CanaryInput& input,
                               Backend& backend) {
  const AttendArgs& attended = input.attended;
  const AttentionShape& shape = input.shape;
  const auto width = static_cast<std::size_t>(shape.latent_dim());
  std::vector<std::byte> bytes(width * dtype_bytes(shape.query_dtype));
  backend.download(bytes, attended.queries +
                              find_record(order, input) * attended.query_stride_bytes +
                              static_cast<std::size_t>(order.head) * bytes.size());
  std::vector<float> values(width);
  load_elements(shape.query_dtype, bytes.data(), values);
  return {values.begin(), values.end()};
}

/// The merge of all records: lse, then o. Nothing where some rank did not recompute its
/// rows.
std::optional<std::vector<double>> merge(std::span<const double> records, std::size_t size) {
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t r = 0; r < records.size(); r += size) {
    if (records[r] != kPartial) return std::nullopt;
    most = std::max(most, records[r + 1]);
  }
  std::vector<double> merged(size - 1, 0);
  merged[0] = most;
  if (!std::isfinite(most)) return merged;  // a token that selects nothing
  double sum = 0;
  for (std::size_t r = 0; r < records.size(); r += size) {
    const double weight = std::exp(records[r + 1] - most);
    if (weight == 0) continue;
    sum += weight;
    for (std::size_t c = 1; c < merged.size(); ++c) merged[c] += weight * records[r + 1 + c];
  }
  merged[0] = most + std::log(sum);
  for (std::size_t c = 1; c < merged.size(); ++c) merged[c] /= sum;
  return merged;
}

/// The reference state of the rows under one subtree root, into an empty record.
void recompute(const TreeNode& root, const CanaryOrder& order, const CanaryInput& input,
               Backend& backend, const Cache& cache, std::span<double> record) {
  const AttentionShape& shape = input.shape;
  const auto item = static_cast<std::size_t>(order.item);
  ReferenceAttention attention(1, shape.kv_lora_rank, shape.qk_rope_head_dim,
                               static_cast<double>(shape.softmax_scale),
                               load_query(order, input, backend));
  const std::size_t row_bytes = shape.row_bytes();
  std::vector<std::byte> bytes;
  std::vector<float> values;
  const bool sparse = shape.topk > 0;
  const std::vector<std::int32_t> selected =
      sparse ? load_selection(order, input, backend) : std::vector<std::int32_t>{};
  const auto width = static_cast<std::ptrdiff_t>(shape.row().values());
  for_each_seen_leaf(
      *input.routing.items[item].sequence, root, input.leaf_tokens,
      [&](const Leaf& leaf, const LeafPart& part) {
        for (std::int64_t begin = 0; begin < part.rows(); begin += kPageTokens) {
          const auto count = std::min<std::int64_t>(kPageTokens, part.rows() - begin);
          const std::int64_t first = part.begin + begin;
          const std::span<const std::int32_t> mine(
              std::ranges::lower_bound(selected, first),
              std::ranges::lower_bound(selected, first + count));
          if (sparse && mine.empty()) continue;
          bytes.resize(static_cast<std::size_t>(count) * row_bytes);
          backend.load_rows(cache, input.item_layer[item],
                            leaf.pages[static_cast<std::size_t>(begin / kPageTokens)], 0, bytes);
          values.resize(static_cast<std::size_t>(count) * shape.row().values());
          shape.row().decode(bytes.data(), values);
          if (!sparse) {
            attention.add(std::span<const float>(values));
            continue;
          }
          for (const std::int32_t position : mine) {
            attention.add(std::span<const float>(values).subspan(
                static_cast<std::size_t>((position - first) * width),
                static_cast<std::size_t>(width)));
          }
        }
      });
  const ReferenceState state = attention.state();
  record[1] = state.lse[0];
  std::ranges::copy(state.o, record.begin() + kHeader);
}

/// This rank's record.
std::vector<double> recompute(const CanaryOrder& order, const CanaryInput& input, Backend& backend,
                              int rank, const Cache& cache) {
  const AttentionShape& shape = input.shape;
  const std::size_t size = kHeader + static_cast<std::size_t>(shape.kv_lora_rank);
  const Routing::Item& item = input.routing.items[static_cast<std::size_t>(order.item)];
  std::vector<TreeNode> roots;
  std::int64_t total = 0;
  for (auto r = item.first_root; r < item.end_root; ++r) {
    const ItemRoot& root = input.routing.roots[static_cast<std::size_t>(r)];
    std::int64_t seen = 0;
    for_each_seen_leaf(*item.sequence, root.node, input.leaf_tokens,
                       [&](const Leaf&, const LeafPart& part) { seen += part.rows(); });
    if (root.worker != rank || seen == 0) continue;
    roots.push_back(root.node);
    total += seen;
  }
  std::vector<double> empty(size, 0);
  empty[0] = total > input.most_rows ? kNothing : kPartial;
  empty[1] = -std::numeric_limits<double>::infinity();
  if (total == 0 || total > input.most_rows) return empty;
  std::vector<double> records;
  for (const TreeNode& root : roots) {
    std::vector<double> record = empty;
    recompute(root, order, input, backend, cache, record);
    records.insert(records.end(), record.begin(), record.end());
  }
  std::vector<double> merged = merge(records, size).value();
  merged.insert(merged.begin(), kPartial);
  return merged;
}

CanaryVerdict compare(const CanaryOrder& order, const CanaryInput& input, Backend& backend,
                      const HomedItem& homed, std::span<const double> merged) {
  const AttentionShape& shape = input.shape;
  const StateShape state_shape = shape.state_shape();
  std::vector<float> state(state_shape.record_floats());
  backend.download(
      std::as_writable_bytes(std::span(state)),
      reinterpret_cast<const std::byte*>(input.states + static_cast<std::size_t>(homed.state) *
                                                            state_shape.record_floats()));
  const auto head = static_cast<std::size_t>(order.head);
  const std::span<const double> expected = merged.subspan(1);
  const auto width = static_cast<std::size_t>(state_shape.width);
  const float* o = state.data() + head * width;
  const double lse = state[static_cast<std::size_t>(shape.heads) * width + head];
  std::vector<double> differences(width);
  std::transform(o, o + width, expected.begin(), differences.begin(), std::minus<double>());
  const double norm = norm_of(expected);
  const double unit = norm > 0 ? norm : 1;
  const double of_o = norm_of(differences) / unit;
  const double of_lse = lse == merged[0] ? 0 : std::abs(lse - merged[0]);  // both may be -inf
  if (!std::isfinite(of_o) || !std::isfinite(of_lse)) {
    constexpr double kMost = std::numeric_limits<double>::max();
    return {.checked = true, .error = kMost};
  }
  return {.checked = true, .error = std::max(of_o, of_lse)};
}

}  // namespace

Status run_canary(const CanaryOrder& order, const CanaryInput& input, Backend& backend,
                  Communicator& communicator, const Cache& cache, Deadline deadline,
                  Status& failure, CanaryVerdict& verdict) {
  const std::size_t size = kHeader + static_cast<std::size_t>(input.shape.kv_lora_rank);
  std::vector<double> mine(size, 0);
  mine[0] = kNothing;
  if (failure.ok()) {
    failure =
        status_of([&] { mine = recompute(order, input, backend, communicator.rank(), cache); });
  }
  std::vector<double> all;
  Status status = gather_all(communicator, std::span<const double>(mine), all, deadline);
  for (int r = 0; r < communicator.size(); ++r) {  // absent ranks say nothing
    const bool here = std::ranges::binary_search(communicator.members(), r);
    if (!here && status.ok()) all[static_cast<std::size_t>(r) * size] = kNothing;
  }
  const auto homed = std::ranges::find(input.plan.homed, order.item, &HomedItem::item);
  if (!status.ok() || !failure.ok() || homed == input.plan.homed.end()) return status;
  failure = status_of([&] {
    const auto expected = merge(all, size);
    if (!expected) return;
    verdict = compare(order, input, backend, *homed, *expected);
  });
  return status;
}

}  // namespace tributary
