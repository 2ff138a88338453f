#include "worker/trainer/training_data.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "common/formats/huggingface.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/model/step_extent.h"
#include "common/model/technique_cost.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/local_steps.h"
#include "common/spec/micro_batch_order.h"
#include "common/spec/model_family.h"
#include "common/text.h"
#include "worker/engine/data/batch_warmup.h"
#include "worker/engine/data/class_order.h"
#include "worker/engine/data/context_chunks.h"
#include "worker/engine/data/image_loader.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/data/loader.h"
#include "worker/engine/data/prefetcher.h"
#include "worker/engine/data/prepare.h"
#include "worker/engine/techniques/parallel/mesh_layout.h"

namespace weft::trainer {
namespace {

using engine::BatchSource;

/// What this rank asks for in each step; the order of engine::Trainer.
engine::RangesOfStep RangesOfRank(const AttemptSpec& spec) {
  const int64_t size = spec.plan.micro_batch;
  const engine::MeshLayout layout(spec.plan.mesh);
  return [schedule = BatchSchedule(spec.job.train), rank = layout.ReplicaOf(spec.rank), size,
          ranks = layout.degree(engine::kSequenceAxes),
          turns = RanksTakingTurns(spec.job.train, spec.plan)](int64_t step) {
    const int64_t micro_batches = schedule.At(step) / (size * ranks);
    std::vector<engine::SequenceRange> ranges;
    for (int64_t k = 0; k < micro_batches; ++k) {
      ranges.push_back({MicroBatchNumber(rank, k, micro_batches, turns) * size, size});
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

/// What the user who gave these data should know of how they were prepared.
std::vector<std::string> WarningsOf(const engine::DatasetInfo& info, const DataSpec& data) {
  std::vector<std::string> warnings;
  if (info.skipped_lines > 0) {
    warnings.push_back(std::to_string(info.skipped_lines) +
                       " lines of the data cannot be used and are left out (data.bad_lines: skip); "
                       "the first: " +
                       info.first_skipped_line);
  }
  if (info.spelled_special_tokens > 0 && data.special_tokens == "text") {
    warnings.push_back("special tokens are spelled out in the texts " +
                       std::to_string(info.spelled_special_tokens) + " times, the first is " +
                       info.spelled_example +
                       "; they are learned as text; hint: data.special_tokens: parse makes them "
                       "tokens, and data.document_separator cuts a text at them");
  }
  return warnings;
}

Result<std::unique_ptr<BatchSource>> NewSource(const engine::Dataset& dataset,
                                               const AttemptSpec& spec, bool training,
                                               TrainingData& data) {
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
  if (training) data.padding = PaddingText(*tokens, spec);
  if (const int64_t rows = tokens->rows_left_out(); rows > 0) {
    data.warnings.push_back(
        std::to_string(rows) + " of " + std::to_string(rows + tokens->Sequences()) +
        (training ? " training" : " validation") + " sequences are left out: they " +
        (dataset.info.answers ? "hold no token of an answer"
                              : "are special tokens alone (unknown ones among them)") +
        " and have nothing to predict");
  }
  return std::unique_ptr<BatchSource>(std::move(tokens));
}

std::string Joined(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i ? ", " : "") + ClipText(names[i]);
  return text + (names.size() > kShown ? ", ..." : "");
}

/// Whether the data number their classes rather than name them.
bool AreNumbers(const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != std::to_string(i)) return false;
  }
  return true;
}

/// Those of the data, which must suit the model; or those of the classifier that goes on learning.
Result<std::vector<std::string>> NamesOfClasses(Env& env, const JobSpec& job,
                                                const std::vector<std::string>& of_data) {
  const ModelSpec& model = job.model;
  const auto count = static_cast<int64_t>(of_data.size());
  if (HeadOf(model) != "classification") return of_data;
  if (model.classes > 0 && count > model.classes) {
    return InvalidError("the data have " + std::to_string(count) + " classes (" + Joined(of_data) +
                        "), the model only " + std::to_string(model.classes) +
                        "; hint: model.classes " + std::to_string(count) +
                        ", or 0 for as many as the data have");
  }
  if (model.import_path.empty()) return of_data;
  WEFT_ASSIGN_OR_RETURN(const ImportedHead head, ReadHead(env, model.import_path));
  if (!HasHead(head, model)) return of_data;
  if (head.class_names.empty()) {
    WEFT_RETURN_IF_ERROR(engine::CheckNumbersOfClasses(of_data, head.classes));
    return of_data;
  }
  if (AreNumbers(of_data) || of_data == head.class_names) {
    return head.class_names;
  }
  const auto unknown = std::find_if(of_data.begin(), of_data.end(), [&](const std::string& name) {
    return std::find(head.class_names.begin(), head.class_names.end(), name) ==
           head.class_names.end();
  });
  return InvalidError("the class \"" +
                      ClipText(unknown == of_data.end() ? of_data.front() : *unknown) +
                      "\" of the data (" + Joined(of_data) + ") is none of the model in " +
                      model.import_path + " (" + Joined(head.class_names) +
                      "); hint: labels that are names of the model's, or numbers in its order");
}

/// What a training whose sequences are cut leaves out, or "".
std::string CutText(const JobSpec& job) {
  constexpr int64_t kSamples = 4096;
  const int64_t whole = SequenceLength(job);
  int64_t cut = 0, of = 0;
  for (const auto& [extent, count] : ExtentsOf(job, job.train.steps, kSamples)) {
    cut += (whole - extent.length) * count;
    of += whole * count;
  }
  if (cut == 0) return "";
  const auto permille = std::llround(static_cast<double>(cut) / static_cast<double>(of) * 1000);
  return "sequences are cut while they grow: " + std::to_string(permille / 10) + "." +
         std::to_string(permille % 10) +
         " % of the text that the steps go through is left out until it is read again";
}

/// The data of a job that validates, or null where nothing is held out.
Result<std::unique_ptr<BatchSource>> ValidationOf(const engine::Dataset& dataset,
                                                  const AttemptSpec& spec, TrainingData& data) {
  if (dataset.validation.count == 0) return std::unique_ptr<BatchSource>();
  Result<std::unique_ptr<BatchSource>> validation =
      NewSource(dataset, spec, /*training=*/false, data);
  if (validation.ok()) return validation;
  if (!spec.job.data.validation.empty()) return validation.status().WithContext("validation data");
  // Nobody asked for exactly these tokens; a small corpus should still train.
  WEFT_LOG_WARNING << "no validation: " << validation.status().message();
  return std::unique_ptr<BatchSource>();
}

/// What the data of one job are.
struct JobData {
  engine::DatasetInfo info;
  std::unique_ptr<BatchSource> train;
  std::unique_ptr<BatchSource> validation;  ///< Null: nothing is held out.
};

/// Opens the data of spec.job, and says in `data` all but its sources and unigram_entropy.
Result<JobData> OpenJobData(Env& env, const AttemptSpec& spec, TrainingData& data) {
  WEFT_ASSIGN_OR_RETURN(engine::Dataset dataset,
                        engine::PrepareDataset(env, spec.job, spec.cache_dir,
                                               static_cast<int>(spec.plan.threads_per_rank)));
  JobData opened;
  opened.info = dataset.info;
  data.vocab_size = dataset.info.image_size > 0 ? 0 : dataset.info.vocab_size;
  data.fingerprint = dataset.fingerprint;
  data.tokenizer_path = dataset.TokenizerPath();
  data.warnings = WarningsOf(dataset.info, spec.job.data);
  WEFT_ASSIGN_OR_RETURN(data.classes, NamesOfClasses(env, spec.job, dataset.info.classes));
  WEFT_ASSIGN_OR_RETURN(opened.train, NewSource(dataset, spec, /*training=*/true, data));
  WEFT_ASSIGN_OR_RETURN(opened.validation, ValidationOf(dataset, spec, data));
  return opened;
}

/// The data of several jobs that are trained together.
Result<JobData> OpenJointData(Env& env, const AttemptSpec& spec, const std::vector<JobSpec>& jobs,
                              TrainingData& data) {
  std::vector<std::unique_ptr<BatchSource>> train, validation;
  JobData all;
  std::string fingerprints;
  bool validates = false;
  for (const JobSpec& job : jobs) {
    AttemptSpec own = spec;
    own.job = job;
    own.plan.micro_batch /= std::ssize(jobs);
    TrainingData of_job;
    Result<JobData> opened = OpenJobData(env, own, of_job);
    if (!opened.ok()) return opened.status().WithContext(job.name);
    if (!train.empty() && opened->info.tokenizer_hash != all.info.tokenizer_hash) {
      return InvalidError("the data of " + job.name + " have another tokenizer than those of " +
                          jobs.front().name +
                          ", and one network reads both; hint: model.import_path of a folder with "
                          "a tokenizer, or data.tokenizer.path");
    }
    const double entropy = all.info.unigram_entropy_nats +
                           opened->info.unigram_entropy_nats / static_cast<double>(jobs.size());
    all.info = std::move(opened->info);
    all.info.unigram_entropy_nats = entropy;
    validates = validates || opened->validation != nullptr;
    train.push_back(std::move(opened->train));
    validation.push_back(std::move(opened->validation));
    fingerprints += of_job.fingerprint;
    const auto named = [&job](const std::string& text) { return job.name + ": " + text; };
    for (const std::string& warning : of_job.warnings) data.warnings.push_back(named(warning));
    if (!of_job.padding.empty()) {
      data.padding += (data.padding.empty() ? "" : "; ") + named(of_job.padding);
    }
    data.vocab_size = of_job.vocab_size;
    data.tokenizer_path = of_job.tokenizer_path;
  }
  data.fingerprint = HashHex(std::as_bytes(std::span(fingerprints)));
  using AtEnd = engine::JointBatches::AtEnd;
  all.train = std::make_unique<engine::JointBatches>(std::move(train), AtEnd::kNone);
  if (validates) {
    all.validation =
        std::make_unique<engine::JointBatches>(std::move(validation), AtEnd::kBlankRows);
  }
  return all;
}

/// With train.batch_warmup_steps batches that grow, else as they are.
std::unique_ptr<BatchSource> GrowingBatches(std::unique_ptr<BatchSource> source,
                                            const JobSpec& job) {
  if (job.train.batch_warmup_steps == 0) return source;
  return std::make_unique<engine::BatchWarmup>(std::move(source), job.train);
}

/// The training images of spec.job in all sizes of the search; `data` knows of them from then on.
Result<std::unique_ptr<BatchSource>> OpenImageSizes(Env& env, const AttemptSpec& spec,
                                                    const PhaseSearchSpec& search,
                                                    TrainingData& data) {
  std::vector<std::unique_ptr<BatchSource>> sizes;
  std::string fingerprints;
  for (const int64_t size : search.image_sizes) {
    AttemptSpec own = spec;
    own.job.model.image_size = size;
    WEFT_ASSIGN_OR_RETURN(const engine::Dataset dataset,
                          engine::PrepareDataset(env, own.job, own.cache_dir,
                                                 static_cast<int>(own.plan.threads_per_rank)));
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<BatchSource> source,
                          NewSource(dataset, own, /*training=*/true, data));
    sizes.push_back(GrowingBatches(std::move(source), own.job));
    fingerprints += dataset.fingerprint;
  }
  data.fingerprint = HashHex(std::as_bytes(std::span(fingerprints)));
  auto images = std::make_unique<engine::ElasticImages>(std::move(sizes), spec.job.train.seed);
  data.image_sizes = images.get();
  return std::unique_ptr<BatchSource>(std::move(images));
}

}  // namespace

std::unique_ptr<BatchSource> OwnChunks(std::unique_ptr<BatchSource> whole,
                                       const AttemptSpec& spec) {
  const int64_t ranks = spec.plan.mesh.context;
  if (ranks == 1) return whole;
  const engine::MeshLayout layout(spec.plan.mesh);
  return std::make_unique<engine::ContextChunks>(
      std::move(whole), layout.CoordinateOf(spec.rank, engine::MeshAxis::kContext), ranks);
}

Result<TrainingData> OpenTrainingData(Env& env, const AttemptSpec& spec,
                                      const PhaseSearchSpec& search) {
  const JobSpec& job = spec.job;
  TrainingData data;
  const std::vector<JobSpec> jobs = JointJobs(job);
  WEFT_ASSIGN_OR_RETURN(JobData opened, jobs.empty() ? OpenJobData(env, spec, data)
                                                     : OpenJointData(env, spec, jobs, data));
  data.unigram_entropy = opened.info.unigram_entropy_nats;
  if (std::string cut = CutText(job); !cut.empty()) data.warnings.push_back(std::move(cut));
  if (search.image_sizes.empty()) {
    opened.train = GrowingBatches(std::move(opened.train), job);
  } else {
    WEFT_ASSIGN_OR_RETURN(opened.train, OpenImageSizes(env, spec, search, data));
  }
  data.train = OwnChunks(std::move(opened.train), spec);
  // What a round by time reads next is not known before it begins.
  if (!TimesRounds(job.train)) {
    data.train = std::make_unique<engine::Prefetcher>(std::move(data.train), RangesOfRank(spec));
  }
  if (opened.validation != nullptr) {
    data.validation = OwnChunks(std::move(opened.validation), spec);
  }
  return data;
}

}  // namespace weft::trainer
