#include "common/model/optimizer_bytes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/model/parameter_groups.h"
#include "common/model/parameter_list.h"
#include "common/model/precision.h"
#include "common/model/state_tensors.h"
#include "common/model/technique_cost.h"
#include "common/spec/local_steps.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

/// The direction of a matrix and the room that kernels/orthogonalize wants besides it: two
/// iterates, a copy in f32 where they are not, and the squares of its shorter side.
int64_t MuonWorkspace(const ParameterInfo& parameter, DType products) {
  const std::vector<int64_t>& parts = parameter.parts;
  const int64_t columns = parameter.shape[1];
  const int64_t rows =
      parts.empty() ? parameter.shape[0] : *std::max_element(parts.begin(), parts.end());
  const int64_t shorter = std::min(rows, columns);
  const int64_t squares = (products == DType::kF32 ? 8 : 10) * shorter * shorter;
  return kF32 * parameter.Elements() + 8 * rows * columns + squares;
}

/// Adds `count` such parameters. `cut`: tensor-parallel ranks divide the weight.
void AddAuxiliary(const JobSpec& job, const ParameterInfo& parameter, int64_t count, bool cut,
                  AuxiliaryParameters& sums) {
  const PrecisionRecipe& precision = PrecisionOf(job.train.precision);
  const PackedPadding padding = parameter.packed_padding();
  const int64_t numbers = parameter.Elements();
  const int64_t packed =
      numbers + (precision.products == DType::kBF16 ? padding.bf16 : padding.f32);
  sums.numbers += count * numbers;
  // What shares the side of a weight that is not cut is replicated.
  const bool is_replicated =
      (parameter.adapter == AdapterSide::kInput) != EndsSubLayer(parameter.role);
  if (cut && is_replicated) sums.partial_gradients += count * numbers;
  sums.value_bytes += count * ElementBytes(precision.matrices) * numbers;
  sums.packed_bytes += count * ElementBytes(precision.products) * packed;
  for (const StateTensor& state : StateTensorsOf(job.optimizer, parameter, parameter.shape)) {
    sums.state_bytes += count * state.format.Bytes(state.Numbers());
  }
  for (const TechniqueCost* technique : TechniqueCosts()) {
    sums.state_bytes += count * technique->StateBytes(job, parameter);
  }
}

/// Groups of parameters whose optimizer state has the same size per element.
std::vector<ParameterGroup> GroupsOf(const ModelSpec& model, const JobSpec& job, int64_t tensor,
                                     int64_t rows) {
  const bool apart =
      std::any_of(TechniqueCosts().begin(), TechniqueCosts().end(),
                  [&](const TechniqueCost* each) { return each->StateDiffersByBlock(job); });
  if (!apart) return ParameterGroupsOfRank(model, tensor, rows);
  std::vector<ParameterGroup> groups;
  for (ParameterInfo& parameter : ParametersOfRank(model, tensor, rows)) {
    groups.push_back({.first = std::move(parameter)});
  }
  return groups;
}

}  // namespace

AuxiliaryParameters AuxiliaryParameters::OfStage(int64_t blocks, int64_t of) const {
  const auto part = [&](int64_t all) { return all * blocks / of; };
  return {.numbers = part(numbers),
          .partial_gradients = part(partial_gradients),
          .value_bytes = part(value_bytes),
          .packed_bytes = part(packed_bytes),
          .state_bytes = part(state_bytes)};
}

// Two moments of a million parameters each, and a block to begin at one.
int64_t FileBufferBytes(int64_t numbers) {
  constexpr int64_t kMost = int64_t{1} << 21, kBlock = 1024;
  const int64_t blocks = (numbers + kBlock - 1) / kBlock;
  return 3 * kF32 * (std::min(kMost, blocks * kBlock) + kBlock);
}

OptimizerBytes OptimizerBytesOf(const ModelSpec& model, const JobSpec& job, DType products,
                                int64_t tensor, int64_t rows, int64_t expert_ranks) {
  // The parameters after the last outer step, and its momentum.
  const int64_t outer = MakesLocalSteps(job.train) ? 2 : 0;
  const bool in_file = job.resources.offload_optimizer == "nvme";
  OptimizerBytes bytes;
  const auto add = [&](const ParameterInfo& parameter, int64_t count) {
    int64_t numbers = 0, state = 0, of_techniques = 0, replicated = 0;
    for (const TechniqueCost* technique : TechniqueCosts()) {
      of_techniques += technique->StateBytes(job, parameter);
      replicated += technique->ReplicatedStateBytes(job, parameter);
    }
    for (const StateTensor& kept : StateTensorsOf(job.optimizer, parameter, parameter.shape)) {
      numbers += kept.Numbers();
      state += kept.format.Bytes(kept.Numbers());
    }
    const bool of_experts = expert_ranks > 1 && parameter.expert >= 0;
    if (in_file) bytes.in_file += count * numbers;
    if (in_file && of_experts) bytes.in_file_of_experts += count * numbers;
    const int64_t held =
        count * ((in_file ? 0 : state) + of_techniques + kF32 * outer * parameter.Elements());
    bytes.state += held + count * replicated;
    bytes.replicated += count * replicated;
    if (of_experts) bytes.state_of_experts += held;
    if (job.optimizer.name == "muon" && UpdatedByMuon(parameter, parameter.shape.size())) {
      bytes.workspace = std::max(bytes.workspace, MuonWorkspace(parameter, products));
    }
  };
  for (const ParameterGroup& group : GroupsOf(model, job, tensor, rows)) {
    const ParameterInfo& parameter = group.first;
    if (parameter.frozen || !IsOnExpertRank(model, parameter, expert_ranks)) continue;
    // Experts of a group are sharded; alone they are here or not.
    const int64_t count = group.blocks * (group.experts > 1 ? group.experts / expert_ranks : 1);
    for (const TechniqueCost* technique : TechniqueCosts()) {
      for (const ParameterInfo& more : technique->AuxiliaryParametersOf(job.train, parameter)) {
        AddAuxiliary(job, more, count, tensor > 1, bytes.auxiliary);
      }
    }
    const std::vector<ParameterInfo> sources = SourcesOf(model, parameter);
    if (sources.empty()) add(parameter, count);
    for (const ParameterInfo& source : sources) add(source, count);
  }
  return bytes;
}

}  // namespace weft
