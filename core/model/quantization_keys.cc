#include "core/model/quantization_keys.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_set>
#include <vector>

#include "core/base/error.h"
#include "core/model/checkpoint_names.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

/// A longer list of substrings or patterns is not searched for each module.
constexpr std::size_t kMostPatterns = 4096;

/// A regular expression with `*` for its pieces that match anything, and its dots unescaped.
std::string plain_pattern(std::string_view regular) {
  constexpr std::array<std::string_view, 4> kAnything{".*", ".+", "\\d+", "[0-9]+"};
  std::string plain;
  while (!regular.empty()) {
    const auto it = std::ranges::find_if(
        kAnything, [&](std::string_view piece) { return regular.starts_with(piece); });
    const bool dot = regular.starts_with("\\.");
    plain.push_back(it != kAnything.end() ? '*' : dot ? '.' : regular.front());
    regular.remove_prefix(it != kAnything.end() ? it->size() : dot ? 2 : 1);
  }
  return plain;
}

/// Modules that a quantisation leaves alone, as its list names them: whole names, names of modules
/// around them, parts of a name, `*` for anything, or after `re:` a regular expression. Of those
/// only `.*`, `\d+`, `\.` and the anchors are understood: what is not matches nothing.
class ModuleList {
 public:
  /// `parts`: a plain name stands for every module whose name contains it.
  void add(std::string_view text, bool parts) {
    const bool regular = text.starts_with("re:");
    if (regular) text.remove_prefix(3);
    if (!regular && !parts && text.find('*') == std::string_view::npos) {
      names_.emplace(text);
    } else if (patterns_.size() < kMostPatterns && text.find("mlp") == std::string_view::npos) {
      add_pattern(std::string(text), regular, parts);
    }
  }

  [[nodiscard]] bool has(std::string_view module) const {
    for (std::string_view name = module; !name.empty();
         name = name.substr(0, name.find('.') == std::string_view::npos ? 0 : name.rfind('.'))) {
      if (names_.contains(std::string(name))) return true;
    }
    return std::ranges::any_of(patterns_,
                               [&](const Pattern& pattern) { return matches(pattern, module); });
  }

 private:
  /// Pieces that follow each other with anything between them.
  struct Pattern {
    std::vector<std::string> pieces;
    bool open_left = false, open_right = false;
  };

  void add_pattern(std::string text, bool regular, bool parts) {
    Pattern pattern{.pieces = {}, .open_left = parts && !regular, .open_right = parts || regular};
    if (regular) {
      if (text.ends_with('$')) {
        text.pop_back();
        pattern.open_right = false;
      }
      if (text.starts_with('^')) text.erase(0, 1);
      text = plain_pattern(text);
    }
    if (text.find_first_of("\\[](){}|+?^$") != std::string::npos) return;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find('*', begin), text.size());
      pattern.pieces.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    patterns_.push_back(std::move(pattern));
  }

  static bool matches(const Pattern& pattern, std::string_view module) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < pattern.pieces.size(); ++i) {
      const std::string& piece = pattern.pieces[i];
      const std::size_t found = module.find(piece, at);
      if (found == std::string_view::npos) return false;
      if (i == 0 && !pattern.open_left && found != 0) return false;
      at = found + piece.size();
    }
    return pattern.open_right || at == module.size() || module.ends_with(pattern.pieces.back());
  }

  std::unordered_set<std::string> names_;
  std::vector<Pattern> patterns_;
};

/// Whether the lists of modules that are not quantised have all matrices of the attention.
bool leaves_attention_alone(const ConfigKeys& quantization, int layers) {
  ModuleList modules;
  const auto add_all = [&](std::initializer_list<const char*> keys, bool parts) {
    for (const char* key : keys) {
      const Json* list = quantization.find(key);
      if (list == nullptr || !list->is_array()) continue;
      for (const Json& name : *list) {
        if (name.is_string()) modules.add(name.get_ref<const std::string&>(), parts);
      }
    }
  };
  add_all({"ignore", "exclude_modules", "exclude"}, false);
  add_all({"modules_to_not_convert", "ignored_layers"}, true);
  // Either form of the query's projection.
  constexpr std::array<std::string_view, 3> kOthers{"kv_a_proj_with_mqa", "kv_b_proj", "o_proj"};
  for (int layer = 0; layer < layers; ++layer) {
    const auto has = [&](std::string_view module) {
      return std::ranges::any_of(kLayerPrefixes, [&](std::string_view prefix) {
        return modules.has(fmt::format("{}{}.self_attn.{}", prefix, layer, module));
      });
    };
    const bool query = has("q_proj") || (has("q_a_proj") && has("q_b_proj"));
    if (!query || !std::ranges::all_of(kOthers, has)) return false;
  }
  return true;
}

}  // namespace

void check_quantization(const ConfigKeys& config, int layers) {
  const char* key =
      config.find("quantization_config") != nullptr ? "quantization_config" : "compression_config";
  const Json* value = config.find(key);
  if (value == nullptr) return;
  const ConfigKeys quantization(*value, config.where() + ": " + key);
  const std::string& method = quantization.text("quant_method");
  if (leaves_attention_alone(quantization, layers)) return;
  if (method != "fp8") {
    quantization.unsupported("quant_method",
                             "'fp8' in blocks, or a list of ignored modules with the attention");
  }
  if (quantization.find("fmt") != nullptr && quantization.text("fmt") != "e4m3") {
    quantization.unsupported("fmt", "'e4m3'");
  }
  if (quantization.require("weight_block_size") != Json::array({128, 128})) {
    quantization.unsupported("weight_block_size", "[128, 128]");
  }
}

void check_quantization_beside(const std::filesystem::path& config, int layers) {
  const std::filesystem::path path = config.parent_path() / "hf_quant_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return;
  const Json document = parse_config_text(read_config_text(path), path.string());
  const ConfigKeys file(document, path.string());
  const ConfigKeys quantization(file.require("quantization"), file.where() + ": quantization");
  if (quantization.find("quant_algo") == nullptr || leaves_attention_alone(quantization, layers)) {
    return;
  }
  quantization.unsupported("quant_algo", "null, or exclude_modules with the attention");
}

}  // namespace tributary
