#include "common/spec/job_spec.h"

namespace weft {

Status ValidateJob(const JobSpec& job) {
  for (size_t i = 0; i < job.name.size(); ++i) {
    char c = job.name[i];
    bool inner = i > 0 && i + 1 < job.name.size();
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '-' && inner))) {
      return InvalidError("name '" + job.name +
                          "' must hold only a-z, 0-9 and dashes between them");
    }
  }
  const ModelSpec& model = job.model;
  if (model.import_path.empty() && model.width % model.heads != 0) {
    return InvalidError("model.width " + std::to_string(model.width) +
                        " must be a multiple of model.heads " + std::to_string(model.heads));
  }
  if (model.import_path.empty() && SequenceLength(job) > model.context) {
    return InvalidError("train.sequence_length " + std::to_string(SequenceLength(job)) +
                        " is longer than model.context " + std::to_string(model.context));
  }
  if (job.schedule.warmup_steps > job.train.steps) {
    return InvalidError("schedule.warmup_steps " + std::to_string(job.schedule.warmup_steps) +
                        " is more than train.steps " + std::to_string(job.train.steps));
  }
  const ResourceSpec& resources = job.resources;
  int64_t ranks = resources.ranks > 0 ? resources.ranks : 1;
  if (job.train.global_batch % ranks != 0) {
    return InvalidError("train.global_batch " + std::to_string(job.train.global_batch) +
                        " must be a multiple of resources.ranks " + std::to_string(ranks));
  }
  if (resources.micro_batch > 0 && job.train.global_batch % (ranks * resources.micro_batch) != 0) {
    return InvalidError("train.global_batch " + std::to_string(job.train.global_batch) +
                        " must be a multiple of resources.ranks x resources.micro_batch = " +
                        std::to_string(ranks * resources.micro_batch));
  }
  return OkStatus();
}

}  // namespace weft
