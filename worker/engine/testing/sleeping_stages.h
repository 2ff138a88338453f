#pragma once

#include <chrono>
#include <thread>
#include <utility>

#include "worker/engine/models/model.h"

namespace weft::engine {

/// The stages of a network that sleep where others compute: what a pipeline takes then is its
/// schedule and its messages, also where there are more ranks than cores. It has no parameters and
/// no loss; what stages send each other is as wide as spec.width.
class SleepingStages : public Model {
 public:
  /// Times of one stage and one micro-batch.
  struct Times {
    std::chrono::microseconds forward, backward_input, backward_weight;
  };

  /// `last`: of the stages here the last one is the pipeline's.
  SleepingStages(const ModelSpec& spec, const Times& times, int64_t stages, bool last)
      : Model(ModelSpec(), ModelOptions()),
        spec_(spec),
        times_(times),
        stages_(stages),
        last_(last) {}

  const ModelSpec& spec() const override { return spec_; }
  const PrecisionRecipe& precision() const override { return kFp32Precision; }
  ParameterSet& parameters() override { return parameters_; }
  Status Pack(Context&, Repack) override { return OkStatus(); }

  Status Loss(Context&, Tape&, const TokenBatch&, kernels::StepValue<float>,
              BatchLoss*) const override {
    return InvalidError("stages that sleep have no loss");
  }
  Result<Tensor> Logits(Context&, const TokenBatch&) const override {
    return InvalidError("stages that sleep have no logits");
  }

  Result<Value> Stage(Context& context, Tape& tape, int64_t stage, Value x, const TokenBatch& batch,
                      kernels::StepValue<float>, BatchLoss*) const override {
    std::this_thread::sleep_for(times_.forward);
    const Shape shape = {batch.count, spec_.width};
    Value y = tape.NewValue(Tensor(), true);
    if (!last_ || stage + 1 < stages_) {
      WEFT_ASSIGN_OR_RETURN(y.tensor, Tensor::New(context, tape.component(), DType::kF32, shape));
    }
    tape.Record(
        "sleep",
        [times = times_, shape, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
          t.TakeGradient(y_node);
          std::this_thread::sleep_for(times.backward_input);
          const auto weight = [times](Context&, Tape&) {
            std::this_thread::sleep_for(times.backward_weight);
            return OkStatus();
          };
          if (t.defers()) {
            t.Defer("sleep", weight);
          } else {
            WEFT_RETURN_IF_ERROR(weight(ctx, t));
          }
          if (x_node == Value::kNoNode) return OkStatus();
          WEFT_ASSIGN_OR_RETURN(Tensor dx,
                                Tensor::New(ctx, Component::kWorkspace, DType::kF32, shape));
          return t.AddGradient(ctx, x_node, std::move(dx));
        });
    return y;
  }

 private:
  ModelSpec spec_;
  Times times_;
  int64_t stages_;
  bool last_;
  ParameterSet parameters_;
};

}  // namespace weft::engine
