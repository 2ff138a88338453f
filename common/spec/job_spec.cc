#include "common/spec/job_spec.h"

#include <algorithm>
#include <utility>

#include "common/json.h"
#include "common/spec/compatibility.h"
#include "common/spec/context_parallel.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/instruction_data.h"
#include "common/spec/local_steps.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/model_family.h"
#include "common/spec/offload.h"
#include "common/spec/open_choices.h"
#include "common/spec/phases.h"
#include "common/spec/pipeline_parallel.h"
#include "common/spec/technique_checks.h"
#include "common/spec/tensor_parallel.h"

namespace weft {
namespace {

// Sizes that must fit each other. Those of an imported model are those of its folder.
Status CheckModel(const ModelSpec& model) {
  WEFT_RETURN_IF_ERROR(CheckExperts(model));
  if (model.family == "vit" && model.image_size % model.patch_size != 0) {
    return InvalidError("model.image_size " + std::to_string(model.image_size) +
                        " must be a multiple of model.patch_size " +
                        std::to_string(model.patch_size));
  }
  if (model.head_width == 0 && model.width % model.heads != 0) {
    return InvalidError("model.width " + std::to_string(model.width) +
                        " must be a multiple of model.heads " + std::to_string(model.heads));
  }
  if (model.head_width % 8 != 0) {
    return InvalidError(
        "model.head_width " + std::to_string(model.head_width) +
        " must be a multiple of 8; hint: " + std::to_string((model.head_width / 8 + 1) * 8));
  }
  if (model.kv_heads > 0 && model.heads % model.kv_heads != 0) {
    return InvalidError("model.heads " + std::to_string(model.heads) +
                        " must be a multiple of model.kv_heads " + std::to_string(model.kv_heads));
  }
  if (model.distinct_blocks > 0 && model.layers % model.distinct_blocks != 0) {
    return InvalidError("model.layers " + std::to_string(model.layers) +
                        " must be a multiple of model.distinct_blocks " +
                        std::to_string(model.distinct_blocks));
  }
  const RopeScalingSpec& scaling = model.rope_scaling;
  if (scaling.kind == "llama3" && scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return InvalidError(
        "model.rope_scaling.high_frequency_factor must be more than low_frequency_factor");
  }
  return OkStatus();
}

Status CheckName(const std::string& field, const std::string& name) {
  for (size_t i = 0; i < name.size(); ++i) {
    const char c = name[i];
    const bool inner = i > 0 && i + 1 < name.size();
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && inner))) {
      return InvalidError(field + " '" + name +
                          "' must hold only a-z, 0-9 and dashes between them");
    }
  }
  return OkStatus();
}

Status CheckScheduling(const SchedulingSpec& scheduling) {
  WEFT_RETURN_IF_ERROR(CheckName("scheduling.queue", scheduling.queue));
  WEFT_RETURN_IF_ERROR(CheckName("scheduling.group", scheduling.group));
  if (scheduling.group_limit > 0 && scheduling.group.empty()) {
    return InvalidError("scheduling.group_limit needs a scheduling.group whose jobs it counts");
  }
  std::vector<std::string> after = scheduling.after;
  std::sort(after.begin(), after.end());
  const auto twice = std::adjacent_find(after.begin(), after.end());
  if (twice != after.end()) {
    return InvalidError("scheduling.after names job '" + *twice + "' twice");
  }
  if (!after.empty() && after.front().empty()) {
    return InvalidError("scheduling.after holds an empty job id");
  }
  return OkStatus();
}

Status CheckOptimization(const JobSpec& job) {
  const OptimizerSpec& optimizer = job.optimizer;
  const ScheduleSpec& schedule = job.schedule;
  if (optimizer.nesterov && optimizer.momentum == 0) {
    return InvalidError("optimizer.nesterov needs optimizer.momentum above 0");
  }
  // Muon's rate is kept as a multiple of the other, which the schedule moves.
  constexpr double kMostRatio = 1e6;
  if (optimizer.name == "muon" &&
      optimizer.muon_learning_rate > kMostRatio * optimizer.learning_rate) {
    return InvalidError(
        "optimizer.learning_rate " + Json(optimizer.learning_rate).dump() +
        " is less than a millionth of optimizer.muon_learning_rate " +
        Json(optimizer.muon_learning_rate).dump() +
        ", which is scheduled with it; hint: a higher one, and model.freeze for what is "
        "not to be trained");
  }
  const int64_t steps = ScheduleSteps(job);
  const std::string all = steps == job.train.steps
                              ? "train.steps " + std::to_string(steps)
                              : "the " + std::to_string(steps) + " steps of the schedule";
  if (schedule.warmup_steps > steps) {
    return InvalidError("schedule.warmup_steps " + std::to_string(schedule.warmup_steps) +
                        " is more than " + all);
  }
  if (schedule.kind == "warmup_stable_decay" &&
      schedule.decay_steps > steps - schedule.warmup_steps) {
    return InvalidError("schedule.decay_steps " + std::to_string(schedule.decay_steps) +
                        " is more than " + all + " less schedule.warmup_steps " +
                        std::to_string(schedule.warmup_steps));
  }
  if (schedule.batch_scaling != "none" && schedule.reference_batch == 0) {
    return InvalidError("schedule.batch_scaling " + schedule.batch_scaling +
                        " needs schedule.reference_batch");
  }
  return OkStatus();
}

Status CheckActivationBits(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const int64_t bits = resources.activation_bits;
  if (bits == 0) return OkStatus();
  const std::string field = "resources.activation_bits " + std::to_string(bits);
  if (bits != 8 && bits != 4 && bits != 2) {
    return InvalidError(field + " must be 8, 4, 2 or 0");
  }
  return OkStatus();
}

Status CheckCheckpoints(const CheckpointSpec& checkpoint) {
  if (checkpoint.interval != "auto" || checkpoint.every_steps > 0) return OkStatus();
  return InvalidError(
      "checkpoint.interval auto needs checkpoint.every_steps above 0, which holds until a save has "
      "been measured; hint: leave checkpoint.every_steps at its default");
}

Status CheckRecompute(const ResourceSpec& resources) {
  if (resources.recompute_segment == 1 || resources.recompute == "block") return OkStatus();
  return InvalidError("resources.recompute_segment " + std::to_string(resources.recompute_segment) +
                      " is for resources.recompute block, not " + resources.recompute);
}

// Shard groups of ZeRO.
Status CheckShardRanks(const ResourceSpec& resources) {
  const int64_t shard_ranks = resources.zero_shard_ranks;
  if (shard_ranks == 0) return OkStatus();
  const std::string field = "resources.zero_shard_ranks " + std::to_string(shard_ranks);
  if (resources.zero_stage == 0) {
    return InvalidError(field +
                        " is the size of shard groups of resources.zero_stage, which is 0"
                        "; hint: resources.zero_stage 1");
  }
  if (shard_ranks == 1) {
    return InvalidError(field +
                        " shards nothing; hint: 2 or more, or resources.zero_stage 0 and leave it "
                        "out");
  }
  const int64_t replica = resources.tensor_parallel * resources.pipeline_parallel;
  const int64_t ranks = resources.ranks / replica;
  if (ranks % shard_ranks == 0) return OkStatus();
  return InvalidError(
      field + " must divide the ranks that sum gradients, which are resources.ranks " +
      std::to_string(resources.ranks) +
      (replica > 1 ? " over tensor_parallel x pipeline_parallel " + std::to_string(replica) : "") +
      "; hint: one of their divisors");
}

// Some choice of what is left to the planner has to be possible. Otherwise the first one, which
// asks for least besides what the job says, gives the error.
Status CheckAnyChoice(const JobSpec& job) {
  Status first;
  for (const JobSpec& choice : ChoicesOf(job)) {
    Status status = ValidateJob(choice);
    if (status.ok()) return status;
    if (first.ok()) first = status;
  }
  return first;
}

Status CheckInstructionData(const JobSpec& job) {
  const DataSpec& data = job.data;
  const bool instruction = IsInstructionFormat(data.format);
  if (data.loss_on == "completions" && !instruction) {
    return InvalidError(
        "data.loss_on completions needs data that say what is asked and what is "
        "answered, not data.format " +
        data.format + "; hint: data.format chat, prompt_completion or alpaca");
  }
  if (!data.chat_template.empty() && data.format != "chat" && data.format != kPreferenceFormat) {
    return InvalidError("data.chat_template is for data.format chat or preference, not " +
                        data.format);
  }
  if (instruction && HeadOf(job.model) != "causal_lm") {
    return InvalidError("data.format " + data.format +
                        " trains language models that predict the next token, not model.family " +
                        job.model.family + " with model.head " + HeadOf(job.model));
  }
  return OkStatus();
}

}  // namespace

Status ValidateHead(const JobSpec& job) {
  const ModelSpec& model = job.model;
  const DataSpec& data = job.data;
  WEFT_RETURN_IF_ERROR(CheckInstructionData(job));
  if (model.family == "vit") {
    if (job.train.sequence_length == 0 || job.train.sequence_length == SequenceLength(job)) {
      return OkStatus();
    }
    return InvalidError("train.sequence_length " + std::to_string(job.train.sequence_length) +
                        " is not that of a vit's images, " + std::to_string(SequenceLength(job)) +
                        ": their patches and the class token; hint: leave it out");
  }
  if (!model.import_path.empty() && job.data.tokenizer.path.empty()) {
    return InvalidError(
        "model.import_path is given and data.tokenizer.path is not: weights that "
        "were trained mean nothing with another tokenizer; hint: data.tokenizer."
        "path is most often the same folder");
  }
  const std::string head = HeadOf(model);
  const bool padded = data.batching.starts_with("pad_");
  if (head == "classification" && !padded) {
    return InvalidError(
        "model.head classification needs one document a sequence, not data.batching " +
        data.batching + "; hint: pad_uniform, pad_dynamic or pad_fixed");
  }
  if (data.second_text_field.empty()) return OkStatus();
  if (head == "causal_lm" || !padded) {
    return InvalidError(
        "data.second_text_field needs a model.head of masked_lm or classification and a "
        "data.batching of pad_fixed, pad_dynamic or pad_uniform");
  }
  if (model.token_types == 1) {
    return InvalidError(
        "data.second_text_field needs a model.token_types of 2, to tell two texts apart");
  }
  return OkStatus();
}

bool FitDefaultWarmup(JobSpec& job) {
  int64_t most = job.schedule.warmup_steps;
  for (size_t i = 0; i < PhaseCount(job); ++i) {
    if (!job.phases.empty() && job.phases[i].warmup_steps >= 0) continue;
    const JobSpec phase = JobOfPhase(job, i);
    const int64_t decay =
        phase.schedule.kind == "warmup_stable_decay" ? phase.schedule.decay_steps : int64_t{0};
    const int64_t steps = ScheduleSteps(phase);
    const int64_t room = std::max<int64_t>(steps - decay, 0);
    most = std::min({most, std::max<int64_t>(steps / 10, 1), room});
  }
  if (job.schedule.warmup_steps <= most) return false;
  job.schedule.warmup_steps = most;
  return true;
}

int64_t DefaultDecaySearchSteps(const JobSpec& job) {
  const int64_t interval = job.train.sparsity.mask_interval;
  const int64_t searches = (job.schedule.warmup_steps + interval - 1) / interval;
  return std::max<int64_t>(searches, 2) * interval;
}

Status ValidateJob(const JobSpec& job) {
  if (!job.phases.empty() && !IsOfGrownPhase(job)) return CheckPhases(job);
  if (LeavesChoices(job)) return CheckAnyChoice(job);
  WEFT_RETURN_IF_ERROR(CheckName("name", job.name));
  WEFT_RETURN_IF_ERROR(CheckScheduling(job.scheduling));
  WEFT_RETURN_IF_ERROR(CheckCompatibility(job));
  const ModelSpec& model = job.model;
  if (model.import_path.empty()) WEFT_RETURN_IF_ERROR(CheckModel(model));
  if (model.import_path.empty()) WEFT_RETURN_IF_ERROR(ValidateHead(job));
  if (model.import_path.empty() && model.family != "vit" && SequenceLength(job) > model.context) {
    return InvalidError("train.sequence_length " + std::to_string(SequenceLength(job)) +
                        " is longer than model.context " + std::to_string(model.context));
  }
  if (job.data.masking.mask_share + job.data.masking.random_share > 1) {
    return InvalidError("data.masking.mask_share and random_share are more than 1 together");
  }
  WEFT_RETURN_IF_ERROR(CheckOptimization(job));
  WEFT_RETURN_IF_ERROR(CheckTechniques(job));
  WEFT_RETURN_IF_ERROR(CheckActivationBits(job));
  WEFT_RETURN_IF_ERROR(CheckCheckpoints(job.checkpoint));
  WEFT_RETURN_IF_ERROR(CheckRecompute(job.resources));
  WEFT_RETURN_IF_ERROR(CheckShardRanks(job.resources));
  WEFT_RETURN_IF_ERROR(CheckOffload(job));
  WEFT_RETURN_IF_ERROR(CheckLocalSteps(job));
  WEFT_RETURN_IF_ERROR(CheckDeterministicMesh(job));
  WEFT_RETURN_IF_ERROR(CheckMixtureOfExperts(job));
  const ResourceSpec& resources = job.resources;
  WEFT_RETURN_IF_ERROR(CheckTensorParallel(job, resources.tensor_parallel,
                                           resources.sequence_parallel, resources.tensor_rows));
  WEFT_RETURN_IF_ERROR(
      CheckContextParallel(job, resources.context_parallel, resources.context_method));
  // Ranks of a replica.
  int64_t replica = 1;
  std::string replica_name;
  for (const auto& [name, degree] :
       {std::pair{"resources.tensor_parallel", resources.tensor_parallel},
        std::pair{"resources.pipeline_parallel", resources.pipeline_parallel},
        std::pair{"resources.context_parallel", resources.context_parallel}}) {
    if (degree == 1) continue;
    replica *= degree;
    replica_name += std::string(replica_name.empty() ? "" : " x ") + name;
  }
  if (resources.max_ranks > 0 && resources.min_ranks > resources.max_ranks) {
    return InvalidError("resources.min_ranks " + std::to_string(resources.min_ranks) +
                        " is more than resources.max_ranks " + std::to_string(resources.max_ranks));
  }
  if (resources.ranks > 0 && (resources.min_ranks > 0 || resources.max_ranks > 0)) {
    return InvalidError(
        "resources.min_ranks and resources.max_ranks need resources.ranks 0, which "
        "leaves the number to the planner");
  }
  if (resources.max_ranks > 0 && resources.max_ranks < replica) {
    return InvalidError("resources.max_ranks " + std::to_string(resources.max_ranks) +
                        " is less than " + replica_name + " " + std::to_string(replica));
  }
  if (resources.ranks % replica != 0) {
    return InvalidError("resources.ranks " + std::to_string(resources.ranks) +
                        " must be a multiple of " + replica_name + " " + std::to_string(replica));
  }
  // Data-parallel ranks.
  const int64_t ranks = resources.ranks > 0 ? resources.ranks / replica : 1;
  const TrainSpec& train = job.train;
  const bool grows = train.batch_warmup_steps > 0;
  if (grows && (train.batch_warmup_start == 0 || train.batch_warmup_steps > train.steps ||
                train.global_batch % train.batch_warmup_start != 0)) {
    return InvalidError(
        "train.batch_warmup_steps needs a train.batch_warmup_start that divides "
        "train.global_batch " +
        std::to_string(train.global_batch) + ", and no more steps than train.steps " +
        std::to_string(train.steps));
  }
  // Every batch is a multiple of the first one.
  const char* field = grows ? "train.batch_warmup_start " : "train.global_batch ";
  const int64_t batch = grows ? train.batch_warmup_start : train.global_batch;
  if (batch % ranks != 0) {
    return InvalidError(
        field + std::to_string(batch) + " must be a multiple of resources.ranks " +
        std::to_string(resources.ranks) +
        (replica > 1 ? " over " + replica_name + " " + std::to_string(replica) : ""));
  }
  if (resources.micro_batch > 0 && batch % (ranks * resources.micro_batch) != 0) {
    return InvalidError(
        field + std::to_string(batch) + " must be a multiple of resources.ranks " +
        (replica > 1 ? "/ " + replica_name + " " : "") +
        "x resources.micro_batch = " + std::to_string(ranks * resources.micro_batch));
  }
  WEFT_RETURN_IF_ERROR(CheckPipelineParallel(
      job, resources.pipeline_parallel, resources.pipeline_schedule, resources.pipeline_chunks,
      resources.ranks > 0 && resources.micro_batch > 0
          ? train.global_batch / (ranks * resources.micro_batch)
          : 0));
  return OkStatus();
}

Status ValidateKnownSizes(const JobSpec& job) {
  if (job.model.import_path.empty()) return ValidateJob(job);
  WEFT_RETURN_IF_ERROR(ValidateJob(job));
  JobSpec known = job;
  known.model.import_path.clear();
  return ValidateJob(known);
}

}  // namespace weft
