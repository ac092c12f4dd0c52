// The client library of a decode tier, which a prefill tier or a model runner links. Admission goes
// over HTTP, rows and steps over the data plane.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/sequencer/admit_request.h"
#include "deploy/service/client/items_error.h"
#include "deploy/service/protocol/admission.h"
#include "deploy/service/transport/transport_choice.h"

namespace tributary {

class Clock;
class ControlPlane;

/// How a client reaches its tier.
struct TierClientConfig {
  std::string url = "http://127.0.0.1:7300";  ///< of the control plane
  std::string bearer_token;                   ///< that the control plane asks for; empty: none
  std::string certificate_authority;          ///< PEM file; empty: the system's
  std::string tls_certificate;                ///< PEM file, for workers that ask for it
  std::string tls_key;                        ///< its PEM file
  TransportChoice transport = TransportChoice::kAuto;  ///< to workers: agrees to no other
  bool busy_poll = false;      ///< spin while waiting: microseconds less, a core more
  bool shared_memory = false;  ///< to workers on this machine: a killed client is noticed late
  std::chrono::milliseconds timeout{10'000};  ///< of calls that are given no deadline
  bool renew_leases = true;  ///< renews sequences that were admitted here, while this object lives
  std::size_t max_in_flight_bytes = std::size_t{256} << 20;  ///< of rows on their way at once

  /// Gets one line for a worker to which there has been no connection for 2 s while calls wait for
  /// it. On any thread; must not use the client. Empty: the line goes to stderr.
  std::function<void(const std::string&)> waiting = {};
};

/// The data that every new token of an item has, in the caller's memory.
struct TokenData {
  const void* data = nullptr;  ///< the first token's
  std::size_t stride = 0;      ///< bytes between tokens; 0: without gaps
};

/// One sequence's part of a layer call. The caller's memory is read and written only during the
/// call, even if it fails. Queries have the pool's query type, rows its row format, hidden states
/// and results are fp32; H heads, C kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V
/// v_head_dim.
struct LayerItem {
  SequenceHandle* sequence = nullptr;  ///< whose step this is
  std::int32_t tokens = 1;  ///< new ones, the same in every layer of a step; 0: nothing is sent
  /// [tokens, H, C + R]; attend_unabsorbed(): [tokens, H, N + R]; forward(): hidden states.
  TokenData query;
  TokenData row;  ///< the new latent rows, [tokens, C + R]; forward(): none
  /// In a pool with a topk: positions that each token attends to, [tokens, selected_count] of 32
  /// bits, in any order (ascending is quickest), each once, up to the token's own; -1 is none. An
  /// error's index counts them in ascending order.
  TokenData selected{};
  std::int32_t selected_count = 0;  ///< at most the pool's topk
  /// Where the result goes, without gaps. attend(): per token o [H, C], then lse [H];
  /// attend_unabsorbed(): per token o [H, V], then lse [H]; attend_projected(): [tokens, H, V];
  /// forward(): [tokens, hidden_size]. Undefined for an item that fails.
  float* output = nullptr;
};

/// Rows of positions begin, begin + 1, ... of one layer of a sequence's prompt, in the pool's row
/// type, in the caller's memory.
struct PromptRows {
  const SequenceHandle* sequence = nullptr;  ///< whose
  int layer = 0;                             ///< of the model
  std::int64_t begin = 0;                    ///< position of the first row
  std::span<const std::byte> rows;           ///< whole rows
};

/// The place, in the caller's memory, for rows of positions begin, begin + 1, ... of one layer of a
/// sequence, in the pool's row format.
struct PulledRows {
  const SequenceHandle* sequence = nullptr;  ///< whose
  int layer = 0;                             ///< of the model
  std::int64_t begin = 0;                    ///< position of the first row
  std::span<std::byte> rows;                 ///< one whole row at least
};

/// Thrown by admit() when no pool has room now.
class PoolFullError : public Error {
 public:
  /// `message` is the tier's text.
  PoolFullError(const std::string& message, std::chrono::milliseconds retry_after)
      : Error(ErrorCode::kPoolFull, message), retry_after_(retry_after) {}
  /// When to try again: the tier's estimate.
  [[nodiscard]] std::chrono::milliseconds retry_after() const noexcept { return retry_after_; }

 private:
  std::chrono::milliseconds retry_after_;
};

/// Calls are blocking and may come from any thread; one sequence is used by one call at a time.
/// They throw Error: kDeadlineExceeded; kWorkerLost (a worker is gone that held rows of the
/// sequence or answered for it, and its pool goes on: see query()); kPoolLost (the pool is gone,
/// and its sequences with it: the control plane says so, and the worker cannot be reached or does
/// not answer); kUnavailable (there was no connection to a worker until the call's deadline,
/// although it was tried again and again: the sequence may be there); kPoolFull (admit, as
/// PoolFullError; extend; a layer for which there was no room until the deadline); and the tier's
/// own errors. A connection that breaks costs nothing: it is made again, and what was not answered
/// is sent again; only a truncation then is kUnavailable. A call on a list throws ItemsError, which
/// names the items that failed, when all have ended; an empty list is nothing to do.
class TierClient {
 public:
  /// Throws kInvalidArgument for an invalid URL, and for a certificate that cannot be read if the
  /// URL is https; otherwise the first call that needs the certificate throws.
  explicit TierClient(const TierClientConfig& config);
  /// Over another transport, for tests.
  TierClient(const TierClientConfig& config, const MakeTransport& make_transport);
  /// For a tier that is not reached by the config's URL: one in this process.
  TierClient(const TierClientConfig& config, const MakeTransport& make_transport,
             std::shared_ptr<ControlPlane> control);
  /// In another time than the processes'.
  TierClient(const TierClientConfig& config, const MakeTransport& make_transport,
             std::shared_ptr<ControlPlane> control, Clock& clock);
  ~TierClient();
  TierClient(const TierClient&) = delete;
  TierClient& operator=(const TierClient&) = delete;

  /// Reserves room for a sequence. Throws PoolFullError, kTooLarge for a sequence that no pool can
  /// hold, kUnavailable without a pool.
  [[nodiscard]] SequenceHandle admit(const AdmitRequest& request,
                                     std::optional<Deadline> deadline = {});
  /// Waits for room instead of throwing kPoolFull, and for a tier that is kUnavailable (it is
  /// starting or restarting), until the deadline.
  [[nodiscard]] SequenceHandle admit_waiting(const AdmitRequest& request, Deadline deadline);
  /// Keeps the lease of a sequence that was admitted by another client, from now on. Throws
  /// kPermissionDenied for a handle that names other workers than the tier's, which the control
  /// plane is asked about where they are new, and for one whose token is not the sequence's, where
  /// this client has proven that to its worker; otherwise the next call does so.
  void adopt(const SequenceHandle& sequence, std::optional<Deadline> deadline = {});
  /// The same of a handle that comes from a process of ours, which knows its workers: the control
  /// plane is not asked.
  void adopt_trusted(const SequenceHandle& sequence);
  /// Keeps the lease no longer: the sequence ends with it, unless another client adopts it. No
  /// effect with another token, or an earlier epoch, than the kept handle's.
  void release(const SequenceHandle& sequence);
  /// The sequence as its pool has it now. Throws kNotFound for one that has ended.
  ///
  /// After kWorkerLost go on with this handle. Where its epoch is another one, the open step has
  /// ended. `lost` are the rows that went with the worker, of all layers, prompt and committed
  /// tokens alike: push_rows() each of them again, wait_ready(), and go on; or free() the sequence.
  /// Those of rank -1 wait for room on other workers: ask again.
  [[nodiscard]] SequenceHandle query(const SequenceHandle& sequence,
                                     std::optional<Deadline> deadline = {});
  /// Call it after the last push_rows(): waits until the leaders have heard from every owner of
  /// their rows. It asks the sequences' workers alone. Throws kDeadlineExceeded naming the missing
  /// part.
  void wait_ready(std::span<const SequenceHandle* const> sequences,
                  std::optional<Deadline> deadline = {});
  /// The same of one sequence.
  void wait_ready(const SequenceHandle& sequence, std::optional<Deadline> deadline = {}) {
    const SequenceHandle* one = &sequence;
    wait_ready(std::span(&one, 1), deadline);
  }
  /// Ends the sequences. It is not an error if one has ended already. Workers are asked first, then
  /// the control plane about those that no worker has answered for. `prefixes`, one for each or
  /// none at all, name the blocks that the sequences leave behind: keys as of an admission, of all
  /// full blocks, of which those behind the prompt's full ones (1,024 at most) get their names now.
  /// A sequence whose names are refused is freed too, and is among those that failed.
  void free(std::span<const SequenceHandle* const> sequences, std::optional<Deadline> deadline = {},
            std::span<const Prefix> prefixes = {});
  /// The same of one sequence.
  void free(const SequenceHandle& sequence, std::optional<Deadline> deadline = {},
            const Prefix& prefix = {}) {
    const SequenceHandle* one = &sequence;
    free(std::span(&one, 1), deadline, std::span(&prefix, 1));
  }
  /// Makes room for `max_new_tokens` after the prompt, where admission reserved less; the handle
  /// says so afterwards. A number that is not larger changes nothing. Throws kPoolFull where there
  /// is no room now, kTooLarge where there never is.
  void extend(SequenceHandle& sequence, std::int64_t max_new_tokens,
              std::optional<Deadline> deadline = {});

  /// Sends rows, split by extent. Returns when every owner has acknowledged them and the memory may
  /// be reused. If it throws, the memory may be reused too, acknowledged rows stay, and the same
  /// rows may be sent again, in the same calls: what has arrived is acknowledged again. Other bytes
  /// for it, or another cut of the same, are kAlreadyExists.
  void push_rows(std::span<const PromptRows> parts, std::optional<Deadline> deadline = {});
  /// The same of one part.
  void push_rows(const SequenceHandle& sequence, int layer, std::int64_t begin,
                 std::span<const std::byte> rows, std::optional<Deadline> deadline = {}) {
    const PromptRows part{&sequence, layer, begin, rows};
    push_rows(std::span(&part, 1), deadline);
  }

  /// Brings rows back, bit for bit as they are stored: prompt rows that have been acknowledged,
  /// while others are on their way too, and rows of committed tokens. Throws kInvalidArgument for
  /// rows that are not below the sequence's length, kFailedPrecondition for prompt rows that have
  /// not arrived, kStaleEpoch where the sequence was truncated by another handle. The memory of a
  /// part that fails is undefined.
  void pull_rows(std::span<const PulledRows> parts, std::optional<Deadline> deadline = {});

  /// Computes one layer of a step of all items in one call; splits them by home and waits for all.
  /// The first layer call at a sequence's `length` opens its step. The outputs of items that do not
  /// fail are valid whatever the others do.
  void attend(std::span<const LayerItem> items, int layer, std::optional<Deadline> deadline = {});
  /// As attend(), with queries before W_UK and o after W_UV, where the pool has these weights: the
  /// shorter message. Its bits are those of the query absorbed in fp32, rounded to the query type
  /// and attended, and of W_UV on the state.
  void attend_unabsorbed(std::span<const LayerItem> items, int layer,
                         std::optional<Deadline> deadline = {});
  /// As attend(), with the heads' values projected by the pool's W_UV, if the pool has weights.
  void attend_projected(std::span<const LayerItem> items, int layer,
                        std::optional<Deadline> deadline = {});
  /// As attend(), for the whole attention module: hidden states in, hidden states out, if the pool
  /// has weights.
  void forward(std::span<const LayerItem> items, int layer, std::optional<Deadline> deadline = {});

  /// Ends the step of each sequence with its number of accepted tokens (0: an abort). Returns when
  /// all have been committed; the handles of those that are have their new length even if it
  /// throws.
  void commit(std::span<SequenceHandle* const> sequences, std::span<const std::int32_t> accepted,
              std::optional<Deadline> deadline = {});
  /// Drops the rows from `length` on, between steps; the handle gets a new epoch.
  void truncate(SequenceHandle& sequence, std::int64_t length,
                std::optional<Deadline> deadline = {});

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tributary
