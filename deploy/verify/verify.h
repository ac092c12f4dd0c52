// `tributary verify`: golden files through prefill and decode over a pool, judged by their expected
// values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/communicator.h"
#include "deploy/client/service_options.h"
#include "deploy/runtime/backends.h"

namespace tributary {

struct VerifyOptions {
  std::vector<std::filesystem::path> files;
  ServiceOptions service;    // given: verifies it instead of a pool of its own
  bool attend_only = false;  // of a service: its weights are not those of the files
  int workers = 0;           // threads, where no launcher started the program
  std::string backend = "cpu";
  int threads = 0;  // of each worker; 0: its share of the cores
  BackendOptions backend_options;
  DType query_dtype = DType::kF32;
  int leaf_tokens = 64;  // small, so that short sequences spread
};

/// One line of the result: a tensor of a group against its expected values.
struct VerifyRow {
  std::string file;
  std::string group;   // `f32`, `bf16cache`
  std::string tensor;  // `prefill.output`, `cache`, `decode.latent`, ...
  double error = 0;    // relative Frobenius; for lse the largest absolute error
  double worst_row = 0;
  double bound = 0;
  double row_bound = 0;
  [[nodiscard]] bool ok() const noexcept { return error <= bound && worst_row <= row_bound; }
};

/// Runs on every rank; all ranks get the same rows. Throws Error.
[[nodiscard]] std::vector<VerifyRow> verify(const VerifyOptions& options,
                                            Communicator& communicator);
[[nodiscard]] std::string to_text(const std::vector<VerifyRow>& rows);

}  // namespace tributary
