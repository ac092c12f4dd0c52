// A client and a worker that does what a test tells it to, in one process.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "deploy/client/tier_client.h"
#include "tests/core/expect_error.h"
#include "tests/deploy/client/fake_worker.h"

namespace tributary::test {

template <typename Call>
void expect_error(ErrorCode code, const std::string& text, const Call& call) {
  const Status status = status_of(call);
  EXPECT_EQ(status.code(), code);
  EXPECT_THAT(status.message(), testing::HasSubstr(text));
}

class ClientFixture : public testing::Test {
 protected:
  void make_client(TierClientConfig config = {}) {
    if (config.url.empty()) config.url = "http://127.0.0.1:1";  // nobody: most tests admit nothing
    client_ = std::make_unique<TierClient>(
        config, [this](const TransportConfig& transport, TransportHandler& handler) {
          return make_local_transport(network_, transport, handler);
        });
  }
  void SetUp() override { make_client(); }

  [[nodiscard]] SequenceHandle sequence(std::uint64_t id = 7) {
    const std::string address = worker_.address();
    return small_sequence(id, std::span(&address, 1), 200, 200);
  }
  [[nodiscard]] LayerItem item(SequenceHandle& sequence, std::vector<float>& output,
                               std::int32_t tokens = 1) {
    output.assign(static_cast<std::size_t>(tokens) * kSmallOutput, -1);
    return {
        .sequence = &sequence, .tokens = tokens, .input = input_.data(), .output = output.data()};
  }

  std::shared_ptr<LocalNetwork> network_ = std::make_shared<LocalNetwork>();
  FakeWorker worker_{network_};
  std::vector<std::byte> input_ = std::vector<std::byte>(16 * kSmallInput, std::byte{1});
  std::unique_ptr<TierClient> client_;
};

}  // namespace tributary::test
