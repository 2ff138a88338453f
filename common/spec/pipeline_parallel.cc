#include "common/spec/pipeline_parallel.h"

#include "common/spec/batch_schedule.h"

namespace weft {
namespace {

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
    return InvalidError("resources.pipeline_chunks " + std::to_string(chunks) +
                        " are stages of the ranks of a pipeline, and there is one; hint: "
                        "resources.pipeline_parallel");
  }
  if ((chunks > 1) != interleaved) {
    return InvalidError("resources.pipeline_schedule " + schedule +
                        " cannot have resources.pipeline_chunks " + std::to_string(chunks) +
                        "; hint: interleaved with 2 chunks or more, the others with 1");
  }
  const int64_t stages = degree * chunks;
  if (job.model.import_path.empty() && job.model.layers < stages) {
    return InvalidError("pipeline parallelism of degree " + std::to_string(degree) + " makes " +
                        std::to_string(stages) +
                        " stages, and each needs a block: model.layers is " +
                        std::to_string(job.model.layers) +
                        "; hint: a smaller resources.pipeline_parallel or "
                        "resources.pipeline_chunks");
  }
  if (TakesMicroBatches(job.train, degree, schedule, micro_batches)) return OkStatus();
  return InvalidError("an interleaved pipeline of " + std::to_string(degree) +
                      " ranks needs a multiple of " + std::to_string(degree) +
                      " micro-batches in every step, not " +
                      std::to_string(FewestMicroBatches(job.train, micro_batches)) +
                      "; hint: a smaller resources.micro_batch, or another "
                      "resources.pipeline_schedule");
}

bool TakesMicroBatches(const TrainSpec& train, int64_t degree, const std::string& schedule,
                       int64_t micro_batches) {
  return schedule != "interleaved" || FewestMicroBatches(train, micro_batches) % degree == 0;
}

}  // namespace weft
