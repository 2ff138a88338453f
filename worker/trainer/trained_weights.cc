#include "worker/trainer/trained_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/formats/safetensors.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/phases.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "worker/engine/checkpoint/tensor_files.h"
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

/// Those parameters that the checkpoint has such a tensor of: frozen ones have no average.
Result<std::vector<NamedTensor>> ParametersWith(const StateName& state, Env& env,
                                                const std::string& folder,
                                                const engine::CheckpointManifest& manifest,
                                                const std::vector<NamedTensor>& parameters) {
  // Each file may hold a part of it.
  std::set<std::string> names;
  for (const engine::CheckpointFile& file : manifest.files) {
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile tensors,
                          SafetensorsFile::Open(env, JoinPath(folder, file.name)));
    for (const SafetensorsView& tensor : tensors.tensors()) names.insert(tensor.name);
  }
  std::vector<NamedTensor> found;
  for (const NamedTensor& parameter : parameters) {
    if (names.contains(state.prefix + parameter.name + state.suffix)) found.push_back(parameter);
  }
  return found;
}

/// Replaces parameters by the means of what the checkpoint has of each.
Status LoadAverages(Env& env, const std::string& folder, const engine::CheckpointManifest& manifest,
                    const std::vector<StateName>& averages, const Stream& stream,
                    const std::vector<NamedTensor>& parameters) {
  if (averages.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::vector<NamedTensor> averaged,
                        ParametersWith(averages[0], env, folder, manifest, parameters));
  for (const NamedTensor& one : averaged) {
    WEFT_CHECK(one.view.dtype == DType::kF32, "averages stand for f32 weights");
    const auto count = static_cast<size_t>(one.view.shape.Elements());
    std::vector<float> snapshot(count);
    std::vector<double> sum(count, 0.0);
    for (const StateName& average : averages) {
      TensorView view = one.view;
      view.data = snapshot.data();
      view.device = {};
      WEFT_RETURN_IF_ERROR(engine::LoadTensors(env, folder, manifest,
                                               {{average.prefix + one.name + average.suffix, view}},
                                               engine::ExtraTensors::kIgnore));
      for (size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(snapshot[i]);
    }
    for (size_t i = 0; i < count; ++i) {
      snapshot[i] = static_cast<float>(sum[i] / static_cast<double>(averages.size()));
    }
    WEFT_RETURN_IF_ERROR(engine::Upload(stream, snapshot.data(), one.view));
  }
  return OkStatus();
}

/// Keeps of each matrix what counts in training, by the mask or the scale in the checkpoint.
Status ApplyMasks(Env& env, const std::string& folder, const engine::CheckpointManifest& manifest,
                  const std::optional<ExportedMask>& mask, const Stream& stream,
                  const std::vector<NamedTensor>& parameters) {
  if (!mask) return OkStatus();
  const StateName& masks = mask->bits;
  WEFT_ASSIGN_OR_RETURN(const std::vector<NamedTensor> masked,
                        ParametersWith(masks, env, folder, manifest, parameters));
  for (const NamedTensor& one : masked) {
    const int64_t rows = one.view.shape[0], columns = one.view.shape[1], blocks = columns / 4;
    std::vector<uint16_t> bits(static_cast<size_t>(rows / 4 * blocks));
    const TensorView view(bits.data(), DType::kU16, {rows / 4, blocks});
    WEFT_RETURN_IF_ERROR(engine::LoadTensors(env, folder, manifest,
                                             {{masks.prefix + one.name + masks.suffix, view}},
                                             engine::ExtraTensors::kIgnore));
    WEFT_ASSIGN_OR_RETURN(const engine::HostCopy copy, engine::HostCopy::Of(stream, one.view));
    const size_t element = DTypeSize(one.view.dtype);
    const auto* from = static_cast<const std::byte*>(copy.view().data);
    std::vector<std::byte> values(from, from + copy.view().Bytes());
    if (mask->scale) {
      float scale = 1;
      WEFT_RETURN_IF_ERROR(engine::LoadTensors(
          env, folder, manifest,
          {{mask->scale->prefix + one.name + mask->scale->suffix, {&scale, DType::kF32, {1}}}},
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

/// With these averages in place of weights.
Status LoadWeights(Env& env, const std::string& folder, const engine::CheckpointManifest& manifest,
                   const std::vector<StateName>& averages, engine::ParameterSet& parameters,
                   const std::map<std::string, std::string>& names) {
  const std::optional<MaskedGrowth> growth = MaskedGrowthOf(manifest.job);
  if (growth && manifest.step < growth->growth.ramp_steps) {
    return InvalidError("the checkpoint in " + folder + " is of step " +
                        std::to_string(manifest.step) +
                        ", when masks still hid a part of the network, and no network without "
                        "masks computes what it does; hint: one of step " +
                        std::to_string(growth->growth.ramp_steps) + " or later");
  }
  const Stream& stream = parameters.stream();
  const std::vector<NamedTensor> tensors = Named(manifest, parameters, names);
  WEFT_RETURN_IF_ERROR(
      engine::LoadTensors(env, folder, manifest, tensors, engine::ExtraTensors::kIgnore, stream));
  WEFT_RETURN_IF_ERROR(LoadAverages(env, folder, manifest, averages, stream, tensors));
  WEFT_RETURN_IF_ERROR(ApplyMasks(env, folder, manifest, ExportedMasks(manifest.job, manifest.step),
                                  stream, tensors));
  engine::Allocator allocator;
  engine::Context context;
  context.allocator = &allocator;
  context.stream = parameters.stream();
  return parameters.OnValues(context, engine::ValuesFrom::kCheckpoint);
}

}  // namespace

Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters,
                          const std::map<std::string, std::string>& names, LeftOutBase base) {
  if (base == LeftOutBase::kRead) {
    const ModelSpec& model = manifest.job.model;
    WEFT_RETURN_IF_ERROR(ReadBase(env, folder, manifest, model.import_path, model, parameters));
  }
  return LoadWeights(env, folder, manifest, ExportedAverages(manifest.job, manifest.updates),
                     parameters, names);
}

Status LoadLastWeights(Env& env, const std::string& folder,
                       const engine::CheckpointManifest& manifest,
                       engine::ParameterSet& parameters) {
  return LoadWeights(env, folder, manifest, {}, parameters, {});
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
