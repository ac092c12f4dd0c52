#include "core/base/line_writer.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace tributary {

LineWriter::LineWriter(int fd) : fd_(fd) {
  struct stat about {};
  is_socket_ = fstat(fd, &about) == 0 && S_ISSOCK(about.st_mode);
}

bool LineWriter::try_write(std::string_view line) const {
  // The descriptor is not set to O_NONBLOCK, because that would affect every process that shares
  // the stream. A pipe that polls as writable takes a page, so this write does not wait. A pipe
  // without a reader polls with POLLERR, and a write to it would raise SIGPIPE.
  pollfd entry{fd_, POLLOUT, 0};
  if (poll(&entry, 1, 0) != 1 || entry.revents != POLLOUT) return false;
  const std::string text = fmt::format("{}\n", line.substr(0, kMaxBytes));
  const ssize_t written = is_socket_
                              ? send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                              : ::write(fd_, text.data(), text.size());
  return written == static_cast<ssize_t>(text.size());
}

void LineWriter::write(std::string_view line) {
  const std::lock_guard lock(mutex_);
  if (untold_ > 0) {
    if (try_write(fmt::format("{} lines were dropped here: nobody read them", untold_))) {
      untold_ = 0;
    }
  }
  if (untold_ == 0 && try_write(line)) return;
  ++dropped_;
  ++untold_;
}

std::uint64_t LineWriter::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

LineWriter& stderr_lines() {
  static LineWriter writer(STDERR_FILENO);
  return writer;
}

}  // namespace tributary
