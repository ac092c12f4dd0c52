#include "deploy/service/protocol/json_object.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {

using nlohmann::json;

std::string json_text(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::ignore);
}

JsonObject::JsonObject(const json& value, std::string_view what) : object_(value), what_(what) {
  if (!value.is_object()) fail(ErrorCode::kMalformedInput, "{} is not an object", what_);
}

bool JsonObject::has(std::string_view field) const {
  return object_.contains(field);
}

std::string JsonObject::path(std::string_view field) const {
  return fmt::format("{}.{}", what_, field);
}

const json& JsonObject::value(std::string_view field) {
  const auto found = object_.find(field);
  if (found == object_.end()) {
    fail(ErrorCode::kMalformedInput, "{} has no field '{}'", what_, field);
  }
  seen_.push_back(&*found);
  return *found;
}

std::int64_t JsonObject::read_signed(std::string_view field, std::int64_t min, std::int64_t max) {
  const json& found = value(field);
  if (!found.is_number_integer()) {
    fail(ErrorCode::kMalformedInput, "{} is not an integer", path(field));
  }
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  const bool above =
      found.is_number_unsigned() && found.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax);
  const std::int64_t number = above ? kMax : found.get<std::int64_t>();
  if (above || number < min || number > max) {
    fail(ErrorCode::kMalformedInput, "{} is {}: not in {} .. {}", path(field), found.dump(), min,
         max);
  }
  return number;
}

std::uint64_t JsonObject::read_unsigned(std::string_view field, std::uint64_t min,
                                        std::uint64_t max) {
  const json& found = value(field);
  if (!found.is_number_integer()) {
    fail(ErrorCode::kMalformedInput, "{} is not an integer", path(field));
  }
  if (!found.is_number_unsigned() || found.get<std::uint64_t>() < min ||
      found.get<std::uint64_t>() > max) {
    fail(ErrorCode::kMalformedInput, "{} is {}: not in {} .. {}", path(field), found.dump(), min,
         max);
  }
  return found.get<std::uint64_t>();
}

double JsonObject::number(std::string_view field) {
  const json& found = value(field);
  if (!found.is_number()) fail(ErrorCode::kMalformedInput, "{} is not a number", path(field));
  return found.get<double>();
}

double JsonObject::number_or_nan(std::string_view field) {
  return value(field).is_null() ? std::nan("") : number(field);
}

bool JsonObject::boolean(std::string_view field) {
  const json& found = value(field);
  if (!found.is_boolean()) {
    fail(ErrorCode::kMalformedInput, "{} is neither true nor false", path(field));
  }
  return found.get<bool>();
}

const std::string& JsonObject::text(std::string_view field, std::size_t max_bytes) {
  const json& found = value(field);
  if (!found.is_string()) fail(ErrorCode::kMalformedInput, "{} is not a string", path(field));
  const auto& text = found.get_ref<const std::string&>();
  if (text.size() > max_bytes) {
    fail(ErrorCode::kMalformedInput, "{} has {} bytes; at most {}", path(field), text.size(),
         max_bytes);
  }
  return text;
}

const json& JsonObject::array(std::string_view field, std::size_t max_size) {
  const json& found = value(field);
  if (!found.is_array()) fail(ErrorCode::kMalformedInput, "{} is not an array", path(field));
  if (found.size() > max_size) {
    fail(ErrorCode::kMalformedInput, "{} has {} elements; at most {}", path(field), found.size(),
         max_size);
  }
  return found;
}

void JsonObject::end() const {
  for (const auto& [key, member] : object_.items()) {
    if (std::find(seen_.begin(), seen_.end(), &member) == seen_.end()) {
      fail(ErrorCode::kMalformedInput, "{} has an unknown field {}", what_, quote(key));
    }
  }
}

}  // namespace tributary
