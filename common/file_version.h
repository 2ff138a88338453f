#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string>

namespace weft {

/// What tells one content of a file from another without reading it.
struct FileVersion {
  int64_t inode = 0, size = 0, seconds = 0, nanoseconds = 0;

  /// The version of the file as it is now; all zero where it is not there.
  static FileVersion Of(const std::string& path) {
    struct stat state {};
    if (stat(path.c_str(), &state) != 0) return {};
    return {static_cast<int64_t>(state.st_ino), state.st_size, state.st_mtim.tv_sec,
            state.st_mtim.tv_nsec};
  }

  bool operator==(const FileVersion&) const = default;
};

}  // namespace weft
