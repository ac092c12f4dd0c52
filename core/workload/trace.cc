// Reader of request traces, one JSON object per line.
#include "core/workload/trace.h"

#include <fmt/format.h>

#include <array>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxLength = std::numeric_limits<std::int32_t>::max();
/// A prompt of 126,000 tokens, the longest that was published, takes 2 KiB. The bound keeps a
/// file without line ends from filling the memory.
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20;

/// The next line without its end; false when there is none.
bool read_line(std::istream& in, const std::string& where, std::string& line) {
  line.clear();
  std::array<char, 16384> chunk{};
  for (;;) {
    in.getline(chunk.data(), chunk.size());
    if (in.bad()) fail(ErrorCode::kIo, "{}: cannot be read", where);
    auto count = static_cast<std::size_t>(in.gcount());
    const bool line_ended = !in.eof() && !in.fail();
    if (line_ended) --count;  // the counted, but not stored, '\n'
    line.append(chunk.data(), count);
    if (line.size() > kMaxLineBytes) {
      fail(ErrorCode::kMalformedInput, "{}: longer than {} bytes", where, kMaxLineBytes);
    }
    if (line_ended) return true;
    if (in.eof()) return !line.empty();
    if (count == 0) fail(ErrorCode::kIo, "{}: cannot be read", where);
    in.clear(in.rdstate() & ~std::ios::failbit);  // set because the chunk is full
  }
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

const Json& field(const Json& object, const char* key, const std::string& where) {
  const auto it = object.find(key);
  if (it == object.end()) fail(ErrorCode::kMalformedInput, "{}: {} is missing", where, key);
  return *it;
}

std::int64_t parse_length(const Json& object, const char* key, const std::string& where) {
  const Json& value = field(object, key, where);
  // The parser stores every integer from 0 up as unsigned.
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 ||
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxLength)) {
    fail(ErrorCode::kMalformedInput, "{}: {} is {}, must be an integer in 1 .. {}", where, key,
         quote(value.dump()), kMaxLength);
  }
  return value.get<std::int64_t>();
}

std::vector<std::int64_t> parse_hash_ids(const Json& object, std::int64_t input_length,
                                         const std::string& where) {
  std::vector<std::int64_t> ids;
  const auto it = object.find("hash_ids");
  if (it == object.end() || it->is_null()) return ids;
  if (!it->is_array()) {
    fail(ErrorCode::kMalformedInput, "{}: hash_ids is {}, must be an array", where,
         quote(it->dump()));
  }
  ids.reserve(it->size());
  for (const Json& id : *it) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >
            static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(ErrorCode::kMalformedInput, "{}: hash_ids holds {}, must hold integers in 0 .. 2^63 - 1",
           where, quote(id.dump()));
    }
    ids.push_back(id.get<std::int64_t>());
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::int64_t complete = input_length / kHashBlockTokens;
  const std::int64_t all = ceil_div(input_length, kHashBlockTokens);
  if (count != 0 && count != complete && count != all) {
    fail(ErrorCode::kMalformedInput, "{}: hash_ids has {} entries, but {} prompt tokens have {}",
         where, count, input_length, all);
  }
  return ids;
}

TraceRequest parse_request(const std::string& line, const std::string& where) {
  const Json object = parse_strict_json(line, where);
  if (!object.is_object()) {
    fail(ErrorCode::kMalformedInput, "{}: is {}, must be a JSON object", where,
         quote(object.dump()));
  }
  TraceRequest request;
  const Json& timestamp = field(object, "timestamp", where);
  if (!timestamp.is_number() || !(timestamp.get<double>() >= 0)) {
    fail(ErrorCode::kMalformedInput, "{}: timestamp is {}, must be a number from 0 up", where,
         quote(timestamp.dump()));
  }
  request.timestamp_ms = timestamp.get<double>();
  request.input_length = parse_length(object, "input_length", where);
  request.output_length = parse_length(object, "output_length", where);
  request.hash_ids = parse_hash_ids(object, request.input_length, where);
  return request;
}

}  // namespace

std::vector<TraceRequest> read_trace(std::istream& in, std::string_view source, std::size_t limit) {
  std::vector<TraceRequest> requests;
  std::string line;
  for (std::size_t number = 1; limit == 0 || requests.size() < limit; ++number) {
    const std::string where = fmt::format("{} line {}", source, number);
    if (!read_line(in, where, line)) break;
    if (is_blank(line)) continue;
    TraceRequest request = parse_request(line, where);
    if (!requests.empty() && request.timestamp_ms < requests.back().timestamp_ms) {
      fail(ErrorCode::kMalformedInput, "{}: timestamp is {}, before the previous request's {}",
           where, request.timestamp_ms, requests.back().timestamp_ms);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<TraceRequest> read_trace(const std::filesystem::path& path, std::size_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "{}: cannot be opened", path.string());
  return read_trace(file, path.string(), limit);
}

}  // namespace tributary
