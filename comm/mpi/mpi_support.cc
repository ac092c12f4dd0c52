// MPI's errors as Status, and waiting.
#include "comm/mpi/mpi_support.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <thread>

#include "core/base/deadline.h"

namespace tributary {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

/// The exchanges of a decode step take tens to hundreds of microseconds, and waking from a sleep
/// costs about 60: such short waits are spent yielding.
constexpr nanoseconds kYieldTime = microseconds(500);
constexpr nanoseconds kFirstSleep = microseconds(20);
constexpr nanoseconds kLongestSleep = microseconds(1000);
/// Polls before the first yield. A yield costs as much as a small exchange between idle cores (8
/// bytes, 4 ranks on 2 cores, p50: 12 us if the yield comes first, 5 us after 8 polls).
constexpr unsigned kBusyPauses = 8;
/// While yielding, `interrupted` is called once in this many pauses: it costs as much as a poll.
constexpr unsigned kPausesPerLook = 16;

}  // namespace

Status mpi_status(std::string_view call, int code) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  return {
      ErrorCode::kWorkerFailed,
      fmt::format("{}: {}", call, std::string_view(text.data(), static_cast<std::size_t>(length)))};
}

Waiter::Waiter(std::string_view call, Deadline deadline)
    : call_(call), begin_(std::chrono::steady_clock::now()), patience_(deadline, begin_) {
  progressed();
}

void Waiter::progressed() noexcept {
  yield_until_ = std::chrono::steady_clock::now() + kYieldTime;
  pauses_ = 0;
  sleep_ = kFirstSleep;
}

Status Waiter::pause(const std::function<Status()>& interrupted) {
  const Time now = std::chrono::steady_clock::now();
  if (patience_.over(now)) {
    return {ErrorCode::kDeadlineExceeded,
            fmt::format("{}: not complete at the deadline, after {} us", call_,
                        std::chrono::duration_cast<microseconds>(now - begin_).count())};
  }
  if (++pauses_ <= kBusyPauses) return {};
  const bool sleeps = now >= yield_until_;
  if (sleeps || pauses_ % kPausesPerLook == 0) {
    if (Status status = interrupted(); !status.ok()) return status;
  }
  if (sleeps) {
    std::this_thread::sleep_for(std::min<nanoseconds>(sleep_, patience_.next_look(now) - now));
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  } else {
    sched_yield();
  }
  return {};
}

Status wait_for_request(std::string_view call, MPI_Request* request, Deadline deadline) {
  Waiter waiter(call, deadline);
  for (;;) {
    int done = 0;
    if (const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE); code != MPI_SUCCESS) {
      return mpi_status(call, code);
    }
    if (done != 0) return {};
    if (Status status = waiter.pause([] { return Status(); }); !status.ok()) return status;
  }
}

}  // namespace tributary
