// One rank of a pool in which rank 0 kills the last rank in the middle of a series of collectives.
// Each survivor prints one line: `rank R: CODE`, the typed error that ended the series.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "comm/mpi/mpi_communicator.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kKillAt = 100;
constexpr std::uint64_t kCalls = 100'000;

/// The byte that rank `from` sends in the given call.
std::byte mark(std::uint64_t call, int from) {
  return static_cast<std::byte>(call * 31 + static_cast<std::uint64_t>(from));
}

/// The outcome of one collective; kInternal when it succeeds with wrong contents.
Status exchange(Communicator& communicator, std::uint64_t call) {
  constexpr std::size_t kSizes[] = {64, 4096, 65536, 1 << 20};
  const std::size_t bytes = kSizes[call / 3 % 4];
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::vector<std::size_t> counts(ranks, bytes);
  // Until one is killed all have to come, however busy the machine is.
  const Deadline deadline = Deadline::after(milliseconds(call < kKillAt ? 30'000 : 1500));
  std::vector<std::byte> recv(bytes * ranks);
  Status status;
  if (call % 2 == 0) {
    const std::vector<std::byte> send(bytes, mark(call, communicator.rank()));
    status = communicator.all_gather(send, recv, counts, deadline);
  } else {
    const std::vector<std::byte> send(bytes * ranks, mark(call, communicator.rank()));
    status = communicator.all_to_all(send, counts, recv, counts, deadline);
  }
  for (std::size_t i = 0; status.ok() && i < recv.size(); ++i) {
    if (recv[i] != mark(call, static_cast<int>(i / bytes))) {
      status = Status(ErrorCode::kInternal, fmt::format("wrong byte at {}", i));
    }
  }
  return status;
}

int run(int argc, char** argv) {
  const MpiEnvironment environment(&argc, &argv,
                                   {.finalize_timeout = milliseconds(3000),
                                    .finalize_timeout_after_failure = milliseconds(300)});
  const auto owner = make_mpi_communicator(environment, Deadline::after(std::chrono::seconds(30)));
  Communicator& communicator = *owner;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const pid_t own = getpid();
  std::vector<pid_t> pids(ranks);
  communicator
      .all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(pids)),
                  std::vector<std::size_t>(ranks, sizeof(pid_t)),
                  Deadline::after(std::chrono::seconds(30)))
      .throw_if_error();

  for (std::uint64_t call = 0; call < kCalls; ++call) {
    if (call == kKillAt && communicator.rank() == 0) kill(pids.back(), SIGKILL);
    const Status status = exchange(communicator, call);
    if (status.ok()) continue;
    const Status later = exchange(communicator, call + 1);
    const bool same = later.code() == status.code() && later.message() == status.message();
    std::fputs(fmt::format("rank {}: {}{}\n", communicator.rank(), error_code_name(status.code()),
                           same ? "" : ", and then something else")
                   .c_str(),
               stdout);
    std::fflush(stdout);
    return 0;
  }
  std::fputs("no call failed\n", stdout);
  return 1;
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  try {
    return tributary::run(argc, argv);
  } catch (const std::exception& error) {
    std::fputs((std::string(error.what()) + "\n").c_str(), stderr);
    return 1;
  }
}
