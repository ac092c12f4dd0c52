// One rank of a pool that loses its last member again and again, as often as the argument says:
// rank 0 kills it with SIGKILL in the middle of a series of collectives, and the others go on
// without it. Each survivor prints one line: `rank R: CODE, CODE; N calls of 2 ranks in 1.0 s`, the
// typed errors that ended the series, and what worked after the last of them, with its time.
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mpi/mpi_communicator.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

/// The calls of a series before a rank is killed, or of the last series. With all kinds and sizes,
/// and enough that sequence numbers and staging memory are in use again.
constexpr std::uint64_t kCalls = 300;
/// Ranks are at most so many calls apart: of three calls in a row two need every rank. So far from
/// the kill a rank may be when it notices.
constexpr std::uint64_t kCallsApart = 3;

/// The byte that rank `from` sends in a call. Series differ, so that a late message of an earlier
/// one is seen.
std::byte mark(std::size_t series, std::uint64_t call, int from) {
  return static_cast<std::byte>(series * 101 + call * 31 + static_cast<std::uint64_t>(from));
}

/// One collective: what it moves, and its outcome. kInternal when it succeeds with wrong contents.
Status exchange(Communicator& communicator, std::size_t series, std::uint64_t call,
                milliseconds wait) {
  constexpr std::size_t kSizes[] = {8, 64, 4096, 65536, 200'000, 1 << 20};
  const std::size_t bytes = kSizes[call / 3 % std::size(kSizes)];
  const std::span<const int> members = communicator.members();
  std::vector<std::size_t> counts(static_cast<std::size_t>(communicator.size()), 0);
  for (const int member : members) counts[static_cast<std::size_t>(member)] = bytes;
  const int root = members[call % members.size()];
  const bool is_root = communicator.rank() == root;
  const std::byte own = mark(series, call, communicator.rank());
  const std::vector<std::byte> send(bytes * members.size(), own);
  std::vector<std::byte> recv(bytes * members.size());
  Status status;
  const Deadline deadline = Deadline::after(wait);
  switch (call % 3) {
    case 0:
      status = communicator.all_gather(std::span(send).first(bytes), recv, counts, deadline);
      break;
    case 1:
      status = communicator.all_to_all(send, counts, recv, counts, deadline);
      break;
    default:
      recv.assign(bytes, is_root ? own : std::byte{0});
      status = communicator.broadcast(recv, root, deadline);
      break;
  }
  for (std::size_t i = 0; status.ok() && i < recv.size(); ++i) {
    const int from = call % 3 == 2 ? root : members[i / bytes];
    if (recv[i] != mark(series, call, from)) {
      status = Status(ErrorCode::kInternal, fmt::format("series {}, call {}, {} bytes: wrong at {}",
                                                        series, call, bytes, i));
    }
  }
  return status;
}

/// Until somebody is killed all have to come, however busy the machine is.
constexpr milliseconds kPatience{30'000};
constexpr milliseconds kShortWait{1500};

/// A series in whose middle rank 0 kills `victim`: what ends it on this rank.
Status run_until_loss(Communicator& communicator, std::size_t series, pid_t victim) {
  for (std::uint64_t call = 0; call <= kCalls + kCallsApart; ++call) {
    if (call == kCalls && communicator.rank() == 0) kill(victim, SIGKILL);
    Status status = exchange(communicator, series, call, call < kCalls ? kPatience : kShortWait);
    if (status.ok()) continue;
    const Status later = exchange(communicator, series, call + 1, kShortWait);
    if (call + kCallsApart < kCalls || later.code() != status.code() ||
        later.message() != status.message()) {
      fail(ErrorCode::kInternal, "series {}, call {}: {}, and then {}", series, call,
           status.message(), later.message());
    }
    return status;
  }
  fail(ErrorCode::kInternal, "series {}: no call failed", series);
}

int run(int argc, char** argv) {
  const MpiEnvironment environment(&argc, &argv,
                                   {.finalize_timeout = milliseconds(3000),
                                    .finalize_timeout_after_failure = milliseconds(300)});
  int losses = 0;
  const std::string_view argument = argc == 2 ? argv[1] : "";
  std::from_chars(argument.data(), argument.data() + argument.size(), losses);
  std::unique_ptr<Communicator> current =
      make_mpi_communicator(environment, Deadline::after(std::chrono::seconds(30)));
  const auto ranks = static_cast<std::size_t>(current->size());
  const pid_t own = getpid();
  std::vector<pid_t> pids(ranks);
  current
      ->all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(pids)),
                   std::vector<std::size_t>(ranks, sizeof(pid_t)),
                   Deadline::after(std::chrono::seconds(30)))
      .throw_if_error();

  std::string line = fmt::format("rank {}:", current->rank());
  for (int loss = 0; loss < losses; ++loss) {
    const auto series = static_cast<std::size_t>(loss);
    const std::vector<int> members(current->members().begin(), current->members().end());
    const Status status =
        run_until_loss(*current, series, pids[static_cast<std::size_t>(members.back())]);
    line += fmt::format("{} {}", loss > 0 ? "," : "", error_code_name(status.code()));
    current = current->survivors(std::span(members).first(members.size() - 1), members.size());
  }
  const Time begin = std::chrono::steady_clock::now();
  for (std::uint64_t call = 0; call < kCalls; ++call) {
    exchange(*current, static_cast<std::size_t>(losses), call, kPatience).throw_if_error();
  }
  line += fmt::format("; {} calls of {} ranks in {:.1f} s\n", kCalls, current->members().size(),
                      seconds_since(begin));
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  return 0;
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
