// The reader of request traces.
#include "core/workload/trace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

constexpr ErrorCode kMalformed = ErrorCode::kMalformedInput;

std::vector<TraceRequest> read(const std::string& text, std::size_t limit = 0) {
  std::istringstream in(text);
  return read_trace(in, "trace", limit);
}

std::string request(double timestamp, std::int64_t input, std::int64_t output) {
  return fmt::format(R"({{"timestamp": {}, "input_length": {}, "output_length": {}}})", timestamp,
                     input, output);
}

TEST(ReadTrace, ReadsRequests) {
  const auto requests = read(
      R"({"timestamp": 0, "input_length": 1025, "output_length": 7, "hash_ids": [5, 6, 7]})"
      "\n\n  \t\r\n"
      R"({"output_length": 2147483647, "input_length": 1, "timestamp": 0.5, "user": {"a": []}})"
      "\r\n" +
      request(0.5, 512, 1));  // no line end
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].timestamp_ms, 0);
  EXPECT_EQ(requests[0].input_length, 1025);
  EXPECT_EQ(requests[0].output_length, 7);
  EXPECT_THAT(requests[0].hash_ids, testing::ElementsAre(5, 6, 7));
  EXPECT_EQ(requests[1].timestamp_ms, 0.5);
  EXPECT_EQ(requests[1].input_length, 1);
  EXPECT_EQ(requests[1].output_length, 2147483647);
  EXPECT_TRUE(requests[1].hash_ids.empty());
  EXPECT_EQ(requests[2].input_length, 512);
}

TEST(ReadTrace, ReadsNothingFromNothing) {
  EXPECT_TRUE(read("").empty());
  EXPECT_TRUE(read("\n\n").empty());
}

TEST(ReadTrace, StopsAtTheLimitWithoutLookingFurther) {
  const std::string text = request(0, 1, 1) + "\n" + request(1, 2, 1) + "\nnonsense\n";
  EXPECT_EQ(read(text, 1).size(), 1U);
  EXPECT_EQ(read(text, 2).size(), 2U);
  EXPECT_THROW((void)read(text, 3), Error);
}

TEST(ReadTrace, HashIdsMayLeaveOutAnIncompleteLastBlock) {
  const auto ids = [](std::string_view list) {
    return fmt::format(R"({{"timestamp":0,"input_length":1025,"output_length":1,"hash_ids":{}}})",
                       list);
  };
  EXPECT_EQ(read(ids("[1,2,3]"))[0].hash_ids.size(), 3U);
  EXPECT_EQ(read(ids("[1,2]"))[0].hash_ids.size(), 2U);
  EXPECT_EQ(read(ids("[]"))[0].hash_ids.size(), 0U);
  EXPECT_EQ(read(ids("null"))[0].hash_ids.size(), 0U);
  TRIBUTARY_EXPECT_ERROR(read(ids("[1]")), kMalformed,
                         "trace line 1: hash_ids has 1 entries, but 1025 prompt tokens have 3");
  TRIBUTARY_EXPECT_ERROR(read(ids("[1,2,3,4]")), kMalformed, "has 4 entries");
  TRIBUTARY_EXPECT_ERROR(read(ids("[1,2,-3]")), kMalformed, "hash_ids holds '-3'");
  TRIBUTARY_EXPECT_ERROR(read(ids("[1,2,9223372036854775808]")), kMalformed,
                         "holds '9223372036854775808'");
  TRIBUTARY_EXPECT_ERROR(read(ids("[1,2,\"3\"]")), kMalformed, "hash_ids holds");
  TRIBUTARY_EXPECT_ERROR(read(ids("{}")), kMalformed, "hash_ids is '{}', must be an array");
}

TEST(ReadTrace, NamesTheLineOfEveryMistake) {
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"nonsense", "not valid JSON"},
      {"{", "not valid JSON"},
      {"[]", "is '[]', must be a JSON object"},
      {"7", "is '7', must be a JSON object"},
      {"{}", "timestamp is missing"},
      {R"({"timestamp": 9, "timestamp": 9})", "JSON key 'timestamp' occurs twice"},
      {R"({"timestamp": 9, "output_length": 1})", "input_length is missing"},
      {R"({"timestamp": 9, "input_length": 1})", "output_length is missing"},
      {R"({"timestamp": "9", "input_length": 1, "output_length": 1})", "timestamp is '\"9\"'"},
      {R"({"timestamp": null, "input_length": 1, "output_length": 1})", "timestamp is 'null'"},
      {R"({"timestamp": 1e999, "input_length": 1, "output_length": 1})", "not valid JSON"},
      {request(-1, 1, 1), "timestamp is '-1', must be a number from 0 up"},
      {request(8.5, 1, 1), "timestamp is 8.5, before the previous request's 9"},
      {request(9, 0, 1), "input_length is '0', must be an integer in 1 .. 2147483647"},
      {request(9, -1, 1), "input_length is '-1'"},
      {request(9, 2147483648, 1), "input_length is '2147483648'"},
      {request(9, 1, 0), "output_length is '0'"},
      {R"({"timestamp": 9, "input_length": 1.0, "output_length": 1})", "input_length is '1.0'"},
      {R"({"timestamp": 9, "input_length": true, "output_length": 1})", "input_length is 'true'"},
      {R"({"timestamp": 9, "input_length": 18446744073709551617, "output_length": 1})",
       "input_length is '1.8"},
      {std::string(2'000'000, ' '), "longer than 1048576 bytes"},
      {std::string(500'000, '['), "nests deeper"},
  };
  for (const auto& mistake : mistakes) {
    const std::string& line = mistake.first;
    const std::string& message = mistake.second;
    SCOPED_TRACE(message);
    // The blank line counts as a line.
    TRIBUTARY_EXPECT_ERROR(read(request(9, 1, 1) + "\n\n" + line + "\n" + request(9, 1, 1)),
                           kMalformed, "trace line 3: ");
    TRIBUTARY_EXPECT_ERROR(read(request(9, 1, 1) + "\n\n" + line), kMalformed, message);
  }
}

TEST(ReadTrace, ReadsLinesLongerThanItsBuffer) {
  // Lines of 16384 - 2 .. + 2 bytes, around the size of one read.
  for (std::size_t length = 16382; length <= 16386; ++length) {
    std::string line = request(1, 2, 3);
    line += std::string(length - line.size(), ' ');
    EXPECT_EQ(read(fmt::format("{0}\n{0}\n", line)).size(), 2U) << length;
    EXPECT_EQ(read(fmt::format("{0}\n{0}", line)).size(), 2U) << length;
  }
}

TEST(ReadTrace, ReadsFiles) {
  test::TemporaryFolder folder;
  EXPECT_EQ(read_trace(folder.write("trace.jsonl", request(0, 1, 1) + "\n")).size(), 1U);
  TRIBUTARY_EXPECT_ERROR(read_trace(folder.path() / "absent"), ErrorCode::kIo, "cannot be opened");
  TRIBUTARY_EXPECT_ERROR(read_trace(folder.path()), ErrorCode::kIo, "cannot be read");
}

TEST(ReadTrace, ReadsTheConversationTrace) {
  const auto path = test::shared_file("traces/conversation_trace.jsonl");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "absent: " << path;
  const auto requests = read_trace(path);
  ASSERT_EQ(requests.size(), 12031U);
  std::int64_t longest = 0;
  std::size_t hash_ids = 0;
  for (const TraceRequest& request : requests) {
    longest = std::max(longest, request.input_length);
    hash_ids += request.hash_ids.size();
  }
  EXPECT_EQ(longest, 126195);
  EXPECT_EQ(hash_ids, 288500U);
  EXPECT_EQ(read_trace(path, 64).size(), 64U);
}

}  // namespace
}  // namespace tributary
