#include "cli/job_file.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>

#include "cli/data_paths.h"
#include "common/env.h"
#include "common/formats/added_network.h"
#include "common/formats/data_files.h"
#include "common/formats/huggingface.h"
#include "common/model/technique_cost.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{4} << 20;

constexpr size_t kMaxDataFiles = 100000;  // as data.train allows

/// Replaces patterns by their files; the line of each file is then that of its pattern.
Status ExpandList(const std::filesystem::path& base, const std::string& field,
                  std::vector<std::string>& paths, Document& document) {
  std::vector<std::string> all;
  std::map<std::string, int> lines;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string place = field + "[" + std::to_string(i) + "]";
    Result<std::vector<std::string>> files = ExpandPath(paths[i], base);
    if (!files.ok()) return InvalidError(place + ": " + files.status().message());
    const auto line = document.lines.find(place);
    for (std::string& file : *files) {
      if (line != document.lines.end()) {
        lines[field + "[" + std::to_string(all.size()) + "]"] = line->second;
      }
      all.push_back(std::move(file));
    }
  }
  if (all.size() > kMaxDataFiles) {
    return InvalidError(field + " stands for " + std::to_string(all.size()) + " files; at most " +
                        std::to_string(kMaxDataFiles) + " are accepted");
  }
  paths = std::move(all);
  for (const auto& [place, line] : lines) document.lines[place] = line;
  return OkStatus();
}

Status ResolveField(const std::filesystem::path& base, const std::string& field,
                    std::string& path) {
  Result<std::string> resolved = ResolvePath(path, base);
  if (!resolved.ok()) return InvalidError(field + ": " + resolved.status().message());
  path = *std::move(resolved);
  return OkStatus();
}

Status ResolvePaths(const std::filesystem::path& base, JobSpec& job, Document& document) {
  for (const DataList& data : DataLists(job)) {
    WEFT_RETURN_IF_ERROR(ExpandList(base, data.field, *data.paths, document));
  }
  WEFT_RETURN_IF_ERROR(ResolveField(base, "data.tokenizer.path", job.data.tokenizer.path));
  if (std::string& given = job.data.chat_template; given.find('{') == std::string::npos) {
    WEFT_RETURN_IF_ERROR(ResolveField(base, "data.chat_template", given));
  }
  WEFT_RETURN_IF_ERROR(ResolveField(base, "model.import_path", job.model.import_path));
  if (const std::optional<AddedNetwork> added = AddedNetworkOf(job.train)) {
    ModelSpec network = *added->model;
    const std::string field = std::string(added->field) + ".import_path";
    WEFT_RETURN_IF_ERROR(ResolveField(base, field, network.import_path));
    SetAddedNetwork(job.train, network);
  }
  return OkStatus();
}

Status CheckFiles(const JobSpec& job, DataCheck check) {
  if (check == DataCheck::kNone) return OkStatus();
  Env& env = Env::Posix();
  const std::string& tokenizer = job.data.tokenizer.path;
  if (check == DataCheck::kAll && !tokenizer.empty() && !env.FileExists(tokenizer)) {
    return InvalidError("data.tokenizer.path: there is no " + tokenizer);
  }
  return CheckDataFiles(env, job, {.missing_is_error = check == DataCheck::kAll});
}

bool IsWritten(const Json& document, const char* section, const char* field) {
  const auto found = document.find(section);
  return found != document.end() && found->is_object() && found->contains(field);
}

/// Takes `train.sparsity.decay: auto` out of a job; whether it was there.
bool TakeAutoDecay(Json& document) {
  Json* section = &document;
  for (const char* name : {"train", "sparsity"}) {
    const auto found = section->find(name);
    if (found == section->end() || !found->is_object()) return false;
    section = &*found;
  }
  if (section->value("decay", Json()) != "auto") return false;
  section->erase("decay");
  return true;
}

/// The line of `path` or, where it is not written, of what it belongs to.
std::map<std::string, int>::const_iterator LineOf(const Document& document, std::string path,
                                                  bool or_parent) {
  auto line = document.lines.find(path);
  while (line == document.lines.end() && or_parent) {
    const size_t end = path.find_last_of(".[");
    if (end == std::string::npos) break;
    path.resize(end);
    line = document.lines.find(path);
  }
  return line;
}

/// Words of a message that may be paths of fields: "data.train[0]", and a first word such as
/// "name".
std::vector<std::string> FieldsIn(const std::string& message) {
  constexpr char kOfPath[] = "abcdefghijklmnopqrstuvwxyz0123456789_.[]";
  std::vector<std::string> fields;
  for (size_t at = 0; at < message.size();) {
    const size_t end = std::min(message.find_first_not_of(kOfPath, at), message.size());
    std::string word = message.substr(at, end - at);
    while (word.ends_with('.')) word.pop_back();
    if (!word.empty() && (at == 0 || word.find('.') != std::string::npos)) fields.push_back(word);
    at = std::max(end, at + 1);
    // The rest of a word with another character in it is no field: "/data/a.b".
    if (end < message.size() && message[end] == '/') {
      at = std::min(message.find(' ', end), message.size());
    }
  }
  return fields;
}

/// The line of the first field that a message names and the document holds, or holds a part of.
std::optional<int> LineOfField(const Document& document, const std::string& message) {
  const std::vector<std::string> fields = FieldsIn(message);
  for (const bool or_parent : {false, true}) {
    for (const std::string& field : fields) {
      const auto line = LineOf(document, field, or_parent);
      if (line != document.lines.end()) return line->second;
    }
  }
  return std::nullopt;
}

}  // namespace

Status WithLineOfField(const Document& document, const Status& status) {
  const std::optional<int> line = LineOfField(document, status.message());
  return status.WithContext(line ? document.source + ":" + std::to_string(*line) : document.source);
}

Result<JobSpec> LoadJobFile(const std::string& path, DataCheck check, std::ostream& notes,
                            const std::function<Status(Json&)>& edit) {
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
  if (edit) WEFT_RETURN_IF_ERROR(edit(document.value));
  const bool finds_decay = document.value.is_object() && TakeAutoDecay(document.value);
  WEFT_ASSIGN_OR_RETURN(JobSpec job, FromJson<JobSpec>(document));
  const int64_t warmup = job.schedule.warmup_steps;
  if (!IsWritten(document.value, "schedule", "warmup_steps") && FitDefaultWarmup(job)) {
    notes << "note: schedule.warmup_steps is " << job.schedule.warmup_steps << " rather than "
          << warmup << ", for "
          << (job.phases.empty() ? "train.steps is " + std::to_string(job.train.steps)
                                 : "phases are as short as that")
          << '\n';
  }
  if (finds_decay && job.train.sparsity.decay_search_steps == 0) {
    job.train.sparsity.decay_search_steps = DefaultDecaySearchSteps(job);
    notes << "note: train.sparsity.decay is searched for in four runs of "
          << job.train.sparsity.decay_search_steps << " steps each, as long as the warm-up\n";
  }
  const auto finish = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(ValidateJob(job));
    WEFT_RETURN_IF_ERROR(ResolvePaths(base, job, document));
    // The planner needs the sizes of the model that is imported; its family says what data are
    // for.
    Status imported = ResolveImportedModel(Env::Posix(), job);
    if (!imported.ok() && !LineOfField(document, imported.message())) {
      imported = imported.WithContext("model.import_path");
    }
    WEFT_RETURN_IF_ERROR(imported);
    WEFT_RETURN_IF_ERROR(ResolveAddedNetwork(Env::Posix(), job));
    return CheckFiles(job, check);
  };
  if (Status status = finish(); !status.ok()) return WithLineOfField(document, status);
  return job;
}

}  // namespace weft::cli
