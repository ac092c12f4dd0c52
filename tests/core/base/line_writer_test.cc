#include "core/base/line_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

namespace tributary {
namespace {

using testing::EndsWith;
using testing::StartsWith;

/// Both ends of a stream; reading takes the bytes that are there.
struct Ends {
  explicit Ends(const std::array<int, 2>& fds) : in(fds[1]), out(fds[0]) {
    fcntl(out, F_SETFL, O_NONBLOCK);
  }
  ~Ends() {
    close(in);
    if (out >= 0) close(out);
  }
  Ends(const Ends&) = delete;
  Ends& operator=(const Ends&) = delete;
  [[nodiscard]] std::string read_all() const {
    std::string all;
    std::array<char, 4096> part{};
    while (true) {
      const ssize_t got = read(out, part.data(), part.size());
      if (got <= 0) return all;
      all.append(part.data(), static_cast<std::size_t>(got));
    }
  }
  int in = -1;
  int out = -1;
};

Ends pipe_ends() {
  std::array<int, 2> fds{};
  EXPECT_EQ(pipe2(fds.data(), O_CLOEXEC), 0);
  return Ends(fds);
}

Ends socket_ends() {
  std::array<int, 2> fds{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
  return Ends(fds);
}

void fill_and_read(const Ends& ends) {
  LineWriter writer(ends.in);
  writer.write("first");
  int written = 0;
  // A stream takes some hundred KiB at most.
  while (writer.dropped() < 3 && written < 100'000) {
    writer.write(fmt::format("line {}", ++written) + std::string(200, 'x'));
  }
  ASSERT_EQ(writer.dropped(), 3U);
  EXPECT_THAT(ends.read_all(), StartsWith("first\nline 1xxx"));
  writer.write("last");
  EXPECT_EQ(ends.read_all(), "3 lines were dropped here: nobody read them\nlast\n");
  writer.write("more");
  EXPECT_EQ(ends.read_all(), "more\n");
  EXPECT_EQ(writer.dropped(), 3U);
}

TEST(LineWriter, DoesNotWaitForAReader) {
  fill_and_read(pipe_ends());
  fill_and_read(socket_ends());
}

void write_to_nobody(Ends ends) {
  LineWriter writer(ends.in);
  close(std::exchange(ends.out, -1));
  writer.write("nobody");
  EXPECT_EQ(writer.dropped(), 1U);
}

TEST(LineWriter, OutlivesItsReader) {
  write_to_nobody(pipe_ends());
  write_to_nobody(socket_ends());
}

TEST(LineWriter, CutsWhatNoPipeTakesAtOnce) {
  const Ends ends = pipe_ends();
  LineWriter writer(ends.in);
  writer.write(std::string(10'000, 'x'));
  const std::string line = ends.read_all();
  EXPECT_EQ(line.size(), LineWriter::kMaxBytes + 1);
  EXPECT_THAT(line, EndsWith("x\n"));
}

}  // namespace
}  // namespace tributary
