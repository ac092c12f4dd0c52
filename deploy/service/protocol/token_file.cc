#include "deploy/service/protocol/token_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <fstream>

#include "core/base/error.h"
#include "core/base/line_writer.h"

namespace tributary {
namespace {

constexpr std::size_t kMinTokenChars = 16;  // 64 bits where it is hexadecimal
constexpr std::size_t kMaxTokenChars = 4096;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

}  // namespace

std::string read_token_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "token file {}: cannot be read", path);
  struct stat about {};
  if (stat(path.c_str(), &about) == 0 && (about.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    stderr_lines().write(fmt::format(
        "tributary: warning: token file {}: mode {:04o}, every user of this machine may use it",
        path, about.st_mode & 07777U));
  }
  std::string token;
  // One character more than fits is enough to see that the token is too long.
  constexpr std::size_t kMaxFile = 2 * kMaxTokenChars;
  for (char c = 0; token.size() <= kMaxFile && file.get(c);) token += c;
  if (file.bad()) fail(ErrorCode::kIo, "token file {}: cannot be read", path);
  while (!token.empty() && is_space(token.back())) token.pop_back();
  token.erase(token.begin(), std::find_if_not(token.begin(), token.end(), is_space));
  if (token.size() < kMinTokenChars || token.size() > kMaxTokenChars) {
    fail(ErrorCode::kInvalidArgument, "token file {}: {} characters, not {} .. {}", path,
         token.size(), kMinTokenChars, kMaxTokenChars);
  }
  if (!std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    fail(ErrorCode::kInvalidArgument,
         "token file {}: holds something else than one line of printable ASCII", path);
  }
  return token;
}

}  // namespace tributary
