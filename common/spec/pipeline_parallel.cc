#include "common/spec/pipeline_parallel.h"

#include "common/spec/batch_schedule.h"

namespace weft {
namespace {

std::string Text(int64_t value) {
  return std::to_string(value);
}

Status CheckModel(const ModelSpec& model, const std::string& what, int64_t stages) {
  if (model.family != "gpt2" && model.family != "llama") {
    return InvalidError(what + " is not available with model.family " + model.family +
                        "; hint: gpt2, llama, or data parallelism alone");
  }
  if (model.over_parameterization.kind != "none") {
    return InvalidError(what + " does not go with model.over_parameterization");
  }
  if (model.distinct_blocks > 0 && model.distinct_blocks != model.layers) {
    return InvalidError(what +
                        " does not go with model.distinct_blocks, blocks that serve layers "
                        "of several stages; hint: 0");
  }
  if (model.layers < stages) {
    return InvalidError(what + " makes " + Text(stages) +
                        " stages, and each needs a block: model.layers is " + Text(model.layers) +
                        "; hint: a smaller resources.pipeline_parallel or "
                        "resources.pipeline_chunks");
  }
  return OkStatus();
}

Status CheckResources(const ResourceSpec& resources, const std::string& what) {
  if (resources.zero_stage > 1) {
    return InvalidError(what + " does not go with resources.zero_stage " +
                        Text(resources.zero_stage) +
                        ", which reduces the gradients of each micro-batch before the next, and a "
                        "pipeline has several under way; hint: resources.zero_stage 1");
  }
  const bool optimal = resources.recompute == "optimal";
  if ((resources.recompute_segment > 1 || optimal) && resources.activation_bits > 0) {
    return InvalidError(
        what + " does not go with resources." +
        (optimal ? "recompute optimal" : "recompute_segment " + Text(resources.recompute_segment)) +
        " and activation_bits together: segments end with a stage, so that what is "
        "rounded would depend on how blocks are cut; hint: " +
        (optimal ? "recompute auto" : "recompute_segment 1"));
  }
  if (optimal && resources.offload_activations != "none") {
    return InvalidError(what +
                        " does not go with resources.recompute optimal and offload_activations "
                        "together: what its micro-batches send would share a link, and a schedule "
                        "is of one of them; hint: recompute auto");
  }
  return OkStatus();
}

/// Every step of a growing batch has a multiple of these.
int64_t FewestMicroBatches(const TrainSpec& train, int64_t micro_batches) {
  return micro_batches * BatchSchedule(train).unit() / train.global_batch;
}

}  // namespace

Status CheckPipelineParallel(const JobSpec& job, int64_t degree, const std::string& schedule,
                             int64_t chunks, int64_t micro_batches) {
  const bool interleaved = schedule == "interleaved";
  if (degree == 1) {
    if (chunks == 1 && schedule == "1f1b") return OkStatus();
    if (chunks == 1) {
      return InvalidError("resources.pipeline_schedule " + schedule +
                          " is of the ranks of a pipeline, and there is one; hint: "
                          "resources.pipeline_parallel");
    }
    return InvalidError("resources.pipeline_chunks " + Text(chunks) +
                        " are stages of the ranks of a pipeline, and there is one; hint: "
                        "resources.pipeline_parallel");
  }
  const std::string what = "pipeline parallelism of degree " + Text(degree);
  if ((chunks > 1) != interleaved) {
    return InvalidError("resources.pipeline_chunks " + Text(chunks) +
                        " does not go with resources.pipeline_schedule " + schedule +
                        "; hint: interleaved with 2 chunks or more, the others with 1");
  }
  if (job.model.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(CheckModel(job.model, what, degree * chunks));
  }
  WEFT_RETURN_IF_ERROR(CheckResources(job.resources, what));
  if (job.train.gradient_noise_scale) {
    return InvalidError(what +
                        " does not go with train.gradient_noise_scale; hint: measure it with data "
                        "parallelism alone");
  }
  if (TakesMicroBatches(job.train, degree, schedule, micro_batches)) return OkStatus();
  return InvalidError("an interleaved pipeline of " + Text(degree) + " ranks needs a multiple of " +
                      Text(degree) + " micro-batches in every step, not " +
                      Text(FewestMicroBatches(job.train, micro_batches)) +
                      "; hint: a smaller resources.micro_batch, or another "
                      "resources.pipeline_schedule");
}

bool TakesMicroBatches(const TrainSpec& train, int64_t degree, const std::string& schedule,
                       int64_t micro_batches) {
  return schedule != "interleaved" || FewestMicroBatches(train, micro_batches) % degree == 0;
}

}  // namespace weft
