// Pushes prompts of a golden case to a service.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/model/mla_shape.h"
#include "core/reference/golden_case.h"
#include "deploy/app/golden/golden_layer.h"
#include "deploy/service/client/tier_client.h"

namespace tributary {

/// Throws kInvalidArgument, naming the field, if a pool of that shape cannot serve the case. It can
/// if it has one layer of the case's dimensions, with or without weights.
void check_shape(const GoldenCase& golden, const PoolShape& shape);
/// The same for a pool without weights whose tokens select rows.
void check_shape(const GoldenSelection& golden, const PoolShape& shape);
[[nodiscard]] MlaShape mla_shape(const GoldenSelection& golden);

/// Rows of the whole prompt of a batch entry, in the pool's row type.
[[nodiscard]] std::vector<std::byte> prompt_rows(const GoldenCase& golden, GoldenLayer& layer,
                                                 int entry);
/// Pushes the rows, cut into as many ranges as there are senders (threads), and waits until the
/// sequence is ready.
void push_prompt(TierClient& client, const SequenceHandle& sequence,
                 const std::vector<std::byte>& rows, int senders);

}  // namespace tributary
