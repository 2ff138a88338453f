#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "common/spec/group_norm.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// The group of parameters of a role: "embedding", "attention", "mlp", "norms" or "head".
std::string_view GroupOf(ParameterRole role);

inline constexpr size_t kParameterGroups = 5;

/// Sums over the parameters of one group.
struct GroupSums {
  NormSums gradients;
  NormSums values;
};

/// Enqueues that sums[kParameterGroups], memory of the stream's device, hold the groups in the
/// order above; those of groups without parameters stay as they are. Frozen parameters count with
/// their values only, those that are quantised not at all. Reads every number once; the
/// result does not depend on the number of threads. Where ranks shard updates: of the gradients of
/// `parts` alone.
Status MeasureGroups(Context& context, const ParameterSet& parameters, GroupSums* sums,
                     std::span<const ParameterPart> parts = {});

/// Norms of gradients (summed over the ranks, without their loss scale, not clipped) and values, of
/// the groups that have parameters.
std::vector<GroupNorm> GroupNorms(const ParameterSet& parameters, const GroupSums* sums,
                                  double loss_scale);

}  // namespace weft::engine
