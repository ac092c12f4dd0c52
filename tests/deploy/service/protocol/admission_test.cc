#include "deploy/service/protocol/admission.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "comm/http/http_server.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using nlohmann::json;

TEST(Admission, ComesBackAsItWas) {
  const SequenceHandle answer = sample_answer();
  const SequenceHandle back = parse_sequence_handle(to_json(answer));
  EXPECT_EQ(to_json(back), to_json(answer));
  EXPECT_EQ(back.id, answer.id);
  EXPECT_EQ(back.token, answer.token);
  EXPECT_EQ(back.addresses, answer.addresses);
  EXPECT_EQ(back.shape, answer.shape);
  EXPECT_EQ(back.lease_ms, 30'000);
}

TEST(Admission, TheListOfWorkersComesBackAsItWas) {
  const std::vector<std::string> addresses{"tcp://[::1]:4001", "ucx://host:1"};
  EXPECT_EQ(parse_workers(workers_to_json(addresses)), addresses);
  EXPECT_EQ(parse_workers(workers_to_json({})), std::vector<std::string>{});
  for (const char* text :
       {"", "[]", "{}", R"({"workers": [1]})", R"({"workers": [], "more": 1})"}) {
    EXPECT_EQ(code_of([&] { (void)parse_workers(text); }), ErrorCode::kMalformedInput) << text;
  }
}

TEST(Admission, HasTheDocumentedForm) {
  const json object = json::parse(to_json(sample_answer()));
  EXPECT_EQ(object["sequence_id"], "18364758544493064720");
  EXPECT_EQ(object["workers"][1], json({{"rank", 1}, {"address", "tcp://[::1]:4001"}}));
  EXPECT_EQ(object["extents"][0], json({{"begin", 0}, {"end", 4096}, {"rank", 0}}));
  EXPECT_EQ(object["shape"]["row_dtype"], "bf16");
  EXPECT_EQ(object["shape"]["query_dtype"], "f32");
  EXPECT_EQ(object["token"], "00112233445566778899aabbccddeeff");
}

TEST(Admission, RefusesOtherForms) {
  const json good = json::parse(to_json(sample_answer()));
  const auto refused = [](const json& value) {
    return code_of([&] { (void)parse_sequence_handle(value.dump()); }) ==
           ErrorCode::kMalformedInput;
  };
  for (const auto& [key, ignored] : good.items()) {
    json less = good;
    less.erase(key);
    EXPECT_TRUE(refused(less)) << key;
  }
  json spoilt = good;
  spoilt["more"] = 1;
  EXPECT_TRUE(refused(spoilt));
  for (const auto& [pointer, value] :
       std::vector<std::pair<std::string, json>>{{"/home", 2},
                                                 {"/extents/1/rank", 2},
                                                 {"/workers/1/rank", 0},
                                                 {"/workers", json::array()},
                                                 {"/sequence_id", 7},
                                                 {"/token", "00"},
                                                 {"/shape/row_dtype", "f64"},
                                                 {"/shape/qk_nope_head_dim", -1},
                                                 {"/shape/softmax_scale", 1e300},
                                                 {"/shape/heads", 0},
                                                 {"/lease_ms", 0}}) {
    spoilt = good;
    spoilt[json::json_pointer(pointer)] = value;
    EXPECT_TRUE(refused(spoilt)) << pointer;
  }
}

TEST(Admission, ARequestComesBackWithItsKeyAndItsSecretApart) {
  const AdmitRequest request{5000, 200, SpreadPolicy::kAll, "key", "secret"};
  EXPECT_EQ(parse_admit_request(to_json(request), "key", "secret"), request);
  EXPECT_EQ(json::parse(to_json(request)),
            json({{"prompt_tokens", 5000}, {"max_new_tokens", 200}, {"spread", "all"}}));
  EXPECT_EQ(parse_admit_request(R"({"prompt_tokens": 0, "max_new_tokens": 1})", "", ""),
            (AdmitRequest{0, 1, SpreadPolicy::kAuto, ""}));
}

TEST(Admission, APrefixTravelsInHexadecimalDigits) {
  AdmitRequest request{5000, 200, SpreadPolicy::kAuto,
                       "",   "",  {512, 16, "\xff 14 more bytes!", "s"}};
  EXPECT_EQ(parse_admit_request(to_json(request), "", ""), request);
  EXPECT_EQ(json::parse(to_json(request))["prefix"],
            json({{"block_tokens", 512},
                  {"key_bytes", 16},
                  {"keys", "ff203134206d6f726520627974657321"},
                  {"cache_salt", "73"}}));
  for (const char* prefix :
       {"null", "[]", "{}", R"({"block_tokens": 64, "keys": "00"})",
        R"({"block_tokens": 64, "key_bytes": 1, "keys": "", "cache_salt": ""})",
        R"({"block_tokens": 0, "key_bytes": 1, "keys": "00", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 1, "keys": ["00"], "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 1, "keys": "0", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 1, "keys": "0G", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 2, "keys": "000000", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 0, "keys": "00", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 33, "keys": "00", "cache_salt": ""})",
        R"({"block_tokens": 64, "key_bytes": 1, "keys": "00", "cache_salt": "", "more": 1})"}) {
    const std::string body =
        fmt::format(R"({{"prompt_tokens": 64, "max_new_tokens": 1, "prefix": {}}})", prefix);
    EXPECT_EQ(code_of([&] { (void)parse_admit_request(body, "", ""); }), ErrorCode::kMalformedInput)
        << body;
  }
  // As many as there may be, of the longest kind, are a body that the control plane takes.
  request.prefix = {512, 32, std::string(4096 * 32, 'k'), "s"};
  EXPECT_LT(to_json(request).size(), HttpServerConfig().max_body_bytes);
  EXPECT_EQ(parse_admit_request(to_json(request), "", ""), request);
  request.prefix.add_key(std::string(32, 'k'));
  EXPECT_EQ(code_of([&] { (void)parse_admit_request(to_json(request), "", ""); }),
            ErrorCode::kMalformedInput);
  request.prefix.keys.pop_back();
  EXPECT_EQ(code_of([&] { (void)to_json(request); }), ErrorCode::kInvalidArgument);
}

TEST(Admission, AForkNamesItsParent) {
  AdmitRequest request{5000, 200};
  request.parent = {.id = 77, .epoch = 3, .length = 4999, .token = {0xff, 1}};
  EXPECT_EQ(parse_admit_request(to_json(request), "", ""), request);
  EXPECT_EQ(json::parse(to_json(request))["parent"],
            json({{"sequence_id", "77"},
                  {"epoch", 3},
                  {"length", 4999},
                  {"token", "ff010000000000000000000000000000"}}));
  for (const auto& [field, value] : {std::pair<const char*, json>{"sequence_id", "0"},
                                     {"sequence_id", 77},
                                     {"epoch", 0},
                                     {"length", 0},
                                     {"length", -1},
                                     {"token", "ff"},
                                     {"token", nullptr},
                                     {"more", 1}}) {
    json body = json::parse(to_json(request));
    body["parent"][field] = value;
    EXPECT_EQ(code_of([&] { (void)parse_admit_request(body.dump(), "", ""); }),
              ErrorCode::kMalformedInput)
        << body;
  }
}

TEST(Admission, RefusesOtherRequests) {
  for (const std::string_view body :
       {"", "[]", "7", "{}", R"({"prompt_tokens": 1})", R"({"max_new_tokens": 1})",
        R"({"prompt_tokens": 0, "max_new_tokens": 0})",
        R"({"prompt_tokens": -1, "max_new_tokens": 2})",
        R"({"prompt_tokens": 1.5, "max_new_tokens": 2})",
        R"({"prompt_tokens": 1, "max_new_tokens": 4294967297})",
        R"({"prompt_tokens": 1, "max_new_tokens": 1, "spread": "most"})",
        R"({"prompt_tokens": 1, "max_new_tokens": 1, "spread": null})",
        R"({"prompt_tokens": 1, "max_new_tokens": 1, "idempotency_key": "key"})"}) {
    EXPECT_EQ(code_of([&] { (void)parse_admit_request(body, "", ""); }), ErrorCode::kMalformedInput)
        << body;
  }
  const std::string good = to_json(AdmitRequest{1, 1, SpreadPolicy::kAuto, ""});
  EXPECT_EQ(code_of([&] { (void)parse_admit_request(good, "with space", ""); }),
            ErrorCode::kMalformedInput);
  for (const std::string& secret : {std::string("with space"), std::string(65, 's')}) {
    const Status refusal = status_of([&] { (void)parse_admit_request(good, "key", secret); });
    EXPECT_EQ(refusal.code(), ErrorCode::kMalformedInput);
    EXPECT_EQ(refusal.message().find(secret), std::string::npos) << refusal.message();
  }
}

}  // namespace
}  // namespace tributary
