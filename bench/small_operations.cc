#include "bench/small_operations.h"

#include <fmt/core.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "deploy/app/bench/decode_case.h"

namespace tributary::bench {
namespace {

constexpr int kBatch = 64;
constexpr int kHeads = 128;
constexpr int kNope = 128;
constexpr int kQueryRank = 1536;

/// Copies as many bytes as an operation moves: half are read, half are written.
class Copy {
 public:
  Copy(Backend& backend, double moved_bytes)
      : half_(static_cast<std::size_t>(moved_bytes) / 2),
        from_(backend.allocate(half_)),
        to_(backend.allocate(half_)) {
    std::memset(from_->data(), 1, half_);
    std::memset(to_->data(), 1, half_);
  }
  void run() const { std::memcpy(to_->data(), from_->data(), half_); }

 private:
  std::size_t half_;
  std::unique_ptr<Buffer> from_, to_;
};

void compare(Machine& machine, Backend& backend, const std::string& what, double bytes,
             const std::function<void()>& work) {
  // Long enough for the clock: what takes microseconds is repeated. Either way it finds in the
  // cache what a step finds there.
  constexpr double kLeastBytes = 32e6;
  const int times = bytes >= kLeastBytes ? 1 : static_cast<int>(kLeastBytes / bytes) + 1;
  const Copy copy(backend, bytes);
  const auto repeated = [times](const auto& one) {
    return [times, &one] {
      for (int i = 0; i < times; ++i) one();
    };
  };
  const auto copying = [&copy] { copy.run(); };
  const std::array<std::function<void()>, 2> works{repeated(work), repeated(copying)};
  const auto figures = machine.measure(works);
  if (figures[0].rounds == 0) {
    fmt::print("{:28} all {} rounds were disturbed\n", what, figures[0].dropped);
    return;
  }
  const double rate = bytes * times * 1e-9 / figures[0].seconds;
  const double copied = bytes * times * 1e-9 / figures[1].seconds;
  fmt::print("{:28} {:8.1f} us {:6.1f} GB/s, {:4.0f}% of a copy's {:5.1f}, {:4.0f}% of read\n",
             what, figures[0].seconds * 1e6 / times, rate, 100 * rate / copied, copied,
             100 * rate / machine.read_gb_s());
}

/// A new row of each sequence, in pages at random places of a cache of 75 MB; another slot at each
/// call, as in a decode.
void append(Machine& machine, Backend& backend) {
  constexpr int kPages = 1024;
  const auto cache = backend.make_cache({1, kPages, kRank, kRope, RowFormat::kBF16});
  constexpr std::size_t kRowBytes = kLatent * sizeof(bf16);
  const auto rows = backend.allocate(kBatch * kRowBytes);
  std::memset(rows->data(), 1, kBatch * kRowBytes);
  std::mt19937 random(7);
  std::vector<std::vector<AppendTask>> calls(256);
  for (auto& tasks : calls) {
    for (int i = 0; i < kBatch; ++i) {
      tasks.push_back({.item = 0,
                       .page = static_cast<std::int32_t>(random() % kPages),
                       .slot = static_cast<std::int32_t>(random() % kPageTokens),
                       .source = i});
    }
  }
  const std::vector<std::int32_t> item_layer(1);
  std::size_t next = 0;
  compare(machine, backend, "append", 2.0 * kBatch * kRowBytes, [&] {
    backend.call(AppendArgs{.cache = cache.get(),
                            .tasks = calls[next++ % calls.size()],
                            .item_layer = item_layer,
                            .source = rows->data(),
                            .source_stride_bytes = kRowBytes});
  });
}

/// The two leaves of each sequence of 4k rows: two states are read, one is written.
void merge(Machine& machine, Backend& backend) {
  const StateShape shape{kHeads, kRank};
  const auto states = backend.allocate(2 * kBatch * shape.record_bytes());
  const auto fill = [&] {
    for (std::size_t i = 0; i < 2 * kBatch * shape.record_floats(); ++i) {
      states->as<float>()[i] = static_cast<float>(i % 97) * 0.01F;
    }
  };
  fill();
  std::vector<MergeOp> ops;
  for (int i = 0; i < kBatch; ++i) {
    const std::int64_t left = 2 * static_cast<std::int64_t>(i);
    ops.push_back({.dst = left, .left = left, .right = left + 1, .tokens = 1});
  }
  compare(machine, backend, "merge", 3.0 * kBatch * static_cast<double>(shape.record_bytes()), [&] {
    backend.call(MergeArgs{.ops = ops, .shape = shape, .states = states->as<float>()});
  });
}

void norm(Machine& machine, Backend& backend, int width) {
  const auto x = backend.allocate(std::size_t{kBatch} * width * sizeof(float));
  const std::vector<float> weight(static_cast<std::size_t>(width), 1.0F);
  for (int i = 0; i < kBatch * width; ++i) x->as<float>()[i] = static_cast<float>(i % 31) - 15;
  compare(machine, backend, fmt::format("RMSNorm, width {}", width),
          2.0 * kBatch * width * sizeof(float), [&] {
            backend.call(RmsNormArgs{.tokens = kBatch,
                                     .width = width,
                                     .x = x->as<float>(),
                                     .x_token_stride = width,
                                     .weight = weight.data(),
                                     .eps = 1e-6F,
                                     .y = x->as<float>(),
                                     .y_token_stride = width});
          });
}

/// The queries' rotated part, from the product's layout into the absorbed query's.
void rope(Machine& machine, Backend& backend) {
  constexpr std::int64_t kFrom = kNope + kRope;
  const auto x = backend.allocate(sizeof(float) * kBatch * kHeads * kFrom);
  const auto y = backend.allocate(sizeof(float) * kBatch * kHeads * kLatent);
  std::memset(y->data(), 0, y->bytes());
  for (std::int64_t i = 0; i < kBatch * kHeads * kFrom; ++i) {
    x->as<float>()[i] = static_cast<float>(i % 13) - 6;
  }
  std::vector<double> frequencies(kRope / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1 / static_cast<double>(1 + 300 * i);
  }
  std::vector<std::int64_t> positions(kBatch);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    positions[i] = 4096 + 17 * static_cast<std::int64_t>(i);
  }
  compare(machine, backend, "RoPE, 128 heads", 2.0 * kBatch * kHeads * kRope * sizeof(float), [&] {
    backend.call(RopeArgs{.positions = positions,
                          .frequencies = frequencies,
                          .heads = kHeads,
                          .x = x->as<float>() + kNope,
                          .x_token_stride = kHeads * kFrom,
                          .x_head_stride = kFrom,
                          .y = y->as<float>() + kRank,
                          .y_token_stride = std::int64_t{kHeads} * kLatent,
                          .y_head_stride = kLatent});
  });
}

}  // namespace

void small_operations(Machine& machine, Backend& backend) {
  fmt::print("\nWhat else a step does, {} tokens, {} thread(s); a copy runs on one thread:\n",
             kBatch, machine.threads());
  append(machine, backend);
  merge(machine, backend);
  norm(machine, backend, kQueryRank);
  norm(machine, backend, kRank);
  rope(machine, backend);
}

}  // namespace tributary::bench
