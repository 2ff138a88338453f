#include "tests/chaos/failpoints.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>

#include "common/check.h"

namespace weft::testing {

std::vector<std::string> FailpointsOf(const std::string& prefix) {
  std::vector<std::string> names;
  static const std::regex kCall(R"re(\bFailpoint\("([a-z_.]+)"\))re");
  for (const char* folder : {"coordinator", "worker"}) {
    const std::filesystem::path root = std::filesystem::path(WEFT_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string path = entry.path();
      if (!path.ends_with(".cc") || path.ends_with("_test.cc")) continue;
      std::ifstream file(path);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      for (std::sregex_iterator call(text.begin(), text.end(), kCall), end; call != end; ++call) {
        if ((*call)[1].str().starts_with(prefix)) names.push_back((*call)[1]);
      }
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  WEFT_CHECK(!names.empty(), "no failpoint begins so");
  return names;
}

}  // namespace weft::testing
