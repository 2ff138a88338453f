#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/data_spec.h"
#include "common/spec/field.h"
#include "common/spec/model_spec.h"
#include "common/spec/optimizer_spec.h"
#include "common/spec/phase_spec.h"
#include "common/spec/spec_json_fwd.h"
#include "common/spec/train_spec.h"
#include "common/status.h"

namespace weft {

struct CheckpointSpec {
  int64_t every_steps = 100;
  int64_t keep_last = 3;
  std::string interval = "steps";
  int64_t peer_every_steps = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("every_steps", "Interval between checkpoints; 0: only at the end.")
              .Unit("steps")
              .Range(0, 1e12),
          self.every_steps);
    visit(Field("keep_last", "Verified checkpoints kept; older ones are deleted.").Range(1, 1e6),
          self.keep_last);
    visit(
        Field("interval",
              "steps: every_steps. auto: what loses least time by the measured time of a save and "
              "the time between failures; every_steps until both are known.")
            .OneOf({"steps", "auto"}),
        self.interval);
    visit(Field("peer_every_steps",
                "Interval between snapshots in the memory of another machine, from which training "
                "goes on when one machine is lost; 0: none.")
              .Unit("steps")
              .Range(0, 1e12),
          self.peer_every_steps);
  }
};

/// What the job may use, and what the planner must respect. 0 and "auto" leave the choice to it.
struct ResourceSpec {
  int64_t ranks = 0;
  int64_t min_ranks = 0;
  int64_t max_ranks = 0;
  int64_t threads_per_rank = 0;
  int64_t memory_per_rank_bytes = 0;
  int64_t micro_batch = 0;
  std::string recompute = "auto";
  std::string device = "auto";
  int64_t zero_stage = 0;
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;
  int64_t zero_shard_ranks = 0;
  int64_t pipeline_parallel = 1;
  std::string pipeline_schedule = "1f1b";
  int64_t pipeline_chunks = 1;
  int64_t context_parallel = 1;
  std::string context_method = "ring";
  int64_t recompute_segment = 1;
  std::string offload_optimizer = "none";
  std::string offload_directory;
  bool delayed_update = false;
  std::string offload_activations = "none";
  int64_t device_memory_bytes = 0;
  int64_t host_link_bytes_per_second = 0;
  int64_t activation_bits = 0;
  std::string offload_parameters = "none";
  int64_t expert_parallel = 1;
  int64_t tensor_rows = 1;
  std::string gradient_reduction = "fp32";
  std::vector<int64_t> device_updated_units;
  std::vector<int64_t> resident_units;
  int64_t try_plans = 1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("ranks", "Rank processes; 0: the planner chooses.").Range(0, 1 << 20), self.ranks);
    visit(Field("min_ranks", "Fewest ranks it starts with, where ranks is 0; 0: any number.")
              .Range(0, 1 << 20),
          self.min_ranks);
    visit(Field("max_ranks", "Most ranks it uses, where ranks is 0; 0: any number.")
              .Range(0, 1 << 20),
          self.max_ranks);
    visit(Field("threads_per_rank", "Compute threads of a rank; 0: the planner chooses.")
              .Range(0, 4096),
          self.threads_per_rank);
    visit(Field("memory_per_rank_bytes", "Upper bound for a rank; 0: what its worker offers.")
              .Unit("bytes")
              .Range(0, 9e15),
          self.memory_per_rank_bytes);
    visit(Field("micro_batch", "Sequences per forward and backward pass; 0: the planner chooses.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.micro_batch);
    visit(Field("recompute",
                "Activations recomputed in the backward pass: none, attention (its result, "
                "queries, keys and values), block (each block keeps its input only), optimal (the "
                "least time within the memory of a rank), or auto.")
              .OneOf({"auto", "none", "attention", "block", "optimal"}),
          self.recompute);
    visit(Field("device", "What ranks compute on; auto: GPUs where there are some.")
              .OneOf({"auto", "cpu", "cuda"}),
          self.device);
    visit(Field("zero_stage",
                "What data-parallel ranks shard. 0: nothing; 1: the optimizer's state and updates; "
                "2: also the gradients; 3: also the parameters.")
              .Range(0, 3),
          self.zero_stage);
    visit(Field("tensor_parallel",
                "Tensor-parallel ranks. They shard attention by heads, MLPs by inner columns, the "
                "vocabulary by tokens. Divides the number of ranks; the rest is data parallelism.")
              .Range(1, 1 << 10),
          self.tensor_parallel);
    visit(Field("sequence_parallel",
                "Tensor-parallel ranks shard the tokens of norms and residuals, too: less memory "
                "for as many bytes on the wire."),
          self.sequence_parallel);
    visit(Field("zero_shard_ranks",
                "Data-parallel ranks of a ZeRO shard group, which shards what zero_stage says; "
                "all groups hold the same. 0: all of them are one group.")
              .Range(0, 1 << 20),
          self.zero_shard_ranks);
    visit(Field("pipeline_parallel",
                "Pipeline stages: blocks on ranks of their own, which send micro-batches on.")
              .Range(1, 1 << 10),
          self.pipeline_parallel);
    visit(Field("pipeline_schedule", "Order of a stage's forward and backward passes.")
              .OneOf({"gpipe", "1f1b", "interleaved", "zero_bubble"}),
          self.pipeline_schedule);
    visit(Field("pipeline_chunks",
                "Pieces of the model that each rank of an interleaved pipeline holds.")
              .Range(1, 1 << 10),
          self.pipeline_chunks);
    visit(Field("context_parallel", "Context-parallel ranks, which shard each sequence.")
              .Range(1, 1 << 10),
          self.context_parallel);
    visit(Field("context_method",
                "How context-parallel ranks attend. ring: keys and values go round; ulysses: "
                "heads are exchanged for tokens.")
              .OneOf({"ring", "ulysses"}),
          self.context_method);
    visit(Field("recompute_segment",
                "Blocks recomputed at once with recompute block: the input of the first is kept.")
              .Range(1, 1 << 20),
          self.recompute_segment);
    visit(Field("offload_optimizer",
                "Where the optimizer's state and update live when not on the device; part: on the "
                "host those of the units that the planner finds no better place for; auto: the "
                "planner chooses.")
              .OneOf({"none", "host", "part", "nvme", "auto"}),
          self.offload_optimizer);
    visit(Field("offload_directory",
                "Folder of offload_optimizer nvme and offload_parameters nvme on every worker; "
                "auto tries nvme where there is one."),
          self.offload_directory);
    visit(Field("delayed_update",
                "The update of offload_optimizer overlaps with the next step, which uses weights "
                "one step old."),
          self.delayed_update);
    visit(Field("offload_activations",
                "Where tensors saved for the backward pass wait for it; auto: the planner chooses, "
                "with recompute auto also of optimal schedules.")
              .OneOf({"none", "host", "auto"}),
          self.offload_activations);
    visit(Field("device_memory_bytes",
                "Device memory of a rank on CPUs, beyond which an allocation fails; 0: no limit.")
              .Unit("bytes")
              .Range(0, 9e15),
          self.device_memory_bytes);
    visit(Field("host_link_bytes_per_second",
                "Rate of copies between device and host on CPUs; 0: as fast as they go.")
              .Unit("bytes/s")
              .Range(0, 9e15),
          self.host_link_bytes_per_second);
    visit(Field("activation_bits",
                "Bits of each value saved for the backward pass: 8, 4 or 2; 0: as computed.")
              .Range(0, 8),
          self.activation_bits);
    visit(Field("offload_parameters",
                "Where weights are offloaded that come to the device block by block, before each "
                "is computed with; part: except those of units that the planner chooses; nvme: "
                "with their gradients in a file; auto: the planner chooses.")
              .OneOf({"none", "host", "part", "nvme", "auto"}),
          self.offload_parameters);
    visit(Field("expert_parallel",
                "Expert-parallel ranks: each has some of model.experts whole, and they send each "
                "other tokens. Divides the data-parallel ranks.")
              .Range(1, 1 << 10),
          self.expert_parallel);
    visit(Field("tensor_rows",
                "2-D tensor parallelism: this many of the tensor_parallel ranks shard each matrix "
                "by its inputs, the others by its outputs. 1: one dimension, as in Megatron.")
              .Range(1, 1 << 10),
          self.tensor_rows);
    visit(Field("gradient_reduction",
                "Type in which ranks send each other gradients to add them up; bf16: half the "
                "bytes, rounded.")
              .OneOf({"fp32", "bf16"}),
          self.gradient_reduction);
    visit(Field("device_updated_units",
                "With offload_optimizer host, units of the model whose state stays on the device "
                "and is updated there: 0 the embeddings, then the blocks, last the head."),
          self.device_updated_units);
    visit(Field("resident_units",
                "With offload_parameters host, units of the model (0: the embeddings, then the "
                "blocks, last the head) whose weights come once a step and stay on the device "
                "until the update."),
          self.resident_units);
    visit(Field("try_plans",
                "This many of the fastest plans train some steps each, as part of the job; the one "
                "that was measured to be fastest goes on.")
              .Range(1, 8),
          self.try_plans);
  }
};
WEFT_SPEC_JSON(extern, ResourceSpec);

struct RetrySpec {
  int64_t max_attempts = 10;
  int64_t max_memory_failures = 0;
  int64_t max_numerics_failures = 0;
  int64_t max_hangs = 0;
  int64_t max_machine_failures = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("max_attempts",
                "Attempts until the job has failed for good. Also ends it: as many failures in a "
                "row, of any kind, with no checkpoint in between.")
              .Range(1, 1000),
          self.max_attempts);
    visit(Field("max_memory_failures",
                "Attempts that may run out of memory; 0: two in a row end the job.")
              .Range(0, 1000),
          self.max_memory_failures);
    visit(Field("max_numerics_failures",
                "Attempts that may end by numbers that are not finite; 0: the first ends the job.")
              .Range(0, 1000),
          self.max_numerics_failures);
    visit(Field("max_hangs", "Attempts that may hang; 0: max_attempts.").Range(0, 1000),
          self.max_hangs);
    visit(Field("max_machine_failures",
                "Attempts that may end by lost workers, broken GPUs or wrong bits, which are none "
                "of max_attempts; 0: any number.")
              .Range(0, 1000000),
          self.max_machine_failures);
  }
};

/// When a job is its turn, among others.
struct SchedulingSpec {
  std::string queue = "default";
  int64_t priority = 0;
  bool preemptible = true;
  double time_limit_seconds = 0;
  std::vector<std::string> after;
  std::string group;
  int64_t group_limit = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("queue", "Queue of the coordinator that it waits in.").Range(1, 63), self.queue);
    visit(
        Field("priority", "Jobs of a higher one go first, and displace preemptible ones of lower.")
            .Range(-1000, 1000),
        self.priority);
    visit(Field("preemptible",
                "It may be stopped at a checkpoint for a job that goes first, and goes on later."),
          self.preemptible);
    visit(Field("time_limit_seconds",
                "Time that it may run, all attempts together; it then saves, stops and has failed. "
                "0: no limit.")
              .Unit("seconds")
              .Range(0, 1e9),
          self.time_limit_seconds);
    visit(Field("after", "Ids of jobs that must have succeeded before it starts.").Range(0, 1000),
          self.after);
    visit(Field("group", "Name that jobs of one array share; empty: none.").Range(0, 63),
          self.group);
    visit(Field("group_limit", "Jobs of the group that run at once; 0: any number.").Range(0, 1e6),
          self.group_limit);
  }
};

/// Everything the user says about a job. Says what to train, never how (that is the Plan).
struct JobSpec {
  std::string name;
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  TrainSpec train;
  CheckpointSpec checkpoint;
  ResourceSpec resources;
  RetrySpec retry;
  SchedulingSpec scheduling;
  std::vector<PhaseSpec> phases;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Name for people: lower-case letters, digits and dashes.")
              .Required()
              .Range(1, 63),
          self.name);
    visit(Field("model", "Architecture."), self.model);
    visit(Field("data", "Text and tokens.").Required(), self.data);
    visit(Field("optimizer", "Update rule."), self.optimizer);
    visit(Field("schedule", "Learning rate over time."), self.schedule);
    visit(Field("train", "Length, batch, precision, evaluation."), self.train);
    visit(Field("checkpoint", "When to save and what to keep."), self.checkpoint);
    visit(Field("resources", "Limits and wishes for the plan."), self.resources);
    visit(Field("retry", "What happens after failures."), self.retry);
    visit(Field("scheduling", "Its place among other jobs."), self.scheduling);
    visit(Field("phases",
                "Parts of the training, one after the other, whose models grow out of each other; "
                "the last one is model. Their steps replace train.steps. Empty: one part."),
          self.phases);
  }
};
WEFT_SPEC_JSON(extern, JobSpec);

/// Checks what single fields cannot say: width divides by heads, warm-up shorter than training,
/// name's alphabet, sequence length within the context. kInvalid names the fields.
Status ValidateJob(const JobSpec& job);

/// Validates a job that has the sizes of its model, be it imported: also what ValidateJob leaves
/// out of model.import_path until its folder has been read.
Status ValidateKnownSizes(const JobSpec& job);

/// Steps of the schedule of a job without phases: its own, and those before and after them.
inline int64_t ScheduleSteps(const JobSpec& job) {
  return job.schedule.steps_before + job.train.steps + job.schedule.steps_after;
}

/// Lowers schedule.warmup_steps, where nobody wrote it, to a tenth of the steps of each schedule
/// (at least one step) and to what a decay that is asked for leaves; whether it did.
bool FitDefaultWarmup(JobSpec& job);

/// train.sparsity.decay_search_steps of a job that leaves its decay to the search: as many as
/// schedule.warmup_steps, rounded up to a multiple of train.sparsity.mask_interval, and at least
/// two of these.
int64_t DefaultDecaySearchSteps(const JobSpec& job);

/// Checks what a head needs of the data, and the data of the model: part of ValidateJob, except for
/// imported models, whose family and head show when the folder has been read.
Status ValidateHead(const JobSpec& job);

/// Tokens per sequence, with the default resolved. Of images the patches and the class token.
inline int64_t SequenceLength(const ModelSpec& model, const TrainSpec& train) {
  if (model.family == "vit") return ImagePatches(model) + 1;
  return train.sequence_length > 0 ? train.sequence_length : model.context;
}
inline int64_t SequenceLength(const JobSpec& job) {
  return SequenceLength(job.model, job.train);
}

}  // namespace weft
