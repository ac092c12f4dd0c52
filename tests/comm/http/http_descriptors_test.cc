// An event loop and a client when descriptors run out.
#include <gtest/gtest.h>

#include "comm/http/event_loop.h"
#include "comm/http/http_client.h"
#include "tests/comm/transport/few_descriptors.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

using testing_support::FewDescriptors;

TEST(EventLoop, AShortageOfDescriptorsIsTold) {
  HttpClientConfig config;
  config.url = parse_url("127.0.0.1:1");
  const FewDescriptors none(0);
  EXPECT_EQ(code_of([] { const EventLoop loop; }), ErrorCode::kIo);
  EXPECT_EQ(code_of([&] { const HttpClient client(config); }), ErrorCode::kIo);
}

}  // namespace
}  // namespace tributary
