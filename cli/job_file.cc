#include "cli/job_file.h"

#include <filesystem>
#include <iostream>
#include <iterator>

#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{4} << 20;

void MakeAbsolute(const std::filesystem::path& base, std::string& path) {
  if (!path.empty()) path = (base / path).lexically_normal().string();
}

}  // namespace

Result<JobSpec> LoadJobFile(const std::string& path) {
  std::string text;
  std::error_code error;
  std::filesystem::path base = std::filesystem::current_path(error);
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    Result<std::string> file = ReadFile(Env::Posix(), path, kMaxFileBytes);
    if (file.status().code() == StatusCode::kExhausted)
      return InvalidError(file.status().message());
    WEFT_ASSIGN_OR_RETURN(text, std::move(file));
    base = std::filesystem::absolute(path, error).parent_path();
  }
  WEFT_ASSIGN_OR_RETURN(Document document, ParseYaml(text, path == "-" ? "standard input" : path));
  WEFT_ASSIGN_OR_RETURN(JobSpec job, FromJson<JobSpec>(document));
  WEFT_RETURN_IF_ERROR(ValidateJob(job).WithContext(document.source));
  for (std::string& file : job.data.train) MakeAbsolute(base, file);
  for (std::string& file : job.data.validation) MakeAbsolute(base, file);
  MakeAbsolute(base, job.data.tokenizer.path);
  MakeAbsolute(base, job.model.import_path);
  // The planner needs the sizes of the model that is imported.
  WEFT_RETURN_IF_ERROR(ResolveImportedModel(Env::Posix(), job));
  return job;
}

}  // namespace weft::cli
