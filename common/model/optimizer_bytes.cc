#include "common/model/optimizer_bytes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;

bool UpdatedByMuon(const ParameterInfo& parameter) {
  return parameter.matrix() && parameter.block >= 0;
}

/// Numbers that the rule keeps of a parameter.
int64_t StateNumbers(const OptimizerSpec& optimizer, const ParameterInfo& parameter) {
  const std::string& name = optimizer.name;
  const int64_t all = parameter.Elements();
  if (name == "sgd") return optimizer.momentum == 0 ? 0 : all;
  if (name == "lars" || name == "lion") return all;
  if (name == "schedule_free_adamw") return 3 * all;
  if (name == "muon" && UpdatedByMuon(parameter)) return all;
  if (name == "adafactor") {
    return parameter.matrix() ? parameter.shape[0] + parameter.shape[1] : all;
  }
  return 2 * all;
}

/// The direction of a matrix and the room that kernels/orthogonalize wants beside it: two iterates,
/// a copy in f32 where they are not, and the squares of its shorter side.
int64_t MuonWorkspace(const ModelSpec& model, const ParameterInfo& parameter, DType products) {
  const bool fused = parameter.name.find("c_attn") != std::string::npos &&
                     parameter.name.find("expansion") == std::string::npos;
  const int64_t columns = parameter.shape[1];
  const int64_t rows = fused ? std::max(model.width, KvWidth(model)) : parameter.shape[0];
  const int64_t shorter = std::min(rows, columns);
  const int64_t squares = (products == DType::kF32 ? 8 : 10) * shorter * shorter;
  return kF32 * parameter.Elements() + 8 * rows * columns + squares;
}

}  // namespace

// Two moments of a million parameters each, and a block to begin at one.
int64_t FileBufferBytes(int64_t numbers) {
  constexpr int64_t kMost = int64_t{1} << 21, kBlock = 1024;
  const int64_t blocks = (numbers + kBlock - 1) / kBlock;
  return 3 * kF32 * (std::min(kMost, blocks * kBlock) + kBlock);
}

OptimizerBytes OptimizerBytesOf(const ModelSpec& model, const JobSpec& job, DType products,
                                int64_t tensor, int64_t rows, int64_t expert_ranks) {
  int64_t copies = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) copies += technique->StateCopies(job);
  // The parameters after the last outer step, and its momentum.
  const int64_t outer = job.train.local_steps > 1 ? 2 : 0;
  const bool in_file = job.resources.offload_optimizer == "nvme";
  OptimizerBytes bytes;
  const auto add = [&](const ParameterInfo& parameter, int64_t count) {
    const int64_t state = StateNumbers(job.optimizer, parameter);
    const bool of_experts = expert_ranks > 1 && parameter.expert >= 0;
    if (in_file) bytes.in_file += count * state;
    if (in_file && of_experts) bytes.in_file_of_experts += count * state;
    const int64_t held =
        count * kF32 * ((in_file ? 0 : state) + (copies + outer) * parameter.Elements());
    bytes.state += held;
    if (of_experts) bytes.state_of_experts += held;
    if (job.optimizer.name == "muon" && UpdatedByMuon(parameter)) {
      bytes.workspace = std::max(bytes.workspace, MuonWorkspace(model, parameter, products));
    }
  };
  for (const ParameterGroup& group : ParameterGroupsOfRank(model, tensor, rows)) {
    const ParameterInfo& parameter = group.first;
    if (!IsTrained(model, parameter) || !IsOnExpertRank(model, parameter, expert_ranks)) continue;
    // Experts of a group are sharded; alone they are here or not.
    const int64_t count = group.blocks * (group.experts > 1 ? group.experts / expert_ranks : 1);
    const std::vector<ParameterInfo> sources = SourcesOf(model, parameter);
    if (sources.empty()) add(parameter, count);
    for (const ParameterInfo& source : sources) add(source, count);
  }
  return bytes;
}

}  // namespace weft
