#include "common/spec/growth_fit.h"

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/parameter_info.h"
#include "common/model/parameter_list.h"
#include "common/spec/phases.h"

namespace weft {
namespace {

/// Rows of `parameter` that a matrix of their own makes: those of queries, keys and values apart.
std::vector<int64_t> RowParts(const ModelSpec& model, const ParameterInfo& parameter) {
  if (parameter.role != ParameterRole::kQueriesKeysValues) return {parameter.shape[0]};
  return {QueryWidth(model), KvWidth(model), KvWidth(model)};
}

/// What a row of `parameter` has.
int64_t Columns(const ParameterInfo& parameter) {
  return parameter.Elements() / parameter.shape[0];
}

/// FLOPs of R W C^T with W of the old model; a side that does not grow has no matrix.
double ProductFlops(const ModelSpec& from, const ParameterInfo& old, const ModelSpec& to,
                    const ParameterInfo& grown) {
  const auto rows = static_cast<double>(grown.shape[0]);
  const auto columns = static_cast<double>(Columns(grown));
  const auto old_columns = static_cast<double>(Columns(old));
  const std::vector<int64_t> old_parts = RowParts(from, old), parts = RowParts(to, grown);
  double flops = columns == old_columns ? 0 : 2 * rows * columns * old_columns;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == old_parts[i]) continue;
    flops += 2 * static_cast<double>(parts[i]) * static_cast<double>(old_parts[i]) * old_columns;
  }
  return flops;
}

}  // namespace

double GrowthFitFlops(const JobSpec& job, size_t phase) {
  if (phase == 0 || job.phases[phase].growth.method != "ligo") return 0;
  const JobSpec own = JobOfPhase(job, phase);
  const ModelSpec from = JobOfPhase(job, phase - 1).model;
  // By their place, within their block or outside of all.
  using Place = std::pair<bool, int64_t>;
  std::map<Place, ParameterInfo> old;
  std::map<int64_t, int64_t> count;
  for (const ParameterInfo& parameter : ParametersOf(from)) {
    old.try_emplace(Place(parameter.block >= 0, count[parameter.block]++), parameter);
  }
  const auto steps = static_cast<double>(job.phases[phase].growth.fit_steps);
  double flops = steps * StepFlops(own);
  count.clear();
  for (const ParameterInfo& parameter : ParametersOf(own.model)) {
    const Place place(parameter.block >= 0, count[parameter.block]++);
    const double product = ProductFlops(from, old.at(place), own.model, parameter);
    // A step makes the value, and for its gradient once more, with two products for each: and the
    // last values are made at the end.
    flops += ((parameter.frozen ? 1 : 4) * steps + 1) * product;
  }
  return flops;
}

}  // namespace weft
