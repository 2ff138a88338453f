#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/check.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/models/model.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/testing/parameter_values.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {

/// Elements of a tensor, wherever it is; of masks as shares of the largest they can be.
inline std::vector<float> FetchValues(const Stream& stream, const TensorView& view) {
  const auto copy = HostCopy::Of(stream, view);
  WEFT_CHECK(copy.ok(), copy.status().message());
  std::vector<float> values;
  const auto add = [&](const auto* from, float scale) {
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      values.push_back(scale * static_cast<float>(from[i]));
    }
  };
  if (view.dtype == DType::kU16) {
    add(copy->view().As<uint16_t>(), 0x1p-16f);
    return values;
  }
  if (view.dtype == DType::kU8) {
    add(copy->view().As<uint8_t>(), 0x1p-8f);
    return values;
  }
  if (view.dtype == DType::kI32) {
    add(copy->view().As<int32_t>(), 1);
    return values;
  }
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    const T* from = copy->view().As<T>();
    for (int64_t i = 0; i < view.shape.Elements(); ++i) values.push_back(ToFloat(from[i]));
  });
  return values;
}

struct DeviceRunOptions {
  Collective* group = nullptr;  ///< Of the ranks that train together, each with a run of its own.
  bool graphs = true;
  /// Makes the model; NewModel where there is none.
  std::function<Result<std::unique_ptr<Model>>(Context&)> make = {};
};

/// A model with its trainer on a device of its own, initialized from seed 1.
struct DeviceRun {
  std::unique_ptr<ComputeDevice> device;
  Context context;
  std::unique_ptr<Model> model;
  std::unique_ptr<BucketReducer> reducer;  ///< With a group.
  PlannedOffload offload;
  std::unique_ptr<Trainer> trainer;

  DeviceRun(const JobSpec& job, const Plan& plan, BatchSource& data, Device where,
            const DeviceRunOptions& options = {}) {
    kernels::cpu::SetThreads(1);
    auto opened = ComputeDevice::Open(
        {.device = where, .host = HostMemoryPoolOf(plan), .chunk_bytes = size_t{1} << 20});
    WEFT_CHECK(opened.ok(), opened.status().message());
    device = *std::move(opened);
    context = device->NewContext();
    ModelOptions model_options = ModelOptionsOf(plan, job.train);
    model_options.growth = MaskedGrowthOf(job);
    if (options.group != nullptr) model_options.update_rank = options.group->rank();
    auto made = options.make ? options.make(context) : NewModel(context, job.model, model_options);
    WEFT_CHECK(made.ok(), made.status().message());
    model = *std::move(made);
    const Status drawn = model->parameters().Initialize(1);
    WEFT_CHECK(drawn.ok(), drawn.message());
    auto reduces = NewReducer(context, plan, options.group, &model->parameters(),
                              model_options.precision->products);
    WEFT_CHECK(reduces.ok(), reduces.status().message());
    reducer = *std::move(reduces);
    offload = PlannedOffload::Of(plan, context, &model->parameters(), reducer.get());
    auto trains =
        Trainer::New(job, plan,
                     {.context = &context,
                      .model = model.get(),
                      .train = &data,
                      .validation = &data,
                      .reducer = offload.gradients != nullptr
                                     ? static_cast<GradientReducer*>(offload.gradients.get())
                                     : reducer.get(),
                      .rank = options.group != nullptr ? options.group->rank() : 0,
                      .graphs = options.graphs});
    WEFT_CHECK(trains.ok(), trains.status().message());
    trainer = *std::move(trains);
  }
  ~DeviceRun() { (void)device->Synchronize(); }

  StepReport Step() {
    auto report = trainer->Step();
    WEFT_CHECK(report.ok(), report.status().message());
    return *report;
  }

  /// By state tensor.
  std::vector<std::vector<float>> State() {
    std::vector<std::vector<float>> values;
    for (const NamedTensor& tensor : trainer->StateTensors()) {
      values.push_back(tensor.stored != nullptr ? ValuesOf(tensor)
                                                : FetchValues(context.stream, tensor.view));
    }
    return values;
  }
};

/// |a - b| / |b| over all tensors of a state.
inline double Distance(const std::vector<std::vector<float>>& a,
                       const std::vector<std::vector<float>>& b) {
  double difference = 0, norm = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].size(), b[i].size());
    for (size_t k = 0; k < a[i].size(); ++k) {
      difference += std::pow(double{a[i][k]} - b[i][k], 2);
      norm += std::pow(double{b[i][k]}, 2);
    }
  }
  return std::sqrt(difference / norm);
}

/// How far losses of a device and of a CPU may lie apart, as a share: they add up products in other
/// orders.
inline double Tolerance(const std::string& precision) {
  return precision == "fp32" ? 1e-4 : precision == "fp16" ? 3e-3 : 1e-2;
}

}  // namespace weft::engine
