// What a mesh keeps of communicators that have ended: nothing for which nobody can send any more.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <thread>

#include "comm/mesh/mesh.h"
#include "core/interface/clock.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/mesh/mesh_ranks.h"

namespace tributary::testing_support {
namespace {

using mesh::Mesh;
using mesh::MeshPeer;

class KnownCommunicators : public testing::Test {
 protected:
  [[nodiscard]] std::unique_ptr<Mesh> start(int rank) {
    const MeshConfig config = place_.config(rank, 2);
    auto mesh = std::make_unique<Mesh>(config, place_.transport(), steady_clock());
    if (config.listening) config.listening(mesh->address());
    return mesh;
  }
  static void meet(Mesh& mesh) {
    std::uint64_t visit = 0;
    mesh.meet(ample_deadline(), visit).throw_if_error();
  }
  /// Both have come.
  void meet_all() {
    auto zero = std::async(std::launch::async, [this] {
      zero_ = start(0);
      meet(*zero_);
    });
    one_ = start(1);
    meet(*one_);
    zero.get();
  }
  /// Rank 1 is killed, and rank 0 knows it.
  void lose_one(const std::vector<MeshPeer>& others) {
    one_.reset();
    std::vector<int> late;
    const mesh::MeshGroup group(2);
    while (zero_->failure(group, others, late).ok()) std::this_thread::yield();
  }

  static constexpr std::array<int, 2> kMembers{0, 1};
  MeshPlace place_{MeshNetwork::kLocal};
  std::unique_ptr<Mesh> zero_, one_;
};

TEST_F(KnownCommunicators, AClosedOneIsKnownUntilNobodyCanSendForIt) {
  meet_all();
  const auto first = zero_->open(5, kMembers);
  const auto second = zero_->open(6, kMembers);
  EXPECT_EQ(zero_->communicators(), 2U);
  zero_->close(5, first.others);
  EXPECT_EQ(zero_->communicators(), 2U) << "rank 1 may still send for it";
  lose_one(first.others);
  EXPECT_EQ(zero_->communicators(), 1U);
  zero_->close(6, second.others);
  EXPECT_EQ(zero_->communicators(), 0U);
}

TEST_F(KnownCommunicators, OneOfALivingMemberStaysClosed) {
  meet_all();
  const auto membership = zero_->open(5, kMembers);
  zero_->close(5, membership.others);
  const auto owner = std::make_shared<int>();
  const auto group = std::make_shared<mesh::MeshGroup>(2);
  one_->send(0, {.group = 5, .number = 1, .kind = 0}, {}, group, owner);
  one_->send(0, {.group = 7, .number = 1, .kind = 0}, {}, group, owner);
  while (zero_->communicators() < 2) std::this_thread::yield();  // the later message has come
  EXPECT_TRUE(zero_->open(7, kMembers).group->has(1, 1));
  EXPECT_FALSE(zero_->open(5, kMembers).group->has(1, 1)) << "what came for a closed one";
}

}  // namespace
}  // namespace tributary::testing_support
