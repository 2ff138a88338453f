#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/status.h"

namespace weft::cli {

/// `path` of a job file, absolute: taken from `base` when it is relative, with "~" and "~/" as the
/// home folder and $NAME and ${NAME} from the environment. A file that is called so itself comes
/// first. Empty stays empty. kInvalid: a variable that is not set, another user's home.
Result<std::string> ResolvePath(const std::string& path, const std::filesystem::path& base);

/// The same; a pattern with *, ? or [...] becomes the files that match it, sorted. kInvalid when
/// none does.
Result<std::vector<std::string>> ExpandPath(const std::string& path,
                                            const std::filesystem::path& base);

}  // namespace weft::cli
