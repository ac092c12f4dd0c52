#include "core/pool/pool_handshake.h"

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/model/model_limits.h"
#include "core/model/pool_shape.h"
#include "core/pool/gather_all.h"

namespace tributary {
namespace {

/// All ranks must agree on these values before they form a pool.
struct Handshake {
  std::int32_t pages = 0;
  Exchange exchange = Exchange::kAuto;
  int workers_per_node = 1;
  PoolShape shape;
  MachineCosts costs;
  Text backend{};
};

std::optional<ShapeDifference> cost_difference(const MachineCosts& first,
                                               const MachineCosts& second) {
  std::vector<double> others;
  for_each_cost(second, [&](const char*, double value) { others.push_back(value); });
  std::optional<ShapeDifference> difference;
  std::size_t next = 0;
  for_each_cost(first, [&](const char* name, double value) {
    const double other = others[next++];
    if (!difference && value != other) {
      difference = ShapeDifference{name, fmt::format("{}", value), fmt::format("{}", other)};
    }
  });
  return difference;
}

std::optional<ShapeDifference> find_difference(const Handshake& first, const Handshake& second) {
  if (auto difference = find_difference(first.shape, second.shape)) return difference;
  if (first.pages != second.pages) {
    return ShapeDifference{"pages", std::to_string(first.pages), std::to_string(second.pages)};
  }
  if (first.exchange != second.exchange) {
    return ShapeDifference{"exchange", std::string(exchange_name(first.exchange)),
                           std::string(exchange_name(second.exchange))};
  }
  if (first.workers_per_node != second.workers_per_node) {
    return ShapeDifference{"workers per node", std::to_string(first.workers_per_node),
                           std::to_string(second.workers_per_node)};
  }
  // They choose the exchange of a round by these.
  return cost_difference(first.costs, second.costs);
}

}  // namespace

void check_attention_shape(const AttentionShape& shape) {
  if (shape.heads < 1) {
    fail(ErrorCode::kInvalidArgument, "heads is {}, expected at least 1", shape.heads);
  }
  if (shape.query_dtype != DType::kBF16 && shape.query_dtype != DType::kF32) {
    fail(ErrorCode::kInvalidArgument, "query type is {}, expected bf16 or f32",
         dtype_name(shape.query_dtype));
  }
  if (shape.topk < 0 || shape.topk > kMaxTopk) {
    fail(ErrorCode::kInvalidArgument, "topk is {}, expected 0 to {}", shape.topk, kMaxTopk);
  }
  if (!(std::isfinite(shape.softmax_scale) && shape.softmax_scale > 0)) {
    fail(ErrorCode::kInvalidArgument, "softmax_scale is {}, expected positive and finite",
         shape.softmax_scale);
  }
}

void check_exchange(const Backend& backend, const Communicator& communicator,
                    const Communicator& exchange) {
  if (!backend.host_memory() && &exchange == &communicator) {
    fail(ErrorCode::kFailedPrecondition, "communicator {} cannot read the memory of backend {}",
         communicator.name(), backend.name());
  }
  if (exchange.rank() != communicator.rank() || exchange.size() != communicator.size()) {
    fail(ErrorCode::kInvalidArgument, "rank {} of {} exchanges as rank {} of {}",
         communicator.rank(), communicator.size(), exchange.rank(), exchange.size());
  }
}

void handshake(const WorkerConfig& config, std::string_view backend, const Status& set_up,
               Communicator& communicator, Deadline deadline) {
  Handshake mine{.pages = config.pages,
                 .exchange = config.exchange,
                 .workers_per_node = config.workers_per_node,
                 .shape = {config.attention, 0, 0, 0, config.layers, config.leaf_tokens},
                 .costs = config.costs,
                 .backend = {}};
  set_text(mine.backend, backend);
  const std::vector<Handshake> all = gather_values(communicator, set_up, mine, deadline);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (const auto difference = find_difference(all[0], all[r])) {
      fail(ErrorCode::kInvalidArgument, "{} is {} on worker 0 and {} on worker {}",
           difference->field, difference->first, difference->second, r);
    }
    if (all[r].backend != all[0].backend) {
      fail(ErrorCode::kInvalidArgument,
           "worker 0 computes with {} and worker {} with {}: their bits would differ",
           all[0].backend.data(), r, all[r].backend.data());
    }
  }
}

}  // namespace tributary
