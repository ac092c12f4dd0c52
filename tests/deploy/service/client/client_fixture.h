// A client, and a worker that does what a test tells it, in one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deploy/service/client/tier_client.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/client/fake_worker.h"

namespace tributary::test {

template <typename Call>
void expect_error(ErrorCode code, const std::string& text, const Call& call) {
  const Status status = status_of(call);
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(status.message(), testing::HasSubstr(text));
}

/// A deadline that does not pass if the test works.
inline constexpr auto kFar = std::chrono::seconds(60);

/// For tests that admit nothing: there is no control plane.
[[nodiscard]] inline TierClientConfig without_control_plane() {
  TierClientConfig config;
  config.url = "http://127.0.0.1:1";
  return config;
}

class ClientFixture : public testing::Test {
 protected:
  void make_client(TierClientConfig config = without_control_plane()) {
    client_ = std::make_unique<TierClient>(config);
  }
  void SetUp() override { make_client(); }

  [[nodiscard]] SequenceHandle sequence(std::uint64_t id = 7) {
    const std::string address = worker_.address();
    return small_sequence(id, std::span(&address, 1), 200, 200);
  }
  [[nodiscard]] LayerItem item(SequenceHandle& sequence, std::vector<float>& output,
                               std::int32_t tokens = 1) {
    output.assign(static_cast<std::size_t>(tokens) * kSmallOutput, -1);
    const std::byte* records = input_.data();
    return {.sequence = &sequence,
            .tokens = tokens,
            .query = {records, kSmallInput},
            .row = {records + kSmallInput - kSmallRowBytes, kSmallInput},
            .output = output.data()};
  }

  FakeWorker worker_;
  std::vector<std::byte> input_ = std::vector<std::byte>(16 * kSmallInput, std::byte{1});
  std::unique_ptr<TierClient> client_;
};

}  // namespace tributary::test
