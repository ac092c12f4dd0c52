#include "tests/kernels/cuda/sm90/products90.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/dtype.h"

namespace tributary::simt {
namespace {

constexpr std::size_t kM = 64;
constexpr std::size_t kK = 16;
constexpr std::size_t kWarpRows = 16;            // of a sum, that a warp holds
constexpr std::uint32_t kInFlight = 0x7fedcba9;  // a NaN that nothing computes

// A matrix descriptor, PTX ISA: 14-bit fields in units of 16 bytes.
struct Descriptor {
  std::uint32_t start, leading, stride;

  explicit Descriptor(std::uint64_t bits)
      : start(field(bits, 0)), leading(field(bits, 16)), stride(field(bits, 32)) {
    if (bits >> 62 != 1) fault("wgmma: the emulation knows the 128-byte swizzle alone");
    if ((bits >> 49 & 7) != 0 || (start >> 7 & 7) != 0) {
      fault(fmt::format("wgmma: operand at {} is not in the first row of a swizzle", start));
    }
  }
  static std::uint32_t field(std::uint64_t bits, unsigned shift) {
    return static_cast<std::uint32_t>(bits >> shift & 0x3fff) << 4;
  }
};

constexpr std::uint32_t kChunk = 8;  // elements of the 16 bytes that a swizzle keeps together

// The swizzle exchanges chunks by the row of 128 bytes, as address bits.
void read_chunk(OperandView view, std::uint32_t address, float* values) {
  const std::uint32_t swizzled = address ^ (address >> 7 & 7) << 4;
  std::array<bf16, kChunk> chunk{};
  view.unpublished.check(swizzled, sizeof(chunk), "a product");
  std::memcpy(chunk.data(), view.block.shared(swizzled, sizeof(chunk), sizeof(chunk)),
              sizeof(chunk));
  for (const bf16 value : chunk) *values++ = to_float(value);
}

// K-major, as [rows][k]: 8 rows a swizzle atom, atoms `stride` apart.
std::vector<float> read_rows(OperandView view, std::uint64_t bits, std::size_t rows) {
  const Descriptor descriptor(bits);
  std::vector<float> values(rows * kK);
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (std::uint32_t k = 0; k < kK; k += kChunk) {
      read_chunk(view, descriptor.start + row / 8 * descriptor.stride + row % 8 * 128 + k * 2,
                 &values[row * kK + k]);
    }
  }
  return values;
}

// MN-major, as [k][columns]: 8 k x 64 columns an atom; atoms `stride` apart along k and `leading`
// along the columns.
std::vector<float> read_columns(OperandView view, std::uint64_t bits, std::size_t columns) {
  const Descriptor descriptor(bits);
  std::vector<float> values(kK * columns);
  for (std::uint32_t k = 0; k < kK; ++k) {
    for (std::uint32_t column = 0; column < columns; column += kChunk) {
      read_chunk(view,
                 descriptor.start + column / 64 * descriptor.leading + k / 8 * descriptor.stride +
                     k % 8 * 128 + column % 64 * 2,
                 &values[k * columns + column]);
    }
  }
  return values;
}

// b as [k][columns], whichever way it lies.
std::vector<float> read_b(OperandView view, std::uint64_t bits, std::size_t columns,
                          bool b_columns) {
  if (b_columns) return read_columns(view, bits, columns);
  const std::vector<float> rows = read_rows(view, bits, columns);
  std::vector<float> values(rows.size());
  for (std::size_t column = 0; column < columns; ++column) {
    for (std::size_t k = 0; k < kK; ++k) values[k * columns + column] = rows[column * kK + k];
  }
  return values;
}

bool same_bits(std::span<const float> x, std::span<const float> y) {
  return std::memcmp(x.data(), y.data(), x.size_bytes()) == 0;
}

// Index into [64][columns] of register i of a thread.
std::size_t place(std::size_t thread, std::size_t i, std::size_t columns) {
  const std::size_t row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
  return row * columns + i / 4 * 8 + thread % 4 * 2 + i % 2;
}

// a [64][16] from the registers of all threads.
std::vector<float> gather_a(const std::vector<void*>& threads) {
  std::vector<float> values(kM * kK);
  for (std::size_t t = 0; t < threads.size(); ++t) {
    const std::uint32_t* part = static_cast<const Product*>(threads[t])->a_part;
    for (std::size_t i = 0; i < 8; ++i) {
      const std::size_t row = t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8;
      const std::size_t k = i / 4 * 8 + t % 4 * 2 + i % 2;
      values[row * kK + k] =
          to_float(bf16{static_cast<std::uint16_t>(part[i / 2] >> (16 * (i % 2)))});
    }
  }
  return values;
}

}  // namespace

void UnpublishedWrites::add(unsigned thread, std::uint32_t address, std::size_t bytes) {
  const std::size_t end = (address + bytes + 3) / 4;
  if (writer_.size() < end) writer_.resize(end);
  for (std::uint32_t word = address / 4; word < end; ++word) {
    writer_[word] = thread + 1;
    words_[thread].push_back(word);
  }
}

void UnpublishedWrites::publish(unsigned thread) {
  for (const std::uint32_t word : words_[thread]) {
    if (writer_[word] == thread + 1) writer_[word] = 0;
  }
  words_[thread].clear();
}

void UnpublishedWrites::check(std::uint32_t address, std::size_t bytes, const char* user) const {
  for (std::size_t word = address / 4; word < (address + bytes + 3) / 4 && word < writer_.size();
       ++word) {
    if (writer_[word] != 0) {
      fault(fmt::format("{} uses {}, which thread {} wrote without fence.proxy.async", user,
                        word * 4, writer_[word] - 1));
    }
  }
}

std::size_t WarpGroupProducts::sum_of(const std::vector<void*>& threads, std::size_t columns) {
  const float* first = static_cast<const Product*>(threads.front())->sum;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (sums_[i].registers.front() == first) return i;
  }
  Sum sum{columns, {}, std::vector<float>(kM * columns)};
  for (std::size_t t = 0; t < threads.size(); ++t) {
    float* registers = static_cast<const Product*>(threads[t])->sum;
    sum.registers.push_back(registers);
    for (std::size_t i = 0; i < columns / 2; ++i) {
      sum.values[place(t, i, columns)] = registers[i];
      registers[i] = std::bit_cast<float>(kInFlight);
    }
  }
  sums_.push_back(std::move(sum));
  return sums_.size() - 1;
}

void WarpGroupProducts::read(OperandView view, const Product& product, std::size_t columns,
                             bool b_columns) {
  if (next_) return;
  Operation operation;
  operation.columns = columns;
  operation.product = product;
  operation.b_columns = b_columns;
  if (product.a_part == nullptr) operation.a = read_rows(view, product.a, kM);
  operation.b = read_b(view, product.b, columns, b_columns);
  next_ = std::move(operation);
}

void WarpGroupProducts::issue(const std::vector<void*>& threads) {
  if (!begun_.all()) fault("wgmma: no wgmma.fence since the sums were last waited for");
  if (finished_.any()) fault("wgmma: a warp issues before another has waited");
  const Product& first = next_->product;
  for (const void* thread : threads) {
    const Product& other = *static_cast<const Product*>(thread);
    if (other.a != first.a || other.b != first.b || other.accumulate != first.accumulate) {
      fault("wgmma: threads of a warpgroup differ in their operands");
    }
  }
  if (first.a_part != nullptr) next_->a = gather_a(threads);
  next_->sum = sum_of(threads, next_->columns);
  operations_.push_back(*std::move(next_));
  next_.reset();
}

void WarpGroupProducts::multiply(const Operation& operation, Sum& sum, unsigned warp) {
  std::vector<double> row;
  for (std::size_t m = warp * kWarpRows; m < (warp + 1) * kWarpRows; ++m) {
    row.assign(sum.columns, 0);
    for (std::size_t k = 0; k < kK; ++k) {
      const double a = operation.a[m * kK + k];
      const float* b = &operation.b[k * sum.columns];
      for (std::size_t n = 0; n < sum.columns; ++n) row[n] += a * static_cast<double>(b[n]);
    }
    float* values = &sum.values[m * sum.columns];
    for (std::size_t n = 0; n < sum.columns; ++n) {
      const double before = operation.product.accumulate ? values[n] : 0.0;
      values[n] = static_cast<float>(before + row[n]);
    }
  }
}

void WarpGroupProducts::finish(OperandView view, unsigned warp) {
  if (committed_ != operations_.size()) {
    fault("wgmma: waiting for products that were not committed");
  }
  const std::size_t rows_at = warp * kWarpRows * kK;
  for (const Operation& operation : operations_) {
    const std::vector<float> a = operation.product.a_part == nullptr
                                     ? read_rows(view, operation.product.a, kM)
                                     : operation.a;
    if (!same_bits(std::span(operation.a).subspan(rows_at, kWarpRows * kK),
                   std::span(a).subspan(rows_at, kWarpRows * kK)) ||
        !same_bits(operation.b,
                   read_b(view, operation.product.b, operation.columns, operation.b_columns))) {
      fault("wgmma: an operand changed while the product was under way");
    }
    multiply(operation, sums_[operation.sum], warp);
  }
  for (const Sum& sum : sums_) {
    for (std::size_t t = std::size_t{warp} * kWarpLanes; t < (warp + 1) * kWarpLanes; ++t) {
      for (std::size_t i = 0; i < sum.columns / 2; ++i) {
        float& target = sum.registers[t][i];
        if (std::bit_cast<std::uint32_t>(target) != kInFlight) {
          fault("wgmma: a sum was written while a product added to it");
        }
        target = sum.values[place(t, i, sum.columns)];
      }
    }
  }
  for (unsigned lane = 0; lane < kWarpLanes; ++lane) begun_.reset(warp * kWarpLanes + lane);
  finished_.set(warp);
  if (!finished_.all()) return;
  finished_.reset();
  sums_.clear();
  operations_.clear();
  committed_ = 0;
}

}  // namespace tributary::simt
