#include "deploy/predict/simulate/round_clock.h"

#include <algorithm>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/cache/leaves.h"

namespace tributary {

RoundClock::RoundClock(const CostModelConfig& config, int workers, Exchange exchange)
    : prices_(config, workers),
      exchange_(exchange),
      load_(workers, config, 0),
      growing_(static_cast<std::size_t>(workers)) {}

const std::vector<LeafRun>& RoundClock::runs_of(const Sequence& sequence, std::int64_t rows) {
  runs_.clear();
  const std::int64_t leaves = ceil_div(rows, prices_.config().leaf_tokens);
  for_each_owner_run(sequence, leaves,
                     [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                       runs_.push_back({owner, begin, end});
                     });
  return runs_;
}

void RoundClock::add(const Sequence& sequence, std::int64_t rows) {
  load_.add(runs_of(sequence, rows), sequence.home, rows);
  count(rows, 1);
}

void RoundClock::remove(const Sequence& sequence, std::int64_t rows) {
  load_.remove(runs_of(sequence, rows), sequence.home, rows);
  count(rows, -1);
}

void RoundClock::count(std::int64_t rows, std::int64_t sign) {
  Growing& growing = growing_[static_cast<std::size_t>(runs_.back().worker)];
  const std::int64_t topk = prices_.config().attention.topk;
  growing.all += sign;
  if (topk == 0 || rows <= topk) growing.attended += sign;
}

void RoundClock::tick() {
  for (std::size_t w = 0; w < growing_.size(); ++w) {
    load_.grow(static_cast<std::int32_t>(w), growing_[w].all, growing_[w].attended);
  }
}

double RoundClock::balance() const {
  std::int64_t most = 0;
  std::int64_t sum = 0;
  for (const WorkerLoad& worker : load_.workers()) {
    most = std::max(most, worker.rows);
    sum += worker.rows;
  }
  return sum == 0 ? 1
                  : static_cast<double>(most) * static_cast<double>(growing_.size()) /
                        static_cast<double>(sum);
}

RoundTime RoundClock::time() const {
  if (exchange_ != Exchange::kAuto) return time(exchange_);
  const RoundTime narrow = time(Exchange::kAllToAll);
  if (!load_.exchange().travels()) return narrow;
  const RoundTime wide = time(Exchange::kAllGather);
  return wide.step_us < narrow.step_us ? wide : narrow;
}

RoundTime RoundClock::time(Exchange exchange) const {
  const CostModelConfig& config = prices_.config();
  const RoundTimes round = load_.round(exchange, prices_);
  RoundTime time;
  time.exchange = exchange;
  time.phase_us = round.phase_us(config, load_.sequences());
  time.other_us = round.other_us(config);
  time.step_us = round.step_us(config, load_.sequences());

  Inbound queries;
  Inbound states;
  for (std::int32_t w = 0; std::cmp_less(w, growing_.size()); ++w) {
    const Inbound q = load_.exchange().queries(w, exchange, prices_);
    const Inbound s = load_.exchange().states(w, exchange, prices_);
    queries.near += q.near;
    queries.far += q.far;
    states.near += s.near;
    states.far += s.far;
  }
  const auto bytes = [&](std::int64_t query_records, std::int64_t state_records) {
    return config.layers * (static_cast<double>(query_records) *
                                static_cast<double>(config.attention.token_record_bytes()) +
                            static_cast<double>(state_records) *
                                static_cast<double>(config.attention.state_shape().record_bytes()));
  };
  time.bytes = {.node = bytes(queries.near, states.near),
                .network = bytes(queries.far, states.far)};
  return time;
}

}  // namespace tributary
