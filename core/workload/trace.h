// Request traces: JSON lines with timestamp (ms), input_length, output_length, hash_ids.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <string_view>
#include <vector>

namespace tributary {

/// Prompt tokens that one entry of hash_ids stands for.
inline constexpr std::int64_t kHashBlockTokens = 512;

struct TraceRequest {
  double timestamp_ms = 0;
  std::int64_t input_length = 0;       // prompt tokens, >= 1
  std::int64_t output_length = 0;      // tokens to decode, >= 1
  std::vector<std::int64_t> hash_ids;  // one per 512 prompt tokens, or empty
};

/// Reads at most `limit` requests (0: all). Throws kIo or kMalformedInput with the line number.
/// Blank lines are skipped; timestamps must not decrease; lengths must be in 1 .. 2^31 - 1;
/// hash_ids may be left out or empty, or have one entry per 512 prompt tokens, with or without one
/// for an incomplete last block. Other keys are ignored.
[[nodiscard]] std::vector<TraceRequest> read_trace(std::istream& in, std::string_view source,
                                                   std::size_t limit = 0);
[[nodiscard]] std::vector<TraceRequest> read_trace(const std::filesystem::path& path,
                                                   std::size_t limit = 0);

/// A workload with the lengths of a chat service, used when no trace is given (log-normal prompts:
/// median about 7,000 tokens, mean about 12,000, at most 126,000; outputs about 350). Arrivals are
/// Poisson, 3.4 per second. It is deterministic in `seed`, bit for bit on every platform, and the
/// first n requests do not depend on `requests`.
[[nodiscard]] std::vector<TraceRequest> built_in_workload(std::size_t requests, std::uint64_t seed);

}  // namespace tributary
