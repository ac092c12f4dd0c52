// Layout: the fields in the order of their declaration, packed; a list or a text is its length (16
// bits), then its elements. One function per message lists its fields, for both directions.
#include "comm/wire/messages.h"

#include <algorithm>
#include <concepts>
#include <type_traits>

#include "core/base/byte_stream.h"

namespace tributary::wire {
namespace {

/// The longest list: buckets of a histogram, and items.
constexpr std::size_t kMaxList = kMaxItems;

class Encoder {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void field(const T& value) { out_.value(value); }
  template <typename T, std::size_t N>
  void field(const std::array<T, N>& values) {
    for (const T& value : values) field(value);
  }
  void field(const std::string& text) {
    const auto size = static_cast<std::uint16_t>(std::min(text.size(), kMaxText));
    field(size);
    for (const char c : std::string_view(text).substr(0, size)) field(c);
  }
  template <typename T>
  std::uint16_t list_size(const std::vector<T>& list) {
    if (list.size() > kMaxList) {
      fail(ErrorCode::kInvalidArgument, "message: a list of {} elements, at most {}", list.size(),
           kMaxList);
    }
    const auto size = static_cast<std::uint16_t>(list.size());
    field(size);
    return size;
  }

  [[nodiscard]] std::vector<std::byte> take() { return out_.take(); }

 private:
  ByteWriter out_;
};

class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> bytes) : in_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T>
  void field(T& value) { value = in_.value<T>(); }
  void field(ErrorCode& code) {
    const auto value = in_.value<std::underlying_type_t<ErrorCode>>();
    bound(value >= 0 && value < kErrorCodes, "error code", value);
    code = static_cast<ErrorCode>(value);
  }
  void field(RoundMode& mode) {
    const auto value = in_.value<std::uint8_t>();
    bound(value <= static_cast<std::uint8_t>(RoundMode::kForward), "round mode", value);
    mode = static_cast<RoundMode>(value);
  }
  void field(ControlOp& op) {
    const auto value = in_.value<std::uint8_t>();
    bound(value <= static_cast<std::uint8_t>(ControlOp::kRenew), "control operation", value);
    op = static_cast<ControlOp>(value);
  }
  template <typename T, std::size_t N>
  void field(std::array<T, N>& values) {
    for (T& value : values) field(value);
  }
  void field(std::string& text) {
    const auto size = in_.value<std::uint16_t>();
    bound(size <= kMaxText, "length of a text", size);
    text.resize(size);
    for (char& c : text) field(c);
  }
  template <typename T>
  std::uint16_t list_size(std::vector<T>& list) {
    const auto size = in_.value<std::uint16_t>();
    bound(size <= kMaxList, "length of a list", size);
    list.resize(size);
    return size;
  }
  void end() const {
    if (!in_.empty()) fail(ErrorCode::kMalformedInput, "message: bytes after its end");
  }

 private:
  template <typename T>
  static void bound(bool good, const char* what, T value) {
    if (!good) fail(ErrorCode::kMalformedInput, "message: {} is {}", what, value);
  }
  ByteReader in_;
};

/// `Message` is const when it is encoded.
template <typename Message, typename T>
concept Is = std::same_as<std::remove_const_t<Message>, T>;

template <typename Archive, typename List, typename Each>
void list(Archive& archive, List& values, Each each) {
  archive.list_size(values);
  for (auto& value : values) each(value);
}

template <typename A, Is<Shape> M>
void fields(A& a, M& m) {
  a.field(m.heads), a.field(m.kv_lora_rank), a.field(m.qk_rope_head_dim), a.field(m.v_head_dim);
  a.field(m.hidden_size), a.field(m.layers), a.field(m.leaf_tokens);
  a.field(m.row_dtype), a.field(m.query_dtype), a.field(m.softmax_scale);
}
template <typename A, Is<Outcome> M>
void fields(A& a, M& m) {
  a.field(m.code), a.field(m.message);
}
template <typename A, Is<Hello> M>
void fields(A& a, M& m) {
  a.field(m.magic), a.field(m.version);
  fields(a, m.shape);
  a.field(m.sequence_id), a.field(m.token);
}
template <typename A, Is<Welcome> M>
void fields(A& a, M& m) {
  a.field(m.version);
  fields(a, m.outcome);
  a.field(m.rank);
  fields(a, m.shape);
}
template <typename A, Is<Rows> M>
void fields(A& a, M& m) {
  a.field(m.request), a.field(m.sequence_id), a.field(m.epoch), a.field(m.token);
  a.field(m.layer), a.field(m.begin), a.field(m.count), a.field(m.crc32c);
}
template <typename A, Is<RowsReply> M>
void fields(A& a, M& m) {
  a.field(m.request);
  fields(a, m.outcome);
}
template <typename A, Is<RoundItem> M>
void fields(A& a, M& m) {
  a.field(m.sequence_id), a.field(m.epoch), a.field(m.token);
  a.field(m.base_length), a.field(m.tokens), a.field(m.layer);
}
template <typename A, Is<Round> M>
void fields(A& a, M& m) {
  a.field(m.request), a.field(m.deadline_us), a.field(m.mode);
  a.field(m.head_begin), a.field(m.head_end), a.field(m.crc32c);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
}
template <typename A, Is<RoundReply> M>
void fields(A& a, M& m) {
  a.field(m.request), a.field(m.crc32c);
  list(a, m.items, [&a](auto& code) { a.field(code); });
  a.field(m.message);
}
template <typename A, Is<ControlItem> M>
void fields(A& a, M& m) {
  a.field(m.op), a.field(m.sequence_id), a.field(m.epoch), a.field(m.token), a.field(m.length);
}
template <typename A, Is<Control> M>
void fields(A& a, M& m) {
  a.field(m.request);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
}
template <typename A, Is<ControlReply::Item> M>
void fields(A& a, M& m) {
  a.field(m.code), a.field(m.epoch), a.field(m.length);
}
template <typename A, Is<ControlReply> M>
void fields(A& a, M& m) {
  a.field(m.request);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
  a.field(m.message);
}
template <typename A, Is<Join> M>
void fields(A& a, M& m) {
  a.field(m.rank), a.field(m.pool_key);
}
template <typename A, Is<Items> M>
void fields(A& a, M& m) {
  a.field(m.ticket), a.field(m.deadline_us);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
}
template <typename A, Is<ItemsRefused> M>
void fields(A& a, M& m) {
  a.field(m.ticket);
  list(a, m.items, [&a](auto& index) { a.field(index); });
  fields(a, m.outcome);
}
template <typename A, Is<Forward> M>
void fields(A& a, M& m) {
  a.field(m.ticket);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
}
template <typename A, Is<ForwardReply> M>
void fields(A& a, M& m) {
  a.field(m.ticket);
  list(a, m.items, [&a](auto& item) { fields(a, item); });
  a.field(m.message);
}
template <typename A, Is<Progress> M>
void fields(A& a, M& m) {
  a.field(m.rank), a.field(m.sequence_id), a.field(m.epoch);
  a.field(m.rows_done), a.field(m.rows_total);
  a.field(m.missing_layer), a.field(m.missing_position);
}
template <typename A, Is<Beat> M>
void fields(A& a, M& m) {
  a.field(m.rank), a.field(m.ingested_rows), a.field(m.ingested_bytes);
  a.field(m.refused), a.field(m.connections);
  list(a, m.ingest_us_buckets, [&a](auto& count) { a.field(count); });
  a.field(m.ingest_us_sum);
}

template <typename Message>
std::vector<std::byte> encoded(const Message& value) {
  Encoder out;
  fields(out, value);
  return out.take();
}

template <typename Message>
Message decoded(std::span<const std::byte> bytes) {
  Decoder in(bytes);
  Message value;
  fields(in, value);
  in.end();
  return value;
}

}  // namespace

std::string_view refusal_name(Refusal refusal) noexcept {
  static constexpr std::array<std::string_view, kRefusals> kNames{
      "malformed",    "unauthorized", "unknown_sequence", "stale_epoch",
      "out_of_range", "repeated",     "corrupt",          "aborted"};
  return kNames.at(static_cast<std::size_t>(refusal));
}

#define TRIBUTARY_WIRE_MESSAGE(Type, name)               \
  std::vector<std::byte> encode(const Type& value) {     \
    return encoded(value);                               \
  }                                                      \
  Type decode_##name(std::span<const std::byte> bytes) { \
    return decoded<Type>(bytes);                         \
  }
TRIBUTARY_WIRE_MESSAGE(Hello, hello)
TRIBUTARY_WIRE_MESSAGE(Welcome, welcome)
TRIBUTARY_WIRE_MESSAGE(Rows, rows)
TRIBUTARY_WIRE_MESSAGE(RowsReply, rows_reply)
TRIBUTARY_WIRE_MESSAGE(Round, round)
TRIBUTARY_WIRE_MESSAGE(RoundReply, round_reply)
TRIBUTARY_WIRE_MESSAGE(Control, control)
TRIBUTARY_WIRE_MESSAGE(ControlReply, control_reply)
TRIBUTARY_WIRE_MESSAGE(Join, join)
TRIBUTARY_WIRE_MESSAGE(Items, items)
TRIBUTARY_WIRE_MESSAGE(ItemsRefused, items_refused)
TRIBUTARY_WIRE_MESSAGE(Forward, forward)
TRIBUTARY_WIRE_MESSAGE(ForwardReply, forward_reply)
TRIBUTARY_WIRE_MESSAGE(Progress, progress)
TRIBUTARY_WIRE_MESSAGE(Beat, beat)
#undef TRIBUTARY_WIRE_MESSAGE

}  // namespace tributary::wire
