// Starts the threads, always joins them, and rethrows the first exception.
#include "comm/local/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/local/thread_group.h"

namespace tributary {
namespace {

/// The current exception as the other ranks see it.
Status describe_current_exception(int rank) {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), fmt::format("rank {}: {}", rank, error.what())};
  } catch (const std::exception& error) {
    return {ErrorCode::kWorkerFailed, fmt::format("rank {}: {}", rank, error.what())};
  } catch (...) {
    return {ErrorCode::kWorkerFailed, fmt::format("rank {}: unknown exception", rank)};
  }
}

}  // namespace

void run_ranks(int ranks, const std::function<void(Communicator&)>& body) {
  ThreadGroup group(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto run = [&](int rank, Communicator& communicator) {
    try {
      body(communicator);
    } catch (...) {
      // Recorded before the group is poisoned: what the others throw after that is a consequence.
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
      group.poison(describe_current_exception(rank));
    }
  };

  {
    std::vector<std::jthread> threads;
    threads.reserve(static_cast<std::size_t>(ranks));
    try {
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back(
            [&run, rank, communicator = group.take(rank)] { run(rank, *communicator); });
      }
    } catch (const std::exception& error) {  // no more threads: the running ranks must not wait
      group.poison({ErrorCode::kIo, fmt::format("run_ranks: thread {} of {}: {}", threads.size(),
                                                ranks, error.what())});
      throw;
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace tributary
