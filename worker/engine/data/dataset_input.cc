#include "worker/engine/data/dataset_input.h"

#include <numeric>

#include "common/formats/token_file.h"
#include "common/rng.h"
#include "worker/engine/data/permutation.h"

namespace weft::engine {
namespace {

constexpr uint32_t kExamplesSite = SiteHash("data.examples");

}  // namespace

Result<std::string> FormatOf(Env& env, const DataSpec& data) {
  if (data.format != "auto") return data.format;
  const std::string& path = data.train.front();
  if (path.ends_with(".jsonl") || path.ends_with(".ndjson")) return std::string("jsonl");
  if (path.ends_with(".idx")) return std::string("megatron");
  if (BaseName(path).find("idx3-ubyte") != std::string::npos) return std::string("idx");
  if (env.ListDir(path).ok()) return std::string("image_folder");
  if (!path.ends_with(".bin")) return std::string("text");
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, env.MapFile(path));
  if (LooksLikeLlmc(file->bytes())) return std::string("llmc");
  return InvalidError("what " + path +
                      " holds does not show in its name. hint: set data.format, for example to "
                      "nanogpt or megatron");
}

Result<std::unique_ptr<DatasetInput>> OpenDatasetInput(Env& env, const JobSpec& job) {
  WEFT_ASSIGN_OR_RETURN(std::string format, FormatOf(env, job.data));
  const bool images = format == "idx" || format == "image_folder";
  if (images != (job.model.family == "vit")) {
    return InvalidError("data.format " + format + " cannot train model.family " + job.model.family +
                        ": pictures are for vit, tokens for all others");
  }
  if (images) return OpenImageInput(env, job, format);
  if (format == "text" || format == "jsonl") return OpenTextInput(env, job);
  return OpenTokenInput(env, job, format);
}

Status WriteLabels(Env& env, const std::string& path, const std::vector<int32_t>& labels,
                   size_t classes, const std::string& tokenizer_hash) {
  WEFT_ASSIGN_OR_RETURN(TokenShardWriter writer,
                        TokenShardWriter::Create(env, path, classes, tokenizer_hash));
  WEFT_RETURN_IF_ERROR(writer.Append(labels));
  return writer.Finish();
}

std::string NoTokenizerHash() {
  return std::string(32, '0');
}

std::vector<size_t> ScatteredOrder(size_t count) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = Permute(i, count, {0, 0, kExamplesSite});
  return order;
}

}  // namespace weft::engine
