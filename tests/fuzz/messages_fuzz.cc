// Bytes as headers of the data plane's messages: refused with kMalformedInput, or a message that
// encodes to the same bytes. The first byte chooses the message.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "comm/wire/messages.h"

namespace {

using namespace tributary;  // NOLINT(google-build-using-namespace): the whole program is this file

template <typename Decode>
void check(std::span<const std::byte> bytes, Decode decode) {
  try {
    const std::vector<std::byte> again = wire::encode(decode(bytes));
    if (!std::equal(bytes.begin(), bytes.end(), again.begin(), again.end())) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMalformedInput) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  switch (data[0] % 15) {
    case 0:
      check(bytes, wire::decode_hello);
      break;
    case 1:
      check(bytes, wire::decode_welcome);
      break;
    case 2:
      check(bytes, wire::decode_rows);
      break;
    case 3:
      check(bytes, wire::decode_rows_reply);
      break;
    case 4:
      check(bytes, wire::decode_round);
      break;
    case 5:
      check(bytes, wire::decode_round_reply);
      break;
    case 6:
      check(bytes, wire::decode_control);
      break;
    case 7:
      check(bytes, wire::decode_control_reply);
      break;
    case 8:
      check(bytes, wire::decode_join);
      break;
    case 9:
      check(bytes, wire::decode_items);
      break;
    case 10:
      check(bytes, wire::decode_items_refused);
      break;
    case 11:
      check(bytes, wire::decode_forward);
      break;
    case 12:
      check(bytes, wire::decode_forward_reply);
      break;
    case 13:
      check(bytes, wire::decode_progress);
      break;
    default:
      check(bytes, wire::decode_beat);
      break;
  }
  return 0;
}
