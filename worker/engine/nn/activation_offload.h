#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/remat_schedule.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {

/// Has what steps of a forward pass save wait in the host tier, as a plan says (RematStep). What
/// such a step has saved begins to go down when it is over, and gives its memory back at the end of
/// step `sent`; it takes memory again and begins to come up with the backward pass of step
/// `fetched`, so that memory does not depend on how fast the link is. Each direction carries one
/// step's after the other's. A tensor that several operations save goes once. Not thread-safe.
class ActivationOffload : public TensorKeeper {
 public:
  /// For one forward pass and its backward pass. `host` and `plan` outlive it.
  ActivationOffload(HostTier* host, const RematPlan& plan)
      : host_(host), plan_(plan), steps_(plan.size()) {}

  Result<SavedTensor> Keep(Context&, const Tensor& tensor, const ColumnPart&) override {
    return KeepExactly(tensor);
  }
  SavedTensor KeepExactly(Tensor tensor) override;

  /// The forward pass of `step` is over; what is kept from now on is of the next one that travels.
  /// Waits for what is to have left by then.
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
  const RematPlan& plan_;
  std::vector<std::weak_ptr<Place>> saved_;  ///< By the step under way, as far as it is wanted.
  std::vector<Step> steps_;
};

}  // namespace weft::engine
