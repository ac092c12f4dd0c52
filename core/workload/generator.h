// Latent rows and queries from counters: the same values for a (sequence, layer, position) on any
// worker, in any order.
#pragma once

#include <cstdint>
#include <span>

namespace tributary {

/// Element e of a vector is a sum of four 16-bit uniforms drawn from mix64(key + e * kGoldenGamma)
/// (Irwin-Hall: bell-shaped, within +-3.5 standard deviations), computed in integers and one fp32
/// multiplication, so that every machine gets the same bits.
class TokenGenerator {
 public:
  explicit TokenGenerator(std::uint64_t seed) : seed_(seed) {}

  /// Latent row of a token: standard deviation 1, as after RMSNorm.
  void row(std::int64_t tag, int layer, std::int64_t position, std::span<float> out) const;
  /// Absorbed query of a token, all heads: standard deviation `kQueryDeviation`, which gives
  /// scaled scores with a deviation of about 1.6 on DeepSeek's shapes.
  void query(std::int64_t tag, int layer, std::int64_t position, std::span<float> out) const;

  /// Positions that a token selects out of those up to its own: all where they fit, else one at
  /// random out of each of as many equal parts; ascending, -1 behind the last.
  void selected(std::int64_t tag, int layer, std::int64_t position,
                std::span<std::int32_t> out) const;

  static constexpr float kQueryDeviation = 0.5F;

 private:
  std::uint64_t seed_;
};

}  // namespace tributary
