// The sequences that one connection serves, and the tokens that its worker knows them by. Used only
// inside deploy/service/client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "comm/wire/access_token.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary {

/// A worker that allows a sequence on a connection allows it for every message there, whoever wrote
/// it. So the client compares tokens: a message whose token is another than the proven one must not
/// be sent. Whatever the worker has accepted stands here.
class ProvenSequences {
 public:
  enum class Standing {
    kUnknown,    ///< to be proven before the message
    kAsked,      ///< with this token; a message may follow: the worker refuses it if it is wrong
    kProven,     ///< with this token
    kUndecided,  ///< another token was shown, and the worker has not judged it yet
    kOther,      ///< another token is the right one
  };
  [[nodiscard]] Standing standing(std::uint64_t id, const wire::Token& token) const;

  /// The connection was opened with it.
  void opened(std::uint64_t id, const wire::Token& token) { known_[id] = {token, true}; }
  /// An unknown one is shown to the worker.
  void asked(std::uint64_t id, const wire::Token& token);
  /// The worker's judgement of the tokens that were shown first. Throws kMalformedInput for more
  /// than that.
  void judged(const wire::ProveReply& reply);

  /// Nothing may be forgotten here while the worker remembers it: a connection that has served more
  /// sequences is replaced by a new one.
  [[nodiscard]] bool full() const noexcept { return known_.size() >= kMost; }
  static constexpr std::size_t kMost = 65'536;

 private:
  struct Known {
    wire::Token token{};
    bool proven = false;
  };
  std::unordered_map<std::uint64_t, Known> known_;
  std::deque<std::uint64_t> asked_;  // ids, the oldest first
};

}  // namespace tributary
