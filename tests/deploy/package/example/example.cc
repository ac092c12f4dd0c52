// A program outside the tree that decodes one token through a tier, as an engine does, with made-up
// rows and queries.
#include <tributary/client.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

namespace {

/// A bf16 value near `x`.
std::uint16_t half(float x) {
  std::uint32_t bits = 0;
  static_assert(sizeof bits == sizeof x);
  __builtin_memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

int decode(const std::string& url) {
  tributary::TierClient tier({.url = url});
  constexpr int kPrompt = 200;
  auto sequence = tier.admit({.prompt_tokens = kPrompt, .max_new_tokens = 1});
  const auto& shape = sequence.shape;
  const auto width = static_cast<std::size_t>(shape.kv_lora_rank + shape.qk_rope_head_dim);
  std::vector<std::uint16_t> rows(kPrompt * width);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = half(std::sin(static_cast<float>(i)));
  for (int layer = 0; layer < shape.layers; ++layer) {
    tier.push_rows(sequence, layer, 0, std::as_bytes(std::span(rows)));
  }
  tier.wait_ready(sequence);
  const auto heads = static_cast<std::size_t>(shape.heads);
  std::vector<std::uint16_t> query(heads * width, half(0.5F));
  std::vector<std::uint16_t> row(width, half(0.5F));
  std::vector<float> output(heads * (static_cast<std::size_t>(shape.kv_lora_rank) + 1));
  tributary::LayerItem item{.sequence = &sequence,
                            .tokens = 1,
                            .query = {query.data()},
                            .row = {row.data()},
                            .output = output.data()};
  for (int layer = 0; layer < shape.layers; ++layer) tier.attend({&item, 1}, layer);
  auto* step = &sequence;
  const std::int32_t accepted = 1;
  tier.commit({&step, 1}, {&accepted, 1});
  std::vector<std::uint16_t> back(rows.size() + width);
  const tributary::PulledRows pulled{&sequence, 0, 0, std::as_writable_bytes(std::span(back))};
  tier.pull_rows({&pulled, 1});
  rows.insert(rows.end(), row.begin(), row.end());
  if (back != rows) {
    std::printf("other rows came back\n");
    return 1;
  }
  double sum = 0;
  for (const float value : output) sum += std::abs(value);
  std::printf("decoded position %lld of %d layers, output %s\n",
              static_cast<long long>(sequence.length - 1), shape.layers,
              std::isfinite(sum) && sum > 0 ? "finite" : "NOT FINITE");
  tier.free(sequence);
  return std::isfinite(sum) && sum > 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return decode(argc > 1 ? argv[1] : "http://127.0.0.1:7300");
  } catch (const tributary::Error& error) {  // thrown inside the library
    std::fprintf(stderr, "example: %s: %s\n",
                 std::string(tributary::error_code_name(error.code())).c_str(), error.what());
    return 2;
  }
}
