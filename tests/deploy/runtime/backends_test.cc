// Backends by name.
#include "deploy/runtime/backends.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <optional>
#include <set>
#include <string>

#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(Backends, EveryListedNameMakesABackend) {
  const auto names = backend_names();
  EXPECT_EQ(names.front(), "cpu");
  EXPECT_THAT(names, Contains("reference"));
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
  for (const std::string& name : names) {
    const auto backend = make_backend(name, 1);
    ASSERT_NE(backend, nullptr) << name;
    if (name == "cpu") continue;  // an alias; every other name is the backend's own
    EXPECT_EQ(backend->name(), name);
  }
}

TEST(Backends, CpuIsTheFirstInstructionSet) {
  ASSERT_FALSE(cpu_instruction_sets().empty());
  EXPECT_EQ(make_backend("cpu", 1)->name(), "cpu/" + std::string(cpu_instruction_sets().front()));
}

TEST(Backends, UnknownNamesListWhatThereIs) {
  for (const char* name : {"", "gpu", "CPU", "cpu/", "cpu/NOPE", "cpu/cpu", "cpu/ SCALAR"}) {
    std::optional<Error> error;
    try {
      (void)make_backend(name, 1);
    } catch (const Error& e) {
      error = e;
    }
    ASSERT_TRUE(error.has_value()) << name;
    EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error->what(), HasSubstr(fmt::format("'{}'", name)));
    for (const std::string& there_is : backend_names()) {
      EXPECT_THAT(error->what(), HasSubstr(there_is));
    }
  }
}

/// While it lives the system refuses threads, as it does when it has too many: their stacks are
/// larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 50);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

TEST(Backends, AThreadThatTheSystemRefusesIsNoBugOfOurs) {
  const NoThreads none;
  try {
    (void)make_backend("cpu", 2);
    FAIL() << "there was a thread";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), testing::HasSubstr("pids.max"));
  }
}

TEST(Backends, TheFastMergeOrderIsCudasAlone) {
  EXPECT_EQ(parse_merge_order("canonical"), MergeOrder::kCanonical);
  EXPECT_EQ(parse_merge_order("fast"), MergeOrder::kFast);
  for (const char* name : {"cpu", "reference"}) {
    EXPECT_NE(make_backend(name, 1, {.merge_order = MergeOrder::kCanonical}), nullptr);
    const Status refused =
        status_of([&] { (void)make_backend(name, 1, {.merge_order = MergeOrder::kFast}); });
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.message(), HasSubstr(fmt::format("backend {} has", name)));
  }
}

TEST(Backends, AForcedAttendKernelIsCudasAlone) {
  for (const AttendChoice choice : kAttendChoices) {
    EXPECT_EQ(parse_attend_choice(attend_choice_name(choice)), choice);
  }
  const Status unknown = status_of([] { (void)parse_attend_choice("many"); });
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("auto, generic, few, many1 or many2"));
  const Status refused =
      status_of([] { (void)make_backend("cpu", 1, {.attend_kernel = AttendChoice::kFew}); });
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr("attend kernel is few, but backend cpu"));
}

}  // namespace
}  // namespace tributary
