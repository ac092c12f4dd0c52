// Any bytes as headers of the data plane's messages. They are refused with kMalformedInput, or give
// a message that encodes to the same bytes. The first byte chooses the message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "comm/wire/codec.h"
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
            wire::Beat, wire::Prove, wire::NotUsed>(data[0] % 17, bytes);
  return 0;
}
