#include "deploy/app/bench/unit_costs.h"

#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <span>

#include "deploy/app/bench/collective_series.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/least_squares.h"
#include "deploy/app/bench/step_case.h"
#include "deploy/app/bench/timing.h"

namespace tributary::bench {
namespace {

/// Up to this many microseconds the next larger case is measured too: sizes that fill one core do
/// not show the speed of many cores or a GPU.
constexpr double kSmall = 1000;

}  // namespace

std::vector<AttendLine> measure_attend(Backend& backend, Communicator& communicator,
                                       RowFormat format, double seconds, MachineCosts& costs) {
  struct Point {
    int batch, context;
  };
  // One leaf and many, short and long, alone and in a batch: each is a column of the fit. On a core
  // the longest takes some milliseconds, so that some runs go undisturbed on a busy machine.
  constexpr std::array kPoints{Point{1, 256},  Point{8, 256},  Point{1, 1024},
                               Point{1, 2048}, Point{4, 1024}, Point{1, 4096}};
  constexpr int kMostContext = kPoints.back().context;
  constexpr int kMostBatch = 128;
  constexpr std::array kHeads{16, 64, 128};
  std::vector<AttendLine> lines;
  std::vector<Observation> observations;
  // Reports how long it took the host.
  const auto add = [&](int heads, const Point& point) {
    const std::vector<int> lengths(static_cast<std::size_t>(point.batch), point.context);
    const std::int64_t rows = std::int64_t{point.batch} * point.context;
    DecodeCase decode(backend, heads, 1, lengths, kLeafTokens, format,
                      layers_from_memory(rows, {format, kRank, kRope}));
    const Timing timing = measure(backend, communicator, seconds, [&] { decode.attend(); });
    observations.push_back({.units = {1, static_cast<double>(decode.leaves()),
                                      decode.gigabytes() * 1e6, decode.gflop()},
                            .measured = timing.us});
    lines.push_back({.heads = heads,
                     .batch = point.batch,
                     .context = point.context,
                     .us = timing.us,
                     .gflops = decode.gflop() / timing.us * 1e6,
                     .gb_s = decode.gigabytes() / timing.us * 1e6});
    return timing.host_us;
  };
  for (const int heads : kHeads) {
    double last = 0;
    for (const Point& point : kPoints) last = add(heads, point);
    for (int batch = 8; batch <= kMostBatch && last < kSmall; batch *= 4) {
      last = add(heads, {batch, kMostContext});
    }
  }
  const std::vector<double> found = fit(observations);
  costs.attend_us = found[0];
  costs.attend_task_us = found[1];
  costs.attend_byte_ns = found[2];  // 10^6 bytes in a microsecond's unit: 10^3 bytes a ns
  costs.attend_gflop_us = found[3];
  return lines;
}

void measure_merge(Backend& backend, Communicator& communicator, double seconds,
                   MachineCosts& costs) {
  std::vector<Observation> observations;
  for (const int heads : {16, 128}) {
    for (const int leaves : {2, 16}) {
      const int batch = leaves == 2 ? 1 : 4;
      // The length of a leaf does not matter here: the smallest leaf.
      const std::vector<int> lengths(static_cast<std::size_t>(batch), leaves * kPageTokens);
      DecodeCase decode(backend, heads, 1, lengths, kPageTokens);
      decode.attend();
      const double us = measure(backend, communicator, seconds, [&] { decode.merge(); }).us;
      observations.push_back(
          {.units = {static_cast<double>(decode.merge_levels()), decode.merged_bytes() * 1e-3},
           .measured = us});
    }
  }
  const std::vector<double> found = fit(observations);
  costs.merge_us = found[0];
  costs.merge_byte_ns = found[1];
}

void measure_records(Backend& backend, Communicator& communicator, double seconds,
                     MachineCosts& costs) {
  std::vector<Observation> observations;
  for (const int heads : {16, 128}) {
    const std::size_t bytes = attention_shape(heads).token_record_bytes();
    for (const std::size_t count : {1, 32}) {
      const auto source = backend.allocate(bytes * count);
      const auto target = backend.allocate(bytes * count);
      std::vector<std::int64_t> index(count);
      std::iota(index.rbegin(), index.rend(), 0);
      const auto gather = [&] {
        backend.call(GatherArgs{index, source->data(), target->data(), bytes});
      };
      const double us = measure(backend, communicator, seconds, gather).us;
      const auto records = static_cast<double>(count);
      observations.push_back(
          {.units = {records, records * static_cast<double>(bytes) * 1e-3}, .measured = us});
    }
  }
  const std::vector<double> found = fit(observations);
  costs.record_us = found[0];
  costs.record_byte_ns = found[1];
}

void measure_projection(Backend& backend, Communicator& communicator, double seconds,
                        MachineCosts& costs) {
  // In bf16 it is 32 MiB, beyond the caches of a core as the weights of a model are, or 128 MiB,
  // beyond those of a GPU.
  const std::int64_t side = backend.host_memory() ? 4096 : 8192;
  const std::vector<bf16> values(static_cast<std::size_t>(side * side), to_bf16(0.01F));
  const auto weight = backend.make_weight({.data = values.data(),
                                           .dtype = DType::kBF16,
                                           .rows = side,
                                           .cols = side,
                                           .row_stride = side});
  std::vector<Observation> observations;
  double last = 0;
  for (const std::int64_t tokens : {1, 16, 256}) {
    if (observations.size() >= 2 && last >= kSmall) break;
    const std::vector<float> x(static_cast<std::size_t>(tokens * side), 0.5F);
    const auto input = backend.allocate(x.size() * sizeof(float));
    const auto output = backend.allocate(x.size() * sizeof(float));
    backend.upload(input->data(), std::as_bytes(std::span(x)));
    const Timing timing = measure(backend, communicator, seconds, [&] {
      backend.call(GemmArgs{.weight = weight.get(),
                            .tokens = tokens,
                            .x = input->as<float>(),
                            .x_token_stride = side,
                            .y = output->as<float>(),
                            .y_token_stride = side});
    });
    last = timing.host_us;
    const double elements = static_cast<double>(side) * static_cast<double>(side);
    observations.push_back(
        {.units = {elements * sizeof(bf16) * 1e-3, 2e-9 * elements * static_cast<double>(tokens)},
         .measured = timing.us});
  }
  const std::vector<double> found = fit(observations);
  costs.weight_byte_ns = found[0];
  costs.weight_gflop_us = found[1];
}

std::vector<ExchangeLine> measure_exchange(Backend& backend, Communicator& communicator,
                                           Communicator& exchange, double seconds,
                                           MachineCosts& costs) {
  std::vector<ExchangeLine> lines;
  if (communicator.size() == 1) return lines;
  const auto peers = static_cast<double>(communicator.size() - 1);
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    std::vector<Observation> observations;
    const bool gather = kind == CollectiveKind::kAllGather;
    const double messages =
        gather ? std::bit_width(static_cast<unsigned>(communicator.size() - 1)) : peers;
    for (const std::size_t bytes : {std::size_t{8}, std::size_t{1} << 12, std::size_t{1} << 15,
                                    std::size_t{1} << 18, std::size_t{1} << 21}) {
      CollectiveSeries series(backend, communicator, exchange, kind, bytes);
      const double warm = maximum(communicator, series.run());
      const auto calls =
          static_cast<std::size_t>(std::clamp(seconds * 1e6 / std::max(warm, 0.1), 20.0, 5000.0));
      std::vector<double> times(calls);
      for (double& time : times) time = series.run();
      const double us = maximum(communicator, undisturbed(std::move(times)));
      const double received = peers * static_cast<double>(bytes);
      observations.push_back({.units = {messages, received * 1e-3}, .measured = us});
      lines.push_back({.collective = std::string(collective_name(kind)),
                       .bytes = bytes,
                       .us = us,
                       .gb_s = received / us * 1e-3});
    }
    const std::vector<double> found = fit(observations);
    (gather ? costs.all_gather_message_us : costs.all_to_all_message_us) = found[0];
    (gather ? costs.all_gather_byte_ns : costs.all_to_all_byte_ns) = found[1];
  }
  // A round uses the communicator that was measured. Where it spans nodes, these are the network's
  // figures too, until better ones are known.
  costs.network_message_us = costs.all_to_all_message_us;
  costs.network_byte_ns = costs.all_to_all_byte_ns;
  return lines;
}

void measure_lateness(Backend& backend, Communicator& communicator, Communicator& exchange,
                      MachineCosts& costs) {
  if (communicator.size() == 1) return;
  const auto spin = [](double us) {
    const Deadline end = Deadline::after(std::chrono::microseconds(static_cast<int>(us)));
    while (!end.expired()) {
    }
  };
  // Measures the time of two small exchanges after rank 0 comes late. The others may already be in
  // the first one, but have to wake up for the second.
  CollectiveSeries small(backend, communicator, exchange, CollectiveKind::kAllGather,
                         sizeof(double));
  const auto pair_us = [&](double wait) {
    constexpr int kRuns = 50;
    double least = std::numeric_limits<double>::infinity();
    for (int run = 0; run < kRuns; ++run) {
      (void)maximum(communicator, 0);
      (void)maximum(communicator, 0);
      if (communicator.rank() == 0) spin(wait);
      const auto begin = std::chrono::steady_clock::now();
      small.call();
      small.call();
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      least = std::min(least, time.count());
    }
    // The others' times include their wait.
    return maximum(communicator, communicator.rank() == 0 ? least : 0);
  };
  constexpr std::array kWaits{700.0, 1000.0, 1400.0, 2000.0};
  constexpr double kPunctual = 100;  // those that never sleep take some microseconds all the same
  const double none = pair_us(0);
  double sum = 0;
  double past = 0;
  costs.wait_free_us = 400;  // shorter ones count as punctual: a sleep would be a short one
  costs.wait_late_most_us = 0;
  for (const double wait : kWaits) {
    const double late = std::max(0.0, pair_us(wait) - none);
    if (late < kPunctual) {
      // Then the rank that waited less was late because of other work on the machine.
      costs.wait_free_us = wait;
      sum = past = costs.wait_late_most_us = 0;
      continue;
    }
    sum += late;
    past += wait - costs.wait_free_us;
    costs.wait_late_most_us = std::max(costs.wait_late_most_us, late);
  }
  // A rank that sleeps twice as long each time oversleeps by no more than it has waited. Anything
  // above that is other work on the machine.
  costs.wait_late_share = past > 0 ? std::min(1.0, sum / past) : 0;
}

}  // namespace tributary::bench
