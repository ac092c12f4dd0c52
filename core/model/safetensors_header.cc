// The header of a safetensors blob: an event parser that accepts the format's one JSON shape and
// nothing else (so that memory stays proportional to the tensors, whatever the header nests), then
// the checks of every number against the others.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "core/model/foreign_file.h"
#include "core/model/safetensors.h"

namespace tributary {
namespace {

static_assert(std::endian::native == std::endian::little,
              "tensors are read as they lie in the file");

using Json = nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
/// Published weights have at most 4 dimensions; the bound keeps shapes printable.
constexpr std::size_t kMaxDimensions = 16;

/// Every dtype that the format knows (safetensors 0.6), with its width; `read` where we read it.
struct KnownDtype {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> read;
};
constexpr std::array<KnownDtype, 22> kDtypes = {{
    {"F64", 64, DType::kF64},
    {"F32", 32, DType::kF32},
    {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kF8E4M3},
    {"BOOL", 8, {}},
    {"F4", 4, {}},
    {"F6_E2M3", 6, {}},
    {"F6_E3M2", 6, {}},
    {"U8", 8, DType::kU8},
    {"I8", 8, {}},
    {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"I16", 16, {}},
    {"U16", 16, {}},
    {"F16", 16, {}},
    {"I32", 32, DType::kI32},
    {"U32", 32, {}},
    {"C64", 64, {}},
    {"I64", 64, {}},
    {"U64", 64, {}},
}};

/// A tensor as the header states it.
struct Entry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
};

/// Follows {"__metadata__": {text: text, ...}, name: {"dtype": text, "shape": [n, ...],
/// "data_offsets": [n, n]}, ...}; anything else throws at the first event that leaves it.
class HeaderParser : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderParser(std::string_view source) : source_(source) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string, std::less<>> metadata;

  bool null() override { unexpected("null"); }
  bool boolean(bool /*value*/) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override {
    unexpected(fmt::format("the number {}", value));
  }
  // Also integers beyond 64 bits arrive here.
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    unexpected(fmt::format("the number {}", quote(text)));
  }
  bool binary(binary_t& /*value*/) override { unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) {
      unexpected(fmt::format("the number {}", value));
    }
    std::vector<std::uint64_t>& list = *list_;
    const std::size_t limit = state_ == State::kShape ? kMaxDimensions : 2;
    if (list.size() == limit) {
      fail(ErrorCode::kMalformedInput, "{}: {} has more than {} numbers", source_, where(), limit);
    }
    list.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      metadata[key_] = std::move(value);
    } else if (state_ == State::kTensor && key_ == "dtype") {
      entries.back().dtype = std::move(value);
    } else {
      unexpected(fmt::format("the string {}", quote(value)));
    }
    return true;
  }

  bool start_object(std::size_t /*size*/) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        state_ = is_metadata_ ? State::kMetadata : State::kTensor;
        key_.clear();
        return true;
      default:
        unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (state_ == State::kTop) {
      if (!names_.insert(name).second) {
        fail(ErrorCode::kMalformedInput, "{}: tensor {} occurs twice", source_, quote(name));
      }
      is_metadata_ = name == "__metadata__";
      if (!is_metadata_)
        entries.push_back(Entry{.name = name, .dtype = {}, .shape = {}, .offsets = {}});
      return true;
    }
    key_ = name;
    const bool twice = state_ == State::kMetadata ? metadata.contains(key_) : field_present();
    if (twice) fail(ErrorCode::kMalformedInput, "{}: {} occurs twice", source_, where());
    return true;
  }

  bool end_object() override {
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    key_.clear();
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (state_ == State::kTensor && key_ == "shape") {
      state_ = State::kShape;
      list_ = &entries.back().shape.emplace();
    } else if (state_ == State::kTensor && key_ == "data_offsets") {
      state_ = State::kOffsets;
      list_ = &entries.back().offsets.emplace();
    } else {
      unexpected("an array");
    }
    return true;
  }

  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& /*last_token*/,
                   const Json::exception& error) override {
    fail(ErrorCode::kMalformedInput, "{}: header is not valid JSON: {}", source_,
         json_error_text(error));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kDone };

  /// Whether the current tensor has the field `key_` already; refuses fields that do not exist.
  [[nodiscard]] bool field_present() const {
    const Entry& entry = entries.back();
    if (key_ == "dtype") return entry.dtype.has_value();
    if (key_ == "shape") return entry.shape.has_value();
    if (key_ == "data_offsets") return entry.offsets.has_value();
    fail(ErrorCode::kMalformedInput, "{}: {} is not a field of a tensor", source_, where());
  }

  [[nodiscard]] std::string where() const {
    std::string place = "header";
    if (state_ == State::kMetadata || (state_ == State::kTop && is_metadata_)) {
      place = "__metadata__";
    } else if (!entries.empty() && state_ != State::kStart && state_ != State::kDone) {
      place = "tensor " + quote(entries.back().name);
    }
    return key_.empty() ? place : fmt::format("{}: {}", place, quote(key_));
  }

  [[noreturn]] void unexpected(std::string_view what) const {
    fail(ErrorCode::kMalformedInput, "{}: {} holds {} where the format has none", source_, where(),
         what);
  }

  std::string_view source_;
  State state_ = State::kStart;
  bool is_metadata_ = false;                    // the value that follows in kTop
  std::string key_;                             // inside a tensor or __metadata__
  std::vector<std::uint64_t>* list_ = nullptr;  // in kShape and kOffsets
  std::set<std::string> names_;
};

/// Bytes that a tensor of this shape takes; sub-byte elements must fill whole bytes.
std::uint64_t stated_bytes(const Entry& entry, const KnownDtype& dtype, std::string_view source) {
  // Like the published reader, refuses an intermediate overflow even where a later 0 would bring
  // the product back. At 64 bits an element or less, the bits stay below 2^63.
  constexpr std::uint64_t kMaxElements = std::numeric_limits<std::int64_t>::max() / 64;
  std::uint64_t elements = 1;
  for (const std::uint64_t size : *entry.shape) {
    if (size > kMaxElements || (size != 0 && elements > kMaxElements / size)) {
      fail(ErrorCode::kMalformedInput, "{}: tensor {}: shape [{}] has more than 2^57 elements",
           source, quote(entry.name), fmt::join(*entry.shape, ", "));
    }
    elements *= size;
  }
  const std::uint64_t bits = elements * dtype.bits;
  if (bits % 8 != 0) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {}: {} elements of {} do not fill whole bytes",
         source, quote(entry.name), elements, dtype.name);
  }
  return bits / 8;
}

/// Checks one tensor by itself: complete, of a known dtype, its range inside the data and as long
/// as its shape says.
const KnownDtype& check_entry(const Entry& entry, std::uint64_t data_bytes,
                              std::string_view source) {
  const std::string name = quote(entry.name);
  for (const auto& [field, present] :
       {std::pair{"dtype", entry.dtype.has_value()}, std::pair{"shape", entry.shape.has_value()},
        std::pair{"data_offsets", entry.offsets.has_value()}}) {
    if (!present) fail(ErrorCode::kMalformedInput, "{}: tensor {} has no {}", source, name, field);
  }
  const auto* dtype = std::find_if(kDtypes.begin(), kDtypes.end(), [&](const KnownDtype& known) {
    return known.name == *entry.dtype;
  });
  if (dtype == kDtypes.end()) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {}: unknown dtype {}", source, name,
         quote(*entry.dtype));
  }
  if (entry.offsets->size() != 2) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {}: data_offsets has {} numbers, must have 2",
         source, name, entry.offsets->size());
  }
  const std::uint64_t begin = (*entry.offsets)[0];
  const std::uint64_t end = (*entry.offsets)[1];
  if (begin > end || end > data_bytes) {
    fail(ErrorCode::kMalformedInput,
         "{}: tensor {}: data_offsets [{}, {}] are no range within the {} bytes of data", source,
         name, begin, end, data_bytes);
  }
  const std::uint64_t bytes = stated_bytes(entry, *dtype, source);
  if (bytes != end - begin) {
    fail(ErrorCode::kMalformedInput,
         "{}: tensor {}: {} [{}] takes {} bytes, but data_offsets [{}, {}] hold {}", source, name,
         dtype->name, fmt::join(*entry.shape, ", "), bytes, begin, end, end - begin);
  }
  return *dtype;
}

/// The place of a tensor's data.
struct DataRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string_view tensor;
};

/// Checks the tensors against each other: their data fills the file.
void check_cover(std::vector<DataRange> ranges, std::uint64_t data_bytes, std::string_view source) {
  std::ranges::sort(ranges, [](const DataRange& a, const DataRange& b) {
    return std::tie(a.begin, a.end, a.tensor) < std::tie(b.begin, b.end, b.tensor);
  });
  std::uint64_t covered = 0;
  for (const DataRange& range : ranges) {
    if (range.begin != covered) {
      fail(ErrorCode::kMalformedInput,
           "{}: tensor {} begins at byte {}, {} the end of the one before, {}", source,
           quote(range.tensor), range.begin,
           range.begin < covered ? "overlapping" : "leaving a gap after", covered);
    }
    covered = range.end;
  }
  if (covered != data_bytes) {
    fail(ErrorCode::kMalformedInput, "{}: tensors cover {} bytes, but the file holds {}", source,
         covered, data_bytes);
  }
}

/// The header's JSON text, after checks of its stated length.
std::string_view header_text(std::span<const std::byte> file, std::string_view source) {
  const std::span<const std::byte> beginning = file.first(std::min<std::size_t>(file.size(), 256));
  const std::string_view other =
      foreign_file({reinterpret_cast<const char*>(beginning.data()), beginning.size()});
  if (!other.empty()) fail(ErrorCode::kMalformedInput, "{}: is {}", source, other);
  if (file.size() < kLengthBytes) {
    fail(ErrorCode::kMalformedInput, "{}: {} bytes, too short for the header's length", source,
         file.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  // Any other file: its first 8 bytes are hardly ever a small number, and then a `{`.
  if (file.size() > kLengthBytes && static_cast<char>(file[kLengthBytes]) != '{') {
    fail(ErrorCode::kMalformedInput, "{}: not a safetensors file", source);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    fail(ErrorCode::kMalformedInput, "{}: header length is {}, must be at most {}", source, length,
         kMaxSafetensorsHeaderBytes);
  }
  if (length > file.size() - kLengthBytes) {
    fail(ErrorCode::kMalformedInput, "{}: header length is {}, but only {} bytes follow", source,
         length, file.size() - kLengthBytes);
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, length};
}

}  // namespace

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view source) {
  const std::string_view text = header_text(file, source);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + text.size());

  refuse_nul(text, source);
  HeaderParser parser(source);
  Json::sax_parse(text.begin(), text.end(), &parser);

  SafetensorsHeader header;
  header.metadata = std::move(parser.metadata);
  std::vector<DataRange> ranges;
  for (const Entry& entry : parser.entries) {
    const KnownDtype& dtype = check_entry(entry, data.size(), source);
    const std::uint64_t begin = (*entry.offsets)[0];
    const std::uint64_t end = (*entry.offsets)[1];
    ranges.push_back({.begin = begin, .end = end, .tensor = entry.name});
    if (!dtype.read) {
      header.unreadable.emplace(entry.name, dtype.name);
      continue;
    }
    header.tensors.emplace(entry.name,
                           TensorView{.name = entry.name,
                                      .dtype = *dtype.read,
                                      .shape = {entry.shape->begin(), entry.shape->end()},
                                      .bytes = data.subspan(begin, end - begin)});
  }
  check_cover(std::move(ranges), data.size(), source);
  return header;
}

}  // namespace tributary
