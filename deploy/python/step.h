// A decode step of some sequences, run by Python: layer calls, then a commit or an abort.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "deploy/python/sequence.h"
#include "deploy/service/client/items_error.h"

namespace tributary::python {

class Step {
 public:
  /// `tokens` for each sequence. Throws kInvalidArgument for an invalid batch: sequences of several
  /// shapes, or the same one twice.
  Step(SharedTier tier, std::vector<nanobind::object> sequences, std::vector<std::int32_t> tokens);

  using Timeout = std::optional<double>;
  [[nodiscard]] nanobind::object attend(int layer, nanobind::handle query, nanobind::handle row,
                                        nanobind::handle out, bool absorbed,
                                        nanobind::handle selected, Timeout timeout);
  [[nodiscard]] nanobind::object attend_projected(int layer, nanobind::handle query,
                                                  nanobind::handle row, nanobind::handle out,
                                                  nanobind::handle selected, Timeout timeout);
  [[nodiscard]] nanobind::object forward(int layer, nanobind::handle hidden, nanobind::handle out,
                                         Timeout timeout);

  void accept(std::vector<std::int32_t> tokens);
  void commit(Timeout timeout);
  void abort(Timeout timeout);
  void leave(const nanobind::args& raised);

  [[nodiscard]] const std::vector<std::int32_t>& tokens() const noexcept { return tokens_; }
  [[nodiscard]] const std::vector<nanobind::object>& objects() const noexcept { return objects_; }

 private:
  using Run = void (TierClient::*)(std::span<const LayerItem>, int, std::optional<Deadline>);
  struct Inputs;

  void check_open() const;
  [[nodiscard]] Inputs read_inputs(nanobind::handle query, nanobind::handle row,
                                   nanobind::handle selected, int query_width) const;
  [[nodiscard]] nanobind::handle out_of(nanobind::handle out) const;
  /// Returns the items that failed, if some did.
  [[nodiscard]] std::optional<ItemsError> run(Run call, int layer, const Inputs& inputs,
                                              float* output, std::size_t token_floats,
                                              Timeout timeout);
  void end(const std::vector<std::int32_t>& accepted, Timeout timeout);

  SharedTier tier_;
  std::vector<nanobind::object> objects_;  // keep them
  std::vector<Sequence*> sequences_;       // the same
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> accepted_;
  std::int64_t total_ = 0;  // tokens of all
  PoolShape shape_;         // of all
  bool ended_ = false;
};

void bind_step(nanobind::module_& module);

}  // namespace tributary::python
