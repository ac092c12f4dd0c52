// Any bytes as headers of the data plane's messages. They are refused with kMalformedInput, or give
// a message that encodes to the same bytes. The first byte chooses the message, or the positions
// that a token selects.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "comm/wire/codec.h"
#include "deploy/service/protocol/selection.h"
#include "deploy/service/protocol/worker_messages.h"

namespace {

using namespace tributary;  // NOLINT(google-build-using-namespace): the whole program is this file

template <typename Message>
void check(std::span<const std::byte> bytes) {
  try {
    const std::vector<std::byte> again = wire::encode(wire::decode<Message>(bytes));
    if (!std::equal(bytes.begin(), bytes.end(), again.begin(), again.end())) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMalformedInput) std::abort();
  }
}

/// The token's position, then the list that it selects.
void check_selection(std::span<const std::byte> bytes) {
  std::uint16_t own = 0;
  if (bytes.size() < sizeof(own)) return;
  std::memcpy(&own, bytes.data(), sizeof(own));
  bytes = bytes.subspan(sizeof(own));
  std::vector<std::int32_t> list(bytes.size() / sizeof(std::int32_t));
  if (!list.empty()) std::memcpy(list.data(), bytes.data(), list.size() * sizeof(std::int32_t));
  const auto last = std::ranges::find(list, -1);
  const bool good =
      std::is_sorted(list.begin(), last) && std::adjacent_find(list.begin(), last) == last &&
      std::all_of(list.begin(), last, [&](std::int32_t p) { return p >= 0 && p <= own; }) &&
      std::all_of(last, list.end(), [](std::int32_t p) { return p == -1; });
  if (wire::check_selection(list, own).ok() != good) std::abort();
  std::vector<std::int32_t> ordered = list;
  std::vector<std::int32_t> scratch;
  wire::order_selection(ordered, scratch);
  std::ranges::sort(list, {}, [](std::int32_t p) { return static_cast<std::uint32_t>(p); });
  if (ordered != list) std::abort();
}

template <typename... Messages>
void check_one(std::size_t which, std::span<const std::byte> bytes) {
  std::size_t next = 0;
  ((which == next++ ? check<Messages>(bytes) : void()), ...);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  check_one<wire::Hello, wire::Welcome, wire::Rows, wire::RowsReply, wire::LayerRequest,
            wire::LayerReply, wire::Control, wire::ControlReply, wire::Join, wire::Items,
            wire::ItemsRefused, wire::ControlRelay, wire::ControlRelayReply, wire::Progress,
            wire::Beat, wire::Prove, wire::NotUsed, wire::ProveReply, wire::Pull, wire::PullReply,
            wire::OrderWanted>(data[0] % 22, bytes);
  if (data[0] % 22 == 21) check_selection(bytes);
  return 0;
}
