#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/remat_schedule.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

/// Offloads tensors that steps of a forward pass save to the host memory pool, as a plan says
/// (RematStep). They begin to go down when the step is over, and free their memory at the end of
/// step `sent`. They take memory again and begin to come up with the backward pass of step
/// `fetched`, so that memory does not depend on the rate of the link. Each direction carries the
/// steps one after the other. A tensor that several operations save is sent once. Not thread-safe.
class ActivationOffload : public SavedTensorPolicy {
 public:
  /// Offloads for one forward pass and its backward pass. `host` and `plan` outlive it.
  ActivationOffload(HostMemoryPool* host, const RematPlan& plan)
      : host_(host), plan_(plan), steps_(plan.size()) {}

  Result<SavedTensor> Keep(Context&, const Tensor& tensor, const ColumnPart&) override {
    return KeepExactly(tensor);
  }
  SavedTensor KeepExactly(Tensor tensor) override;

  /// Ends the forward pass of `step`; tensors saved from now on belong to the next offloaded step.
  /// Waits for transfers that must have ended by then.
  Status EndForward(Context& context, size_t step);

  /// Begins the backward pass of `step`. Waits until its saved tensors are back.
  Status StartBackward(Context& context, size_t step);

 private:
  /// Where a tensor is: on the device, on the host, or in transfer.
  struct Place {
    Tensor device;
    Tensor host;
  };
  using Places = std::vector<std::shared_ptr<Place>>;
  struct Step {
    Places places;    ///< From its end to its backward pass.
    int64_t job = 0;  ///< Its copies, in the lane that they take.
  };

  Status Leave(Context& context, Step& step);
  Status Return(Context& context, Step& step);

  HostMemoryPool* host_;
  const RematPlan& plan_;
  std::vector<std::weak_ptr<Place>> saved_;  ///< By the step under way, as far as it is wanted.
  std::vector<Step> steps_;
};

}  // namespace weft::engine
