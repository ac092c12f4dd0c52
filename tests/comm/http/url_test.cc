#include "comm/http/url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"

namespace tributary {
namespace {

TEST(Url, ReadsItsParts) {
  const Url plain = parse_url("http://host.example:8080/a/b");
  EXPECT_FALSE(plain.tls);
  EXPECT_EQ(plain.host, "host.example");
  EXPECT_EQ(plain.port, 8080);
  EXPECT_EQ(plain.path, "/a/b");
  const Url tls = parse_url("https://10.0.0.1");
  EXPECT_TRUE(tls.tls);
  EXPECT_EQ(tls.host, "10.0.0.1");
  EXPECT_EQ(tls.port, 443);
  EXPECT_EQ(tls.path, "/");
  const Url v6 = parse_url("http://[::1]/x");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, 80);
  const Url bare = parse_url("localhost:7000");
  EXPECT_FALSE(bare.tls);
  EXPECT_EQ(bare.host, "localhost");
  EXPECT_EQ(bare.port, 7000);
  EXPECT_EQ(bare.path, "/");
}

TEST(Url, RefusesTheRest) {
  for (const std::string text : {"",
                                 "localhost",
                                 "http://",
                                 "http:///x",
                                 "https://:443",
                                 "ftp://host",
                                 "HOST/x",
                                 "http://user@host",
                                 "http://user:pass@host",
                                 "http://host?x=1",
                                 "http://host/p?x=1",
                                 "http://host/p#f",
                                 "http://host:",
                                 "http://host:x",
                                 "http://host:-1",
                                 "http://host:65536",
                                 "http://host:0",
                                 "http://host: 80",
                                 "http://ho st",
                                 "http://[::1",
                                 "http://[::1]x",
                                 "http://[host]",
                                 "http://::1",
                                 "http://host/a b",
                                 "http://host/\n",
                                 "http://h\xc3\xb6st"}) {
    try {
      (void)parse_url(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
    }
  }
  EXPECT_THROW((void)parse_url("http://host/" + std::string(3000, 'x')), Error);
  for (const char* text : {"http://user:secret@host", "user:secret@host:1", "secret@host/",
                           "https://user:secret@host:99999999/x"}) {
    try {
      (void)parse_url(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("***@host"));
      EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("secret")));
    }
  }
}

TEST(Url, ReadsAddresses) {
  EXPECT_EQ(parse_host_port("0.0.0.0:0").port, 0);
  EXPECT_EQ(parse_host_port("a-b.c:65535").host, "a-b.c");
  EXPECT_EQ(parse_host_port("[fe80::1]:80").host, "fe80::1");
  for (const char* text : {"", ":", ":80", "host", "host:", "host:65536", "::1:80", "[]:80",
                           "[::1]", "host:80/x", "host:8 0", "host:+80", "http://host:80"}) {
    EXPECT_THROW((void)parse_host_port(text), Error) << text;
  }
}

}  // namespace
}  // namespace tributary
