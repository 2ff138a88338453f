#include "worker/engine/data/dataset_input.h"

#include <numeric>

#include "common/formats/data_files.h"
#include "common/rng.h"
#include "worker/engine/data/permutation.h"

namespace weft::engine {
namespace {

constexpr uint32_t kExamplesSite = SiteHash("data.examples");

}  // namespace

Result<std::unique_ptr<DatasetInput>> OpenDatasetInput(Env& env, const JobSpec& job) {
  WEFT_ASSIGN_OR_RETURN(std::string format, DataFormatOf(env, job));
  WEFT_RETURN_IF_ERROR(CheckFormatServes(format, job.model.family));
  if (job.model.family == "vit") return OpenImageInput(env, job, format);
  if (format == "text") return OpenTextInput(env, job);
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
