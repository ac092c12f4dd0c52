// Rows of prompts into a worker's pages where there is no service: what its receiver of rows does
// with those of a client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/cache/leaves.h"
#include "core/interface/backend.h"
#include "core/pool/ingest_table.h"

namespace tributary::bench {

/// Writes `count` rows of positions begin, begin + 1, ... of a layer.
using WriteRows =
    std::function<void(int layer, std::int64_t begin, std::int64_t count, std::byte* rows)>;

/// This rank's rows of the prompt of a sequence that its table holds.
inline void fill_prompt(const Sequence& sequence, int rank, int layers, int leaf_tokens,
                        IngestTable& ingest, Backend& backend, Cache& cache,
                        const WriteRows& write) {
  const std::size_t row_bytes = cache.layout().row_bytes();
  std::vector<std::byte> rows;
  const auto fill = [&](const Leaf& leaf, const LeafPart& part) {
    if (leaf.owner != rank) return;
    rows.resize(static_cast<std::size_t>(part.rows()) * row_bytes);
    for (int layer = 0; layer < layers; ++layer) {
      write(layer, part.begin, part.rows(), rows.data());
      const auto transfer =
          ingest.begin(sequence.id, sequence.epoch, layer, part.begin, part.rows());
      std::span<const std::byte> left(rows);
      for (const PageRun& run : transfer.runs) {
        const std::size_t bytes = static_cast<std::size_t>(run.count) * row_bytes;
        backend.store_rows(cache, layer, run.page, run.slot, left.first(bytes));
        left = left.subspan(bytes);
      }
      (void)ingest.end(transfer.ticket, /*arrived=*/true);
    }
  };
  for_each_leaf(sequence, 0, sequence.prompt_tokens, leaf_tokens, fill);
}

}  // namespace tributary::bench
