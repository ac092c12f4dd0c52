#include "comm/ucx/ucx_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucp/api/ucp.h>

#include <algorithm>
#include <memory>
#include <sstream>

namespace tributary::ucx {
namespace {

/// The text that UCX prints of a context of ours: its only way to say which resources it has taken.
std::string print_context() {
  ucp_config_t* config = nullptr;
  if (ucp_config_read(nullptr, nullptr, &config) != UCS_OK) return {};
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t started = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (started != UCS_OK) return {};
  char* text = nullptr;
  std::size_t size = 0;
  if (FILE* stream = open_memstream(&text, &size)) {
    ucp_context_print_info(context, stream);
    static_cast<void>(fclose(stream));
  }
  const std::unique_ptr<char, decltype(&free)> owner(text, free);
  ucp_cleanup(context);
  return {text, size};
}

}  // namespace

std::vector<std::string> devices_in(std::string_view printed) {
  std::vector<std::string> devices;
  std::istringstream lines{std::string(printed)};
  for (std::string line; std::getline(lines, line);) {
    if (line.find("resource") == std::string::npos) continue;
    const std::size_t slash = line.rfind('/');
    if (slash == std::string::npos) continue;
    const std::size_t end = line.find_last_not_of(" \t");
    devices.push_back(line.substr(slash + 1, end - slash));
  }
  return devices;
}

std::string usable_ports(const std::string& ports) {
  const std::vector<std::string> devices = devices_in(print_context());
  std::string usable;
  std::istringstream names(ports);
  for (std::string name; std::getline(names, name, ',');) {
    if (std::ranges::find(devices, name) == devices.end()) continue;
    usable += (usable.empty() ? "" : ",") + name;
  }
  return usable;
}

}  // namespace tributary::ucx
