#include "comm/mesh/mesh_communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "comm/mesh/late_communicator.h"
#include "comm/mesh/mesh.h"
#include "comm/mesh/pair_communicator.h"
#include "comm/mesh/start_record.h"
#include "core/base/raw_bytes.h"
#include "core/interface/clock.h"

namespace tributary {
namespace {

using mesh::Mesh;
using mesh::MeshGroup;
using mesh::MeshPeer;
using mesh::StartRecord;

/// Between tries to reach a rank 0 that has not started yet, or has not opened this rank's slot:
/// the first pause, and the longest.
constexpr std::chrono::milliseconds kJoinPause{200};
constexpr std::chrono::milliseconds kLongestPause{3'000};

/// The communicator of all ranks.
constexpr std::uint64_t kAll = 1;

enum class Kind : std::uint8_t { kPair, kSurvivors };

/// Names the communicator of a newcomer and rank 0, by its visit, or of survivors, by their
/// generation: alike on every member, and by FNV-1a over 64 bits no two alike.
std::uint64_t group_of(Kind kind, std::uint64_t number, std::span<const int> members) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) {
      hash = (hash ^ (value & 0xff)) * 0x100000001b3;
    }
  };
  add(static_cast<std::uint64_t>(kind));
  add(number);
  for (const int member : members) add(static_cast<std::uint64_t>(member));
  return hash;
}

/// Copies of what is sent, each of which lives until it has left. They are used again.
class SendBuffers {
 public:
  [[nodiscard]] std::shared_ptr<RawBytes> copy(std::span<const std::byte> bytes) {
    std::unique_ptr<RawBytes> buffer;
    {
      const std::lock_guard lock(free_->mutex);
      if (!free_->buffers.empty()) {
        buffer = std::move(free_->buffers.back());
        free_->buffers.pop_back();
      }
    }
    if (buffer == nullptr) buffer = std::make_unique<RawBytes>();
    std::ranges::copy(bytes, buffer->resize(bytes.size()).begin());
    return {buffer.release(), [free = free_](RawBytes* used) {
              const std::lock_guard lock(free->mutex);
              free->buffers.emplace_back(used);
            }};
  }

 private:
  struct Free {
    std::mutex mutex;
    std::vector<std::unique_ptr<RawBytes>> buffers;
  };
  std::shared_ptr<Free> free_ = std::make_shared<Free>();
};

class MeshCommunicator final : public Communicator {
 public:
  /// `before`: see Mesh::open(). `record` may be null.
  MeshCommunicator(std::shared_ptr<Mesh> mesh, std::uint64_t id, std::span<const int> members,
                   std::optional<std::span<const MeshPeer>> before = {},
                   std::shared_ptr<StartRecord> record = {})
      : Communicator(mesh->rank(), mesh->ranks(), members, mesh->clock()),
        mesh_(std::move(mesh)),
        id_(id),
        record_(std::move(record)) {
    auto [group, others] = mesh_->open(id, members, before);
    group_ = std::move(group);
    others_ = std::move(others);
  }
  ~MeshCommunicator() override { mesh_->close(id_, others_); }
  [[nodiscard]] std::string_view name() const noexcept override { return mesh_->name(); }
  [[nodiscard]] std::vector<int> waited_for() const override { return late_; }
  [[nodiscard]] bool takes_newcomers() const noexcept override { return true; }

 protected:
  Status do_collective(const Collective& call, Deadline deadline) override {
    if (calls_ == 0) {
      Status status = mesh_->await(others_, collective_name(call.kind), deadline, late_);
      if (!status.ok()) return status;
    }
    const mesh::MeshBlock block{
        .group = id_, .number = ++calls_, .kind = static_cast<std::uint8_t>(call.kind)};
    const std::shared_ptr<RawBytes> staged = buffers_.copy(call.send);
    for (const auto& [peer, life] : others_) {
      const std::span<const std::byte> part = call.block_to(peer);
      const std::span<const std::byte> bytes =
          part.empty()
              ? part
              : std::span<const std::byte>(staged->span())
                    .subspan(static_cast<std::size_t>(part.data() - call.send.data()), part.size());
      mesh_->send(peer, block, bytes, group_, staged);
    }
    std::ranges::copy(call.block_to(rank()), call.block_from(rank()).begin());
    if (Status status =
            mesh_->wait(*group_, calls_, others_, collective_name(call.kind), deadline, late_);
        !status.ok()) {
      return status;
    }
    for (const auto& [peer, life] : others_) {
      if (Status status = take(call, peer); !status.ok()) return status;
    }
    mesh_->release(*group_, calls_);
    if (record_ != nullptr) record_->add(call);
    return {};
  }

  void do_poison(const Status& reason) override {
    const std::optional<std::uint64_t> number = mesh_->end(*group_, reason);
    if (!number) return;
    const std::string message = fmt::format("rank {}: {}", rank(), reason.message());
    for (const auto& [peer, life] : others_) {
      mesh_->send(peer,
                  mesh::Failure{
                      .group = id_, .number = *number, .code = reason.code(), .message = message});
    }
  }
  Status do_look_for_failure() override { return mesh_->failure(*group_, others_, late_); }
  void do_interrupt(const Status& reason) override { mesh_->interrupt(*group_, reason); }
  std::unique_ptr<Communicator> do_survivors(std::span<const int> members,
                                             std::uint64_t generation) override {
    return std::make_unique<MeshCommunicator>(
        mesh_, group_of(Kind::kSurvivors, generation, members), members, others_);
  }

 private:
  /// Copies the block of `peer` to its place.
  Status take(const Collective& call, int peer) const {
    const std::span<std::byte> place = call.block_from(peer);
    const std::span<const std::byte> block = group_->block(peer, calls_);
    if (group_->kind(peer, calls_) != call.kind) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("rank {} does not match its peers: call {} is {}, on rank {} {}", rank(),
                          calls_, collective_name(call.kind), peer,
                          collective_name(group_->kind(peer, calls_)))};
    }
    if (block.size() != place.size()) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}",
                          collective_name(call.kind), peer, block.size(), rank(), place.size())};
    }
    std::ranges::copy(block, place.begin());
    return {};
  }

  std::shared_ptr<Mesh> mesh_;
  const std::uint64_t id_;
  std::shared_ptr<MeshGroup> group_;
  std::vector<MeshPeer> others_;  // all members but this rank, in order
  std::uint64_t calls_ = 0;
  std::vector<int> late_;  // see waited_for()
  SendBuffers buffers_;
  std::shared_ptr<StartRecord> record_;
};

void check(const MeshConfig& config) {
  if (config.ranks < 1 || config.rank < 0 || config.rank >= config.ranks) {
    fail(ErrorCode::kInvalidArgument, "rank is {} of {}, expected 0 .. {}", config.rank,
         config.ranks, config.ranks - 1);
  }
}

/// Whether rank 0 may only not be there yet.
bool may_come(const Status& status) {
  return status.code() == ErrorCode::kUnavailable;
}

}  // namespace

std::unique_ptr<Communicator> mesh::make_pair_communicator(
    const std::shared_ptr<Mesh>& mesh, int rank, std::uint64_t visit,
    std::optional<std::span<const MeshPeer>> newcomer) {
  const std::array members{0, rank};
  return std::make_unique<MeshCommunicator>(mesh, group_of(Kind::kPair, visit, members), members,
                                            newcomer);
}

std::unique_ptr<Communicator> join_mesh(const MeshConfig& config,
                                        const MakeTransport& make_transport, Deadline deadline,
                                        Clock& clock) {
  check(config);
  std::vector<int> members(static_cast<std::size_t>(config.ranks));
  std::iota(members.begin(), members.end(), 0);
  std::string waits;  // why, as it was logged
  for (auto pause = kJoinPause;; pause = std::min(2 * pause, kLongestPause)) {
    auto mesh = std::make_shared<Mesh>(config, make_transport, clock);
    if (config.listening) config.listening(mesh->address());
    std::uint64_t visit = 0;
    const Status met = mesh->meet(deadline, visit);
    if (met.ok() && visit > 0) {
      return mesh::make_late_communicator(mesh::make_pair_communicator(mesh, config.rank, visit),
                                          clock);
    }
    if (met.ok()) {
      std::shared_ptr<StartRecord> record;
      if (config.door != nullptr) {
        record = std::make_shared<StartRecord>();
        config.door->lead_to(mesh, record);
      }
      return std::make_unique<MeshCommunicator>(std::move(mesh), kAll, members, std::nullopt,
                                                std::move(record));
    }
    mesh.reset();
    const Time again = clock.now() + pause;
    if (!may_come(met) || again >= deadline.when()) {
      fail(met.code(), "rank {} of {}: {}", config.rank, config.ranks, met.message());
    }
    if (config.log && std::exchange(waits, met.message()) != met.message()) {
      config.log(fmt::format("waiting to come in: {}", met.message()));
    }
    std::mutex mutex;
    Condition never;
    std::unique_lock lock(mutex);
    clock.wait_until(never, lock, again, [] { return false; });
  }
}

}  // namespace tributary
