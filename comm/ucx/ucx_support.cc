// Set-up of UCX.
#include "comm/ucx/ucx_support.h"

#include <stdio.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace tributary::ucx {
namespace {

/// Payload bytes in one write to a TCP socket, and the size of the buffer that the other side reads
/// them into. Both sides must use the same (kVersion of ucx_handshake.cc), so the operator cannot
/// set it. With 5 bytes of UCX's it fills two packets of the loopback interface, which carry 65464
/// bytes or more. UCX's own 64 KiB fill one packet and leave some bytes for a second one, which
/// costs the sender as much as a full one (a third less payload).
constexpr const char* kTcpSegment = "127k";
/// The first version with the longer name of the setting.
constexpr auto kLongNames = std::make_pair(1U, 17U);

/// The value of one setting after UCX has read its environment and files; empty if it is unknown.
/// UCX can only print all of them.
std::string setting(const ucp_config_t* config, std::string_view name) {
  char* text = nullptr;
  std::size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_config_print(config, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  static_cast<void>(fclose(stream));
  const std::unique_ptr<char, decltype(&free)> owner(text, free);

  const std::string all = fmt::format("\n{}", std::string_view(text, size));
  const std::string key = fmt::format("\nUCX_{}=", name);
  const std::size_t found = all.find(key);
  if (found == std::string::npos) return {};
  const std::size_t begin = found + key.size();
  return all.substr(begin, all.find('\n', begin) - begin);
}

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};

ErrorCode code_of(ucs_status_t status) {
  switch (status) {
    case UCS_OK:
      return ErrorCode::kOk;
    case UCS_ERR_TIMED_OUT:
      return ErrorCode::kDeadlineExceeded;
    case UCS_ERR_MESSAGE_TRUNCATED:
    case UCS_ERR_EXCEEDS_LIMIT:
      return ErrorCode::kTooLarge;
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_INVALID_PARAM:
      return ErrorCode::kInvalidArgument;
    default:
      return ErrorCode::kUnavailable;
  }
}

}  // namespace

Status to_status(std::string_view what, ucs_status_t status) {
  return {code_of(status), fmt::format("{}: {}", what, ucs_status_string(status))};
}

void check(std::string_view what, ucs_status_t status) {
  if (status != UCS_OK) fail(ErrorCode::kIo, "{}: {}", what, ucs_status_string(status));
}

Worker::Worker(bool shared_memory, const std::string& devices) {
  ucp_config_t* read = nullptr;
  check("UCX: reading its settings", ucp_config_read(nullptr, nullptr, &read));
  const std::unique_ptr<ucp_config_t, ConfigDeleter> config(read);
  // Endpoints that detect failures cannot use shared memory, so it is removed from the candidates.
  // The operator's own choice is kept.
  if (!shared_memory && setting(config.get(), "TLS") == "all") {
    check("UCX: its setting TLS", ucp_config_modify(config.get(), "TLS", "^shm"));
  }
  // UCX listens on every device that it may use.
  if (!devices.empty() && setting(config.get(), "NET_DEVICES") == "all") {
    check("UCX: its setting NET_DEVICES",
          ucp_config_modify(config.get(), "NET_DEVICES", devices.c_str()));
  }

  // No side asks for the other's endpoint before it has to (see Routes).
  check("UCX: its setting RESOLVE_REMOTE_EP_ID",
        ucp_config_modify(config.get(), "RESOLVE_REMOTE_EP_ID", "n"));

  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  const char* segment =
      std::make_pair(major, minor) >= kLongNames ? "TCP_RX_SEG_SIZE" : "RX_SEG_SIZE";
  check("UCX: its setting TCP_RX_SEG_SIZE", ucp_config_modify(config.get(), segment, kTcpSegment));

  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.request_size = sizeof(RequestTag);
  params.mt_workers_shared = 0;
  check("UCX: start", ucp_init(&params, config.get(), &context_));

  try {
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
    check("UCX: worker", ucp_worker_create(context_, &worker_params, &worker_));
    check("UCX: event descriptor", ucp_worker_get_efd(worker_, &event_fd_));
    ucp_worker_attr_t attributes{};
    attributes.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
    check("UCX: worker's limits", ucp_worker_query(worker_, &attributes));
    max_header_bytes_ = attributes.max_am_header;
  } catch (...) {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
    throw;
  }
}

Worker::~Worker() {
  ucp_worker_destroy(worker_);
  ucp_cleanup(context_);
}

void Worker::refuse_thread() {
  fail(ErrorCode::kInternal, "UCX: its worker belongs to the thread that made it");
}

std::vector<std::byte> Worker::address() const {
  ucp_address_t* packed = nullptr;
  std::size_t size = 0;
  check("UCX: worker's address", ucp_worker_get_address(get(), &packed, &size));
  const auto* begin = reinterpret_cast<const std::byte*>(packed);
  std::vector<std::byte> address(begin, begin + size);
  ucp_worker_release_address(get(), packed);
  return address;
}

std::string rdma_ports() {
  namespace fs = std::filesystem;
  std::string names;
  std::error_code none;  // ignored: most machines have no such folder
  for (const auto& device : fs::directory_iterator("/sys/class/infiniband", none)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", none)) {
      std::string state;
      std::ifstream(port.path() / "state") >> state;  // "4: ACTIVE"
      if (state != "4:") continue;
      names += fmt::format("{}{}:{}", names.empty() ? "" : ",", device.path().filename().string(),
                           port.path().filename().string());
    }
  }
  return names;
}

}  // namespace tributary::ucx
