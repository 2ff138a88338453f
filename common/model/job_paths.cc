#include "common/model/job_paths.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <type_traits>

#include "common/model/technique_cost.h"
#include "common/text.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

/// The path that the kernel comes to, as far as it exists; nothing is followed twice.
fs::path RealPath(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(path, error);
  return error ? fs::path() : real;
}

/// A field of this name holds a path.
bool NamesPath(std::string_view name) {
  return name.ends_with("path") || name.ends_with("directory");
}

/// The fields of a spec, and of those within it, whose names say that they hold a path.
template <class Spec>
void AddNamedFields(const Spec& spec, const std::string& where, std::vector<JobPath>& paths) {
  Spec::Fields(spec, [&]<class Member>(const Field& field, const Member& member) {
    const auto name = [&] { return where + std::string(field.name); };
    if constexpr (std::is_same_v<Member, std::string>) {
      if (NamesPath(field.name) && !member.empty()) paths.push_back({name(), member});
    } else if constexpr (SpecStruct<Member>) {
      AddNamedFields(member, name() + ".", paths);
    } else if constexpr (kIsVector<Member>) {
      if constexpr (SpecStruct<typename Member::value_type>) {
        for (const auto& item : member) AddNamedFields(item, name() + "[].", paths);
      }
    }
  });
}

}  // namespace

std::vector<JobPath> PathsOf(const JobSpec& job) {
  std::vector<JobPath> paths;
  JobSpec named = job;
  for (const DataList& data : DataLists(named)) {
    for (const std::string& path : *data.paths) paths.push_back({data.field, path});
  }
  // With a brace it is a template itself (ChatTemplateSource).
  if (job.data.chat_template.find('{') == std::string::npos) {
    paths.push_back({"data.chat_template", job.data.chat_template});
  }
  AddNamedFields(job, "", paths);
  std::erase_if(paths, [](const JobPath& item) { return item.path.empty(); });
  return paths;
}

bool IsBelow(const std::string& path, const std::vector<std::string>& roots) {
  if (!fs::path(path).is_absolute()) return false;
  const fs::path real = RealPath(path);
  if (real.empty()) return false;
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    const fs::path base = RealPath(root);
    const fs::path relative = base.empty() ? fs::path() : real.lexically_relative(base);
    return !relative.empty() && *relative.begin() != "..";
  });
}

Status CheckPaths(const JobSpec& job, const std::vector<std::string>& roots,
                  const std::string& hint) {
  for (const JobPath& item : PathsOf(job)) WEFT_RETURN_IF_ERROR(CheckPath(item, roots, hint));
  return OkStatus();
}

Status CheckPath(const JobPath& item, const std::vector<std::string>& roots,
                 const std::string& hint) {
  if (roots.empty() || IsBelow(item.path, roots)) return OkStatus();
  return InvalidError(item.field + " '" + item.path + "' is not below a folder that is allowed" +
                      "; hint: " + hint);
}

Status CheckJobId(const std::string& id) {
  constexpr size_t kLongest = 128;
  const bool legal = std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (legal && !id.empty() && id.size() <= kLongest) return OkStatus();
  return InvalidError("job id '" + ClipText(id, kLongest) +
                      "' must be 1 to 128 of a-z, 0-9 and dashes");
}

}  // namespace weft
