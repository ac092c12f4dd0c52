// `tributary prefill`: an example prefill tier. Computes the latent rows of a golden file's prompts
// from their hidden states with the file's weights, and pushes them to a service.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deploy/service/client/service_options.h"

namespace tributary {

struct PrefillOptions {
  ServiceOptions service;
  std::filesystem::path file;  // golden file (.safetensors)
  /// The sequences' handles are written there as JSON, one per line, and the sequences stay;
  /// without it they are freed at the end.
  std::optional<std::filesystem::path> sequence_out;
  int senders = 2;  // threads that each push a range of the prompt
  std::string backend = "cpu";
  int threads = 0;  // compute threads; 0: all cores
};

struct PrefillReport {
  std::vector<SequenceHandle> sequences;  // after their push, one an entry of the file's batch
  std::int64_t rows = 0;                  // of all layers
  std::uint64_t bytes = 0;
  double push_seconds = 0;
};

/// Throws Error; sequences that were admitted before are freed.
[[nodiscard]] PrefillReport prefill(const PrefillOptions& options);
[[nodiscard]] std::string to_text(const PrefillReport& report);

}  // namespace tributary
