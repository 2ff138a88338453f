#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/job_spec.h"
#include "worker/engine/models/model.h"
#include "worker/engine/optim/updater.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Updates the parameters of a rank where these are: an updater in the host memory pool takes
/// offloaded ones, and another one those that are kept on the device (ParameterSet::KeepOnDevice).
/// Not thread-safe.
class Updaters {
 public:
  /// `context` and `model` outlive this; `parts`: what this rank updates, or nothing where that is
  /// everything. kInvalid where no parameter is left for the host to update.
  static Result<Updaters> New(Context& context, Model& model, const JobSpec& job,
                              std::span<const ParameterPart> parts);

  Updater& main() const { return *main_; }
  Updater* kept() const { return kept_.get(); }  ///< Or none.

  /// Which of them updates what; valid as long as this is.
  std::span<const UpdatedParameters> updated() const { return updated_; }

  /// Whether they enqueue the same work in each step.
  bool repeats() const { return main_->repeats(); }

  /// The update enqueued last has been applied.
  void OnApplied();

  /// The optimizer's averages after `updates` updates; empty where the parameters count.
  Result<std::vector<AveragedParameter>> Averages(int64_t updates) const;

  std::vector<NamedTensor> StateTensors() const;

 private:
  Context* context_ = nullptr;
  const ParameterSet* parameters_ = nullptr;
  std::unique_ptr<Updater> main_;
  std::unique_ptr<Updater> kept_;
  std::vector<UpdatedParameters> updated_;
};

}  // namespace weft::engine
