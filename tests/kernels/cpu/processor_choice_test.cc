#include "kernels/cpu/processor_choice.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "kernels/cpu/kernel_table.h"

namespace tributary::cpu {
namespace {

constexpr std::array<std::string_view, 5> kAll{"AMX_BF16", "AVX3_BF16", "AVX3_BF16_FEW", "AVX3",
                                               "SCALAR"};
const Processor kSapphireRapids{.vendor = "GenuineIntel", .family = 6, .model = 143};

std::string_view chosen(const Processor& processor, std::span<const std::string_view> usable) {
  return usable[choose_for_processor(processor, usable).index];
}

TEST(ProcessorChoice, AProcessorOfTheTableTakesTheFirstOfItsLineThatIsUsable) {
  EXPECT_EQ(chosen(kSapphireRapids, kAll), "AMX_BF16");
  // Tiles that the system does not grant.
  EXPECT_EQ(chosen(kSapphireRapids, std::span(kAll).subspan(1)), "AVX3_BF16_FEW");
  EXPECT_EQ(chosen(kSapphireRapids, std::span(kAll).subspan(3)), "AVX3");
}

TEST(ProcessorChoice, Zen4TakesDotProductsWhateverElseItHas) {
  const Processor zen4{.vendor = "AuthenticAMD", .family = 25, .model = 17};
  EXPECT_EQ(chosen(zen4, std::span(kAll).subspan(1)), "AVX3_BF16");
  EXPECT_EQ(chosen(zen4, std::span(kAll).subspan(3)), "AVX3");
  EXPECT_EQ(choose_for_processor(zen4, std::span(kAll).subspan(1)).reason,
            "AuthenticAMD family 25 model 17: Zen 4: BF16 dot products, twice as fast as fp32 with "
            "any number of heads");
}

TEST(ProcessorChoice, Zen2AndZen3AreKnownByName) {
  constexpr std::array<std::string_view, 3> kUsable{"AVX2", "SSE4", "SCALAR"};
  for (const auto& [processor, name] :
       {std::pair(Processor{.vendor = "AuthenticAMD", .family = 23, .model = 49}, "Zen 2"),
        std::pair(Processor{.vendor = "AuthenticAMD", .family = 25, .model = 1}, "Zen 3")}) {
    EXPECT_EQ(chosen(processor, kUsable), "AVX2");
    EXPECT_TRUE(
        choose_for_processor(processor, kUsable)
            .reason.ends_with(std::string(name) + ": fp32 in 256 bits, no BF16 instructions"));
  }
}

TEST(ProcessorChoice, GraniteRapidsWithoutTilesIsAsSapphireRapids) {
  const Processor granite{.vendor = "GenuineIntel", .family = 6, .model = 173};
  EXPECT_EQ(chosen(granite, kAll), "AMX_BF16");
  EXPECT_EQ(chosen(granite, std::span(kAll).subspan(1)), "AVX3_BF16_FEW");
}

TEST(ProcessorChoice, ThePrefetchIsThatOfTheLineWhateverSetIsTaken) {
  const auto prefetch = [](const Processor& processor, std::size_t first) {
    return choose_for_processor(processor, std::span(kAll).subspan(first)).prefetch;
  };
  const Processor zen4{.vendor = "AuthenticAMD", .family = 25, .model = 17};
  const Processor zen5{.vendor = "AuthenticAMD", .family = 26, .model = 2};
  for (const std::size_t first : {1, 3, 4}) {
    EXPECT_EQ(prefetch(zen4, first), PrefetchInto::kSecondLevel) << first;
    EXPECT_EQ(prefetch(zen5, first), PrefetchInto::kFirstLevel) << first;
  }
  EXPECT_EQ(prefetch(kSapphireRapids, 0), PrefetchInto::kFirstLevel);
  EXPECT_EQ(prefetch({}, 0), PrefetchInto::kFirstLevel);
  EXPECT_EQ(prefetch_into(), choose_for_processor(this_processor(), kAll).prefetch);
}

TEST(ProcessorChoice, AnyOtherTakesTheFirst) {
  for (const Processor& processor :
       {Processor{}, Processor{.vendor = "AuthenticAMD", .family = 26, .model = 68},
        Processor{.vendor = "AuthenticAMD", .family = 6, .model = 143},
        Processor{.vendor = "GenuineIntel", .family = 6, .model = 85}}) {
    EXPECT_EQ(chosen(processor, std::span(kAll).subspan(1)), "AVX3_BF16") << processor.vendor;
  }
}

TEST(ProcessorChoice, TheReasonNamesTheProcessor) {
  EXPECT_EQ(choose_for_processor(kSapphireRapids, kAll).reason,
            "GenuineIntel family 6 model 143: Sapphire Rapids: tiles, or fp32 for more than 16 "
            "heads");
  EXPECT_EQ(choose_for_processor({"AuthenticAMD", 26, 68}, kAll).reason,
            "AuthenticAMD family 26 model 68 has no line in the table of processors");
  EXPECT_EQ(choose_for_processor(kSapphireRapids, std::span(kAll).subspan(3)).reason,
            "GenuineIntel family 6 model 143: AMX_BF16 or AVX3_BF16_FEW is not usable here");
}

TEST(ProcessorChoice, ThisProcessorsTablesBeginWithItsChoice) {
  EXPECT_EQ(kernel_table_reason().find(choose_for_processor(this_processor(), kAll)
                                           .reason.substr(0, this_processor().vendor.size())),
            0U);
  EXPECT_FALSE(usable_kernel_tables().empty());
}

}  // namespace
}  // namespace tributary::cpu
