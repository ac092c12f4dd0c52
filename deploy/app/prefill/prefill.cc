#include "deploy/app/prefill/prefill.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>

#include "core/base/error.h"
#include "core/reference/golden_case.h"
#include "deploy/app/golden/golden_prompt.h"
#include "deploy/app/meet/meet_service.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/cores.h"
#include "deploy/service/client/scoped_sequences.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {
namespace {

void write_handles(const std::filesystem::path& path, const PrefillReport& report) {
  std::ofstream file(path);
  for (const SequenceHandle& sequence : report.sequences) file << to_json(sequence) << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kIo, "{}: cannot be written", path.string());
}

PrefillReport push_golden(const GoldenCase& golden, const PrefillOptions& options) {
  const int threads = options.threads > 0 ? options.threads : threads_of_process();
  meet_service(options.service);
  const auto backend = make_backend(options.backend, threads);
  TierClient client(client_config(options.service));
  ScopedSequences sequences(client);
  PrefillReport report;
  for (int entry = 0; entry < golden.batch; ++entry) {
    SequenceHandle& sequence = sequences.add(client.admit({.prompt_tokens = golden.prefill_len,
                                                           .max_new_tokens = golden.decode_steps,
                                                           .spread = SpreadPolicy::kAuto,
                                                           .idempotency_key = {}}));
    check_shape(golden, sequence.shape);
    GoldenLayer layer(golden, sequence.shape, *backend);
    const std::vector<std::byte> rows = prompt_rows(golden, layer, entry);
    const auto begin = std::chrono::steady_clock::now();
    push_prompt(client, sequence, rows, options.senders);
    report.push_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    report.rows += golden.prefill_len;
    report.bytes += rows.size();
    report.sequences.push_back(client.query(sequence));
  }
  if (options.sequence_out) {
    write_handles(*options.sequence_out, report);
    sequences.release();
  } else {
    sequences.free();
  }
  return report;
}

}  // namespace

PrefillReport prefill(const PrefillOptions& options) {
  const GoldenCase golden = load_golden_case(options.file);
  return with_service([&] { return push_golden(golden, options); });
}

std::string to_text(const PrefillReport& report) {
  std::string text;
  for (const SequenceHandle& sequence : report.sequences) {
    text += fmt::format("sequence {}  {}, {} rows, home {} of pool {}\n", id_text(sequence.id),
                        sequence_state_name(sequence.state), sequence.prompt_tokens, sequence.home,
                        sequence.pool);
  }
  text += fmt::format("pushed    {} rows, {} bytes in {:.1f} ms\n", report.rows, report.bytes,
                      report.push_seconds * 1e3);
  return text;
}

}  // namespace tributary
