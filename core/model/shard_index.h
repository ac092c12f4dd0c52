// The index beside a checkpoint that is cut into several files.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tributary {

/// The index in the folder of a checkpoint's files.
[[nodiscard]] std::filesystem::path shard_index(const std::filesystem::path& folder);
/// The file that the index names for a tensor; empty where it names none or cannot be read. Only
/// errors need it: the files themselves say what they hold.
[[nodiscard]] std::string find_shard(const std::filesystem::path& index, std::string_view tensor);

}  // namespace tributary
