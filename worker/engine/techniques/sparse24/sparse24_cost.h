#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/model/parameter_list.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Name of its metric, with the unit.
inline constexpr std::string_view kFlipRateMetric = "sparse24_flip_rate_ratio";
/// The same of the decay in use, where it is searched for. It has no unit.
inline constexpr std::string_view kDecayMetric = "sparse24_decay";

/// Prefix of the names of masks in checkpoints, before that of the parameter.
inline constexpr const char* kSparse24Masks = "sparse24/mask/";
/// The same of those that slope has for the gradient of the input, and of the scales of s_ste.
inline constexpr const char* kSparse24BackwardMasks = "sparse24/backward_mask/";
inline constexpr const char* kSparse24Scales = "sparse24/scale/";

/// Prefix of the names of its measured products (GemmRate::precision).
inline constexpr std::string_view kSparse24Rates = "sparse24_";

/// Whether weights stay dense, and two of four activations count.
inline bool PrunesActivations(const SparsitySpec& spec) {
  return spec.method == "activations";
}

/// Whether products with weights are sparse in some step.
inline bool HasSparseProducts(const SparsitySpec& spec) {
  return spec.method != "none" && spec.method != "measure" && !PrunesActivations(spec);
}

/// Runs of the search for the decay: a dense one, then sparse ones with a decay each.
inline constexpr int64_t kDecaySearchRuns = 4;
/// Steps of all of them, which come before the training proper; 0: there is no search.
inline int64_t DecaySearchSteps(const SparsitySpec& spec) {
  return kDecaySearchRuns * spec.decay_search_steps;
}

/// The first step of those that train dense at the end; the largest number there is where none
/// does.
int64_t FirstDenseStep(const TrainSpec& train);

/// The first step of those that train adapters, too; that after the last one where none has any.
int64_t FirstAdapterStep(const TrainSpec& train);

/// kInvalid where `degree` context-parallel ranks cut the groups of four tokens for which estimates
/// of gradients are drawn. The sizes of the model are known.
Status CheckTokenGroups(const JobSpec& job, int64_t degree);

/// The adapters of a sparse `weight` [out, in], "<weight>.adapter_in" A [rank, in] and
/// "<weight>.adapter_out" B [out, rank]; none where train.sparsity.adapter_rank is 0. Of a
/// tensor-parallel rank's part of the weight, the parts that go with it.
std::vector<ParameterInfo> LazyAdaptersOf(const SparsitySpec& spec, const ParameterInfo& weight);

/// Shares of the steps between which step switches to masks by itself.
inline constexpr double kFirstSwitchShare = 0.1, kLastSwitchShare = 0.5;

/// Whether what masks keep shrinks by the third magnitude of its four weights. Such thresholds are
/// of the weights as they are trained, not as products round them.
inline bool HasSoftThresholds(const SparsitySpec& spec) {
  return spec.method == "s_ste";
}

/// Steps between two searches for masks; 0: there is one.
inline int64_t StepsOfMasks(const SparsitySpec& spec) {
  if (spec.method == "static" || spec.method == "slope") return 0;
  return HasSoftThresholds(spec) ? 1 : spec.mask_interval;
}

/// Whether masks keep two of four in rows alone.
inline bool HasRowMasks(const SparsitySpec& spec) {
  return spec.method == "sr_ste" || HasSoftThresholds(spec) || spec.method == "step" ||
         spec.method == "slope";
}

/// Whether the gradient of the input is under masks of its own, which keep two of four in rows and
/// in columns.
inline bool HasBackwardMasks(const SparsitySpec& spec) {
  return spec.method == "slope";
}

/// Whether weights that masks leave out shrink besides the update of the optimizer.
inline bool DecaysWeights(const SparsitySpec& spec) {
  return spec.method == "sr_ste" || spec.method == "step";
}

/// A weight that training can have 2:4 sparse: that of an MLP, not of an expert.
inline bool CanBeSparse24(const ParameterAttributes& parameter) {
  return IsMlp(parameter.role) && !parameter.bias && parameter.expert < 0 && !parameter.frozen;
}

}  // namespace weft
