// Steps of a plan on random tokens in this process: times, and bytes in each tier and between them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

/// A model in training, timed after its first step, or when updates have begun to be late.
struct Trained {
  int64_t parameters = 0;
  double step_seconds = 0;     ///< Median.
  double forward_seconds = 0;  ///< Of it, on average.
  double stalled_seconds = 0;  ///< Of it: the rank waited.
  double bytes_down = 0;
  double bytes_up = 0;
  int64_t device_bytes = 0;  ///< Peaks of all components together.
  int64_t host_bytes = 0;
  int64_t file_bytes = 0;
  double file_moved = 0;  ///< Bytes read and written in a step.
};

inline Result<Trained> Train(const JobSpec& job, const Plan& plan, int64_t steps) {
  WEFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<ComputeDevice> device,
      ComputeDevice::Open(
          {.device = {}, .host = HostMemoryPoolOf(plan), .limit_bytes = plan.device_memory_bytes}));
  Context context = device->NewContext();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                        NewModel(context, job.model, ModelOptionsOf(plan, job.train)));
  WEFT_RETURN_IF_ERROR(model->parameters().Initialize(1));
  const PlannedOffload offload = PlannedOffload::Of(plan, context, &model->parameters());
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                        Trainer::New(job, plan,
                                     {.context = &context,
                                      .model = model.get(),
                                      .train = &tokens,
                                      .reducer = offload.gradients.get()}));
  for (int64_t i = 0; i < (plan.delayed_update ? 42 : 1); ++i) {
    WEFT_RETURN_IF_ERROR(trainer->Step().status());
  }
  LinkTotals down, up;
  int64_t moved = 0;
  if (context.host != nullptr) {
    WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
    down = context.host->down().totals();
    up = context.host->up().totals();
    moved = context.host->files().moved_bytes;
  }
  std::vector<double> seconds;
  Trained trained;
  for (int64_t i = 0; i < steps; ++i) {
    Stopwatch watch;
    WEFT_ASSIGN_OR_RETURN(const StepReport report, trainer->Step());
    seconds.push_back(watch.Lap());
    trained.forward_seconds += report.seconds.forward / static_cast<double>(steps);
    trained.stalled_seconds += report.seconds.communication_exposed / static_cast<double>(steps);
  }
  std::sort(seconds.begin(), seconds.end());
  trained.parameters = model->parameters().ElementCount();
  trained.step_seconds = seconds[seconds.size() / 2];
  trained.device_bytes = TotalBytes(context.allocator->Peaks());
  if (context.host == nullptr) return trained;
  WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
  const auto a_step = [&](const LinkTotals& now, const LinkTotals& before) {
    return static_cast<double>(now.bytes - before.bytes) / static_cast<double>(steps);
  };
  trained.bytes_down = a_step(context.host->down().totals(), down);
  trained.bytes_up = a_step(context.host->up().totals(), up);
  trained.host_bytes = TotalBytes(context.host->allocator().Peaks());
  trained.file_bytes = context.host->files().bytes;
  trained.file_moved =
      static_cast<double>(context.host->files().moved_bytes - moved) / static_cast<double>(steps);
  return trained;
}

}  // namespace weft::engine
