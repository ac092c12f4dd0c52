#include "deploy/service/worker/home/service_client.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "deploy/service/protocol/layer_bytes.h"

namespace tributary {
namespace {

std::size_t size(std::int64_t count) {
  return static_cast<std::size_t>(count);
}

std::int64_t tokens_of(auto parts) {
  std::int64_t tokens = 0;
  for (const auto& part : parts) tokens += part.homed->tokens;
  return tokens;
}

/// Calls work(parts) for each longest run of parts of which all neighbours are `alike`.
template <typename Parts, typename Alike, typename Work>
void for_runs(Parts parts, const Alike& alike, const Work& work) {
  for (std::size_t begin = 0; begin < parts.size();) {
    std::size_t end = begin + 1;
    while (end < parts.size() && alike(parts[end - 1], parts[end])) ++end;
    work(parts.subspan(begin, end - begin));
    begin = end;
  }
}

/// Joins copies that are adjacent in both memories: each copy costs a device some microseconds.
template <typename Copy>
class JoinedCopies {
 public:
  explicit JoinedCopies(Copy copy) : copy_(std::move(copy)) {}

  void add(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes_ > 0 && to == to_ + bytes_ && from == from_ + bytes_) {
      bytes_ += bytes;
      return;
    }
    finish();
    to_ = to;
    from_ = from;
    bytes_ = bytes;
  }
  void finish() {
    if (bytes_ > 0) copy_(to_, from_, bytes_);
    bytes_ = 0;
  }

 private:
  Copy copy_;
  std::byte* to_ = nullptr;
  const std::byte* from_ = nullptr;
  std::size_t bytes_ = 0;
};

auto joined_uploads(Backend& backend) {
  return JoinedCopies([&backend](std::byte* to, const std::byte* from, std::size_t bytes) {
    backend.upload(to, {from, bytes});
  });
}

auto joined_downloads(Backend& backend) {
  return JoinedCopies([&backend](std::byte* to, const std::byte* from, std::size_t bytes) {
    backend.download({to, bytes}, from);
  });
}

}  // namespace

void ServiceClient::grow(std::unique_ptr<Buffer>& buffer, std::size_t bytes) {
  if (buffer && buffer->bytes() >= bytes) return;
  buffer.reset();
  buffer = backend_.allocate(bytes);
}

void ServiceClient::write_tokens(std::span<const HomedItem> items,
                                 std::span<const std::int32_t> item_layer, std::byte* records,
                                 std::size_t record_bytes) {
  parts_.clear();
  for (const HomedItem& item : items) {
    const std::int32_t layer = item_layer[size(item.item)];
    auto claim = queue_.claim(item.id, layer, item.position, item.tokens);
    if (!claim.request) {
      fail(ErrorCode::kInternal, "sequence {}: nobody asked for layer {} at position {}", item.id,
           layer, item.position);
    }
    parts_.push_back({&item, layer, std::move(claim)});
  }
  // Items of one layer become neighbours, in the order of their records.
  std::ranges::sort(parts_, [](const Part& a, const Part& b) {
    return std::tuple(a.mode(), a.layer, a.homed->token_record) <
           std::tuple(b.mode(), b.layer, b.homed->token_record);
  });
  for_runs(
      std::span<const Part>(parts_),
      [](const Part& a, const Part& b) { return a.mode() == b.mode() && a.layer == b.layer; },
      [&](std::span<const Part> parts) {
        const wire::LayerMode mode = parts.front().mode();
        if (mode == wire::LayerMode::kForward || mode == wire::LayerMode::kAttendUnabsorbed) {
          project(parts, records, record_bytes);
        } else {
          copy_records(parts, records, record_bytes);
        }
      });
}

void ServiceClient::copy_records(std::span<const Part> parts, std::byte* records,
                                 std::size_t record_bytes) {
  auto uploads = joined_uploads(backend_);
  for (const Part& part : parts) {
    const auto input = part.claim.request->input_of(part.claim.item);
    std::byte* first = records + size(part.homed->token_record) * record_bytes;
    const std::size_t input_bytes = part.claim.request->input_bytes;
    for (std::size_t t = 0; t < size(part.homed->tokens); ++t) {
      uploads.add(first + t * record_bytes, input.data() + t * input_bytes, input_bytes);
    }
  }
  uploads.finish();
}

void ServiceClient::upload_inputs(std::span<const Part> parts) {
  grow(inputs_, size(tokens_of(parts)) * parts.front().claim.request->input_bytes);
  std::byte* to = inputs_->data();
  auto uploads = joined_uploads(backend_);
  for (const Part& part : parts) {
    const auto input = part.claim.request->input_of(part.claim.item);
    uploads.add(to, input.data(), input.size());
    to += input.size();
  }
  uploads.finish();
}

void ServiceClient::absorb(std::int32_t layer, std::int64_t tokens, std::size_t input_bytes) {
  const PoolShape& shape = model_.served;
  const std::int64_t values = std::int64_t{shape.heads} * shape.unabsorbed_width();
  const RowLayout plain = plain_row(values);
  grow(plain_, size(tokens) * plain.bytes());
  calls_.clear();
  calls_.emplace_back(ConvertArgs{.rows = tokens,
                                  .src = inputs_->data(),
                                  .src_row = plain_row(values, shape.query_dtype),
                                  .src_stride_bytes = input_bytes,
                                  .dst = plain_->data(),
                                  .dst_row = plain,
                                  .dst_stride_bytes = plain.bytes()});
  model_.heads(layer).add_absorbed(tokens, plain_->as<float>(), queries_->as<float>(), calls_);
  backend_.call(calls_);
}

void ServiceClient::project(std::span<const Part> parts, std::byte* records,
                            std::size_t record_bytes) {
  const PoolShape& shape = model_.served;
  const RowLayout query = plain_row(std::int64_t{shape.heads} * shape.latent_dim());
  RowLayout row = plain_row(shape.latent_dim());
  const std::int32_t layer = parts.front().layer;
  const std::int64_t tokens = tokens_of(parts);
  upload_inputs(parts);
  grow(queries_, size(tokens) * query.bytes());
  const std::byte* rows = nullptr;
  std::size_t row_stride = row.bytes();
  if (parts.front().mode() == wire::LayerMode::kForward) {
    grow(rows_, size(tokens) * row.bytes());
    rows = rows_->data();
    positions_.clear();
    for (const Part& part : parts) {
      for (std::int32_t t = 0; t < part.homed->tokens; ++t) {
        positions_.push_back(part.homed->position + t);
      }
    }
    model_.layers[size(layer)]->project(tokens, inputs_->as<float>(), positions_,
                                        queries_->as<float>(), rows_->as<float>());
  } else {
    const wire::TokenBytes bytes = wire::token_bytes(shape, parts.front().mode());
    absorb(layer, tokens, bytes.input());
    row = shape.row();
    rows = inputs_->data() + bytes.query;
    row_stride = bytes.input();
  }
  const auto neighbours = [](const Part& a, const Part& b) {
    return a.homed->token_record + a.homed->tokens == b.homed->token_record;
  };
  std::size_t token = 0;
  for_runs(parts, neighbours, [&](std::span<const Part> run) {
    const std::int64_t run_tokens = tokens_of(run);
    std::byte* first = records + size(run.front().homed->token_record) * record_bytes;
    const auto store = [&](const std::byte* source, const RowLayout& from, std::size_t stride,
                           const RowLayout& stored, std::byte* to) {
      backend_.call(ConvertArgs{.rows = run_tokens,
                                .src = source + token * stride,
                                .src_row = from,
                                .src_stride_bytes = stride,
                                .dst = to,
                                .dst_row = stored,
                                .dst_stride_bytes = record_bytes});
    };
    store(queries_->data(), query, query.bytes(),
          plain_row(static_cast<std::int64_t>(query.values()), shape.query_dtype), first);
    store(rows, row, row_stride, shape.row(), first + shape.query_bytes());
    if (shape.topk > 0) {
      const RowLayout list = plain_row(shape.topk);  // copied, whatever it means
      store(rows + shape.row_bytes(), list, row_stride, list, first + shape.selected_offset());
    }
    token += size(run_tokens);
  });
}

void ServiceClient::read_states(std::span<const HomedItem> items,
                                std::span<const std::int32_t> /*item_layer*/, const float* states) {
  if (parts_.size() != items.size()) return;  // nothing was written in this round
  std::ranges::sort(parts_, [](const Part& a, const Part& b) {
    return std::tuple(a.mode(), a.layer, a.homed->state) <
           std::tuple(b.mode(), b.layer, b.homed->state);
  });
  for_runs(
      std::span<const Part>(parts_),
      [](const Part& a, const Part& b) {
        return a.mode() == b.mode() && a.layer == b.layer &&
               a.homed->state + a.homed->tokens == b.homed->state;
      },
      [&](std::span<const Part> parts) {
        const Status status = status_of([&] {
          if (parts.front().mode() == wire::LayerMode::kAttend) {
            copy_states(parts, states);
          } else {
            make_outputs(parts, states);
          }
        });
        for (const Part& part : parts) queue_.finish(part.claim, status);
      });
  parts_.clear();
}

void ServiceClient::copy_states(std::span<const Part> parts, const float* states) {
  const std::size_t record = model_.served.state_shape().record_floats();
  auto downloads = joined_downloads(backend_);
  for (const Part& part : parts) {
    const auto to = part.claim.request->output_of(part.claim.item);
    downloads.add(to.data(),
                  reinterpret_cast<const std::byte*>(states + size(part.homed->state) * record),
                  to.size());
  }
  downloads.finish();
}

void ServiceClient::make_outputs(std::span<const Part> parts, const float* states) {
  const std::size_t record = model_.served.state_shape().record_floats();
  const std::int64_t tokens = tokens_of(parts);
  grow(outputs_, size(tokens) * parts.front().claim.request->output_bytes);
  const std::int32_t layer = parts.front().layer;
  const float* first = states + size(parts.front().homed->state) * record;
  auto* outputs = outputs_->as<float>();
  calls_.clear();
  if (parts.front().mode() == wire::LayerMode::kForward) {
    model_.layers[size(layer)]->output(tokens, first, outputs);
  } else if (parts.front().mode() == wire::LayerMode::kAttendUnabsorbed) {
    model_.heads(layer).add_projected(tokens, first, outputs, calls_);
  } else {
    calls_.emplace_back(model_.heads(layer).values(
        tokens, first, outputs, std::int64_t{model_.served.heads} * model_.served.v_head_dim));
  }
  backend_.call(calls_);
  const std::byte* from = outputs_->data();
  auto downloads = joined_downloads(backend_);
  for (const Part& part : parts) {
    const auto to = part.claim.request->output_of(part.claim.item);
    downloads.add(to.data(), from, to.size());
    from += to.size();
  }
  downloads.finish();
}

}  // namespace tributary
