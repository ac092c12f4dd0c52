// Loads a layer's attention weights by their published names, dequantising FP8.
#include "core/model/layer_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/checkpoint_names.h"
#include "core/model/shard_index.h"

namespace tributary {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";

constexpr std::int64_t blocks(std::int64_t size) {
  return ceil_div(size, kScaleBlock);
}

/// Also catches a NaN pattern in FP8 and a scale that overflows.
void check_finite(std::span<const float> values, const SafetensorsFile& file,
                  std::string_view name) {
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  if (bad == values.end()) return;
  fail(ErrorCode::kMalformedInput, "{}: tensor {}: element {} is {}", file.path().string(),
       quote(name), bad - values.begin(), *bad);
}

std::vector<float> dequantise(const TensorView& tensor, std::span<const float> scales,
                              std::int64_t rows, std::int64_t cols) {
  std::array<float, 256> decoded{};
  for (std::size_t bits = 0; bits < decoded.size(); ++bits) {
    decoded[bits] = f8_e4m3_to_float(static_cast<std::uint8_t>(bits));
  }
  std::vector<float> out(tensor.bytes.size());
  std::size_t i = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto row_scales =
        scales.subspan(static_cast<std::size_t>(row / kScaleBlock * blocks(cols)));
    for (std::int64_t col = 0; col < cols; ++col, ++i) {
      out[i] = decoded[std::to_integer<std::size_t>(tensor.bytes[i])] *
               row_scales[static_cast<std::size_t>(col / kScaleBlock)];
    }
  }
  return out;
}

/// Tensors that leave the result alone: what is computed from the configuration, an indexer whose
/// selection no dense pool takes, and the scales of quantised values, which have a reader of their
/// own or belong to values that we refuse.
bool is_ignored(std::string_view name) {
  return name == "rotary_emb.inv_freq" || name.starts_with("indexer.") ||
         name.ends_with("_scale") || name.ends_with("_scale_inv") || name.ends_with("_scale_2");
}

/// `known` are the modules of the attention with weights.
void check_tensors(const WeightFiles& files, const std::string& attention,
                   std::span<const std::string_view> known) {
  for (const std::string& name : files.names(attention)) {
    const std::string_view own = std::string_view(name).substr(attention.size());
    const bool is_weight = std::ranges::any_of(
        known, [&](std::string_view module) { return own == fmt::format("{}.weight", module); });
    if (!is_weight && !is_ignored(own)) {
      fail(ErrorCode::kUnsupported,
           "tensor {}: the attention that is computed here has none of that name, only the "
           "weights of {}",
           quote(name), fmt::join(known, ", "));
    }
  }
}

}  // namespace

WeightFiles::WeightFiles(const std::filesystem::path& file_or_folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(file_or_folder, error)) {
    files_.emplace_back(file_or_folder);
    return;
  }
  std::vector<std::filesystem::path> paths;
  const std::filesystem::directory_iterator entries(file_or_folder, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot list: {}", file_or_folder.string(), error.message());
  for (const auto& entry : entries) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path());
  }
  index_ = shard_index(file_or_folder);
  if (paths.empty()) {
    fail(ErrorCode::kNotFound, "{}: holds no *.safetensors file{}", file_or_folder.string(),
         std::filesystem::exists(index_, error) ? ", only their index" : "");
  }
  std::sort(paths.begin(), paths.end());  // listing order is the file system's
  for (const auto& path : paths) {
    SafetensorsFile file(path);
    const auto refuse_known = [&](std::string_view name) {
      if (const SafetensorsFile* other = find(name)) {
        fail(ErrorCode::kMalformedInput, "{}: tensor {} is also in {}", path.string(), quote(name),
             other->path().string());
      }
    };
    for (const auto& [name, tensor] : file.header().tensors) refuse_known(name);
    for (const auto& [name, dtype] : file.header().unreadable) refuse_known(name);
    files_.push_back(std::move(file));
  }
}

const SafetensorsFile* WeightFiles::find(std::string_view name) const {
  const auto it = std::find_if(files_.begin(), files_.end(),
                               [&](const SafetensorsFile& file) { return file.contains(name); });
  return it == files_.end() ? nullptr : &*it;
}

bool WeightFiles::contains(std::string_view name) const {
  return find(name) != nullptr;
}

std::vector<std::string> WeightFiles::names(std::string_view prefix) const {
  std::vector<std::string> names;
  const auto add_those_of = [&](const auto& tensors) {
    for (auto it = tensors.lower_bound(prefix);
         it != tensors.end() && it->first.starts_with(prefix); ++it) {
      names.push_back(it->first);
    }
  };
  for (const SafetensorsFile& file : files_) {
    add_those_of(file.header().tensors);
    add_those_of(file.header().unreadable);
  }
  return names;
}

const SafetensorsFile& WeightFiles::file_of(std::string_view name) const {
  const SafetensorsFile* file = find(name);
  if (file != nullptr) return *file;
  const std::string path = files_.front().path().string();
  const std::string shard = find_shard(index_, name);
  if (!shard.empty()) {
    std::error_code ignored;
    const bool present = std::filesystem::exists(index_.parent_path() / shard, ignored);
    fail(ErrorCode::kNotFound, "{}: no tensor {}: its index has it in {}, which {}",
         index_.parent_path().string(), quote(name), quote(shard),
         present ? "has no such tensor" : "is missing");
  }
  fail(ErrorCode::kNotFound, "{}: no tensor {}{}", path, quote(name),
       files_.size() > 1 ? fmt::format(", nor in the {} files beside it", files_.size() - 1) : "");
}

std::vector<float> WeightFiles::load_scales(std::string_view name, std::int64_t rows,
                                            std::int64_t cols) const {
  const SafetensorsFile& file = file_of(name);
  const std::array<std::int64_t, 2> shape = {rows, cols};
  if (file.tensor(name, shape).dtype != DType::kF8E4M3) return {};
  const std::string scale_name = std::string(name).append(kScaleSuffix);
  const SafetensorsFile* scale_file = find(scale_name);
  if (scale_file == nullptr) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {} is f8_e4m3, but there is no {}",
         file.path().string(), quote(name), quote(scale_name));
  }
  const std::array<std::int64_t, 2> scale_shape = {blocks(rows), blocks(cols)};
  const TensorView& scale = scale_file->tensor(scale_name, scale_shape);
  if (scale.dtype != DType::kF32) {
    fail(ErrorCode::kMalformedInput, "{}: tensor {} is {}, must be f32",
         scale_file->path().string(), quote(scale_name), dtype_name(scale.dtype));
  }
  std::vector<float> scales = to_floats(scale);
  check_finite(scales, *scale_file, scale_name);
  return scales;
}

std::vector<float> WeightFiles::load(std::string_view name, std::int64_t rows,
                                     std::int64_t cols) const {
  const SafetensorsFile& file = file_of(name);
  const std::array<std::int64_t, 2> shape = {rows, cols};
  const TensorView& tensor = file.tensor(name, std::span(shape).first(cols == 0 ? 1 : 2));

  std::vector<float> values;
  if (tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16) {
    const std::string scale_name = std::string(name).append(kScaleSuffix);
    if (contains(scale_name)) {
      fail(ErrorCode::kMalformedInput, "{}: tensor {} is {} and yet has a {}", file.path().string(),
           quote(name), dtype_name(tensor.dtype), quote(scale_name));
    }
    values = to_floats(tensor);
  } else if (tensor.dtype == DType::kF8E4M3 && cols != 0) {
    values = dequantise(tensor, load_scales(name, rows, cols), rows, cols);
  } else {
    fail(ErrorCode::kUnsupported,
         "{}: tensor {} is {} of shape {}; weights are read in bf16, f32 "
         "and, as matrices, f8_e4m3",
         file.path().string(), quote(name), dtype_name(tensor.dtype), tensor.shape_text());
  }
  check_finite(values, file, name);
  return values;
}

std::string_view layer_prefix(const WeightFiles& files) {
  const auto it = std::ranges::find_if(kLayerPrefixes, [&](std::string_view prefix) {
    return !files.names(fmt::format("{}0.self_attn.", prefix)).empty();
  });
  return it == kLayerPrefixes.end() ? kLayerPrefixes.front() : *it;
}

LayerWeights load_layer_weights(const WeightFiles& files, const ModelShape& shape,
                                std::string_view prefix) {
  validate(shape);
  const std::int64_t hidden = shape.hidden_size;
  const std::int64_t heads = shape.num_attention_heads;
  const std::int64_t q_rank = shape.q_lora_rank;
  const std::int64_t kv_rank = shape.kv_lora_rank;
  const std::int64_t q_rows = heads * shape.qk_head_dim();
  const std::string attention = fmt::format("{}self_attn.", prefix);
  if (q_rank == 0) {
    constexpr std::array<std::string_view, 5> kModules{"q_proj", "kv_a_proj_with_mqa",
                                                       "kv_a_layernorm", "kv_b_proj", "o_proj"};
    check_tensors(files, attention, kModules);
  } else {
    constexpr std::array<std::string_view, 7> kModules{
        "q_a_proj",       "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa",
        "kv_a_layernorm", "kv_b_proj",     "o_proj"};
    check_tensors(files, attention, kModules);
  }
  const auto full_name = [&](std::string_view name) {
    return fmt::format("{}{}.weight", attention, name);
  };
  const auto load_norm = [&](std::string_view name, std::int64_t width) {
    return files.load(full_name(name), width, 0);
  };

  LayerWeights weights;
  LayerScales& scales = weights.scales;
  const auto load_matrix = [&](std::string_view name, std::int64_t rows, std::int64_t cols,
                               std::vector<float>& values, std::vector<float>& its_scales) {
    values = files.load(full_name(name), rows, cols);
    its_scales = files.load_scales(full_name(name), rows, cols);
  };
  if (q_rank == 0) {
    load_matrix("q_proj", q_rows, hidden, weights.q_proj, scales.q_proj);
  } else {
    load_matrix("q_a_proj", q_rank, hidden, weights.q_a_proj, scales.q_a_proj);
    weights.q_a_layernorm = load_norm("q_a_layernorm", q_rank);
    load_matrix("q_b_proj", q_rows, q_rank, weights.q_b_proj, scales.q_b_proj);
  }
  load_matrix("kv_a_proj_with_mqa", shape.latent_dim(), hidden, weights.kv_a_proj,
              scales.kv_a_proj);
  weights.kv_a_layernorm = load_norm("kv_a_layernorm", kv_rank);
  load_matrix("kv_b_proj", heads * (shape.qk_nope_head_dim + shape.v_head_dim), kv_rank,
              weights.kv_b_proj, scales.kv_b_proj);
  load_matrix("o_proj", hidden, heads * shape.v_head_dim, weights.o_proj, scales.o_proj);
  return weights;
}

}  // namespace tributary
