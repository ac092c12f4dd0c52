// The pool's client in a service: passes the payloads of clients' requests into the pool's rounds
// and takes their outputs, with the layer's projections if the request asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/round/pool_client.h"
#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/pool_model.h"

namespace tributary {

class ServiceClient final : public PoolClient {
 public:
  /// All outlive the client.
  ServiceClient(PoolModel& model, Backend& backend, HomeQueue& queue)
      : model_(model), backend_(backend), queue_(queue) {}

  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override;
  /// Never throws: an item whose output could not be made fails alone.
  void read_states(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                   const float* states) override;

 private:
  void copy_records(std::span<const Claim> claims, std::byte* records, std::size_t record_bytes);
  void project(std::span<const Claim> claims, std::byte* records, std::size_t record_bytes);
  /// Uploads the claims' inputs, one after the other, to inputs_.
  void upload_inputs(std::span<const Claim> claims);
  /// Queries before W_UK, in inputs_ -> absorbed ones in queries_.
  void absorb(std::int32_t layer, std::int64_t tokens, std::size_t input_bytes);
  void copy_states(std::span<const Claim> claims, const float* states);
  void make_outputs(std::span<const Claim> claims, const float* states);
  void grow(std::unique_ptr<Buffer>& buffer, std::size_t bytes);

  PoolModel& model_;
  Backend& backend_;
  HomeQueue& queue_;
  std::vector<Claim> claims_;  // of the round, by layer
  std::vector<std::int64_t> positions_;
  std::vector<Call> calls_;
  std::unique_ptr<Buffer> inputs_, plain_, queries_, rows_, outputs_;
};

}  // namespace tributary
