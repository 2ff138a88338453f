#include "tests/chaos/failpoints.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string_view>

#include "common/check.h"
#include "common/text.h"
#include "weft/v1/job_status.pb.h"

namespace weft::testing {
namespace {

/// The argument of the one call whose name is computed: a job's move to a state, before or after it
/// is stored.
constexpr std::string_view kMove = R"("coordinator.to_" + to + "." + when)";

/// What `pattern` captures in `text`.
std::vector<std::string> CapturesOf(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> captures;
  for (std::sregex_iterator found(text.begin(), text.end(), pattern), end; found != end; ++found) {
    captures.push_back((*found)[1]);
  }
  return captures;
}

/// The failpoints of moves to each state, with the moments that `text` names.
std::vector<std::string> MovesIn(const std::string& text) {
  static const std::regex kMoment(R"re(\bAtMove\(\w+, "([a-z_]+)"\))re");
  const std::vector<std::string> moments = CapturesOf(text, kMoment);
  WEFT_CHECK(!moments.empty(), "moves of jobs have no failpoint any more");
  std::vector<std::string> names;
  const google::protobuf::EnumDescriptor& states = *v1::JobState_descriptor();
  for (int i = 0; i < states.value_count(); ++i) {
    if (states.value(i)->number() == v1::JOB_STATE_UNSPECIFIED) continue;
    for (const std::string& moment : moments) {
      names.push_back("coordinator.to_" + AsciiLowerCase(states.value(i)->name()) + "." + moment);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> FailpointsOf(const std::string& prefix) {
  std::vector<std::string> names;
  static const std::regex kCall(R"re(\bFailpoint\(([^()]*)\))re");
  static const std::regex kLiteral(R"re("([a-z_.]+)")re");
  for (const std::string_view folder : {"coordinator", "worker"}) {
    const std::filesystem::path root = std::filesystem::path(WEFT_SOURCE_DIR) / folder;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
      const std::string path = entry.path();
      if (!path.ends_with(".cc") || path.ends_with("_test.cc")) continue;
      std::ifstream file(path);
      const std::string text{std::istreambuf_iterator<char>(file), {}};
      for (const std::string& argument : CapturesOf(text, kCall)) {
        std::smatch literal;
        if (std::regex_match(argument, literal, kLiteral)) {
          names.push_back(literal[1]);
        } else if (argument == kMove) {
          for (const std::string& name : MovesIn(text)) names.push_back(name);
        } else {
          WEFT_CHECK(folder != "coordinator", "a failpoint whose name is computed is not listed");
        }
      }
    }
  }
  std::erase_if(names, [&](const std::string& name) { return !name.starts_with(prefix); });
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  WEFT_CHECK(!names.empty(), "no failpoint begins so");
  return names;
}

}  // namespace weft::testing
