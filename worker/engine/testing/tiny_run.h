#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/model/model_sizes.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/models/model.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

/// A two-layer model with a vocabulary that is not a multiple of the tile.
inline ModelSpec TinyModel() {
  ModelSpec spec;
  spec.layers = 2;
  spec.width = 32;
  spec.heads = 2;
  spec.vocab_size = 50;
  spec.context = 16;
  return spec;
}

inline JobSpec TinyJob(int64_t global_batch = 4) {
  JobSpec job;
  job.name = "tiny";
  job.model = TinyModel();
  job.train.steps = 100;
  job.train.global_batch = global_batch;
  job.schedule.warmup_steps = 0;
  return job;
}

inline Plan TinyPlan(const std::string& precision, int64_t micro_batch = 4,
                     int64_t accumulation_steps = 1) {
  Plan plan;
  plan.precision = precision;
  plan.micro_batch = micro_batch;
  plan.accumulation_steps = accumulation_steps;
  return plan;
}

/// A model with its allocator, initialized from seed 1 and packed; on a CUDA device that has its
/// own.
struct TinyRun {
  Allocator allocator;
  std::unique_ptr<ComputeDevice> device;  ///< None on a CPU.
  Context context;
  std::unique_ptr<Model> model;

  explicit TinyRun(const ModelSpec& spec, const ModelOptions& options, int64_t limit_bytes = 0,
                   Device where = {})
      : allocator(limit_bytes) {
    context.allocator = &allocator;
    if (where.type == DeviceType::kCuda) {
      auto opened = ComputeDevice::Open({.device = where, .chunk_bytes = size_t{1} << 20});
      WEFT_CHECK(opened.ok(), opened.status().message());
      device = *std::move(opened);
      context = device->NewContext();
    }
    kernels::cpu::SetThreads(1);  // tiny sizes, and other tests run at the same time
    auto made = NewModel(context, spec, options);
    WEFT_CHECK(made.ok(), made.status().message());
    model = *std::move(made);
    WEFT_CHECK(model->parameters().Initialize(1).ok(), "initialize");
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  ~TinyRun() {
    if (device != nullptr) (void)device->Synchronize();
  }

  /// Loss sum of `batch`, and the gradient of scale * sum in the model's gradients.
  double Differentiate(const Batch& batch, float scale = 1.0f, int64_t first_sequence = 0) {
    ParameterGradients gradients(model->parameters().DifferentiatedGradients());
    gradients.StartStep();
    gradients.StartPass({});
    auto tokens = TokenBatch::New(context, batch, first_sequence);
    WEFT_CHECK(tokens.ok(), tokens.status().message());
    Tape tape(&gradients);
    tape.SetFirstRow(tokens->first_token);
    BatchLoss loss;
    Status status = model->Loss(context, tape, *tokens, scale, &loss);
    WEFT_CHECK(status.ok(), status.message());
    status = tape.RunBackward(context);
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(gradients.FinishPass(context).ok(), "finish");
    return loss.sum;
  }

  double Loss(const Batch& batch) {
    auto tokens = TokenBatch::New(context, batch, 0);
    WEFT_CHECK(tokens.ok(), tokens.status().message());
    Tape tape(nullptr);
    BatchLoss loss;
    const Status status = model->Loss(context, tape, *tokens, 1.0f, &loss);
    WEFT_CHECK(status.ok(), status.message());
    return loss.sum;
  }

  /// Logits of the real vocabulary or classes, row after row.
  std::vector<float> Logits(const Batch& batch) {
    auto tokens = TokenBatch::New(context, batch, 0);
    WEFT_CHECK(tokens.ok(), tokens.status().message());
    auto logits = model->Logits(context, *tokens);
    WEFT_CHECK(logits.ok(), logits.status().message());
    const ModelSpec& spec = model->spec();
    const int64_t columns = HeadOf(spec) == "classification" ? spec.classes : spec.vocab_size;
    std::vector<float> values;
    for (int64_t row = 0; row < logits->shape().Rows(); ++row) {
      const Tensor one = logits->Rows(row, 1);
      const auto row_values = ValuesOf({one.view().data, one.dtype(), {columns}});
      values.insert(values.end(), row_values.begin(), row_values.end());
    }
    return values;
  }

  std::vector<float> Gradients() const { return ValuesOf(model->parameters().gradients()); }
  std::vector<float> Parameters() const {
    std::vector<float> all;
    for (const std::vector<float>& values : ValuesOf(model->parameters())) {
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }
};

/// A TinyRun with its trainer.
struct TinyTraining : TinyRun {
  std::unique_ptr<Trainer> trainer;

  TinyTraining(const JobSpec& job, const Plan& plan, BatchSource& train,
               GradientReducer* reducer = nullptr)
      : TinyRun(job.model, OptionsOf(job, plan)) {
    auto made = Trainer::New(job, plan,
                             {.context = &context,
                              .model = model.get(),
                              .train = &train,
                              .validation = &train,
                              .reducer = reducer,
                              .rank = 0});
    WEFT_CHECK(made.ok(), made.status().message());
    trainer = *std::move(made);
  }

  StepReport Step() {
    auto report = trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    return *report;
  }

 private:
  static ModelOptions OptionsOf(const JobSpec& job, const Plan& plan) {
    ModelOptions options = ModelOptionsOf(plan, job.train);
    options.growth = MaskedGrowthOf(job);
    return options;
  }
};

}  // namespace weft::engine
