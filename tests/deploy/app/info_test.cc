// `tributary info`: complete, and a table whose columns stand apart.
#include "deploy/app/info/info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "core/model/mla_shape.h"
#include "deploy/runtime/backends.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

TEST(Info, NamesEverythingThatFlagsTake) {
  const std::string text = info_text();
  EXPECT_THAT(text, HasSubstr("tributary " + std::string(version())));
  for (const std::string& name : backend_names()) EXPECT_THAT(text, HasSubstr(name));
  for (const MlaShape& shape : mla_presets()) EXPECT_THAT(text, HasSubstr(shape.name));
  EXPECT_THAT(text, HasSubstr("threads"));
  EXPECT_THAT(text, HasSubstr("\nprocessor         " + cpu_instruction_set_reason() + "\n"));
}

TEST(Info, NamesTheVersionsThatItRunsWith) {
  const std::string text = info_text();
  for (const char* line :
       {"\nucx +[0-9]+[.][0-9]+[.][0-9]+\n", "\ndata plane +(tcp|ucx) [(]auto: .*[)]\n",
        "\nlibraries +OpenSSL [0-9.]+, glibc [0-9.]+\n",
        "\nbuilt with +.*[0-9.]+, Boost [0-9]+[.][0-9]+, Highway [0-9.]+\n"}) {
    EXPECT_THAT(text, ContainsRegex(line));
  }
#ifdef TRIBUTARY_HAS_MPI
  EXPECT_THAT(text, ContainsRegex("\nmpi +[A-Z].*[0-9]+[.][0-9]+[^,]*\n"));
#endif
}

TEST(Info, ColumnsOfTheShapesStandApart) {
  std::istringstream text(info_text());
  std::vector<std::string> table;
  for (std::string line; std::getline(text, line);) {
    if (!table.empty() || line.starts_with("shape ")) table.push_back(line);
  }
  ASSERT_EQ(table.size(), mla_presets().size() + 1);
  // Cells are right-aligned and two blanks apart: no letter touches another column's.
  for (const std::string& line : table) {
    EXPECT_LE(line.size(), 100U);
    EXPECT_EQ(line.size(), table[0].size()) << line;
    std::size_t cells = 1;
    for (std::size_t at = line.find("  "); at != std::string::npos;
         at = line.find("  ", line.find_first_not_of(' ', at))) {
      ++cells;
    }
    EXPECT_EQ(cells, 9U) << line;
  }
}

TEST(Info, ShapesHaveTheirSoftmaxScale) {
  // Of Kimi K2 and K2.5 all else is the same.
  EXPECT_THAT(info_text(), ContainsRegex("kimi-k2 [^\n]* 0.130861 "));
  EXPECT_THAT(info_text(), ContainsRegex("kimi-k2.5 [^\n]* 0.144680 "));
  EXPECT_THAT(info_json(), ContainsRegex("\"softmax_scale\": 0.14467962"));
}

TEST(Info, BytesPerTokenAreThoseOfTheDesign) {
  // 512 + 64 values of two bytes; 61 layers of them.
  EXPECT_THAT(info_text(), testing::ContainsRegex("deepseek-v3 [^\n]* 1152 +70272\n"));
}

}  // namespace
}  // namespace tributary
