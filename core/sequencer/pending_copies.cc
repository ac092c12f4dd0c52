#include "core/sequencer/pending_copies.h"

#include <algorithm>
#include <span>

namespace tributary {

void PendingCopies::add(const Pages& pages) {
  pending_.push_back(pages);
  ledger_.pages().share(pages.from, std::span(&pages.from_page, 1));
  ledger_.pages().share(pages.to, std::span(&pages.to_page, 1));
}

bool PendingCopies::is_copied_to(std::int32_t worker, std::int32_t page) const {
  return std::ranges::any_of(pending_,
                             [&](const Pages& p) { return p.to == worker && p.to_page == page; });
}

void PendingCopies::release(const Pages& pages) {
  ledger_.pages().release(pages.from, std::span(&pages.from_page, 1));
  ledger_.pages().release(pages.to, std::span(&pages.to_page, 1));
}

void PendingCopies::drop(std::int32_t worker, std::int32_t page) {
  constexpr std::int32_t kOneUser = 2;  // with the copy itself
  const PagePool& pool = ledger_.pools()[static_cast<std::size_t>(worker)];
  if (pool.reference_count(page) > kOneUser) return;
  std::erase_if(pending_, [&](const Pages& p) {
    if (p.to != worker || p.to_page != page) return false;
    release(p);
    return true;
  });
}

std::vector<std::pair<std::int32_t, std::int32_t>> PendingCopies::lose_worker(std::int32_t worker) {
  std::vector<std::pair<std::int32_t, std::int32_t>> in_vain;
  std::erase_if(pending_, [&](const Pages& p) {
    if (p.from != worker && p.to != worker) return false;
    if (p.to != worker) in_vain.emplace_back(p.to, p.to_page);
    release(p);
    return true;
  });
  return in_vain;
}

void PendingCopies::order_taken() {
  taken_ = pending_.size();
  for (const Pages& p : pending_) {
    for (std::int32_t layer = 0; layer < layers_; ++layer) {
      order_.copies.push_back({.from = p.from,
                               .from_page = p.from_page,
                               .to = p.to,
                               .to_page = p.to_page,
                               .layer = layer,
                               .rows = p.rows});
    }
  }
}

void PendingCopies::order_ended(bool ok) {
  const std::size_t copied = ok ? taken_ : 0;
  for (const Pages& p : std::span(pending_).first(copied)) release(p);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(copied));
  taken_ = 0;
}

}  // namespace tributary
