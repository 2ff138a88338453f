#pragma once

#include <cstdint>
#include <future>
#include <memory>

#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/update_pipeline.h"
#include "worker/engine/optim/updater.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/train/device_weights.h"
#include "worker/engine/train/step_clock.h"
#include "worker/engine/train/training_ranks.h"
#include "worker/engine/train/updaters.h"

namespace weft::engine {

/// The updates of parameters in the host memory pool. An update is made at once, or overlaps with
/// the next step: with its forward pass, which waits for each weight that it computes with, or, one
/// step late, with all of it. Not thread-safe.
class OffloadedUpdates {
 public:
  /// The objects that it works with; all outlive this.
  struct Parts {
    Context* context = nullptr;  ///< Of the device.
    ParameterSet* parameters = nullptr;
    GradientReducer* reducer = nullptr;
    const TrainingRanks* ranks = nullptr;
    Updaters* updaters = nullptr;
    DeviceWeights* weights = nullptr;
    StepClock* clock = nullptr;
  };
  struct Options {
    bool delays = false;    ///< Plan::delayed_update.
    bool overlaps = false;  ///< With the next forward pass, where that is possible.
    int64_t steps = 0;      ///< Of the whole training.
  };

  /// kExhausted without memory for the gradients of a second step, which late updates take.
  static Result<std::unique_ptr<OffloadedUpdates>> New(const Parts& parts, const Options& options);

  /// Makes or begins the update of step `step`, unless args.gate says that none is made. A late one
  /// has the next step write its gradients elsewhere.
  Status Update(const StepArgs& args, int64_t step, PhaseSeconds& seconds);

  /// Waits for an update under way, and for weights on their way to the device. After a failure
  /// every call fails.
  Status Finish();

  /// Finish() where an update is under way that is not late.
  Status FinishUnlessLate();

 private:
  /// An update that overlaps with the next step.
  struct OverlappedUpdate {
    Context context;
    StepArgs args;
    float factor = 0;
    int32_t made = 1;
    bool late = false;
    UpdatePipeline* update_pipeline = nullptr;  ///< Of parameters in a file.
    std::future<Status> running;

    /// Gives up what waits for memory.
    ~OverlappedUpdate();
  };

  OffloadedUpdates(const Parts& parts, const Options& options) : parts_(parts), options_(options) {}

  /// Whether the update of `step` is late, or overlaps with the next forward pass.
  bool Delays(int64_t step) const;
  bool Overlaps(int64_t step) const;
  Status MakeAtOnce(const StepArgs& args, PhaseSeconds& seconds);
  Status Start(const StepArgs& args, bool late);
  Status Run(OverlappedUpdate& update);
  /// Updates what is kept on the device of offloaded parameters, and packs it, unless all weights
  /// are packed at once.
  Status UpdateKept(const StepArgs& args);

  Parts parts_;
  Options options_;
  Tensor other_gradients_;                       ///< Those of a late update, or room for the next.
  std::unique_ptr<OverlappedUpdate> in_flight_;  ///< Or none.
  Status status_;  ///< Of the last one that was under way: after a failure nothing goes on.
};

}  // namespace weft::engine
