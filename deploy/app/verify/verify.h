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
#include "core/model/row_format.h"
#include "deploy/app/golden/golden_judge.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/shared_options.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

struct VerifyOptions {
  std::vector<std::filesystem::path> files;
  RowFormat rows{};  // none: the files are verified
  ServiceOptions service;
  bool attend_only = false;
  int workers = 0;
  std::string listen;  // of workers that are processes, see host_pool()
  std::string advertise;
  std::string backend = "cpu";
  int threads = 0;
  BackendOptions backend_options;
  DType query_dtype = DType::kF32;
  int leaf_tokens = 64;  // small, so that short sequences spread

  template <class Visitor>
  void for_each_option(Visitor& v) {
    v(files, "FILE", "", "Golden files (.safetensors): at least one, unless --rows is given");
    v(rows, "--rows", row_format_names(row_formats(), "|"),
      "Print what rows of this format cost attention beside bf16 rows, for random latents");
    service.for_each_option(v, kInsteadOfOwnPool, /*optional=*/true);
    v(attend_only, "--attend-only",
      "Do not ask the service for `forward`: its weights are other than the files'",
      {.needs = "--service"});
    auto own = v.with({.excludes = "--service"});
    visit_workers(own, workers);
    visit_addresses(own, listen, advertise);
    visit_backend(v, backend, threads);
    backend_options.for_each_option(own);
    visit_query(own, query_dtype);
    visit_leaf_tokens(own, leaf_tokens);
  }
};

/// What rows of a format cost attention, a line for each kind of scores and latents.
[[nodiscard]] std::string row_errors_text(RowFormat format);

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

}  // namespace tributary
