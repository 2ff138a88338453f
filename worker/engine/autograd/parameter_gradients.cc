#include "worker/engine/autograd/parameter_gradients.h"

#include "common/failpoint.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/wrong_bit.h"

namespace weft::engine {

void ParameterGradients::StartStep() {
  for (State& state : state_) state.written = false;
}

void ParameterGradients::StartPass(ReadyHook on_ready) {
  on_ready_ = std::move(on_ready);
  for (State& state : state_) {
    state.open_uses = 0;
    state.reported = false;
    state.placed = false;
    state.taken = false;
    if (place_ && !carries_sums_) state.written = false;
  }
}

void ParameterGradients::StartPasses(ReadyHook on_ready) {
  StartPass(std::move(on_ready));
  // A use that is over when no pass can follow.
  for (size_t i = 0; i < state_.size(); ++i) AddUse(static_cast<int64_t>(i));
}

std::vector<int64_t> ParameterGradients::TakeWritten() {
  WEFT_CHECK(by_pass_, "gradients are taken by pass");
  std::vector<int64_t> written;
  for (size_t i = 0; i < state_.size(); ++i) {
    State& state = state_[i];
    if (!state.written) continue;
    written.push_back(static_cast<int64_t>(i));
    state.written = state.placed = false;
    state.taken = true;
  }
  return written;
}

Status ParameterGradients::EndForward() {
  for (size_t i = 0; i < state_.size(); ++i) {
    State& state = state_[i];
    if (!state.trainable) continue;
    // What no pass has used is FinishPass's affair.
    if (state.open_uses == 1 && !state.written && !state.taken) {
      state.open_uses = 0;
      continue;
    }
    WEFT_RETURN_IF_ERROR(Done(static_cast<int64_t>(i)));
  }
  return OkStatus();
}

Result<ParameterGradients::Target> ParameterGradients::Write(int64_t index) {
  WEFT_CHECK(trainable(index), "a frozen parameter has no gradient");
  WEFT_CHECK(!state_[index].reported, "gradient written after it was reported complete");
  if (place_ && !state_[index].placed) {
    WEFT_ASSIGN_OR_RETURN(gradients_[index], place_(index));
    state_[index].placed = true;
  }
  Target target{gradients_[index], state_[index].written};
  state_[index].written = true;
  return target;
}

Result<TensorView> ParameterGradients::Add(Context& context, int64_t index) {
  if (!trainable(index)) return TensorView();
  WEFT_ASSIGN_OR_RETURN(Target target, Write(index));
  if (!target.accumulate) {
    WEFT_RETURN_IF_ERROR(kernels::Fill(context.stream, {target.gradient, 0.0f}));
  }
  return target.gradient;
}

Status ParameterGradients::Done(int64_t index) {
  if (!trainable(index)) return OkStatus();
  State& state = state_[index];
  WEFT_CHECK(state.open_uses > 0, "more gradient contributions than uses");
  if (--state.open_uses > 0) return OkStatus();
  state.reported = true;
  const TensorView& gradient = gradients_[index];
  if (state.written && gradient.device.type == DeviceType::kCpu &&
      !Failpoint("trainer.gradient").ok()) {
    FlipBit(gradient);
  }
  return on_ready_ ? on_ready_(index) : OkStatus();
}

Status ParameterGradients::Skip(Context& context, int64_t index) {
  if (!trainable(index)) return OkStatus();
  const State& state = state_[index];
  // One that is taken by pass has a gradient in each.
  if ((by_pass_ || state.open_uses == 1) && !state.written) {
    WEFT_RETURN_IF_ERROR(Add(context, index).status());
  }
  return Done(index);
}

Status ParameterGradients::FinishPass(Context& context) {
  for (size_t i = 0; i < state_.size(); ++i) {
    State& state = state_[i];
    WEFT_CHECK(state.open_uses == 0, "backward pass left a gradient incomplete");
    if (state.reported || !trainable(static_cast<int64_t>(i))) continue;
    if (!state.written && !state.taken) {
      auto zeroed = Add(context, static_cast<int64_t>(i));
      WEFT_RETURN_IF_ERROR(zeroed.status());
    }
    state.reported = true;
    if (on_ready_) WEFT_RETURN_IF_ERROR(on_ready_(static_cast<int64_t>(i)));
  }
  return OkStatus();
}

}  // namespace weft::engine
