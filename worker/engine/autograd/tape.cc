#include "worker/engine/autograd/tape.h"

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Status Tape::AddGradient(Context& context, int32_t node, Tensor gradient) {
  if (node == Value::kNoNode) return OkStatus();
  Tensor& slot = gradients_[node];
  if (!slot) {
    slot = std::move(gradient);
    return OkStatus();
  }
  Tensor sum;
  if (gradient.unique()) {
    sum = gradient;
  } else {
    WEFT_ASSIGN_OR_RETURN(
        sum, Tensor::New(context, Component::kWorkspace, gradient.dtype(), gradient.shape()));
  }
  WEFT_RETURN_IF_ERROR(kernels::Add(context.stream, {slot, gradient, sum}));
  slot = std::move(sum);
  return OkStatus();
}

Status Tape::RunBackward(Context& context) {
  while (!entries_.empty()) {
    Entry entry = std::move(entries_.back());
    entries_.pop_back();
    ProfileScope scope(context.profiler, entry.name);
    WEFT_RETURN_IF_ERROR(entry.backward(context, *this));
  }
  return OkStatus();
}

Status Tape::RunDeferred(Context& context) {
  while (!deferred_.empty()) {
    Entry entry = std::move(deferred_.front());
    deferred_.pop_front();
    ProfileScope scope(context.profiler, entry.name);
    WEFT_RETURN_IF_ERROR(entry.backward(context, *this));
  }
  return OkStatus();
}

Result<std::vector<Value>> Recompute(Context& context, Tape& tape, Segment segment,
                                     const std::vector<Value>& inputs) {
  if (!tape.recording()) return segment(context, tape, inputs);

  std::vector<SavedTensor> saved;
  std::vector<int32_t> input_nodes;
  for (const Value& input : inputs) {
    saved.push_back(Tape::Save(input.tensor));
    input_nodes.push_back(input.node);
  }
  Tape preview = tape.Preview();
  WEFT_ASSIGN_OR_RETURN(std::vector<Value> outputs, segment(context, preview, inputs));
  std::vector<int32_t> output_nodes;
  bool needed = false;
  for (Value& output : outputs) {
    output = tape.NewValue(std::move(output.tensor), output.needs_gradient());
    output_nodes.push_back(output.node);
    needed = needed || output.needs_gradient();
  }
  if (!needed) return outputs;

  tape.Record(
      "recompute",
      [segment = std::move(segment), saved = std::move(saved), input_nodes, output_nodes](
          Context& ctx, Tape& outer) -> Status {
        Tape replay = outer.Replay();
        std::vector<Value> again;
        for (size_t i = 0; i < saved.size(); ++i) {
          WEFT_ASSIGN_OR_RETURN(Tensor restored, saved[i].Restore(ctx));
          again.push_back(replay.NewValue(std::move(restored), input_nodes[i] != Value::kNoNode));
        }
        WEFT_ASSIGN_OR_RETURN(std::vector<Value> results, segment(ctx, replay, again));
        for (size_t i = 0; i < results.size(); ++i) {
          if (output_nodes[i] == Value::kNoNode) continue;
          Tensor gradient = outer.TakeGradient(output_nodes[i]);
          if (!gradient) continue;
          WEFT_RETURN_IF_ERROR(replay.AddGradient(ctx, results[i].node, std::move(gradient)));
        }
        results.clear();
        WEFT_RETURN_IF_ERROR(replay.RunBackward(ctx));
        for (size_t i = 0; i < again.size(); ++i) {
          if (!again[i].needs_gradient()) continue;
          WEFT_RETURN_IF_ERROR(
              outer.AddGradient(ctx, input_nodes[i], replay.TakeGradient(again[i].node)));
        }
        if (outer.defers()) outer.TakeDeferred(std::move(replay));
        return OkStatus();
      });
  return outputs;
}

}  // namespace weft::engine
