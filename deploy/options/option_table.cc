#include "deploy/options/option_table.h"

#include <algorithm>
#include <bit>
#include <cstddef>

namespace tributary {

void read_value(const std::string& text, std::string& value) {
  if (text.empty()) fail(ErrorCode::kInvalidArgument, "the name is empty");
  value = text;
}

void read_value(const std::string& text, std::filesystem::path& value) {
  std::string name;
  read_value(text, name);
  value = name;
}

void read_value(const std::string& text, std::optional<std::filesystem::path>& value) {
  read_value(text, value.emplace());
}

void read_value(const std::string& text, DType& value) {
  for (const DType type : {DType::kBF16, DType::kF32}) {
    if (text == dtype_name(type)) {
      value = type;
      return;
    }
  }
  fail(ErrorCode::kInvalidArgument, "{} is not bf16 or f32", quote(text));
}

void read_value(const std::string& text, RowFormat& value) {
  const auto format = find_row_format(text);
  if (!format) {
    fail(ErrorCode::kInvalidArgument, "{} is not {}", quote(text),
         row_format_names(row_formats(), " or "));
  }
  value = *format;
}

std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    const std::size_t comma = list.find(',');
    more = comma != std::string_view::npos;
    parts.emplace_back(list.substr(0, comma));
    if (more) list.remove_prefix(comma + 1);
  }
  return parts;
}

OptionVisitor OptionVisitor::with(const OptionNotes& notes) const {
  OptionVisitor other = *this;
  if (!notes.needs.empty()) other.needs_.emplace_back(notes.needs);
  if (!notes.excludes.empty()) other.excludes_.emplace_back(notes.excludes);
  return other;
}

OptionVisitor OptionVisitor::in_group(std::string_view group) const {
  OptionVisitor other = *this;
  other.group_ = group;
  return other;
}

void OptionVisitor::add_powers(int& field, std::string_view name, PowersOfTwo range,
                               std::string_view help, const OptionNotes& notes) {
  OptionLine& line = add(field, name, "N", notes);
  line.read = [&field, range](const std::string& text) {
    const int value = parse_number<int>(text, range.low, range.high);
    if (!std::has_single_bit(static_cast<unsigned>(value))) {
      fail(ErrorCode::kInvalidArgument, "{} is not a power of two from {} to {}", value, range.low,
           range.high);
    }
    field = value;
  };
  line.text = [&field, range] {
    return field >= range.low && field <= range.high ? value_text(field) : "";
  };
  line.default_text = line.text();
  line.low = fmt::format("{}", range.low);
  line.high = fmt::format("{}", range.high);
  line.help = with_default(help, line, notes);
}

void OptionVisitor::operator()(bool& field, std::string_view name, std::string_view help,
                               const OptionNotes& notes) {
  OptionLine& line = add_line(name, "", notes);
  line.text = [&field] { return field ? "true" : "false"; };
  line.default_text = line.text();
  line.read = [&field](const std::string& text) {
    if (text != "true" && text != "false") {
      fail(ErrorCode::kInvalidArgument, "{} is not true or false", quote(text));
    }
    field = text == "true";
  };
  line.help = help;
}

void OptionVisitor::operator()(std::vector<std::filesystem::path>& field, std::string_view name,
                               std::string_view value, std::string_view help,
                               const OptionNotes& notes) {
  OptionLine& line = add_line(name, value, notes);
  line.repeats = true;
  line.text = [] { return std::string(); };
  line.read = [&field](const std::string& text) { read_value(text, field.emplace_back()); };
  line.help = help;
}

OptionLine& OptionVisitor::add_line(std::string_view name, std::string_view value,
                                    const OptionNotes& notes) {
  OptionLine& line = lines_->emplace_back();
  line.name = name;
  line.value = value;
  line.environment = notes.environment;
  line.group = group_;
  line.needs = needs_;
  line.excludes = excludes_;
  if (!notes.needs.empty()) line.needs.emplace_back(notes.needs);
  if (!notes.excludes.empty()) line.excludes.emplace_back(notes.excludes);
  line.required = notes.required;
  return line;
}

std::string OptionVisitor::shown(const OptionLine& line, const OptionNotes& notes) {
  return notes.shown_default.empty() ? line.default_text : std::string(notes.shown_default);
}

std::string OptionVisitor::with_default(std::string_view help, const OptionLine& line,
                                        const OptionNotes& notes) {
  const std::string text = shown(line, notes);
  return text.empty() ? std::string(help) : fmt::format("{} (default {})", help, text);
}

const OptionLine* CommandTable::find(std::string_view key) const {
  const auto found = std::ranges::find_if(
      options, [&](const OptionLine& line) { return !line.positional() && line.key() == key; });
  return found == options.end() ? nullptr : &*found;
}

std::vector<std::string> words_of(const std::vector<OptionLine>& lines) {
  std::vector<std::string> words;
  for (const OptionLine& line : lines) {
    const std::string text = line.text();
    if (line.positional() || text.empty() || (line.is_switch() && text == "false")) continue;
    words.push_back(line.name);
    if (!line.is_switch()) words.push_back(text);
  }
  return words;
}

}  // namespace tributary
