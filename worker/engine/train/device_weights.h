#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "worker/engine/models/model.h"
#include "worker/engine/techniques/technique_list.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/train/parameter_uploader.h"

namespace weft::engine {

/// Holds what products read of the parameters: packed copies on the device, and the offloaded
/// parameters that have come up from the host memory pool. Renews it where something has changed.
/// Not thread-safe.
class DeviceWeights {
 public:
  /// All outlive this. Nothing is packed yet.
  DeviceWeights(Context* context, Model* model, TechniqueList* techniques);

  /// The parameters have changed: those that are trained, or all.
  void Changed(Repack what);

  /// Enqueues the packing for the passes of step `step`, or with none for evaluation, where that is
  /// not done.
  Status Prepare(std::optional<int64_t> step);

  // The following is for offloaded parameters; elsewhere it does nothing.

  /// Whether what an update has changed comes with BringUpdated, copies for products included, also
  /// those of weights that are kept on the device.
  bool comes_at_once() const { return comes_at_once_; }

  /// Drops what came to stay until the update.
  Status Forget();

  /// An update has begun (HostMemoryPool::updated): what it changes comes unit by unit, and the
  /// next forward pass waits for each, or with BringUpdated. Does nothing where units come when a
  /// pass asks for them.
  void StartUploads();
  /// Brings all that such an update has changed, where techniques want it whole
  /// (Technique::NeedsWholeUpdates), and prepares `next_step` where that matters. The update has
  /// ended, and techniques have seen it, or none was made.
  Status BringUpdated(int64_t next_step);
  /// An update that nothing waited for has ended: what it has changed comes likewise, or all at
  /// once where more than that has changed.
  Status Renew();
  /// Waits until all has come: before values change that were under way.
  Status FinishUploads();
  /// The same, called in the thread of a late update.
  Status FinishUploadsFromUpdateThread();

 private:
  /// Brings everything that `stale_` says, and packs it.
  Status Bring();

  Context* context_;
  Model* model_;
  TechniqueList* techniques_;
  bool comes_at_once_ = false;  ///< Of offloaded parameters, neither streamed nor sharded ones;
  std::unique_ptr<ParameterUploader> uploader_;  ///< of others of these this.
  bool updated_ = false;                         ///< What comes at once has not come yet.
  std::optional<Repack> stale_ = Repack::kAll;   ///< What has changed since Prepare.
  std::optional<int64_t> packed_step_;           ///< Its last argument, where it matters.
};

}  // namespace weft::engine
