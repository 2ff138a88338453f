#include "worker/engine/nn/dropout.h"

#include "kernels/dropout/dropout.h"

namespace weft::engine {
namespace {

// In place when nobody else looks at `x`.
Result<Tensor> Apply(Context& context, Component component, Tensor x, kernels::DropoutArgs args) {
  Tensor y;
  args.x = x;
  if (x.unique()) {
    y = std::move(x);
  } else {
    WEFT_ASSIGN_OR_RETURN(y, Tensor::New(context, component, x.dtype(), x.shape()));
  }
  args.y = y;
  WEFT_RETURN_IF_ERROR(kernels::Dropout(context.stream, args));
  return y;
}

}  // namespace

PhiloxKey DropoutKey(const Context& context, uint32_t site, int64_t use) {
  // The golden ratio spreads the uses over the sites of other names.
  return {context.seed, static_cast<uint32_t>(context.step),
          site + static_cast<uint32_t>(use) * 0x9e3779b9u};
}

Result<Value> Dropout::Forward(Context& context, Tape& tape, Value x, const GraftUse& use) const {
  if (probability_ == 0 || !tape.differentiable()) return x;
  ProfileScope scope(context.profiler, "dropout forward");
  kernels::DropoutArgs args;
  args.probability = probability_;
  args.key = DropoutKey(context, site_, use.use);
  args.step = context.Number(args.key.step, &StepNumbers::step).at;
  args.first_element = static_cast<uint64_t>(use.first_row * x.tensor.shape()[-1]);
  WEFT_ASSIGN_OR_RETURN(Tensor dropped,
                        Apply(context, tape.component(), std::move(x.tensor), args));
  Value y = tape.NewValue(std::move(dropped), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record("dropout backward",
              [args, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
                WEFT_ASSIGN_OR_RETURN(
                    Tensor dx, Apply(ctx, Component::kWorkspace, t.TakeGradient(y_node), args));
                return t.AddGradient(ctx, x_node, std::move(dx));
              });
  return y;
}

}  // namespace weft::engine
