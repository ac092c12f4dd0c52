#include "deploy/service/worker/meet_pool.h"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "comm/wire/mac.h"
#include "core/base/quote.h"
#include "deploy/service/protocol/token_file.h"
#include "deploy/service/transport/data_transport.h"
#include "deploy/service/worker/listen_address.h"

namespace tributary {
namespace {

/// What the pool's secret is good for: no use of it can stand for another one.
wire::Token derived(const WorkerOptions& options, std::string_view use) {
  const std::string secret = read_token_file(options.meeting.secret_file);
  const std::vector<std::uint8_t> key(secret.begin(), secret.end());
  const std::vector<std::uint8_t> text(use.begin(), use.end());
  wire::Token token{};
  std::ranges::copy_n(wire::mac(key, text).begin(), token.size(), token.begin());
  return token;
}

std::string_view scheme_of(const WorkerOptions& options) {
  if (options.transport == TransportChoice::kUcx) return "ucx";
  return options.tls_certificate.empty() ? "tcp" : "tls";
}

struct HostAndPort {
  std::string host, port;
};

HostAndPort parse_leader(const std::string& leader) {
  const std::size_t colon = leader.rfind(':');
  const bool both = colon != std::string::npos && colon > 0 && colon + 1 < leader.size();
  if (!both || leader.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    fail(ErrorCode::kInvalidArgument, "--leader {}: expected HOST:PORT", quote(leader));
  }
  std::string host = leader.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {std::move(host), leader.substr(colon + 1)};
}

/// The first address of a host. A name may come to be known, and mean another machine later.
std::string address_of(const std::string& host) {
  addrinfo hints{};
  hints.ai_flags = AI_ADDRCONFIG;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) {
    fail(ErrorCode::kUnavailable, "--leader: host {}: {}", quote(host), gai_strerror(code));
  }
  std::array<char, NI_MAXHOST> text{};
  const int named = getnameinfo(found->ai_addr, found->ai_addrlen, text.data(), text.size(),
                                nullptr, 0, NI_NUMERICHOST);
  freeaddrinfo(found);
  if (named != 0) {
    fail(ErrorCode::kUnavailable, "--leader: host {}: {}", quote(host), gai_strerror(named));
  }
  return text.data();
}

}  // namespace

wire::Token pool_key(const WorkerOptions& options, const wire::Token& run) {
  return derived(options, "key " + wire::token_text(run));
}

std::unique_ptr<Communicator> meet_pool(const WorkerOptions& options, MeshDoor& door,
                                        const std::function<void(const std::string&)>& log,
                                        Clock& clock) {
  const std::string_view scheme = scheme_of(options);
  const bool leads = options.meeting.slot == 0;
  const HostAndPort leader = parse_leader(options.meeting.leader);
  MeshConfig config{.rank = options.meeting.slot,
                    .ranks = options.meeting.slots,
                    .leader =
                        [&] {
                          return fmt::format("{}://{}", scheme,
                                             with_port(address_of(leader.host), leader.port));
                        },
                    .secret = derived(options, "mesh")};
  TransportConfig& transport = config.transport;
  transport.listen = fmt::format(
      "{}://{}", scheme, with_port(local_address(options.listen), leads ? leader.port : "0"));
  // A worker that is held up for less is not lost.
  transport.send_timeout = 2 * std::chrono::milliseconds(options.failure_timeout_ms);
  transport.connect_timeout = std::chrono::milliseconds(options.failure_timeout_ms);
  transport.busy_poll = options.busy_poll;
  if (!options.tls_certificate.empty()) {
    transport.tls = {.certificate = options.tls_certificate,
                     .key = options.tls_key,
                     .authority = options.certificate_authority,
                     .client_authority = options.client_authority};
  }
  config.advertised = [&options](const std::string& bound) {
    return advertised_address(options.advertise, bound);
  };
  config.log = log;
  config.door = leads ? &door : nullptr;
  if (leads) {
    config.listening = [&](const std::string& bound) {
      log(fmt::format("waiting for {} other worker{} at {}", options.meeting.slots - 1,
                      options.meeting.slots == 2 ? "" : "s", bound));
    };
  }
  return join_mesh(
      config, make_data_transport(),
      Deadline::after(clock.now(), std::chrono::milliseconds(options.start_timeout_ms)), clock);
}

}  // namespace tributary
