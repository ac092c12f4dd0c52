// Runs all tests on all ranks. Rank 0 prints as usual, the others only failures. A rank's exit
// status is 0 only if every test passed on it, and mpirun's is 0 only if that of every rank is.
#include "tests/mpi_test_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string>

namespace tributary::testing_support {
namespace {

const MpiEnvironment* g_environment = nullptr;

class FailurePrinter : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int rank) : rank_(rank) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fputs(("[rank " + std::to_string(rank_) + "] " +
                (result.file_name() != nullptr ? result.file_name() : "unknown file") + ":" +
                std::to_string(result.line_number()) + ": " + result.message() + "\n")
                   .c_str(),
               stdout);
    std::fflush(stdout);
  }

 private:
  int rank_;
};

int run(int argc, char** argv) {
  const MpiEnvironment environment(&argc, &argv);
  g_environment = &environment;  // before test parameters are made, which may depend on it
  testing::InitGoogleTest(&argc, argv);
  testing::UnitTest& unit_test = *testing::UnitTest::GetInstance();
  if (environment.rank() != 0) {
    testing::TestEventListeners& listeners = unit_test.listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(environment.rank()));  // gtest owns it
  }
  const int status = RUN_ALL_TESTS();
  g_environment = nullptr;
  if (unit_test.test_to_run_count() == 0) {
    std::fputs("no test was selected\n", stderr);
    return 1;
  }
  return status;
}

}  // namespace

const MpiEnvironment& mpi_environment() {
  return *g_environment;
}

}  // namespace tributary::testing_support

int main(int argc, char** argv) {
  try {
    return tributary::testing_support::run(argc, argv);
  } catch (const std::exception& error) {
    std::fputs((std::string(error.what()) + "\n").c_str(), stderr);
    return 1;
  }
}
