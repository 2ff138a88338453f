#include "common/check.h"
#include "common/spec/instruction_data.h"
#include "common/spec/padded_length.h"
#include "worker/engine/data/loader.h"

namespace weft::engine {
namespace {

Batching BatchingOf(const std::string& name) {
  if (name == "concatenate") return Batching::kConcatenate;
  if (name == "best_fit") return Batching::kBestFit;
  if (name == "pad_fixed") return Batching::kPadFixed;
  if (name == "pad_dynamic") return Batching::kPadDynamic;
  WEFT_CHECK(name == "pad_uniform", "unknown batching " + name);
  return Batching::kPadUniform;
}

}  // namespace

Objective ObjectiveOf(const ModelSpec& model) {
  if (model.head == "causal_lm") return Objective::kCausal;
  if (model.head == "masked_lm") return Objective::kMasked;
  if (model.head == "classification") return Objective::kClassification;
  if (model.family == "bert") return Objective::kMasked;
  return model.family == "vit" ? Objective::kClassification : Objective::kCausal;
}

LoaderOptions TrainLoaderOptions(const JobSpec& job, const DatasetInfo& info) {
  LoaderOptions options;
  options.length = SequenceLength(job);
  options.global_batch = job.train.global_batch;
  options.seed = static_cast<uint64_t>(job.train.seed);
  options.batching = BatchingOf(job.data.batching);
  options.mask_documents = job.data.mask_documents;
  options.padding_token = static_cast<int32_t>(info.padding);
  options.length_multiple = kPaddedLengthMultiple;
  options.objective = ObjectiveOf(job.model);
  options.shorten_documents = IsInstructionFormat(job.data.format);
  options.preference_pairs = job.data.format == kPreferenceFormat;
  options.form = info.form;
  options.masking = job.data.masking;
  options.vocabulary.mask_token = static_cast<int32_t>(info.mask);
  options.vocabulary.size = static_cast<int32_t>(info.vocab_size);
  options.vocabulary.special_tokens.assign(info.special_tokens.begin(), info.special_tokens.end());
  return options;
}

LoaderOptions ValidationLoaderOptions(const JobSpec& job, const DatasetInfo& info) {
  LoaderOptions options = TrainLoaderOptions(job, info);
  options.shuffle = false;
  return options;
}

}  // namespace weft::engine
