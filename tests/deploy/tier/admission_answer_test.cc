#include "deploy/tier/admission_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/core/expect_error.h"
#include "tests/deploy/tier/pool_samples.h"

namespace tributary {
namespace {

using nlohmann::json;

TEST(AdmissionAnswer, ComesBackAsItWas) {
  const AdmissionAnswer answer = sample_answer();
  const AdmissionAnswer back = parse_admission_answer(to_json(answer));
  EXPECT_EQ(to_json(back), to_json(answer));
  EXPECT_EQ(back.sequence.id, answer.sequence.id);
  EXPECT_EQ(back.sequence.token, answer.sequence.token);
  EXPECT_EQ(back.addresses, answer.addresses);
  EXPECT_EQ(back.shape, answer.shape);
  EXPECT_EQ(back.lease_ms, 30'000);
}

TEST(AdmissionAnswer, HasTheDocumentedForm) {
  const json object = json::parse(to_json(sample_answer()));
  EXPECT_EQ(object["sequence_id"], "18364758544493064720");
  EXPECT_EQ(object["workers"][1], json({{"rank", 1}, {"address", "[::1]:4001"}}));
  EXPECT_EQ(object["extents"][0], json({{"begin", 0}, {"end", 4096}, {"rank", 0}}));
  EXPECT_EQ(object["shape"]["row_dtype"], "bf16");
  EXPECT_EQ(object["shape"]["query_dtype"], "f32");
  EXPECT_EQ(object["token"], "00112233445566778899aabbccddeeff");
}

TEST(AdmissionAnswer, RefusesOtherForms) {
  const json good = json::parse(to_json(sample_answer()));
  const auto refused = [](const json& value) {
    return code_of([&] { (void)parse_admission_answer(value.dump()); }) ==
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
                                                 {"/shape/softmax_scale", 1e300},
                                                 {"/shape/heads", 0},
                                                 {"/lease_ms", 0}}) {
    spoilt = good;
    spoilt[json::json_pointer(pointer)] = value;
    EXPECT_TRUE(refused(spoilt)) << pointer;
  }
}

}  // namespace
}  // namespace tributary
