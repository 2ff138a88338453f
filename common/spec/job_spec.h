#pragma once

#include <cstdint>
#include <string>

#include "common/spec/data_spec.h"
#include "common/spec/field.h"
#include "common/spec/model_spec.h"
#include "common/spec/optimizer_spec.h"
#include "common/spec/train_spec.h"
#include "common/status.h"

namespace weft {

struct CheckpointSpec {
  int64_t every_steps = 100;
  int64_t keep_last = 3;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("every_steps", "Interval between checkpoints; 0: only at the end.")
              .Unit("steps")
              .Range(0, 1e12),
          self.every_steps);
    visit(Field("keep_last", "Verified checkpoints kept; older ones are deleted.").Range(1, 1e6),
          self.keep_last);
  }
};

/// What the job may use, and what the planner must respect. 0 and "auto" leave the choice to it.
struct ResourceSpec {
  int64_t ranks = 0;
  int64_t threads_per_rank = 0;
  int64_t memory_per_rank_bytes = 0;
  int64_t micro_batch = 0;
  std::string recompute = "auto";
  std::string device = "auto";
  int64_t zero_stage = 0;
  int64_t tensor_parallel = 1;
  bool sequence_parallel = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("ranks", "Rank processes; 0: the planner chooses.").Range(0, 1 << 20), self.ranks);
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
                "Activations recomputed in the backward pass: none, block (each block keeps its "
                "input only), or auto.")
              .OneOf({"auto", "none", "block"}),
          self.recompute);
    visit(Field("device", "What ranks compute on; auto: GPUs where there are some.")
              .OneOf({"auto", "cpu", "cuda"}),
          self.device);
    visit(Field("zero_stage",
                "What ranks share out among them instead of each holding all of it. 0: nothing; 1: "
                "the optimizer's state and updates; 2: also the gradients; 3: also the parameters.")
              .Range(0, 3),
          self.zero_stage);
    visit(Field("tensor_parallel",
                "Ranks that share each matrix: attention by heads, MLPs by inner columns, the "
                "vocabulary by tokens. Divides the number of ranks; the rest is data parallelism.")
              .Range(1, 1 << 10),
          self.tensor_parallel);
    visit(Field("sequence_parallel",
                "Ranks that share matrices share the tokens between them, too: less memory for as "
                "many bytes on the wire."),
          self.sequence_parallel);
  }
};

struct RetrySpec {
  int64_t max_attempts = 10;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("max_attempts", "Attempts until the job has failed for good.").Range(1, 1000),
          self.max_attempts);
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
  }
};

/// What single fields cannot say: width divides by heads, warm-up shorter than training, name's
/// alphabet, sequence length within the context. kInvalid names the fields.
Status ValidateJob(const JobSpec& job);

/// What a head needs of the data, and the data of the model: part of ValidateJob, but for imported
/// models, whose family and head show when the folder has been read.
Status ValidateHead(const JobSpec& job);

/// Tokens per sequence, with the default resolved. Of pictures the patches and the class token.
inline int64_t SequenceLength(const JobSpec& job) {
  if (job.model.family == "vit") return ImagePatches(job.model) + 1;
  return job.train.sequence_length > 0 ? job.train.sequence_length : job.model.context;
}

}  // namespace weft
