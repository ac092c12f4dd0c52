// `tributary verify`: golden files through prefill and decode over a pool, judged by their expected
// values.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
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
  std::string listen;        // of workers that are processes, see host_pool()
  std::string advertise;     // as of a worker
  std::string backend = "cpu";
  int threads = 0;  // of each worker; 0: its share of the cores
  BackendOptions backend_options;
  DType query_dtype = DType::kF32;
  int leaf_tokens = 64;  // small, so that short sequences spread
};

struct Verification {
  std::vector<VerifyRow> rows;
  std::vector<std::string> skipped;  // what a service's pool cannot be asked, in words
};

/// On pools of its own, one for each file and group. Prompts are computed here, on rank 0, and
/// pushed in two halves, each by a sender of its own; then every case is decoded in `attend` mode.
/// Runs on every rank; rank 0 gets the rows. `network` as of host_pool(). Throws Error.
[[nodiscard]] Verification verify(const VerifyOptions& options, Communicator& communicator,
                                  const std::shared_ptr<LocalNetwork>& network);
/// Through the service that the options name; in `forward` mode too where its pool has weights.
[[nodiscard]] Verification verify_service(const VerifyOptions& options);
[[nodiscard]] std::string to_text(const std::vector<VerifyRow>& rows);

}  // namespace tributary
