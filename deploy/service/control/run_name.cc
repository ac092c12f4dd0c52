#include "deploy/service/control/run_name.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "comm/wire/mac.h"

namespace tributary {

std::string run_name(std::string_view run) {
  constexpr std::string_view kWhat = "tributary: the name of a run";
  constexpr std::size_t kShownBytes = 8;
  const auto bytes = [](std::string_view text) {
    return std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  const wire::Mac mac = wire::mac(bytes(run), bytes(kWhat));
  std::string name;
  for (const std::uint8_t byte : std::span(mac).first(kShownBytes)) {
    name += fmt::format("{:02x}", byte);
  }
  return name;
}

}  // namespace tributary
