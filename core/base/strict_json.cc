// JSON from outside: one value, bounded depth, no duplicate keys, finite numbers, valid UTF-8.
#include "core/base/strict_json.h"

#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {

std::string json_error_text(const nlohmann::json::exception& error) {
  std::string_view text = error.what();  // "[json.exception.parse_error.101] parse error at ..."
  if (const auto end = text.find("] "); end != std::string_view::npos) text.remove_prefix(end + 2);
  return quote(text, 200);
}

void refuse_nul(std::string_view text, std::string_view source) {
  if (const auto at = text.find('\0'); at != std::string_view::npos) {
    fail(ErrorCode::kMalformedInput, "{}: not valid JSON: NUL at byte {}", source, at);
  }
}

namespace {

using nlohmann::json;

/// Builds the value as it is read, in one pass. The library's own parser with a callback would
/// visit every element of an array again whenever one of them ends.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(std::string_view source) : source_(source) {}
  [[nodiscard]] json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // JSON has none

  bool start_object(std::size_t /*size*/) override { return open(json::object()); }
  bool start_array(std::size_t /*size*/) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    // The library keeps the last of two equal keys; we cannot know which one was meant.
    const auto [member, is_new] =
        open_.back()->get_ref<json::object_t&>().try_emplace(std::move(name));
    if (!is_new) {
      fail(ErrorCode::kMalformedInput, "{}: JSON key {} occurs twice", source_,
           quote(member->first));
    }
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const json::exception& error) override {
    fail(ErrorCode::kMalformedInput, "{}: not valid JSON: {}", source_, json_error_text(error));
  }

 private:
  /// The place for the next value.
  json& place() {
    if (open_.empty()) return root_;
    if (!open_.back()->is_array()) return *member_;
    return open_.back()->get_ref<json::array_t&>().emplace_back();
  }
  bool put(json value) {
    place() = std::move(value);
    return true;
  }
  bool open(json value) {
    if (open_.size() >= kMaxJsonDepth) {
      fail(ErrorCode::kMalformedInput, "{}: JSON nests deeper than {} levels", source_,
           kMaxJsonDepth);
    }
    json& here = place();
    here = std::move(value);
    open_.push_back(&here);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view source_;
  json root_;
  std::vector<json*> open_;  // a container does not grow while one of its elements is open
  json* member_ = nullptr;   // of the innermost object, whose key was read last
};

}  // namespace

json parse_strict_json(std::string_view text, std::string_view source) {
  refuse_nul(text, source);
  Builder builder(source);
  static_cast<void>(json::sax_parse(text.begin(), text.end(), &builder));
  return builder.take();
}

}  // namespace tributary
