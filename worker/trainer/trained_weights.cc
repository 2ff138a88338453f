#include "worker/trainer/trained_weights.h"

#include <set>
#include <string>
#include <vector>

#include "common/formats/safetensors.h"
#include "common/model/technique_cost.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::trainer {
namespace {

using engine::NamedTensor;

/// Those parameters that the checkpoint has an average of: frozen ones have none.
Result<std::vector<NamedTensor>> AveragedParameters(Env& env, const std::string& folder,
                                                    const engine::CheckpointManifest& manifest,
                                                    const engine::ParameterSet& parameters,
                                                    const StateName& average) {
  // Each file may hold a part of it.
  std::set<std::string> names;
  for (const engine::CheckpointFile& file : manifest.files) {
    WEFT_ASSIGN_OR_RETURN(SafetensorsFile tensors,
                          SafetensorsFile::Open(env, JoinPath(folder, file.name)));
    for (const SafetensorsView& tensor : tensors.tensors()) names.insert(tensor.name);
  }
  std::vector<NamedTensor> found;
  for (NamedTensor& parameter : parameters.NamedValues()) {
    if (!names.contains(average.prefix + parameter.name + average.suffix)) continue;
    found.push_back(std::move(parameter));
  }
  return found;
}

}  // namespace

Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters) {
  WEFT_RETURN_IF_ERROR(engine::LoadTensors(env, folder, manifest, parameters.NamedValues(),
                                           engine::ExtraTensors::kIgnore, parameters.stream()));
  const std::vector<StateName> averages = ExportedAverages(manifest.job, manifest.updates);
  engine::Context context;
  context.stream = parameters.stream();
  if (averages.empty()) return parameters.OnValues(context, engine::ValuesFrom::kCheckpoint);
  WEFT_ASSIGN_OR_RETURN(std::vector<NamedTensor> averaged,
                        AveragedParameters(env, folder, manifest, parameters, averages[0]));
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
    WEFT_RETURN_IF_ERROR(engine::Upload(parameters.stream(), snapshot.data(), one.view));
  }
  return parameters.OnValues(context, engine::ValuesFrom::kCheckpoint);
}

}  // namespace weft::trainer
