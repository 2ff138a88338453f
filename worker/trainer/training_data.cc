#include "worker/trainer/training_data.h"

#include <utility>
#include <vector>

#include "common/log.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prefetcher.h"
#include "worker/engine/data/prepare.h"

namespace weft::trainer {
namespace {

using engine::BatchSource;

/// What this rank asks for in every step; the order of engine::Trainer.
std::vector<engine::SequenceRange> RangesOfRank(const AttemptSpec& spec) {
  const Plan& plan = spec.plan;
  std::vector<engine::SequenceRange> ranges;
  for (int64_t k = 0; k < plan.accumulation_steps; ++k) {
    const int64_t micro_batch = spec.rank * plan.accumulation_steps + k;
    ranges.push_back({micro_batch * plan.micro_batch, plan.micro_batch});
  }
  return ranges;
}

}  // namespace

Result<TrainingData> OpenTrainingData(Env& env, const AttemptSpec& spec) {
  const JobSpec& job = spec.job;
  WEFT_ASSIGN_OR_RETURN(engine::Dataset dataset,
                        engine::PrepareDataset(env, job.data, spec.cache_dir,
                                               static_cast<int>(spec.plan.threads_per_rank)));
  TrainingData data;
  data.vocab_size = dataset.info.vocab_size;
  data.fingerprint = dataset.fingerprint;
  data.unigram_entropy = dataset.info.unigram_entropy_nats;
  data.tokenizer_path = dataset.TokenizerPath();
  WEFT_ASSIGN_OR_RETURN(
      std::unique_ptr<BatchSource> train,
      engine::TokenLoader::Create(dataset.train, engine::TrainLoaderOptions(job, dataset.info)));
  data.train = std::make_unique<engine::Prefetcher>(std::move(train), RangesOfRank(spec));
  if (dataset.validation.count == 0) return data;
  Result<std::unique_ptr<engine::TokenLoader>> validation = engine::TokenLoader::Create(
      dataset.validation, engine::ValidationLoaderOptions(job, dataset.info));
  if (validation.ok()) {
    data.validation = *std::move(validation);
  } else if (!job.data.validation.empty()) {
    return validation.status().WithContext("validation data");
  } else {
    // Nobody asked for exactly these tokens; a small corpus should still train.
    WEFT_LOG_WARNING << "no validation: " << validation.status().message();
  }
  return data;
}

}  // namespace weft::trainer
