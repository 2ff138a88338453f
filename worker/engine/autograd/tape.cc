#include "worker/engine/autograd/tape.h"

#include <memory>

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
    const bool deferred = !overlapped_.empty();
    {
      ProfileScope scope(context.profiler, entry.name);
      WEFT_RETURN_IF_ERROR(entry.backward(context, *this));
    }
    context.MarkProgress();
    if (deferred) WEFT_RETURN_IF_ERROR(RunOverlapped(context));
  }
  return RunOverlapped(context);
}

Status Tape::Run(Context& context, std::deque<Entry>& entries) {
  while (!entries.empty()) {
    Entry entry = std::move(entries.front());
    entries.pop_front();
    ProfileScope scope(context.profiler, entry.name);
    WEFT_RETURN_IF_ERROR(entry.backward(context, *this));
    context.MarkProgress();
  }
  return OkStatus();
}

namespace {

/// A segment and what it needs to run again, which it does once.
struct Replay {
  Segment segment;
  std::vector<SavedTensor> saved;
  Tape tape;
  std::vector<int32_t> input_nodes = {};
  std::vector<Value> inputs = {};
  std::vector<Value> results = {};
  bool ran = false;

  Status Run(Context& context) {
    if (std::exchange(ran, true)) return OkStatus();
    for (size_t i = 0; i < saved.size(); ++i) {
      WEFT_ASSIGN_OR_RETURN(Tensor restored, saved[i].Restore(context));
      inputs.push_back(tape.NewValue(std::move(restored), input_nodes[i] != Value::kNoNode));
    }
    WEFT_ASSIGN_OR_RETURN(results, segment(context, tape, inputs));
    return OkStatus();
  }
};

}  // namespace

Result<RecomputedValues> RecomputeValues(Context& context, Tape& tape, Segment segment,
                                         const std::vector<Value>& inputs) {
  RecomputedValues out;
  if (!tape.recording()) {
    WEFT_ASSIGN_OR_RETURN(out.values, segment(context, tape, inputs));
    out.saved.resize(out.values.size());
    return out;
  }
  auto replay = std::make_shared<Replay>(Replay{std::move(segment), {}, tape.Replay()});
  Tape preview = tape.Preview();
  WEFT_ASSIGN_OR_RETURN(out.values, replay->segment(context, preview, inputs));
  std::vector<int32_t> output_nodes;
  bool needed = false;
  for (size_t i = 0; i < out.values.size(); ++i) {
    Value& value = out.values[i];
    value = tape.NewValue(std::move(value.tensor), value.needs_gradient());
    output_nodes.push_back(value.node);
    needed = needed || value.needs_gradient();
  }
  if (!needed) {
    for (const Value& value : out.values) out.saved.push_back(Tape::AsItIs(value.tensor));
    return out;
  }
  for (const Value& input : inputs) {
    WEFT_ASSIGN_OR_RETURN(SavedTensor kept, tape.Keep(context, input.tensor));
    replay->saved.push_back(std::move(kept));
    replay->input_nodes.push_back(input.node);
  }
  for (size_t i = 0; i < out.values.size(); ++i) {
    out.saved.push_back(Tape::Save({}, [replay, i](Context& ctx, const Tensor&) -> Result<Tensor> {
      WEFT_RETURN_IF_ERROR(replay->Run(ctx));
      return replay->results[i].tensor;
    }));
  }

  tape.Record("recompute",
              [replay = std::move(replay), output_nodes](Context& ctx, Tape& outer) -> Status {
                WEFT_RETURN_IF_ERROR(replay->Run(ctx));
                for (size_t i = 0; i < output_nodes.size(); ++i) {
                  if (output_nodes[i] == Value::kNoNode) continue;
                  Tensor gradient = outer.TakeGradient(output_nodes[i]);
                  if (!gradient) continue;
                  WEFT_RETURN_IF_ERROR(
                      replay->tape.AddGradient(ctx, replay->results[i].node, std::move(gradient)));
                }
                if (outer.defers()) replay->tape.DeferWeightGradients();
                // Gradients of weights that are deferred may still read the results.
                if (!outer.defers() || replay.use_count() == 1) replay->results.clear();
                WEFT_RETURN_IF_ERROR(replay->tape.RunBackward(ctx));
                for (size_t i = 0; i < replay->inputs.size(); ++i) {
                  const Value& input = replay->inputs[i];
                  if (!input.needs_gradient()) continue;
                  WEFT_RETURN_IF_ERROR(outer.AddGradient(ctx, replay->input_nodes[i],
                                                         replay->tape.TakeGradient(input.node)));
                }
                if (!outer.defers()) return OkStatus();
                outer.TakeDeferred(std::move(replay->tape));
                replay->inputs.clear();
                replay->saved.clear();
                return OkStatus();
              });
  return out;
}

Result<std::vector<Value>> Recompute(Context& context, Tape& tape, Segment segment,
                                     const std::vector<Value>& inputs) {
  WEFT_ASSIGN_OR_RETURN(RecomputedValues out,
                        RecomputeValues(context, tape, std::move(segment), inputs));
  return std::move(out.values);
}

}  // namespace weft::engine
