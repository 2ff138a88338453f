#include "common/formats/data_files.h"

#include <algorithm>

#include "common/formats/chat_template.h"
#include "common/formats/documents.h"
#include "common/formats/git_lfs.h"
#include "common/formats/image.h"
#include "common/formats/token_file.h"
#include "common/model/technique_cost.h"
#include "common/spec/instruction_data.h"
#include "common/spec/model_family.h"
#include "common/text.h"

namespace weft {
namespace {

/// A name that only a shell, or the command line, makes a path of.
bool IsUnexpanded(const std::string& path) {
  return path.starts_with('~') || path.find_first_of("$*") != std::string::npos;
}

class DataChecker {
 public:
  DataChecker(Env& env, const JobSpec& job, std::string format, const DataCheckLimits& limits)
      : env_(env), job_(job), format_(std::move(format)), limits_(limits), left_(limits.bytes) {}

  Status Check(const std::vector<std::string>& paths, const std::string& field) {
    for (size_t i = 0; i < paths.size(); ++i) {
      if (!env_.FileExists(paths[i])) continue;
      const std::string place = field + "[" + std::to_string(i) + "]";
      if (Status status = CheckPath(paths[i]); !status.ok()) {
        return InvalidError(place + ": " + status.message());
      }
    }
    return OkStatus();
  }

 private:
  Status CheckPath(const std::string& path) {
    if (format_ == "idx") return CheckIdx(path);
    if (format_ == "image_folder") return CheckImageFolder(path);
    if (format_ == "megatron") {
      return TokenFile::Open(env_, path, TokenFileFormat::kMegatron).status();
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> files, FilesOf(env_, {path}));
    for (const std::string& file : files) WEFT_RETURN_IF_ERROR(CheckFile(file));
    return OkStatus();
  }

  Status CheckIdx(const std::string& path) {
    WEFT_ASSIGN_OR_RETURN(const std::string labels, IdxLabelsPath(path));
    WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> images_shape, ShapeOf(path));
    WEFT_ASSIGN_OR_RETURN(const std::vector<int64_t> labels_shape, ShapeOf(labels));
    return CheckIdxPair(path, images_shape, labels_shape);
  }

  Result<std::vector<int64_t>> ShapeOf(const std::string& idx_path) {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, env_.MapFile(idx_path));
    Result<std::vector<int64_t>> shape = ReadIdxShape(file->bytes());
    if (!shape.ok()) return shape.status().WithContext(idx_path);
    return shape;
  }

  /// Whether some class has an image.
  Status CheckImageFolder(const std::string& folder) {
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> classes, env_.ListDir(folder));
    for (const std::string& label : classes) {
      const Result<std::vector<std::string>> names = env_.ListDir(JoinPath(folder, label));
      if (names.status().kind() == FailureKind::kOutside) return names.status();
      if (names.ok() && std::any_of(names->begin(), names->end(), IsImageName)) return OkStatus();
    }
    return NoImagesError(folder);
  }

  Status CheckFile(const std::string& path) {
    if (format_ == "llmc") return TokenFile::Open(env_, path, TokenFileFormat::kLlmc).status();
    if (format_ == "nanogpt") {
      return TokenFile::Open(env_, path, TokenFileFormat::kNanoGpt).status();
    }
    return CheckText(path);
  }

  Status CheckText(const std::string& path) {
    if (left_ == 0) return OkStatus();
    const DataSpec& data = job_.data;
    const DocumentOptions options = {
        .format = data.format,
        .text_field = data.text_field,
        .separator = data.document_separator,
        .second_text_field = data.second_text_field,
        .label_field = HeadOf(job_.model) == "classification" ? data.label_field : "",
        .sample_bytes = std::min(left_, limits_.bytes_per_file)};
    WEFT_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::Open(env_, path, options));
    left_ -= std::min<uint64_t>(options.sample_bytes, file.bytes().size());
    if (data.bad_lines == "skip") return OkStatus();
    DocumentContent content;
    for (size_t i = 0; i < file.size(); ++i) {
      WEFT_RETURN_IF_ERROR(WithBadLineHint(file.Read(i, content)));
    }
    return OkStatus();
  }

  Env& env_;
  const JobSpec& job_;
  std::string format_;
  DataCheckLimits limits_;
  uint64_t left_;
};

Status CheckChatTemplate(Env& env, const JobSpec& job, bool missing_is_error) {
  if (job.data.chat_template.empty()) return OkStatus();
  const Result<std::string> source = ChatTemplateSource(env, job.data.chat_template, "");
  if (!source.ok()) return missing_is_error ? source.status() : OkStatus();
  return jinja::Template::Parse(*source).status().WithContext("data.chat_template");
}

}  // namespace

Result<std::string> DataFormatOf(Env& env, const JobSpec& job) {
  const DataSpec& data = job.data;
  if (data.format == "jsonl" || data.format == "json" || IsInstructionFormat(data.format)) {
    return std::string("text");
  }
  if (data.format != "auto") return data.format;
  std::string path = data.train.front();
  if (IsFolder(env, path)) {
    if (job.model.family == "vit") return std::string("image_folder");
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> files, FilesOf(env, {path}));
    path = files.front();
  }
  const std::string name = AsciiLowerCase(BaseName(path));
  if (name.ends_with(".idx")) return std::string("megatron");
  if (name.find("idx3-ubyte") != std::string::npos) return std::string("idx");
  if (!name.ends_with(".bin")) return std::string("text");
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, env.MapFile(path));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(file->bytes(), path));
  if (LooksLikeLlmc(file->bytes())) return std::string("llmc");
  return InvalidError("what " + path +
                      " holds does not show in its name. hint: set data.format, for example to "
                      "nanogpt or megatron");
}

Result<std::vector<std::string>> FilesOf(Env& env, const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    const Result<std::vector<std::string>> names = env.ListDir(path);
    if (!names.ok()) {
      files.push_back(path);
      continue;
    }
    const size_t before = files.size();
    std::string folder;
    for (const std::string& name : *names) {
      if (name.starts_with('.')) continue;
      const std::string inner = JoinPath(path, name);
      if (!IsFolder(env, inner)) {
        files.push_back(inner);
      } else if (folder.empty()) {
        folder = name;
      }
    }
    if (!folder.empty()) {
      return InvalidError("the folder " + path + " holds folders, as " + folder +
                          ", which are not read for text. hint: name the files, with a pattern "
                          "such as " +
                          JoinPath(path, "*/*.txt") + "; images are for model.family vit");
    }
    if (files.size() == before) return InvalidError("the folder " + path + " holds no files");
  }
  return files;
}

Status CheckFormatServes(const std::string& format, const std::string& family) {
  const bool images = format == "idx" || format == "image_folder";
  if (images == (family == "vit")) return OkStatus();
  return InvalidError("data.format " + format + " cannot train model.family " + family +
                      ": images are for vit, tokens for all others");
}

Status CheckDataFiles(Env& env, const JobSpec& job, const DataCheckLimits& limits) {
  JobSpec named = job;
  const std::vector<DataList> lists = DataLists(named);
  for (const auto& [field, paths] : lists) {
    for (size_t i = 0; i < paths->size(); ++i) {
      const std::string& path = (*paths)[i];
      if (env.FileExists(path)) continue;
      const std::string place = field + "[" + std::to_string(i) + "]";
      if (IsUnexpanded(path)) {
        return InvalidError(place + ": there is no file " + path +
                            "; ~, $NAME and patterns are expanded by the command line alone. "
                            "hint: name the files");
      }
      if (limits.missing_is_error) {
        return InvalidError(place + ": there is no file " + path);
      }
    }
  }
  WEFT_RETURN_IF_ERROR(CheckChatTemplate(env, job, limits.missing_is_error));
  if (!env.FileExists(job.data.train.front())) return OkStatus();
  Result<std::string> format = DataFormatOf(env, job);
  if (!format.ok()) return InvalidError("data.train[0]: " + format.status().message());
  if (job.model.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(CheckFormatServes(*format, job.model.family));
  }
  DataChecker checker(env, job, *std::move(format), limits);
  for (const auto& [field, paths] : lists) WEFT_RETURN_IF_ERROR(checker.Check(*paths, field));
  return OkStatus();
}

}  // namespace weft
