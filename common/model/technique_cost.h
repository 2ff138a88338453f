#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_counts.h"
#include "common/model/parameter_list.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

struct MemoryInputs;

/// Work that techniques add to each step, however many tokens it has.
struct StepWork {
  std::vector<Gemm> products;    ///< In f32, whatever the precision.
  double flops = 0;              ///< Of everything else.
  double f32_numbers = 0;        ///< Read or written outside the products, as f32 ...
  double parameter_numbers = 0;  ///< ... and in the type of the parameters.

  /// Of the products and of everything else.
  double Flops() const {
    double sum = flops;
    for (const Gemm& product : products) sum += product.Flops();
    return sum;
  }
};

/// A number that a technique measures while it trains. Ranks report it with each step; workers
/// export it as the gauge weft_train_<name>.
struct TechniqueMetric {
  std::string_view name;  ///< With its unit, as in "flip_rate_ratio".
  std::string_view help;  ///< One sentence.
};

/// The tensors of a checkpoint that hold something of every trained parameter: prefix, the name of
/// the parameter, suffix.
struct StateName {
  std::string prefix;
  std::string suffix;
};

/// What a training technique means for validation, planning and export: pure arithmetic over specs,
/// without the engine. One object for each folder of worker/engine/techniques. Hooks that a
/// technique does not override change nothing.
class TechniqueCost {
 public:
  virtual ~TechniqueCost() = default;

  /// That of its folder.
  virtual std::string_view name() const = 0;

  virtual bool Asked(const JobSpec& job) const = 0;

  /// kInvalid where its own fields do not fit each other.
  virtual Status Check(const JobSpec&) const { return OkStatus(); }

  /// The tensors that are trained instead of `parameter`, whose value is computed from them; none
  /// where it is trained itself.
  virtual std::vector<ParameterInfo> SourcesOf(const ModelSpec&, const ParameterInfo&) const {
    return {};
  }

  /// Whether it may treat two blocks of the network differently. Counting then visits each block.
  virtual bool TellsBlocksApart(const ModelSpec&) const { return false; }

  virtual void AddStepWork(const ModelShape&, StepWork&) const {}

  /// Bytes of workspace between the backward pass and the update.
  virtual int64_t WorkspaceBytes(const MemoryInputs&) const { return 0; }

  /// f32 copies of each updated parameter that it keeps with the state of the optimizer.
  virtual int64_t StateCopies(const JobSpec&) const { return 0; }

  /// The tensors whose mean replaces each trained parameter in exports of a checkpoint after
  /// `updates` updates; none where the parameters themselves count.
  virtual std::vector<StateName> ExportedAverages(const JobSpec&, int64_t /*updates*/) const {
    return {};
  }

  virtual std::vector<TechniqueMetric> Metrics() const { return {}; }
};

/// One of each technique, in the order of worker/engine/techniques/registry.def, which defines
/// this.
const std::vector<const TechniqueCost*>& TechniqueCosts();

// The sums over all techniques.

std::vector<ParameterInfo> SourcesOf(const ModelSpec& model, const ParameterInfo& parameter);
bool TellsBlocksApart(const ModelSpec& model);
StepWork StepWorkOf(const ModelShape& shape);
/// With the averages that an optimizer keeps itself.
std::vector<StateName> ExportedAverages(const JobSpec& job, int64_t updates);

}  // namespace weft
