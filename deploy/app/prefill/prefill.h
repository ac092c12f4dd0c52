// `tributary prefill`: an example prefill tier. Computes the latent rows of a golden file's prompts
// from their hidden states with the file's weights, and pushes them to a service.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "deploy/runtime/shared_options.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

struct PrefillOptions {
  ServiceOptions service;
  std::filesystem::path file;
  /// The sequences' handles go there as JSON, one a line, and the sequences stay; without it they
  /// are freed at the end.
  std::optional<std::filesystem::path> sequence_out;
  int senders = 2;
  std::string backend = "cpu";
  int threads = 0;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(file, "FILE", "", "Golden file (.safetensors)", {.required = true});
    service.for_each_option(v, "The service, by its control plane's URL", /*optional=*/false);
    v(sequence_out, "--sequence-out", "FILE",
      "Keep the sequences, and write what a client needs to decode them, a JSON object a line "
      "(default: free them)");
    v(senders, "--senders", {1, 64}, "Senders, each with a range of every prompt's rows");
    visit_backend(v, backend, threads);
  }
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
