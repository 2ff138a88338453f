#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {

/// Has what a forward pass saves wait in the host tier. The pass is cut into steps. What a step has
/// saved goes down while the next one runs, and gives its memory back at the end of that; it comes
/// up again, one step ahead, while the backward pass of the step behind it runs. So the device has
/// what two steps have saved, at most, however fast the link is, and what the last one has saved
/// never leaves. A tensor that several operations save goes once. Not thread-safe.
class ActivationOffload : public TensorKeeper {
 public:
  /// For one forward pass of so many steps and its backward pass. `host` outlives it.
  ActivationOffload(HostTier* host, size_t steps) : host_(host), steps_(steps) {}

  Result<SavedTensor> Keep(Context&, const Tensor& tensor) override { return KeepExactly(tensor); }
  SavedTensor KeepExactly(Tensor tensor) override;

  /// The forward pass of `step` is over; what is kept from now on is of the next one. Waits until
  /// what the step before has saved is gone.
  Status EndForward(Context& context, size_t step);

  /// The backward pass of `step` comes next. Waits until what it saved is back.
  Status StartBackward(Context& context, size_t step);

 private:
  /// Of a tensor, here, there, or on its way.
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

  HostTier* host_;
  std::vector<std::weak_ptr<Place>> saved_;  ///< By the step under way, as far as it is wanted.
  std::vector<Step> steps_;
};

}  // namespace weft::engine
