#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/model_sizes.h"
#include "worker/engine/techniques/sub_networks/partition.h"
#include "worker/engine/testing/mesh_run.h"

namespace weft::engine {

/// Where a number of the network belongs, by its place in all values one after the other.
struct NumberOwner {
  static constexpr int64_t kAll = -1;

  int64_t rank = kAll;  ///< That trains it in a round, or all.
  /// What a sub-network of that rank multiplies it by, as part of the weight that ends a sub-layer.
  double scale = 1;
};

/// The head or neuron, of its own sub-layer, that element `element` of a parameter is of; -1: none.
/// A head is that of keys and values which the query heads share.
inline int64_t UnitOf(const ModelSpec& model, const Parameter& parameter, int64_t element) {
  const int64_t in = parameter.bias ? 1 : parameter.shape[-1];
  const int64_t row = element / in, column = element % in;
  const int64_t width = HeadWidth(model), group = model.heads / KvHeads(model);
  const auto ends_with = [&](const char* name) {
    const std::string full = std::string(name) + (parameter.bias ? ".bias" : ".weight");
    return parameter.name.ends_with(full);
  };
  if (parameter.block < 0 || parameter.output_bias()) return -1;
  if (ends_with("c_attn")) return row % model.width / width;
  if (ends_with("q_proj")) return row / width / group;
  for (const char* name : {"k_proj", "v_proj", "query", "key", "value"}) {
    if (ends_with(name)) return row / width;
  }
  for (const char* name : {"attn.c_proj", "o_proj", "attention.output.dense"}) {
    if (ends_with(name)) return column / width / group;
  }
  for (const char* name : {"c_fc", "gate_proj", "up_proj", "intermediate.dense"}) {
    if (ends_with(name)) return row;
  }
  for (const char* name : {"mlp.c_proj", "down_proj", "output.dense"}) {
    if (ends_with(name)) return column;
  }
  return -1;
}

/// The owners of all numbers of a network in round `round`.
inline std::vector<NumberOwner> OwnersIn(const JobSpec& job, const ParameterSet& parameters,
                                         int64_t round, int64_t ranks) {
  std::vector<NumberOwner> owners;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    const Parameter& parameter = parameters[p];
    std::vector<OwnUnits> by_rank;
    if (UnitOf(job.model, parameter, 0) >= 0) {
      const bool heads = IsAttention(parameter.role);
      std::string site;
      for (int64_t i = 0; i < parameters.size(); ++i) {
        if (parameters[i].block == parameter.block && parameters[i].output_weight() &&
            IsAttention(parameters[i].role) == heads) {
          site = parameters[i].name;
        }
      }
      const int64_t units = heads ? KvHeads(job.model) : MlpWidth(job.model);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        by_rank.push_back(
            UnitsOfRank(static_cast<uint64_t>(job.train.seed), round, site, units, rank, ranks));
      }
    }
    for (int64_t i = 0; i < parameter.shape.Elements(); ++i) {
      NumberOwner& owner = owners.emplace_back();
      const int64_t unit = UnitOf(job.model, parameter, i);
      for (size_t rank = 0; unit >= 0 && rank < by_rank.size(); ++rank) {
        if (by_rank[rank].own[static_cast<size_t>(unit)] == 0) continue;
        owner.rank = static_cast<int64_t>(rank);
        if (parameter.output_weight()) owner.scale = double{by_rank[rank].Scale()};
      }
    }
  }
  return owners;
}

/// A whole network that computes what the sub-network of a rank does: weights that end sub-layers
/// are scaled, and zero where they are of units of others.
class MaskedTwin {
 public:
  explicit MaskedTwin(const ModelSpec& model) : run_(model, ModelOptionsOf(TinyPlan("fp32"))) {}

  const ParameterSet& parameters() const { return run_.model->parameters(); }
  std::vector<double> Start() const {
    const std::vector<float> values = run_.Parameters();
    return {values.begin(), values.end()};
  }

  /// Gradient of the mean loss over `batch`, by `values` of the whole network; zero where frozen.
  std::vector<double> Gradient(const std::vector<double>& values,
                               const std::vector<NumberOwner>& owners, int64_t rank,
                               const Batch& batch, int64_t first_sequence) {
    ParameterSet& parameters = run_.model->parameters();
    size_t at = 0;
    for (int64_t p = 0; p < parameters.size(); ++p) {
      float* to = parameters.value(p).As<float>();
      for (int64_t i = 0; i < parameters[p].shape.Elements(); ++i, ++at) {
        to[i] = static_cast<float>(values[at] *
                                   FactorOf(owners[at], rank, parameters[p].output_weight()));
      }
    }
    WEFT_CHECK(run_.model->Pack(run_.context).ok(), "pack");
    loss_ =
        run_.Differentiate(batch, 1.0f / static_cast<float>(batch.target_count), first_sequence) /
        static_cast<double>(batch.target_count);
    std::vector<double> gradient;
    for (int64_t p = 0; p < parameters.size(); ++p) {
      if (!parameters[p].trainable()) {
        gradient.resize(gradient.size() + static_cast<size_t>(parameters[p].shape.Elements()));
        continue;
      }
      for (const float g : ValuesOf(parameters.gradient(p))) {
        const NumberOwner& owner = owners[gradient.size()];
        gradient.push_back(double{g} * FactorOf(owner, rank, parameters[p].output_weight()));
      }
    }
    return gradient;
  }
  /// The loss of the last of these calls.
  double loss() const { return loss_; }

 private:
  static double FactorOf(const NumberOwner& owner, int64_t rank, bool ends_sub_layer) {
    if (!ends_sub_layer) return 1;
    return owner.rank == rank ? owner.scale : 0;
  }

  TinyRun run_;
  double loss_ = 0;
};

}  // namespace weft::engine
