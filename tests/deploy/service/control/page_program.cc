// A control plane and simulated pools for page_test.py, which sends commands on stdin:
//   pool NAME, lose NAME, admit TOKENS, stop (the control plane), and the end of the input.
#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "tests/deploy/service/control/control_harness.h"
#include "tests/deploy/service/control/simulated_pool.h"

namespace {

using tributary::ControlHarness;
using tributary::SimulatedPool;

void run(const std::string& token_file) {
  tributary::ControlOptions options = ControlHarness::quick_options();
  options.token_file = token_file;
  auto control = std::make_unique<ControlHarness>(options);
  std::map<std::string, std::unique_ptr<SimulatedPool>> pools;
  std::cout << control->address() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string what;
    std::string argument;
    words >> what >> argument;
    if (what == "pool") {
      tributary::SimulatedPoolConfig config;
      config.control = control->address();
      config.name = argument;
      config.workers = 4;
      config.pages_per_worker = 2000;
      pools[argument] = std::make_unique<SimulatedPool>(config);
      const auto registered = pools[argument]->wait_registered();
      if (registered.code != tributary::ErrorCode::kOk) {
        tributary::fail(registered.code, "{}", registered.message);
      }
    } else if (what == "lose") {
      pools.erase(argument);
    } else if (what == "admit") {
      const auto response = control->admit(std::stoll(argument), 0);
      if (response.status != 201)
        tributary::fail(tributary::ErrorCode::kInternal, "{}", response.body);
    } else if (what == "stop") {
      control.reset();
    } else {
      tributary::fail(tributary::ErrorCode::kInvalidArgument, "unknown line: {}", line);
    }
    std::cout << "done" << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "page_program: %s\n", error.what());
    return 1;
  }
  return 0;
}
