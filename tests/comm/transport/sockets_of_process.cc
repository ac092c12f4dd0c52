#include "tests/comm/transport/sockets_of_process.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

namespace tributary::testing_support {
namespace {

constexpr int kStateListening = 0x0A;

/// The sockets in /proc/self/fd, as it shows them: "socket:[INODE]".
std::set<std::string> own_sockets() {
  std::set<std::string> sockets;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && target.starts_with("socket:[")) sockets.insert(target);
  }
  return sockets;
}

/// Before main: what this process was started with is not its own doing.
const std::set<std::string> inherited_sockets = own_sockets();

}  // namespace

std::vector<std::string> listening_addresses() {
  std::set<std::string> own = own_sockets();
  for (const std::string& socket : inherited_sockets) own.erase(socket);
  std::vector<std::string> addresses;
  for (const bool v6 : {false, true}) {
    std::ifstream table(v6 ? "/proc/self/net/tcp6" : "/proc/self/net/tcp");
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      if (std::stoi(state, nullptr, 16) != kStateListening) continue;
      if (!own.contains(fmt::format("socket:[{}]", inode))) continue;
      const std::size_t colon = local.find(':');
      const int port = std::stoi(local.substr(colon + 1), nullptr, 16);
      if (v6) {
        addresses.push_back(fmt::format("[{}]:{}", local.substr(0, colon), port));
        continue;
      }
      // In the order of memory.
      in_addr address{};
      address.s_addr = static_cast<in_addr_t>(std::stoul(local.substr(0, colon), nullptr, 16));
      std::array<char, INET_ADDRSTRLEN> text{};
      inet_ntop(AF_INET, &address, text.data(), text.size());
      addresses.push_back(fmt::format("{}:{}", text.data(), port));
    }
  }
  return addresses;
}

}  // namespace tributary::testing_support
