// The messages between the processes of a mesh. Internal to comm/mesh.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/interface/collective.h"

namespace tributary::mesh {

inline constexpr std::uint16_t kVersion = 2;

/// The `type` of TransportHandler; others than those of a pool's data plane.
enum class MessageType : std::uint16_t {
  kJoin = 64,  // rank > 0 -> rank 0: first message
  kAccepted,   // rank 0: the answer to a Join
  kRefused,    // rank 0: the other answer
  kMember,     // rank 0: a rank to connect to
  kBlock,      // payload: what the sender's call gives to the receiver, maybe nothing
  kFailure,    // the sender's communicator has ended
};

struct MeshJoin {
  static constexpr MessageType kType = MessageType::kJoin;
  std::uint16_t version = kVersion;
  std::int32_t ranks = 0;
  std::string address;  // at which the sender listens
  static void fields(auto& archive, auto& m) { archive(m.version, m.ranks, m.address); }
};

struct Accepted {
  static constexpr MessageType kType = MessageType::kAccepted;
  std::uint64_t visit = 0;            // 0: at the start; else of another process in a slot
  std::vector<std::int32_t> members;  // likewise: the other ranks that are there
  static void fields(auto& archive, auto& m) { archive(m.visit, m.members); }
};

struct Refused {
  static constexpr MessageType kType = MessageType::kRefused;
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  static void fields(auto& archive, auto& m) { archive(m.code, m.message); }
};

struct Member {
  static constexpr MessageType kType = MessageType::kMember;
  std::int32_t rank = 0;  // lower than the receiver's
  std::string address;
  static void fields(auto& archive, auto& m) { archive(m.rank, m.address); }
};

struct MeshBlock {
  static constexpr MessageType kType = MessageType::kBlock;
  std::uint64_t group = 0;   // the communicator
  std::uint64_t number = 0;  // of its calls, from 1
  std::uint8_t kind = 0;     // CollectiveKind
  static void fields(auto& archive, auto& m) { archive(m.group, m.number, m.kind); }
};

struct Failure {
  static constexpr MessageType kType = MessageType::kFailure;
  std::uint64_t group = 0;
  std::uint64_t number = 0;  // of the call that has failed; those before it complete
  ErrorCode code = ErrorCode::kOk;
  std::string message;
  static void fields(auto& archive, auto& m) { archive(m.group, m.number, m.code, m.message); }
};

}  // namespace tributary::mesh
