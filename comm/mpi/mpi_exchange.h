// Internal to comm/mpi: the blocks that one rank sends and receives in one collective, moved in
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

namespace tributary {

/// Use: begin, send and receive for every block, start, finish. One collective at a time.
///
/// Why staging: MPI goes on using the memory of a request that is given up at its deadline, and
/// cannot be told to stop; the caller's buffers must be free by then. Whoever gives up keeps the
/// whole object. Why pieces: staging stays in the cache, which makes large exchanges faster than
/// one transfer straight between the buffers, and its size is bounded.
///
/// Two blocks between the same ranks match when both ranks began equally many exchanges and name
/// the same kind. A block longer or shorter than its receiver expects is an error
/// (kInvalidArgument) there.
class MpiExchange {
 public:
  static constexpr int kKinds = 3;

  /// `number` of this exchange, counted alike on all ranks; `kind` < kKinds; `call` for messages.
  void begin(MPI_Comm comm, std::uint64_t number, int kind, std::string_view call);
  /// Sends `block` to each of `peers` (which must stay valid). Empty blocks do not travel.
  void send(std::span<const int> peers, std::span<const std::byte> block);
  void receive(std::span<const int> peer, std::span<std::byte> block);

  Status start();
  /// Ends with all blocks sent and received, or with the first failure: the deadline, MPI's or what
  /// `interrupted` returns. After a failure requests are pending.
  Status finish(Deadline deadline, const std::function<Status()>& interrupted);

 private:
  /// A block on its way to `peers`, or from one.
  struct Stream {
    std::span<const int> peers;
    const std::byte* source = nullptr;  // null: incoming
    std::byte* target = nullptr;
    std::size_t bytes = 0;
    std::size_t posted = 0;
  };
  /// Staging for one piece of a stream at a time.
  struct Slot {
    std::unique_ptr<std::byte[]> memory;
    std::size_t capacity = 0;
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
  std::vector<int> done_;             // scratch of finish
  std::vector<MPI_Status> envelopes_;
};

}  // namespace tributary
