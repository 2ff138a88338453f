#include "worker/trainer/training_data.h"

#include <cmath>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/spec/batch_schedule.h"
#include "worker/engine/data/batch_warmup.h"
#include "worker/engine/data/image_loader.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prefetcher.h"
#include "worker/engine/data/prepare.h"

namespace weft::trainer {
namespace {

using engine::BatchSource;

/// What this rank asks for in each step; the order of engine::Trainer.
engine::RangesOfStep RangesOfRank(const AttemptSpec& spec) {
  const int64_t size = spec.plan.micro_batch;
  return [schedule = BatchSchedule(spec.job.train), rank = spec.rank, size,
          ranks = RankCount(spec.plan.mesh)](int64_t step) {
    const int64_t micro_batches = schedule.At(step) / (size * ranks);
    std::vector<engine::SequenceRange> ranges;
    for (int64_t k = 0; k < micro_batches; ++k) {
      ranges.push_back({(rank * micro_batches + k) * size, size});
    }
    return ranges;
  };
}

/// What the batching of the training data costs, by the loader's count of an epoch.
std::string PaddingText(const engine::TokenLoader& loader, const AttemptSpec& spec) {
  const engine::PaddingCount count = loader.CountPadding(spec.plan.micro_batch);
  if (count.padding == 0) return "";
  const auto permille = std::llround(count.Share() * 1000);
  return std::to_string(permille / 10) + "." + std::to_string(permille % 10) +
         " % of the tokens are padding (data.batching " + spec.job.data.batching +
         ", micro-batch " + std::to_string(spec.plan.micro_batch) + ")";
}

Result<std::unique_ptr<BatchSource>> NewSource(const engine::Dataset& dataset,
                                               const AttemptSpec& spec, bool training,
                                               std::string& padding) {
  const JobSpec& job = spec.job;
  const engine::TokenSpan& span = training ? dataset.train : dataset.validation;
  if (dataset.info.image_size > 0) {
    WEFT_ASSIGN_OR_RETURN(auto images,
                          engine::ImageLoader::Create(span, engine::ImageOptions(job, training)));
    return std::unique_ptr<BatchSource>(std::move(images));
  }
  const engine::LoaderOptions options = training
                                            ? engine::TrainLoaderOptions(job, dataset.info)
                                            : engine::ValidationLoaderOptions(job, dataset.info);
  WEFT_ASSIGN_OR_RETURN(auto tokens, engine::TokenLoader::Create(span, options));
  if (training) padding = PaddingText(*tokens, spec);
  return std::unique_ptr<BatchSource>(std::move(tokens));
}

}  // namespace

Result<TrainingData> OpenTrainingData(Env& env, const AttemptSpec& spec) {
  const JobSpec& job = spec.job;
  WEFT_ASSIGN_OR_RETURN(engine::Dataset dataset,
                        engine::PrepareDataset(env, job, spec.cache_dir,
                                               static_cast<int>(spec.plan.threads_per_rank)));
  TrainingData data;
  data.vocab_size = dataset.info.vocab_size;
  data.fingerprint = dataset.fingerprint;
  data.unigram_entropy = dataset.info.unigram_entropy_nats;
  data.tokenizer_path = dataset.TokenizerPath();
  data.classes = static_cast<int64_t>(dataset.info.classes.size());
  if (job.model.classes > 0 && data.classes > job.model.classes) {
    return InvalidError("the data have " + std::to_string(data.classes) +
                        " classes, model.classes is only " + std::to_string(job.model.classes));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<BatchSource> train,
                        NewSource(dataset, spec, /*training=*/true, data.padding));
  if (job.train.batch_warmup_steps > 0) {
    train = std::make_unique<engine::BatchWarmup>(std::move(train), job.train);
  }
  data.train = std::make_unique<engine::Prefetcher>(std::move(train), RangesOfRank(spec));
  if (dataset.validation.count == 0) return data;
  Result<std::unique_ptr<BatchSource>> validation =
      NewSource(dataset, spec, /*training=*/false, data.padding);
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
