#include "core/model/shard_index.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

namespace tributary {
namespace {

using Json = nlohmann::json;

/// Keeps one value of {"weight_map": {tensor: file}}: an index of 400,000 tensors has 40 MB.
class ShardFinder final : public nlohmann::json_sax<Json> {
 public:
  explicit ShardFinder(std::string_view tensor) : tensor_(tensor) {}
  [[nodiscard]] const std::string& shard() const { return shard_; }

  bool null() override { return other(); }
  bool boolean(bool /*value*/) override { return other(); }
  bool number_integer(number_integer_t /*value*/) override { return other(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return other(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return other(); }
  bool binary(binary_t& /*value*/) override { return other(); }
  bool string(string_t& value) override {
    if (wanted_) shard_ = std::move(value);
    return !wanted_;  // it ends with the first
  }
  bool start_object(std::size_t /*size*/) override { return other(); }
  bool end_object() override { return other(); }
  bool start_array(std::size_t /*size*/) override { return other(); }
  bool end_array() override { return other(); }
  bool key(string_t& name) override {
    wanted_ = name == tensor_;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    return false;
  }

 private:
  bool other() {
    wanted_ = false;
    return true;
  }

  std::string_view tensor_;
  std::string shard_;
  bool wanted_ = false;  // the value that comes next
};

}  // namespace

std::filesystem::path shard_index(const std::filesystem::path& folder) {
  return folder / "model.safetensors.index.json";
}

std::string find_shard(const std::filesystem::path& index, std::string_view tensor) {
  std::ifstream file(index, std::ios::binary);
  ShardFinder finder(tensor);
  if (file) static_cast<void>(Json::sax_parse(file, &finder));
  return finder.shard();
}

}  // namespace tributary
