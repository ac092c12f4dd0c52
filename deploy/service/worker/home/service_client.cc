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

std::int64_t tokens_of(auto claims) {
  std::int64_t tokens = 0;
  for (const auto& claim : claims) tokens += claim.homed->tokens;
  return tokens;
}

/// Calls work(claims) for each longest run of claims of which all neighbours are `alike`.
template <typename Claims, typename Alike, typename Work>
void for_runs(Claims claims, const Alike& alike, const Work& work) {
  for (std::size_t begin = 0; begin < claims.size();) {
    std::size_t end = begin + 1;
    while (end < claims.size() && alike(claims[end - 1], claims[end])) ++end;
    work(claims.subspan(begin, end - begin));
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
  claims_.clear();
  for (const HomedItem& item : items) {
    const std::int32_t layer = item_layer[size(item.item)];
    Claim claim = queue_.claim(item, layer);
    if (!claim.request) {
      fail(ErrorCode::kInternal, "sequence {}: nobody asked for layer {} at position {}", item.id,
           layer, item.position);
    }
    claims_.push_back(std::move(claim));
  }
  // Items of one layer become neighbours, in the order of their records.
  std::ranges::sort(claims_, [](const Claim& a, const Claim& b) {
    return std::tuple(a.mode(), a.layer(), a.homed->token_record) <
           std::tuple(b.mode(), b.layer(), b.homed->token_record);
  });
  for_runs(
      std::span<const Claim>(claims_),
      [](const Claim& a, const Claim& b) { return a.mode() == b.mode() && a.layer() == b.layer(); },
      [&](std::span<const Claim> claims) {
        const wire::LayerMode mode = claims.front().mode();
        if (mode == wire::LayerMode::kForward || mode == wire::LayerMode::kAttendUnabsorbed) {
          project(claims, records, record_bytes);
        } else {
          copy_records(claims, records, record_bytes);
        }
      });
}

void ServiceClient::copy_records(std::span<const Claim> claims, std::byte* records,
                                 std::size_t record_bytes) {
  auto uploads = joined_uploads(backend_);
  for (const Claim& claim : claims) {
    const auto input = claim.input();
    std::byte* first = records + size(claim.homed->token_record) * record_bytes;
    const std::size_t input_bytes = claim.request->input_bytes;
    for (std::size_t t = 0; t < size(claim.homed->tokens); ++t) {
      uploads.add(first + t * record_bytes, input.data() + t * input_bytes, input_bytes);
    }
  }
  uploads.finish();
}

void ServiceClient::upload_inputs(std::span<const Claim> claims) {
  grow(inputs_, size(tokens_of(claims)) * claims.front().request->input_bytes);
  std::byte* to = inputs_->data();
  auto uploads = joined_uploads(backend_);
  for (const Claim& claim : claims) {
    const auto input = claim.input();
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

void ServiceClient::project(std::span<const Claim> claims, std::byte* records,
                            std::size_t record_bytes) {
  const PoolShape& shape = model_.served;
  const RowLayout query = plain_row(std::int64_t{shape.heads} * shape.latent_dim());
  RowLayout row = plain_row(shape.latent_dim());
  const std::int32_t layer = claims.front().layer();
  const std::int64_t tokens = tokens_of(claims);
  upload_inputs(claims);
  grow(queries_, size(tokens) * query.bytes());
  const std::byte* rows = nullptr;
  std::size_t row_stride = row.bytes();
  if (claims.front().mode() == wire::LayerMode::kForward) {
    grow(rows_, size(tokens) * row.bytes());
    rows = rows_->data();
    positions_.clear();
    for (const Claim& claim : claims) {
      for (std::int32_t t = 0; t < claim.homed->tokens; ++t) {
        positions_.push_back(claim.homed->position + t);
      }
    }
    model_.layers[size(layer)]->project(tokens, inputs_->as<float>(), positions_,
                                        queries_->as<float>(), rows_->as<float>());
  } else {
    const wire::TokenBytes bytes = wire::token_bytes(shape, claims.front().mode());
    absorb(layer, tokens, bytes.input());
    row = shape.row();
    rows = inputs_->data() + bytes.query;
    row_stride = bytes.input();
  }
  const auto neighbours = [](const Claim& a, const Claim& b) {
    return a.homed->token_record + a.homed->tokens == b.homed->token_record;
  };
  std::size_t token = 0;
  for_runs(claims, neighbours, [&](std::span<const Claim> run) {
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
  if (claims_.size() != items.size()) return;  // nothing was written in this round
  std::ranges::sort(claims_, [](const Claim& a, const Claim& b) {
    return std::tuple(a.mode(), a.layer(), a.homed->state) <
           std::tuple(b.mode(), b.layer(), b.homed->state);
  });
  for_runs(
      std::span<const Claim>(claims_),
      [](const Claim& a, const Claim& b) {
        return a.mode() == b.mode() && a.layer() == b.layer() &&
               a.homed->state + a.homed->tokens == b.homed->state;
      },
      [&](std::span<const Claim> claims) {
        const Status status = status_of([&] {
          if (claims.front().mode() == wire::LayerMode::kAttend) {
            copy_states(claims, states);
          } else {
            make_outputs(claims, states);
          }
        });
        for (const Claim& claim : claims) queue_.finish(claim, status);
      });
  claims_.clear();
}

void ServiceClient::copy_states(std::span<const Claim> claims, const float* states) {
  const std::size_t record = model_.served.state_shape().record_floats();
  auto downloads = joined_downloads(backend_);
  for (const Claim& claim : claims) {
    const auto to = claim.output();
    downloads.add(to.data(),
                  reinterpret_cast<const std::byte*>(states + size(claim.homed->state) * record),
                  to.size());
  }
  downloads.finish();
}

void ServiceClient::make_outputs(std::span<const Claim> claims, const float* states) {
  const std::size_t record = model_.served.state_shape().record_floats();
  const std::int64_t tokens = tokens_of(claims);
  grow(outputs_, size(tokens) * claims.front().request->output_bytes);
  const std::int32_t layer = claims.front().layer();
  const float* first = states + size(claims.front().homed->state) * record;
  auto* outputs = outputs_->as<float>();
  calls_.clear();
  if (claims.front().mode() == wire::LayerMode::kForward) {
    model_.layers[size(layer)]->output(tokens, first, outputs);
  } else if (claims.front().mode() == wire::LayerMode::kAttendUnabsorbed) {
    model_.heads(layer).add_projected(tokens, first, outputs, calls_);
  } else {
    calls_.emplace_back(model_.heads(layer).values(
        tokens, first, outputs, std::int64_t{model_.served.heads} * model_.served.v_head_dim));
  }
  backend_.call(calls_);
  const std::byte* from = outputs_->data();
  auto downloads = joined_downloads(backend_);
  for (const Claim& claim : claims) {
    const auto to = claim.output();
    downloads.add(to.data(), from, to.size());
    from += to.size();
  }
  downloads.finish();
}

}  // namespace tributary
