// A report replaces its file whole or not at all.
#include "deploy/app/report_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/base/error.h"

namespace tributary {
namespace {

namespace fs = std::filesystem;

/// Files of this process have at most this many bytes: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

class ReportFile : public testing::Test {
 protected:
  ReportFile() { fs::create_directory(folder_); }
  ~ReportFile() override { fs::remove_all(folder_); }
  [[nodiscard]] std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(folder_), {});
  }

  const fs::path folder_ =
      fs::temp_directory_path() / ("tributary_report." + std::to_string(getpid()));
  const fs::path path_ = folder_ / "report.json";
};

TEST_F(ReportFile, OnAFullDiskLeavesTheEarlierFileAlone) {
  write_file(path_, "earlier");
  ErrorCode code = ErrorCode::kOk;
  {
    const FullDisk full(100'000);
    try {
      write_file(path_, std::string(200'000, 'x'));
    } catch (const Error& error) {
      code = error.code();
    }
  }
  EXPECT_EQ(code, ErrorCode::kIo);
  EXPECT_EQ(files(), 1);
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "earlier");
}

TEST_F(ReportFile, ReplacesAnEarlierOne) {
  write_file(path_, "earlier, and longer");
  write_file(path_, "later");
  EXPECT_EQ(files(), 1);
  std::string text;
  std::getline(std::ifstream(path_), text);
  EXPECT_EQ(text, "later");
}

}  // namespace
}  // namespace tributary
