// Internal to comm/mpi: moves the blocks that one rank sends and receives in one collective, in
// pieces through staging memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/mpi/mpi_support.h"
#include "core/base/raw_bytes.h"
#include "core/interface/collective.h"

namespace tributary {

/// Call begin, then send and receive for every block, then start and finish. One collective at a
/// time.
///
/// Why staging: MPI keeps using the memory of a request that missed its deadline and cannot be told
/// to stop, but the caller's buffers must be free then. The caller that gives up keeps the whole
/// object alive. Why pieces: the staging memory stays in the cache and has a bounded size, and
/// large exchanges are faster than with one transfer between the buffers.
///
/// Two blocks between the same ranks match if both ranks have begun the same number of exchanges
/// and name the same kind. A block longer or shorter than the receiver expects fails there
/// (kInvalidArgument).
class MpiExchange {
 public:
  /// `number` of this exchange: the same on all ranks.
  void begin(MPI_Comm comm, std::uint64_t number, CollectiveKind kind);
  /// Sends `block` to each of `peers`, a list that stays valid. Empty blocks are not sent.
  void send(std::span<const int> peers, std::span<const std::byte> block);
  void receive(std::span<const int> peer, std::span<std::byte> block);

  Status start();
  /// Returns when all blocks are sent and received, or with the first failure: the deadline, an
  /// error of MPI, or what `interrupted` returns. After a failure requests are still pending.
  Status finish(Deadline deadline, const std::function<Status()>& interrupted);

 private:
  /// A block that is sent to `peers`, or received from one.
  struct Stream {
    std::span<const int> peers;
    const std::byte* source = nullptr;  // null: incoming
    std::byte* target = nullptr;
    std::size_t bytes = 0;
    std::size_t posted = 0;
  };
  /// Staging for one piece of a stream at a time.
  struct Slot {
    RawBytes memory;
    std::size_t stream = 0;
    std::size_t first_request = 0;
    std::size_t begin = 0, bytes = 0;  // of the piece, in the stream
    std::size_t pending = 0;           // requests
  };

  void add(const Stream& stream);
  Status post(Slot& slot);
  Status completed(std::size_t request, const MPI_Status& envelope);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int tag_ = 0;
  std::string_view call_;
  std::vector<Stream> streams_;
  std::vector<Slot> slots_;  // the first used_slots_ belong to this exchange
  std::size_t used_slots_ = 0;
  std::size_t pending_ = 0;  // requests of all slots
  std::vector<MPI_Request> requests_;
  std::vector<std::size_t> slot_of_;  // [request]
  std::vector<int> done_;             // scratch memory of finish()
  std::vector<MPI_Status> envelopes_;
};

}  // namespace tributary
