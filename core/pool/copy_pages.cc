#include "core/pool/copy_pages.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/limits.h"
#include "core/pool/gather_all.h"

namespace tributary {
namespace {

/// The copies of one direction on one rank: their blocks, one page each, grouped by peer.
class Blocks {
 public:
  Blocks(std::span<const PageCopy> copies, std::int32_t PageCopy::*own, int rank,
         std::int32_t PageCopy::*peer, int ranks, std::size_t block_bytes)
      : counts_(static_cast<std::size_t>(ranks), 0), block_bytes_(block_bytes) {
    for (int r = 0; r < ranks; ++r) {
      for (const PageCopy& copy : copies) {
        if (copy.*own != rank || copy.*peer != r) continue;
        copies_.push_back(copy);
        counts_[static_cast<std::size_t>(r)] += block_bytes;
      }
    }
    bytes_.resize(copies_.size() * block_bytes);
  }

  template <typename Visit>
  void for_each(Visit visit) {
    for (std::size_t i = 0; i < copies_.size(); ++i) {
      visit(copies_[i], std::span(bytes_).subspan(i * block_bytes_, block_bytes_));
    }
  }
  [[nodiscard]] bool empty() const noexcept { return copies_.empty(); }
  [[nodiscard]] std::span<std::byte> bytes() noexcept { return bytes_; }
  [[nodiscard]] std::span<const std::size_t> counts() const noexcept { return counts_; }

 private:
  std::vector<PageCopy> copies_;
  std::vector<std::size_t> counts_;
  std::size_t block_bytes_;
  std::vector<std::byte> bytes_;
};

}  // namespace

Status copy_pages(std::span<const PageCopy> copies, Backend& backend, Cache& cache,
                  Communicator& communicator, Deadline deadline, const Clock& clock,
                  Status& failure, Duration& took) {
  took = {};
  const int ranks = communicator.size();
  for (const PageCopy& copy : copies) {  // the same on every rank: none enters the exchange
    const bool known = copy.from >= 0 && copy.from < ranks && copy.to >= 0 && copy.to < ranks &&
                       copy.rows > 0 && copy.rows <= kPageTokens;
    if (known) continue;
    if (failure.ok()) {
      failure = {ErrorCode::kInvalidArgument,
                 fmt::format("copy of {} rows of a page from worker {} to worker {}: there are {}",
                             copy.rows, copy.from, copy.to, ranks)};
    }
    return {};
  }
  const std::size_t row_bytes = cache.layout().row_bytes();
  const std::size_t block_bytes = kPageTokens * row_bytes;
  const auto copied = [row_bytes](const PageCopy& copy, auto rows) {
    return rows.first(static_cast<std::size_t>(copy.rows) * row_bytes);
  };
  const auto attempt = [&failure](const auto& work) {
    Status status = status_of(work);
    if (failure.ok()) failure = status;
    return status;
  };
  std::optional<Blocks> out;
  std::optional<Blocks> in;
  const Status room = attempt([&] {
    out.emplace(copies, &PageCopy::from, communicator.rank(), &PageCopy::to, ranks, block_bytes);
    in.emplace(copies, &PageCopy::to, communicator.rank(), &PageCopy::from, ranks, block_bytes);
  });
  // A rank without room for its blocks cannot take part, so none does.
  std::vector<std::uint8_t> without_room;
  Status status = gather_all(communicator, std::uint8_t{!room.ok()}, without_room, deadline);
  if (!status.ok() || std::ranges::count(without_room, 1) > 0) return status;
  const Time begin = clock.now();
  (void)attempt([&] {
    if (!out->empty()) backend.synchronize(deadline);
    out->for_each([&](const PageCopy& copy, std::span<std::byte> rows) {
      backend.load_rows(cache, copy.layer, copy.from_page, 0, copied(copy, rows));
    });
  });
  status =
      communicator.all_to_all(out->bytes(), out->counts(), in->bytes(), in->counts(), deadline);
  if (!status.ok()) return status;
  (void)attempt([&] {
    in->for_each([&](const PageCopy& copy, std::span<const std::byte> rows) {
      backend.store_rows(cache, copy.layer, copy.to_page, 0, copied(copy, rows));
    });
  });
  took = clock.now() - begin;
  return {};
}

}  // namespace tributary
