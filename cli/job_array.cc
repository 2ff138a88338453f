#include "cli/job_array.h"

#include <cstdio>
#include <sstream>

#include "common/rng.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

constexpr size_t kMostJobs = 10000;

/// One field and the values that it takes.
struct ArrayField {
  std::string path;
  std::vector<Json> values;
};

/// Parts of a text between commas that are in no bracket.
std::vector<std::string> SplitValues(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '[' || c == '{' ? 1 : 0;
    depth -= c == ']' || c == '}' ? 1 : 0;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

Result<ArrayField> ParseField(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == std::string::npos) {
    return InvalidError("--array '" + text + "' is not FIELD=V1,V2,...; hint: train.seed=1,2,3");
  }
  ArrayField field{text.substr(0, equals), {}};
  for (const std::string& value : SplitValues(text.substr(equals + 1))) {
    if (value.empty()) return InvalidError("--array '" + text + "' has an empty value");
    WEFT_ASSIGN_OR_RETURN(Document parsed, ParseYaml(value, "--array " + field.path));
    field.values.push_back(std::move(parsed.value));
  }
  return field;
}

/// Sets "train.seed" in the document, with the sections above it where they are not written.
Status SetField(const std::string& path, const Json& value, Json& document) {
  Json* at = &document;
  std::istringstream names(path);
  for (std::string name; std::getline(names, name, '.');) {
    if (!at->is_object() && !at->is_null()) {
      return InvalidError("--array: " + path + " lies within a field that has no fields");
    }
    at = &(*at)[name];
  }
  *at = value;
  return OkStatus();
}

/// "lr-sweep-4f2a91": the same for the same submission.
std::string GroupOf(const std::string& name, const std::string& request_id) {
  constexpr size_t kLongestName = 54;
  char suffix[16];
  std::snprintf(suffix, sizeof(suffix), "%08x", SiteHash(request_id.c_str()));
  return name.substr(0, kLongestName) + "-" + suffix;
}

}  // namespace

Result<std::vector<JobSpec>> LoadJobArray(const std::string& path,
                                          const std::vector<std::string>& fields, int64_t limit,
                                          const std::string& request_id, DataCheck check) {
  if (path == "-") {
    return InvalidError("an array is made of a file that can be read again, not standard input");
  }
  std::vector<ArrayField> parsed;
  size_t count = 1;
  for (const std::string& text : fields) {
    WEFT_ASSIGN_OR_RETURN(ArrayField field, ParseField(text));
    count *= field.values.size();
    if (count > kMostJobs) {
      return InvalidError("the array has more than " + std::to_string(kMostJobs) + " jobs");
    }
    parsed.push_back(std::move(field));
  }
  std::vector<JobSpec> jobs;
  for (size_t i = 0; i < count; ++i) {
    const auto edit = [&](Json& document) -> Status {
      size_t rest = i;
      // The last field changes from job to job.
      for (size_t f = parsed.size(); f-- > 0;) {
        const std::vector<Json>& values = parsed[f].values;
        WEFT_RETURN_IF_ERROR(SetField(parsed[f].path, values[rest % values.size()], document));
        rest /= values.size();
      }
      return OkStatus();
    };
    // Notes are of the file, and so said once.
    std::ostringstream unsaid;
    WEFT_ASSIGN_OR_RETURN(JobSpec job, i == 0 ? LoadJobFile(path, check, std::cerr, edit)
                                              : LoadJobFile(path, check, unsaid, edit));
    if (job.scheduling.group.empty()) job.scheduling.group = GroupOf(job.name, request_id);
    if (limit > 0) job.scheduling.group_limit = limit;
    job.name += "-" + std::to_string(i + 1);
    WEFT_RETURN_IF_ERROR(ValidateJob(job).WithContext(path));
    jobs.push_back(std::move(job));
  }
  return jobs;
}

}  // namespace weft::cli
