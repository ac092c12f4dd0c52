#include "tests/deploy/pool/pool_harness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/local/run_ranks.h"
#include "comm/staged/staged_communicator.h"
#include "core/base/elements.h"
#include "core/workload/generator.h"
#include "kernels/reference/reference_backend.h"
#include "tests/deploy/pool/hooked_backend.h"
#include "tests/deploy/pool/thread_orders.h"

namespace tributary {
namespace {

constexpr std::uint64_t kSeed = 7;

class TestClient final : public PoolClient {
 public:
  TestClient(const PoolSetup& setup, Backend& backend, int rank,
             const std::atomic<std::int64_t>& salt)
      : setup_(setup),
        backend_(backend),
        rank_(rank),
        salt_(salt),
        width_(static_cast<std::size_t>(setup.shape.latent_dim())),
        row_(width_),
        query_(static_cast<std::size_t>(setup.shape.heads) *
               static_cast<std::size_t>(setup.shape.latent_dim())),
        record_(setup.shape.token_record_bytes()) {}

  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override {
    hook("write_tokens");
    // The leader may change it as soon as the round has ended, before this rank's states are read.
    round_salt_ = salt_;
    for (const HomedItem& item : items) {
      const int layer = item_layer[static_cast<std::size_t>(item.item)];
      for (std::int32_t t = 0; t < item.tokens; ++t) {
        const std::int64_t tag =
            item.tag + (t < accepted(item) ? round_salt_ : std::int64_t{1000000});
        generator_.query(tag, layer, item.position + t, query_);
        store_elements(setup_.shape.query_dtype, query_, record_.data());
        write_row(tag, layer, item.position + t, record_.data() + setup_.shape.query_bytes());
        write_selection(item.tag, layer, item.position + t);
        backend_.upload(records + static_cast<std::size_t>(item.token_record + t) * record_bytes,
                        record_);
      }
    }
  }

  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override {
    hook("read_states");
    if (round_salt_ != 0) return;
    const std::size_t floats = setup_.shape.state_shape().record_floats();
    for (const HomedItem& item : items) {
      for (std::int32_t t = 0; t < accepted(item); ++t) {
        const float* state = states + static_cast<std::size_t>(item.state + t) * floats;
        std::vector<float> output(floats);
        backend_.download(std::as_writable_bytes(std::span(output)),
                          reinterpret_cast<const std::byte*>(state));
        outputs.insert_or_assign(
            {item.tag, item_layer[static_cast<std::size_t>(item.item)], item.position + t},
            std::move(output));
      }
    }
  }

  PoolOutputs outputs;

 private:
  void hook(std::string_view call) const {
    if (setup_.hook) setup_.hook(rank_, call);
  }
  [[nodiscard]] std::int32_t accepted(const HomedItem& item) const {
    return setup_.accept ? setup_.accept(item.tag, item.position, item.tokens) : item.tokens;
  }
  void write_row(std::int64_t tag, int layer, std::int64_t position, std::byte* out) {
    generator_.row(tag, layer, position, row_);
    setup_.shape.row().encode(row_, out);
  }

  void write_selection(std::int64_t tag, int layer, std::int64_t position) {
    if (setup_.shape.topk == 0) return;
    std::vector<std::int32_t> list = setup_.select
                                         ? setup_.select(tag, layer, position)
                                         : pool_selection(setup_.shape, tag, layer, position);
    list.resize(static_cast<std::size_t>(setup_.shape.topk), -1);
    std::memcpy(record_.data() + setup_.shape.selected_offset(), list.data(),
                setup_.shape.selected_bytes());
  }

  const PoolSetup& setup_;
  Backend& backend_;
  int rank_;
  const std::atomic<std::int64_t>& salt_;
  std::int64_t round_salt_ = 0;  // that of the rows of the round that runs
  TokenGenerator generator_{kSeed};
  std::size_t width_;
  std::vector<float> row_, query_;
  std::vector<std::byte> record_;
};

WorkerConfig worker_config(const PoolSetup& setup, int rank) {
  WorkerConfig config{.attention = setup.shape,
                      .layers = setup.layers,
                      .pages = setup.pages,
                      .leaf_tokens = setup.leaf_tokens,
                      .exchange = setup.exchange,
                      .round_timeout = setup.timeout,
                      .order_timeout = 2 * setup.timeout};
  if (setup.change) setup.change(rank, config);
  return config;
}

/// One layer of a prompt, in pieces of some 50 rows that end with their leaf.
void push_layer(const PoolSetup& setup, const PoolLeader& leader, const Sequence& s, int layer) {
  const std::size_t row_bytes = setup.shape.row_bytes();
  for (std::int64_t begin = 0; begin < s.prompt_tokens;) {
    const std::int64_t leaf = begin / setup.leaf_tokens;
    const std::int64_t end =
        std::min({begin + 50, (leaf + 1) * setup.leaf_tokens, s.prompt_tokens});
    const PoolReceiver to = leader.receiver(s.leaves[static_cast<std::size_t>(leaf)].owner);
    const auto transfer = to.table->begin(s.id, s.epoch, layer, begin, end - begin);
    std::int64_t position = begin;
    for (const PageRun& run : transfer.runs) {
      std::vector<std::byte> rows(static_cast<std::size_t>(run.count) * row_bytes);
      for (std::size_t r = 0; r < rows.size(); r += row_bytes) {
        setup.shape.row().encode(pool_row(setup.shape, s.tag, layer, position++), rows.data() + r);
      }
      const auto page = to.backend->host_page(*to.cache, layer, run.page);
      if (layer % 2 == 0 && !page.empty()) {
        std::ranges::copy(rows,
                          page.subspan(static_cast<std::size_t>(run.slot) * row_bytes).begin());
      } else {
        to.backend->store_rows(*to.cache, layer, run.page, run.slot, rows);
      }
    }
    (void)to.table->end(transfer.ticket, true);
    begin = end;
  }
}

}  // namespace

std::size_t differing_outputs(const PoolOutputs& a, const PoolOutputs& b) {
  std::size_t differing = 0;
  for (const auto& [token, state] : a) {
    const auto found = b.find(token);
    if (found == b.end() || found->second.size() != state.size() ||
        std::memcmp(found->second.data(), state.data(), state.size() * sizeof(float)) != 0) {
      ++differing;
    }
  }
  for (const auto& entry : b) differing += a.contains(entry.first) ? 0 : 1;
  return differing;
}

std::vector<float> pool_row(const AttentionShape& shape, std::int64_t tag, int layer,
                            std::int64_t position) {
  std::vector<float> row(static_cast<std::size_t>(shape.latent_dim()));
  TokenGenerator(kSeed).row(tag, layer, position, row);
  shape.row().round(row);
  return row;
}

std::vector<float> pool_query(const AttentionShape& shape, std::int64_t tag, int layer,
                              std::int64_t position) {
  std::vector<float> query(static_cast<std::size_t>(shape.heads) *
                           static_cast<std::size_t>(shape.latent_dim()));
  TokenGenerator(kSeed).query(tag, layer, position, query);
  round_elements(shape.query_dtype, query);
  return query;
}

std::vector<std::int32_t> pool_selection(const AttentionShape& shape, std::int64_t tag, int layer,
                                         std::int64_t position) {
  std::vector<std::int32_t> list(static_cast<std::size_t>(shape.topk));
  TokenGenerator(kSeed).selected(tag, layer, position, list);
  return list;
}

PoolLeader::PoolLeader(const PoolSetup& setup, Worker& worker, std::atomic<std::int64_t>& salt,
                       std::vector<std::shared_future<PoolReceiver>> receivers)
    : sequencer({.placement = {.workers = setup.workers,
                               .model = default_cost_model(setup.leaf_tokens, setup.layers)},
                 .pages_per_worker = setup.pages,
                 .incarnation = 1}),
      setup_(setup),
      worker_(worker),
      salt_(salt),
      receivers_(std::move(receivers)) {}

RoundReport PoolLeader::lead() {
  return lead(sequencer.take_order());
}

RoundReport PoolLeader::lead(Order order) {
  const auto admits = [](const TableOp& op) { return std::holds_alternative<AdmitOp>(op); };
  RoundReport report;
  // Prompts arrive between their admission and what comes after it.
  while (!setup_.pushed) {
    const auto first = std::ranges::find_if(order.ops, admits);
    if (first == order.ops.end()) break;
    const auto end = std::find_if_not(first, order.ops.end(), admits);
    Order admission;
    admission.round = order.round;
    admission.ops.assign(order.ops.begin(), end);
    report = lead_one(admission);
    if (report.status.ok()) {
      for (auto op = first; op != end; ++op) push(std::get<AdmitOp>(*op).sequence);
    }
    order.ops.erase(order.ops.begin(), end);
    const bool done =
        order.ops.empty() && order.step.empty() && order.copies.empty() && !order.stop;
    if (report.status.ok() && !done) continue;
    sequencer.order_ended(report.status.ok());
    return report;
  }
  report = lead_one(order);
  sequencer.order_ended(report.status.ok());
  return report;
}

RoundReport PoolLeader::lead_one(const Order& order) {
  RoundReport report = worker_.lead(order);
  statuses_.push_back(report.status);
  if (report.status.ok()) {
    EXPECT_EQ(report.exchanged_bytes, report.planned_bytes);
  }
  exchanged_bytes += report.exchanged_bytes;
  state_bytes += report.state_bytes;
  rounds += static_cast<std::uint64_t>(report.rounds);
  return report;
}

void PoolLeader::abort(const std::vector<StepItem>& requests) {
  for (const auto& request : requests) sequencer.steps().commit(request.id, 0);
}

RoundReport PoolLeader::run_layers(const std::vector<StepItem>& requests) {
  sequencer.steps().open(requests);
  std::vector<StepItem> items = requests;
  RoundReport sum;
  const auto lead_next = [&] {
    RoundReport report = lead();
    if (!report.status.ok()) abort(requests);
    report.status.throw_if_error();
    return report;
  };
  for (int layer = 0; layer < setup_.layers; ++layer) {
    for (StepItem& item : items) item.layer = layer;
    sequencer.steps().order_round(items);
    RoundReport report = lead_next();
    report.rounds += sum.rounds;
    report.exchanged_bytes += sum.exchanged_bytes;
    report.planned_bytes += sum.planned_bytes;
    report.state_bytes += sum.state_bytes;
    sum = report;
  }
  sum.drained_round = lead_next().drained_round;  // nothing but the agreement
  return sum;
}

RoundReport PoolLeader::step(const std::vector<StepItem>& requests) {
  RoundReport report = run_layers(requests);
  for (const auto& request : requests) commit(request.id);
  return report;
}

std::optional<SequenceId> PoolLeader::admit(const PoolRequest& request) {
  const auto id = sequencer.sequences().admit({.prompt_tokens = request.prompt_tokens,
                                               .max_new_tokens = request.max_new_tokens,
                                               .spread = setup_.spread},
                                              {.tag = request.tag});
  if (id && !setup_.pushed)
    sequencer.sequences().prompt_arrived(*id);  // before anything that needs it
  return id;
}

RoundReport PoolLeader::round(const std::vector<StepItem>& items, CanaryOrder canary) {
  sequencer.steps().order_round(items, canary);
  RoundReport report = lead();
  report.status.throw_if_error();
  EXPECT_EQ(report.rounds, 1);
  return report;
}

void PoolLeader::commit(SequenceId id) {
  const Sequence& s = sequencer.ledger().table().at(id);
  const std::int32_t tokens = sequencer.steps().open_tokens(id);
  sequencer.steps().commit(id, setup_.accept ? setup_.accept(s.tag, s.length, tokens) : tokens);
}

PoolReceiver PoolLeader::receiver(int rank) const {
  const auto& receiver = receivers_.at(static_cast<std::size_t>(rank));
  if (receiver.wait_for(setup_.timeout) != std::future_status::ready) {
    fail(ErrorCode::kDeadlineExceeded, "worker {} has no receiver", rank);
  }
  return receiver.get();
}

void PoolLeader::push(SequenceId id) {
  push(sequencer.ledger().table().at(id));
}

void PoolLeader::push(const Sequence& s) {
  Status status;
  std::thread sender([&] {
    status = status_of([&] {
      for (int layer = 0; layer < setup_.layers; ++layer) {
        push_layer(setup_, *this, s, layer);
      }
    });
  });
  sender.join();
  status.throw_if_error();
  for (int rank = 0; rank < setup_.workers; ++rank) {
    EXPECT_EQ(receiver(rank).table->progress(s.id).missing_layer, -1);
  }
}

void PoolLeader::decode(const std::vector<PoolRequest>& requests, const Batching& batching) {
  std::vector<SequenceId> running;
  std::vector<SequenceId> arriving;
  std::size_t next = 0;
  for (std::int64_t step_number = 0; next < requests.size() || !running.empty(); ++step_number) {
    while (next < requests.size() && std::cmp_less(running.size(), batching.max_batch)) {
      const auto id = admit(requests[next]);
      if (!id) break;
      running.push_back(*id);
      arriving.push_back(*id);
      ++next;
    }
    if (setup_.pushed && !arriving.empty()) {
      const RoundReport report = lead();
      report.status.throw_if_error();
      for (const SequenceId id : arriving) push(id);
    }
    arriving.clear();
    if (running.empty()) fail(ErrorCode::kInternal, "nothing runs and nothing fits");
    std::vector<StepItem> batch;
    for (const SequenceId id : running) {
      const Sequence& s = sequencer.ledger().table().at(id);
      const std::int64_t left = s.limit_tokens - s.length;
      const std::int64_t tokens = batching.tokens(s.tag, step_number);
      batch.push_back({id, static_cast<std::int32_t>(std::min(tokens, left))});
    }
    const RoundReport report = step(batch);
    sequencer.sequences().release_closed(report.drained_round);
    std::erase_if(running, [&](SequenceId id) {
      const Sequence& s = sequencer.ledger().table().at(id);
      const bool done = s.length == s.limit_tokens;
      if (done && setup_.pushed) {
        sequencer.sequences().close(id);
      } else if (done) {
        sequencer.sequences().free(id);
      }
      return done;
    });
    if (running.empty() && sequencer.sequences().closing() > 0)
      sequencer.sequences().release_closed(lead().drained_round);
  }
}

PoolResult run_pool(const PoolSetup& setup, const std::function<void(PoolLeader&)>& script) {
  const auto ranks = static_cast<std::size_t>(setup.workers);
  std::vector<PoolOutputs> outputs(ranks);
  PoolResult result;
  result.statuses.resize(ranks);
  std::atomic<std::int64_t> salt = 0;
  std::vector<std::promise<PoolReceiver>> receiving(ranks);
  std::vector<std::shared_future<PoolReceiver>> receivers;
  for (auto& promise : receiving) receivers.push_back(promise.get_future().share());
  // They outlive the leader's thread, which passes them to the pushing thread.
  std::vector<std::unique_ptr<IngestTable>> tables(ranks);
  OrderBoard board;
  run_ranks(setup.workers, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto inner = setup.backend ? setup.backend(rank) : make_reference_backend();
    HookedBackend backend(
        *inner, setup.page_fill,
        [&](std::string_view call) {
          if (setup.hook) setup.hook(rank, call);
        },
        [&](const AttendArgs& args) {
          if (setup.after_attend) setup.after_attend(rank, args);
        });
    TestClient client(setup, backend, rank, salt);
    WorkerConfig config = worker_config(setup, rank);
    auto& table = tables[static_cast<std::size_t>(rank)];
    table = std::make_unique<IngestTable>(rank, config.layers, config.leaf_tokens);
    ThreadOrders orders(board);
    std::unique_ptr<Communicator> exchange;
    if (setup.connect) {
      exchange = setup.connect(*inner, communicator);
    } else if (!backend.host_memory()) {
      exchange = make_staged_communicator(backend, communicator);
    }
    Worker worker(config, backend, communicator, client, *table, exchange.get(), &orders,
                  *setup.clock);
    receiving[static_cast<std::size_t>(rank)].set_value({table.get(), &backend, &worker.cache()});
    auto& statuses = result.statuses[static_cast<std::size_t>(rank)];
    if (std::ranges::count(setup.absent, rank) > 0) return;
    if (rank == 0) {
      PoolLeader leader(setup, worker, salt, receivers);
      script(leader);
      Order last = leader.sequencer.take_order();
      last.stop = true;
      (void)leader.lead(last);
      statuses = leader.statuses_;
    } else {
      for (bool stop = false; !stop && !communicator.poisoned();) {
        const RoundReport report = worker.follow();
        statuses.push_back(report.status);
        stop = report.stop;
      }
    }
    outputs[static_cast<std::size_t>(rank)] = std::move(client.outputs);
  });
  for (PoolOutputs& part : outputs) {
    for (auto& entry : part) {
      const bool first = result.outputs.insert(entry).second;
      EXPECT_TRUE(first) << "two homes of one sequence";
    }
  }
  return result;
}

std::vector<PoolRequest> border_requests() {
  return {{1, 0, 20},   {2, 1, 3},    {3, 63, 6},   {4, 64, 9},  {5, 65, 2},
          {6, 127, 40}, {7, 200, 12}, {8, 330, 70}, {9, 500, 17}};
}

}  // namespace tributary
