#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "common/status.h"

namespace weft {

/// kInvalid when `content`, the first bytes of the file `path` or all of it, is what git leaves in
/// place of a large file that was not fetched.
inline Status CheckNotGitLfsPointer(std::string_view content, const std::string& path) {
  if (!content.starts_with("version https://git-lfs.github.com/spec/")) return OkStatus();
  return InvalidError(path +
                      " is a git-lfs pointer, not the file itself. hint: run 'git lfs pull' in "
                      "its folder, or download the file");
}

inline Status CheckNotGitLfsPointer(std::span<const std::byte> content, const std::string& path) {
  return CheckNotGitLfsPointer(
      std::string_view(reinterpret_cast<const char*>(content.data()), content.size()), path);
}

}  // namespace weft
