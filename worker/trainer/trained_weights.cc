#include "worker/trainer/trained_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/model/parameter_list.h"
#include "common/spec/phases.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/trainer/base_weights.h"

namespace weft::trainer {
namespace {

using engine::NamedTensor;

/// All parameters that the files of the checkpoint have, by their names there.
std::vector<NamedTensor> Named(const engine::CheckpointManifest& manifest,
                               const engine::ParameterSet& parameters,
                               const std::map<std::string, std::string>& names) {
  std::vector<NamedTensor> tensors = parameters.NamedValues();
  EraseBase(manifest.base_tensors, parameters, tensors);
  for (NamedTensor& tensor : tensors) {
    const auto other = names.find(tensor.name);
    if (other != names.end()) tensor.name = other->second;
  }
  return tensors;
}

}  // namespace

Result<TrainedTensors> TrainedTensors::Open(Env& env, const std::string& folder,
                                            const engine::CheckpointManifest& manifest,
                                            TrainedAs which) {
  const std::optional<MaskedGrowth> growth = MaskedGrowthOf(manifest.job);
  if (growth && manifest.step < growth->growth.ramp_steps) {
    return InvalidError("the checkpoint in " + folder + " is of step " +
                        std::to_string(manifest.step) +
                        ", when masks still hid a part of the network, and no network without "
                        "masks computes what it does; hint: one of step " +
                        std::to_string(growth->growth.ramp_steps) + " or later");
  }
  WEFT_ASSIGN_OR_RETURN(engine::StoredTensors stored,
                        engine::StoredTensors::Open(env, folder, manifest));
  TrainedTensors tensors(std::move(stored));
  if (which == TrainedAs::kResult) {
    tensors.averages_ = ExportedAverages(manifest.job, manifest.updates);
  }
  tensors.mask_ = ExportedMasks(manifest.job, manifest.step);
  return tensors;
}

/// Those that the checkpoint has such a tensor of: frozen ones have no average.
std::vector<NamedTensor> TrainedTensors::With(const StateName& state,
                                              const std::vector<NamedTensor>& targets) const {
  std::vector<NamedTensor> found;
  for (const NamedTensor& target : targets) {
    if (stored_.Has(state.prefix + target.name + state.suffix)) found.push_back(target);
  }
  return found;
}

/// Replaces weights by the means of what the checkpoint has of each.
Status TrainedTensors::LoadAverages(const std::vector<NamedTensor>& targets,
                                    const Stream& stream) const {
  if (averages_.empty()) return OkStatus();
  for (const NamedTensor& one : With(averages_[0], targets)) {
    WEFT_CHECK(one.view.dtype == DType::kF32, "averages stand for f32 weights");
    const auto count = static_cast<size_t>(one.view.shape.Elements());
    std::vector<float> snapshot(count);
    std::vector<double> sum(count, 0.0);
    for (const StateName& average : averages_) {
      TensorView view = one.view;
      view.data = snapshot.data();
      view.device = {};
      WEFT_RETURN_IF_ERROR(stored_.Load({{average.prefix + one.name + average.suffix, view}},
                                        engine::ExtraTensors::kIgnore));
      for (size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(snapshot[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      snapshot[i] = static_cast<float>(sum[i] / static_cast<double>(averages_.size()));
    }
    WEFT_RETURN_IF_ERROR(engine::Upload(stream, snapshot.data(), one.view));
  }
  return OkStatus();
}

/// Keeps of each matrix what counts in training, by the mask or the scale in the checkpoint.
Status TrainedTensors::ApplyMasks(const std::vector<NamedTensor>& targets,
                                  const Stream& stream) const {
  if (!mask_) return OkStatus();
  const StateName& masks = mask_->bits;
  for (const NamedTensor& one : With(masks, targets)) {
    const int64_t rows = one.view.shape[0], columns = one.view.shape[1], blocks = columns / 4;
    std::vector<uint16_t> bits(static_cast<size_t>(rows / 4 * blocks));
    const TensorView view(bits.data(), DType::kU16, {rows / 4, blocks});
    WEFT_RETURN_IF_ERROR(stored_.Load({{masks.prefix + one.name + masks.suffix, view}},
                                      engine::ExtraTensors::kIgnore));
    WEFT_ASSIGN_OR_RETURN(const engine::HostCopy copy, engine::HostCopy::Of(stream, one.view));
    const size_t element = DTypeSize(one.view.dtype);
    const auto* from = static_cast<const std::byte*>(copy.view().data);
    std::vector<std::byte> values(from, from + copy.view().Bytes());
    if (mask_->scale) {
      float scale = 1;
      WEFT_RETURN_IF_ERROR(stored_.Load(
          {{mask_->scale->prefix + one.name + mask_->scale->suffix, {&scale, DType::kF32, {1}}}},
          engine::ExtraTensors::kIgnore));
      std::vector<float> shrunk(static_cast<size_t>(rows * columns));
      const TensorView y(shrunk.data(), DType::kF32, one.view.shape);
      WEFT_RETURN_IF_ERROR(
          kernels::SoftThreshold({}, {.weight = copy.view(), .y = y, .scale = scale}));
      const TensorView to(values.data(), one.view.dtype, one.view.shape);
      WEFT_RETURN_IF_ERROR(kernels::Cast({}, {y, to}));
      WEFT_RETURN_IF_ERROR(engine::Upload(stream, values.data(), one.view));
      continue;
    }
    for (int64_t i = 0; i < rows * columns; ++i) {
      const int64_t row = i / columns, column = i % columns;
      const uint16_t block = bits[static_cast<size_t>(row / 4 * blocks + column / 4)];
      if ((block >> (4 * (row % 4) + column % 4) & 1) != 0) continue;
      std::fill_n(values.begin() + i * static_cast<int64_t>(element), element, std::byte{0});
    }
    WEFT_RETURN_IF_ERROR(engine::Upload(stream, values.data(), one.view));
  }
  return OkStatus();
}

Status TrainedTensors::Load(const std::vector<NamedTensor>& targets, const Stream& stream) const {
  WEFT_RETURN_IF_ERROR(stored_.Load(targets, engine::ExtraTensors::kIgnore, stream));
  WEFT_RETURN_IF_ERROR(LoadAverages(targets, stream));
  return ApplyMasks(targets, stream);
}

Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters,
                          const std::map<std::string, std::string>& names, LeftOutBase base) {
  if (base == LeftOutBase::kRead) {
    const ModelSpec& model = manifest.job.model;
    WEFT_RETURN_IF_ERROR(ReadBase(env, folder, manifest, model.import_path, model, parameters));
  }
  WEFT_ASSIGN_OR_RETURN(const TrainedTensors tensors, TrainedTensors::Open(env, folder, manifest));
  WEFT_RETURN_IF_ERROR(tensors.Load(Named(manifest, parameters, names), parameters.stream()));
  engine::Allocator allocator;
  engine::Context context;
  context.allocator = &allocator;
  context.stream = parameters.stream();
  return parameters.OnValues(context, engine::ValuesFrom::kCheckpoint);
}

std::map<std::string, std::string> NamesOfPart(const JobSpec& job, size_t part) {
  // Both have them in the same order.
  const std::vector<ParameterInfo> own = ParametersOf(JointJobs(job)[part].model);
  std::map<std::string, std::string> names;
  auto next = own.begin();
  for (const ParameterInfo& parameter : ParametersOf(job.model)) {
    const bool other = parameter.row_parts > 1 && parameter.row_part != static_cast<int64_t>(part);
    if (other) continue;
    WEFT_CHECK(next != own.end(), "a parameter for each");
    if (next->name != parameter.name) names[next->name] = parameter.name;
    ++next;
  }
  return names;
}

}  // namespace weft::trainer
