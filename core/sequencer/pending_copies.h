// Copies of pages that the next order makes before its round, again and again until an order has
// succeeded: of pages that were shared, and of the rows of a leaf that goes on to grow elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/limits.h"
#include "core/sequencer/order.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

/// Both pages of a copy stay used until it is made.
class PendingCopies {
 public:
  /// `layers` of a page. The others outlive it.
  PendingCopies(int layers, PoolLedger& ledger, Order& order)
      : layers_(layers), ledger_(ledger), order_(order) {}

  /// The first `rows` rows of a page of worker `from`, all layers; both pages are used.
  struct Pages {
    std::int32_t from = 0, from_page = 0;
    std::int32_t to = 0, to_page = 0;
    std::int32_t rows = kPageTokens;
  };
  void add(const Pages& pages);
  /// Whether a page waits for rows of another one, also where an order has failed and steps of
  /// before it were committed since. An order reads all pages before it writes any, so the rows
  /// cannot be copied on.
  [[nodiscard]] bool is_copied_to(std::int32_t worker, std::int32_t page) const;
  /// One of a page's users goes and needs the rows no longer that it waits for, if it does: unless
  /// others need them, they are not copied. Not while an order is executed.
  void drop(std::int32_t worker, std::int32_t page);
  /// Drops what was to be copied from or to a worker. Returns the pages of others that wait for its
  /// rows in vain, as pairs of worker and page. Not while an order is executed.
  [[nodiscard]] std::vector<std::pair<std::int32_t, std::int32_t>> lose_worker(std::int32_t worker);
  /// Pages that are to be copied, or are in the order that is executed.
  [[nodiscard]] std::size_t size() const noexcept { return pending_.size(); }

  /// The order is about to be executed.
  void order_taken();
  /// It has ended on all ranks, and succeeded or not.
  void order_ended(bool ok);

 private:
  void release(const Pages& pages);

  int layers_;
  PoolLedger& ledger_;
  Order& order_;
  std::vector<Pages> pending_;
  std::size_t taken_ = 0;  // of them are in the order that is executed
};

}  // namespace tributary
