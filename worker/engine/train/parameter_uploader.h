#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Uploads weights of the host memory pool that stay on the device as well, after an
/// update: unit by unit, each as soon as the update is done with it, while the next forward pass
/// computes with those that have come. Units that are kept on the device are not its affair: those
/// are the affair of the prefetcher that there was before it, if any.
class ParameterUploader : public ParameterPrefetcher {
 public:
  /// `parameters`, offloaded ones that are not streamed, outlive this, which is their prefetcher
  /// for as long as it lives; so does the host memory pool of `context`.
  ParameterUploader(Context& context, ParameterSet* parameters);
  ~ParameterUploader() override;

  /// An update has begun (HostMemoryPool::updated): what it changes will come.
  void Start(const Context& context);

  /// Waits until all has come. Before values change that were under way.
  Status Finish();
  /// The same in another thread than the rank's, which does not wait for it.
  Status FinishInBackground();

  Status Fetch(Context& context, int64_t unit, Pass pass) override;
  Status Release(int64_t unit) override {
    return of_others_ ? of_others_->Release(unit) : OkStatus();
  }
  Status Forget() override { return of_others_ ? of_others_->Forget() : OkStatus(); }
  bool drops() const override { return of_others_ && of_others_->drops(); }

 private:
  HostMemoryPool* host_;
  ParameterSet* parameters_;
  ParameterPrefetcher* of_others_;                   ///< None where null.
  std::vector<std::vector<DerivedCopies*>> copies_;  ///< By unit, of what is trained.
  std::vector<int64_t> jobs_;                        ///< Of the lane up, by unit.
};

}  // namespace weft::engine
