// `tributary verify`: golden files through prefill and decode over a pool, judged by their expected
// values.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/communicator.h"
#include "deploy/app/golden/golden_judge.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/service_options.h"

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

/// Runs on every rank; all ranks get the same rows. Throws Error.
[[nodiscard]] std::vector<VerifyRow> verify(const VerifyOptions& options,
                                            Communicator& communicator);
[[nodiscard]] std::string to_text(const std::vector<VerifyRow>& rows);

}  // namespace tributary
