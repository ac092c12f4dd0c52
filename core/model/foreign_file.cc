#include "core/model/foreign_file.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace tributary {

std::string_view foreign_file(std::string_view beginning) noexcept {
  if (beginning.starts_with("version https://git-lfs.github.com/spec/")) {
    return "a Git LFS pointer, not the file that it names: run `git lfs pull` where it lies";
  }
  constexpr std::array<std::string_view, 2> kPages{"<!doctype html", "<html"};
  const auto is_blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  const auto equal = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) == b;
  };
  const auto text = std::ranges::find_if_not(beginning, is_blank);
  const std::string_view page(text, beginning.end());
  for (const std::string_view tag : kPages) {
    if (std::ranges::equal(page.substr(0, tag.size()), tag, equal)) {
      return "an HTML page, not a model's file: the download was refused or went astray";
    }
  }
  return {};
}

}  // namespace tributary
