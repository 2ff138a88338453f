#include "cli/data_paths.h"

#include <glob.h>

#include <cctype>
#include <cstdlib>

namespace weft::cli {
namespace {

std::string Absolute(const std::string& path, const std::filesystem::path& base) {
  return (base / path).lexically_normal().string();
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Result<std::string> ExpandHome(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const size_t slash = path.find('/');
  if (path.substr(0, slash) != "~") {
    return InvalidError(path +
                        " begins with another user's home, which is not expanded. hint: "
                        "write the whole path");
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') {
    return InvalidError(path + " begins with the home folder, but HOME is not set");
  }
  return home + (slash == std::string::npos ? "" : path.substr(slash));
}

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

Result<std::string> ExpandVariables(const std::string& path) {
  std::string out;
  for (size_t at = 0; at < path.size();) {
    if (path[at] != '$') {
      out += path[at++];
      continue;
    }
    const bool braces = at + 1 < path.size() && path[at + 1] == '{';
    const size_t begin = at + (braces ? 2 : 1);
    size_t end = begin;
    while (end < path.size() && IsNameCharacter(path[end])) ++end;
    if (end == begin || (braces && (end == path.size() || path[end] != '}'))) {
      return InvalidError(path + " has a $ without the name of a variable");
    }
    const std::string name = path.substr(begin, end - begin);
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return InvalidError(path + ": the variable $" + name + " is not set");
    out += value;
    at = end + (braces ? 1 : 0);
  }
  return out;
}

}  // namespace

Result<std::string> ResolvePath(const std::string& path, const std::filesystem::path& base) {
  if (path.empty()) return path;
  std::string plain = Absolute(path, base);
  if (Exists(plain)) return plain;
  WEFT_ASSIGN_OR_RETURN(std::string expanded, ExpandHome(path));
  WEFT_ASSIGN_OR_RETURN(expanded, ExpandVariables(expanded));
  return Absolute(expanded, base);
}

Result<std::vector<std::string>> ExpandPath(const std::string& path,
                                            const std::filesystem::path& base) {
  WEFT_ASSIGN_OR_RETURN(std::string resolved, ResolvePath(path, base));
  if (resolved.find_first_of("*?[") == std::string::npos || Exists(resolved)) {
    return std::vector<std::string>{std::move(resolved)};
  }
  glob_t found{};
  const int code = glob(resolved.c_str(), GLOB_NOESCAPE, nullptr, &found);
  std::vector<std::string> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) files.emplace_back(found.gl_pathv[i]);
  globfree(&found);
  if (code == GLOB_NOMATCH || (code == 0 && files.empty())) {
    return InvalidError("no file matches the pattern " + resolved);
  }
  if (code != 0) return InvalidError("the pattern " + resolved + " cannot be read");
  return files;
}

}  // namespace weft::cli
