// What `up` passes on of its children's output, and what it keeps as the reason of their end.
#include "deploy/app/up/child_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace tributary {
namespace {

constexpr auto kBorder = "--------------------------------------------------------------------\n";

TEST(ChildLog, PassesOnWholeLinesAndKeepsTheFirstError) {
  ChildLog log(/*launcher_too=*/false);
  EXPECT_EQ(log.pass_on("tributary: a word\ntributary: not_"), "tributary: a word\n");
  EXPECT_FALSE(log.reason().has_value());
  EXPECT_EQ(log.pass_on("found: nobody\ntributary: io: later\nlistening on http://a\nx\n"), "x\n");
  ASSERT_TRUE(log.reason().has_value());
  EXPECT_EQ(log.reason()->code(), ErrorCode::kNotFound);
  EXPECT_EQ(log.reason()->message(), "nobody");
}

TEST(ChildLog, TheLaunchersWordsAreLeftOutUnlessAskedFor) {
  const std::string words =
      std::string("a\n") + kBorder + "mpirun noticed that\n" + kBorder + "b\n";
  EXPECT_EQ(ChildLog(false).pass_on(words), "a\nb\n");
  EXPECT_EQ(ChildLog(true).pass_on(words), words);
}

TEST(ChildLog, AWordThatIsNoCodeIsNoError) {
  ChildLog log(false);
  EXPECT_EQ(log.pass_on("tributary: placement by cpu: figures\n"),
            "tributary: placement by cpu: figures\n");
  EXPECT_FALSE(log.reason().has_value());
}

/// The reason that a child's output gives, none of which is passed on.
std::string reason_of(const std::string& output) {
  ChildLog log(false);
  EXPECT_EQ(log.pass_on(output), "") << output;
  const auto reason = log.reason();
  return reason ? fmt::format("{}: {}", error_code_name(reason->code()), reason->message()) : "";
}

// As Open MPI 4.1.4 says it.
TEST(ChildLog, AWorkerThatASignalEndedIsNamed) {
  const std::string words = std::string(kBorder) +
                            "mpirun noticed that process rank 1 with PID 30159 on node vm exited "
                            "on signal 9 (Killed).\n" +
                            kBorder;
  EXPECT_EQ(reason_of("tributary: worker_failed: rank 1 is gone\n" + words),
            "unavailable: worker 1 was ended by signal 9 (Killed), which the kernel sends when "
            "memory runs out");
}
// As Open MPI 5 says it: on two lines.
TEST(ChildLog, AWorkerThatASignalEndedIsNamedOnTwoLinesToo) {
  const std::string words = std::string(kBorder) +
                            "prterun noticed that process rank 0 with PID 7 on node vm exited on\n"
                            "signal 11 (Segmentation fault).\n" +
                            kBorder;
  EXPECT_EQ(reason_of(words), "unavailable: worker 0 was ended by signal 11 (Segmentation fault)");
}

TEST(ChildLog, AMachineThatMpirunCannotWorkOnIsSaid) {
  const struct {
    std::string output, reason;
  } cases[] = {
      {std::string(kBorder) +
           "There are not enough slots available in the system to satisfy the 4\n"
           "slots that were requested by the application:\n" +
           kBorder,
       "invalid_argument: the batch system's allocation, or the hosts given, have fewer tasks than "
       "--workers"},
      {std::string(kBorder) +
           "It appears as if there is not enough space for /dev/shm/vader_segment.vm.0.13a90001.0 "
           "(the shared-memory backing\nfile). It is likely that your MPI job will now either "
           "abort or experience\nperformance degradation.\n" +
           kBorder + "[vm:32613] *** An error occurred in MPI_Init\n",
       "io: /dev/shm is too small: Open MPI takes 4 MiB of it for each worker (containers: "
       "--shm-size)"},
      {"[vm:32588] opal_ifinit: unable to find network interfaces.\n",
       "io: mpirun finds no IPv4 address on this machine, not even 127.0.0.1, and it needs one"},
      {"[vm:30165] [[6443,0],0] ORTE_ERROR_LOG: The system limit on number of pipes a process can "
       "open was reached in file ../iof_base_setup.c at line 116\nmpirun: abort is already in "
       "progress...hit ctrl-c again to forcibly terminate\n",
       "io: too few descriptors for mpirun (ulimit -n)"},
      {"mpirun.sh: mpirun is not installed\n", "io: mpirun is not installed"},
      {"tributary: ended by std::bad_alloc\n", "unavailable: ended by std::bad_alloc"},
      {std::string(kBorder) + "Something else.\n" + kBorder, ""},
  };
  for (const auto& [output, reason] : cases) EXPECT_EQ(reason_of(output), reason);
}

TEST(ChildLog, AnErrorOfOursSaysMoreThanMpirunsWordsAboutIt) {
  EXPECT_EQ(reason_of("[vm:1] opal_ifinit: unable to find network interfaces.\n"
                      "tributary: io: a file\n"),
            "io: a file");
}

}  // namespace
}  // namespace tributary
