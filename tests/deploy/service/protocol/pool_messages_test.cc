#include "deploy/service/protocol/pool_messages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// Makes messages that a reader must refuse from one that it accepts: every object without one of
/// its fields or with an extra one, and every field with a value of another type.
void for_each_spoilt(const json& whole, const json& part, const json::json_pointer& at,
                     const std::function<void(const json&, const std::string&)>& visit) {
  const auto with = [&](const json& replacement, const std::string& what) {
    json spoilt = whole;
    spoilt[at] = replacement;
    visit(spoilt, at.to_string() + " " + what);
  };
  with(part.is_null() ? json(1) : json(nullptr), "of another type");
  if (part.is_object()) {
    json more = part;
    more["surplus"] = 1;
    with(more, "with a surplus field");
    for (const auto& [key, value] : part.items()) {
      json less = part;
      less.erase(key);
      with(less, "without " + key);
      for_each_spoilt(whole, value, at / key, visit);
    }
  } else if (part.is_array()) {
    with(json::array({json::array()}), "of arrays");
    for (std::size_t i = 0; i < part.size(); ++i) for_each_spoilt(whole, part[i], at / i, visit);
  } else if (part.is_number()) {
    with("1", "as text");
    if (part.is_number_integer()) with(1.5, "with a fraction");
    if (part.is_number_integer()) with(-1, "negative");
  } else if (part.is_string()) {
    with(std::string(5000, 'x'), "too long");
  }
}

template <typename Parse>
void expect_strict(const std::string& text, const Parse& parse) {
  int spoilt = 0;
  const json sample = json::parse(text);
  for_each_spoilt(
      sample, sample, json::json_pointer(), [&](const json& value, const std::string& what) {
        if (what.ends_with(" without sequence")) return;  // a reply may have none
        if (what.ends_with(" without prefix")) return;    // an admission too
        const bool extent =
            what.find("extents/") != std::string::npos || what.find("/lost/") != std::string::npos;
        if (extent && what.ends_with("/rank negative")) return;  // -1: they wait for room
        if (what.ends_with("/canary_error of another type") ||   // null: not a number
            what.ends_with("/balance of another type") ||
            (what.find("/cost_factors/") != std::string::npos &&
             what.ends_with(" of another type"))) {
          return;
        }
        ++spoilt;
        const ErrorCode code = code_of([&] { (void)parse(value.dump()); });
        EXPECT_EQ(code, ErrorCode::kMalformedInput) << what << ": " << error_code_name(code);
      });
  EXPECT_GT(spoilt, 3);
}

TEST(PoolMessages, ComeBackAsTheyWere) {
  for (const FromPool& message : samples_from_pool()) {
    const std::string text = to_json(message);
    const FromPool back = parse_from_pool(text);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(to_json(back), text);
  }
  for (const ToPool& message : samples_to_pool()) {
    const std::string text = to_json(message);
    const ToPool back = parse_to_pool(text);
    EXPECT_EQ(back.index(), message.index());
    EXPECT_EQ(to_json(back), text);
  }
}

TEST(PoolMessages, KeepEveryValueOfARegistration) {
  const auto message = std::get<RegisterPool>(samples_from_pool()[0]);
  const auto back = std::get<RegisterPool>(parse_from_pool(to_json(FromPool(message))));
  EXPECT_EQ(back.name, message.name);
  EXPECT_EQ(back.run, message.run);
  EXPECT_EQ(back.transport, message.transport);
  EXPECT_EQ(back.transport_reason, message.transport_reason);
  EXPECT_EQ(back.costs, message.costs);
  EXPECT_EQ(back.communicator, message.communicator);
  EXPECT_EQ(back.shape, message.shape);  // softmax_scale to the last bit
  EXPECT_EQ(back.last_incarnation, 4'000'000'000U);
  EXPECT_TRUE(back.draining);
  ASSERT_EQ(back.workers.size(), 2U);
  EXPECT_EQ(back.workers[1].address, "tcp://[::1]:4001");
  ASSERT_EQ(back.sequences.size(), 2U);
  EXPECT_EQ(back.sequences[0].id, sample_sequence().id);
  EXPECT_EQ(back.sequences[0].token, sample_sequence().token);
  EXPECT_EQ(back.sequences[0].state, SequenceState::kStepping);
  EXPECT_EQ(back.sequences[0].extents[1].end, 5000);
  EXPECT_EQ(back.sequences[0].missing, "layer 3, position 77");
}

TEST(PoolMessages, KeepEveryValueOfAHeartbeat) {
  const auto message = std::get<Heartbeat>(samples_from_pool()[1]);
  const auto back = std::get<Heartbeat>(parse_from_pool(to_json(FromPool(message))));
  EXPECT_EQ(back.workers[1].pages_reserved, 21);
  EXPECT_EQ(back.workers[1].pages_idle, 6);
  EXPECT_EQ(back.workers[1].attended_rows, 800);
  EXPECT_EQ(back.workers[1].attend_seconds, 0.25);
  EXPECT_FALSE(back.workers[0].draining);
  EXPECT_TRUE(back.workers[1].draining);
  EXPECT_EQ(back.metrics.refused_rows, message.metrics.refused_rows);
  EXPECT_EQ(back.metrics.limited, message.metrics.limited);
  EXPECT_EQ(back.metrics.round_seconds.counts, message.metrics.round_seconds.counts);
  EXPECT_EQ(back.metrics.phase_seconds[2].sum, message.metrics.phase_seconds[2].sum);
  EXPECT_EQ(back.metrics.batch.counts, message.metrics.batch.counts);
  EXPECT_EQ(back.metrics.canary_error, message.metrics.canary_error);
}

TEST(PoolMessages, AreStrict) {
  for (const FromPool& message : samples_from_pool()) {
    expect_strict(to_json(message), [](std::string_view text) { return parse_from_pool(text); });
  }
  for (const ToPool& message : samples_to_pool()) {
    expect_strict(to_json(message), [](std::string_view text) { return parse_to_pool(text); });
  }
}

/// Too many are refused by their number, before the first of them is read.
TEST(PoolMessages, AMessageHasABoundOfItsSequences) {
  json message = json::parse(to_json(samples_from_pool()[0]));
  const auto refusal = [&](std::size_t sequences) {
    message["sequences"] = json::array_t(sequences, 7);
    return message_of([&] { (void)parse_from_pool(message.dump()); });
  };
  EXPECT_THAT(refusal(16'384), HasSubstr("is not an object"));
  EXPECT_THAT(refusal(16'385), HasSubstr("sequences has 16385 elements; at most 16384"));
}

/// What a pool is told to be full by holds for what it sends.
TEST(PoolMessages, NoSequenceTakesMoreOfARegistrationThanIsReckoned) {
  SequenceInfo largest = sample_sequence();
  largest.id = std::numeric_limits<SequenceId>::max();
  largest.epoch = std::numeric_limits<std::uint32_t>::max();
  largest.state = SequenceState::kStepping;
  largest.home = 1'023;
  largest.idempotency_key = std::string(128, 'k');
  largest.idempotency_secret = std::string(64, 's');
  largest.missing = std::string(330, 'm');  // StepBook::missing() ends after 200 and one worker
  largest.prompt_tokens = largest.max_new_tokens = largest.length = std::int64_t{1} << 32;
  largest.extents.clear();
  const auto bytes_with = [&](std::int64_t extents) {
    for (std::int64_t i = std::ssize(largest.extents); i < extents; ++i) {
      largest.extents.push_back({4'294'900'000 + i, 4'294'900'001 + i, 1'023});
    }
    return std::int64_t(to_json(FromPool(MoreSequences{{largest}})).size());
  };
  const std::int64_t none = bytes_with(0);
  EXPECT_LE(none, most_registration_bytes(1, 0));
  EXPECT_LE(bytes_with(1'000) - none, most_registration_bytes(0, 1'000));
}

TEST(PoolMessages, ARegistrationIsCutIntoPieces) {
  auto pool = std::get<RegisterPool>(samples_from_pool()[0]);
  pool.sequences.assign(2000, sample_sequence());
  for (std::size_t i = 0; i < pool.sequences.size(); ++i) pool.sequences[i].id = i + 1;
  pool.sequences[7].extents.clear();
  for (std::int64_t i = 0; i < 5000; ++i) {
    pool.sequences[7].extents.push_back({i, i + 1, static_cast<int>(i % 2)});
  }
  const std::vector<FromPool> messages = registration(pool);
  std::vector<SequenceInfo> back;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string text = to_json(messages[i]);
    EXPECT_LT(text.size(), std::size_t{300} << 10);
    FromPool message = parse_from_pool(text);
    const auto& some = i == 0 ? std::get<RegisterPool>(message).sequences
                              : std::get<MoreSequences>(message).sequences;
    back.insert(back.end(), some.begin(), some.end());
  }
  ASSERT_EQ(back.size(), pool.sequences.size());
  for (std::size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i].id, i + 1);
  EXPECT_GT(messages.size(), 3U);
  EXPECT_EQ(std::get<RegisterPool>(messages[0]).more, messages.size() - 1);
  pool.sequences.clear();
  EXPECT_EQ(registration(pool).size(), 1U);
}

TEST(PoolMessages, OfOneDirectionAreUnknownInTheOther) {
  EXPECT_EQ(code_of([] { (void)parse_from_pool(to_json(samples_to_pool()[2])); }),
            ErrorCode::kMalformedInput);
  EXPECT_THAT(message_of([] { (void)parse_to_pool(to_json(samples_from_pool()[1])); }),
              HasSubstr("unknown type 'heartbeat'"));
}

TEST(PoolMessages, RefuseAnotherProtocolByName) {
  auto message = std::get<RegisterPool>(samples_from_pool()[0]);
  message.protocol = kPoolProtocol + 1;
  const std::string text = to_json(FromPool(message));
  EXPECT_EQ(code_of([&] { (void)parse_from_pool(text); }), ErrorCode::kUnsupported);
  EXPECT_THAT(message_of([&] { (void)parse_from_pool(text); }),
              HasSubstr(fmt::format("pool protocol {}", kPoolProtocol + 1)));
}

TEST(PoolMessages, CarryAnErrorThatIsNotANumber) {
  Heartbeat message;
  message.metrics.canary_error = std::numeric_limits<double>::quiet_NaN();
  const auto back = std::get<Heartbeat>(parse_from_pool(to_json(FromPool(message))));
  EXPECT_TRUE(std::isnan(back.metrics.canary_error));
}

TEST(PoolMessages, RefuseRanksBeyondTheWorkers) {
  auto message = std::get<RegisterPool>(samples_from_pool()[0]);
  message.sequences[0].home = 2;
  EXPECT_THAT(message_of([&] { (void)parse_from_pool(to_json(FromPool(message))); }),
              HasSubstr("sequences.home is 2: the pool has 2 workers"));
  message = std::get<RegisterPool>(samples_from_pool()[0]);
  message.sequences[0].extents[0].rank = 5;
  EXPECT_THAT(message_of([&] { (void)parse_from_pool(to_json(FromPool(message))); }),
              HasSubstr("rank is 5"));
}

TEST(PoolMessages, RefuseExtentsWithGaps) {
  for (const std::vector<Extent>& extents : std::vector<std::vector<Extent>>{
           {{0, 4096, 0}, {4100, 5000, 1}}, {{0, 4096, 0}}, {{1, 5000, 0}}, {{0, 6000, 0}}, {}}) {
    PoolReply reply;
    reply.sequence = sample_sequence();
    reply.sequence->extents = extents;
    EXPECT_EQ(code_of([&] { (void)parse_from_pool(to_json(FromPool(reply))); }),
              ErrorCode::kMalformedInput);
  }
}

TEST(PoolMessages, RefuseBadNamesAndKeys) {
  auto message = std::get<RegisterPool>(samples_from_pool()[0]);
  for (const char* name : {"", "a/b", "a b", "caf\xc3\xa9", "a\nb"}) {
    message.name = name;
    EXPECT_EQ(code_of([&] { (void)parse_from_pool(to_json(FromPool(message))); }),
              ErrorCode::kMalformedInput)
        << name;
  }
  auto admit = std::get<Admit>(samples_to_pool()[1]);
  admit.wanted.idempotency_key = "with space";
  EXPECT_EQ(code_of([&] { (void)parse_to_pool(to_json(ToPool(admit))); }),
            ErrorCode::kMalformedInput);
}

TEST(PoolMessages, RefuseWhatIsNotJson) {
  for (const char* text : {"", "{", "[]", "1", "{} {}", R"({"type":"free","type":"free"})"}) {
    EXPECT_EQ(code_of([&] { (void)parse_from_pool(text); }), ErrorCode::kMalformedInput) << text;
    EXPECT_EQ(code_of([&] { (void)parse_to_pool(text); }), ErrorCode::kMalformedInput) << text;
  }
}

TEST(PoolMessages, WriteTextThatIsNotUtf8) {
  PoolReply reply;
  reply.code = ErrorCode::kInternal;
  reply.message = "bad \xff byte";
  const auto back = std::get<PoolReply>(parse_from_pool(to_json(FromPool(reply))));
  EXPECT_EQ(back.message, "bad  byte");
}

TEST(SequenceIds, AreDecimalText) {
  EXPECT_EQ(id_text(0xffffffffffffffff), "18446744073709551615");
  EXPECT_EQ(parse_id("18446744073709551615"), 0xffffffffffffffff);
  EXPECT_EQ(parse_id("0"), 0U);
  for (const char* text :
       {"", "-1", "+1", "01", " 1", "1 ", "0x1", "1.0", "18446744073709551616", "one"}) {
    EXPECT_EQ(code_of([&] { (void)parse_id(text); }), ErrorCode::kMalformedInput) << text;
  }
}

}  // namespace
}  // namespace tributary
