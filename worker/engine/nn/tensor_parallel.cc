#include "worker/engine/nn/tensor_parallel.h"

#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// The sum over the ranks, in place when nobody else looks at `x`.
Result<Tensor> AllReduced(Context& context, Component component, const TensorParallel& ranks,
                          Tensor x) {
  if (!x.unique()) {
    WEFT_ASSIGN_OR_RETURN(Tensor copy, Tensor::New(context, component, x.dtype(), x.shape()));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {x, copy}));
    x = std::move(copy);
  }
  WEFT_RETURN_IF_ERROR(ranks.group()
                           .AllReduce(context.stream, x, Reduction::kSum, "sum of shards")
                           .Wait(context.stream));
  return x;
}

// The own rows of the sum.
Result<Tensor> ReduceScattered(Context& context, Component component, const TensorParallel& ranks,
                               const Tensor& x) {
  WEFT_RETURN_IF_ERROR(ranks.CheckRows(x.shape().Rows()));
  WEFT_ASSIGN_OR_RETURN(Tensor own,
                        Tensor::New(context, component, x.dtype(),
                                    {x.shape().Rows() / ranks.degree(), x.shape()[-1]}));
  WEFT_RETURN_IF_ERROR(
      ranks.group()
          .ReduceScatter(context.stream, x, own, Reduction::kSum, "own rows of the sum of shards")
          .Wait(context.stream));
  return own;
}

// The rows of all ranks.
Result<Tensor> AllGathered(Context& context, Component component, const TensorParallel& ranks,
                           const Tensor& x) {
  WEFT_ASSIGN_OR_RETURN(Tensor all,
                        Tensor::New(context, component, x.dtype(),
                                    {x.shape().Rows() * ranks.degree(), x.shape()[-1]}));
  WEFT_RETURN_IF_ERROR(
      ranks.group().AllGather(context.stream, x, all, "rows of all shards").Wait(context.stream));
  return all;
}

}  // namespace

Shard TensorParallel::Rows(const std::vector<int64_t>& blocks, int64_t unit) const {
  Shard shard;
  for (int64_t rows : blocks) {
    const Shard::Range part = Part(rows / unit);
    shard.ranges.push_back({shard.extent + part.begin * unit, shard.extent + part.end * unit});
    shard.extent += rows;
  }
  return shard;
}

Shard TensorParallel::Columns(int64_t extent, int64_t unit) const {
  Shard shard = Rows({extent}, unit);
  shard.axis = 1;
  return shard;
}

Status TensorParallel::CheckRows(int64_t rows) const {
  if (rows % degree() == 0) return OkStatus();
  return InvalidError(std::to_string(rows) + " tokens cannot be dealt out to " +
                      std::to_string(degree()) +
                      " ranks; hint: sequences whose length is a multiple of it, or no sequence "
                      "parallelism");
}

Status TensorParallel::SumScalars(std::span<double> values) const {
  return engine::SumScalars(*group_, values);
}

Result<ShardsInput> EnterShards(Context& context, Tape& tape, const TensorParallel* ranks,
                                Value x) {
  if (ranks == nullptr && tape.recording()) {
    WEFT_ASSIGN_OR_RETURN(SavedTensor kept, tape.Keep(context, x.tensor));
    return ShardsInput{std::move(x), std::move(kept)};
  }
  SavedTensor saved = tape.Save(x.tensor);
  if (ranks == nullptr) return ShardsInput{std::move(x), std::move(saved)};
  const bool needs_gradient = x.needs_gradient();
  Tensor all = x.tensor;
  if (ranks->sequence()) {
    // All rows are there for the product alone.
    WEFT_ASSIGN_OR_RETURN(all, AllGathered(context, Component::kWorkspace, *ranks, x.tensor));
    saved = Tape::Save(x.tensor, [ranks](Context& ctx, const Tensor& own) {
      return AllGathered(ctx, Component::kWorkspace, *ranks, own);
    });
  }
  Value y = tape.NewValue(std::move(all), needs_gradient);
  if (!tape.Records(y)) return ShardsInput{std::move(y), std::move(saved)};
  tape.Record("enter shards", [ranks, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) {
    Tensor dy = t.TakeGradient(y_node);
    Result<Tensor> dx = ranks->sequence()
                            ? ReduceScattered(ctx, Component::kWorkspace, *ranks, dy)
                            : AllReduced(ctx, Component::kWorkspace, *ranks, std::move(dy));
    WEFT_RETURN_IF_ERROR(dx.status());
    return t.AddGradient(ctx, x_node, *std::move(dx));
  });
  return ShardsInput{std::move(y), std::move(saved)};
}

Result<Value> LeaveShards(Context& context, Tape& tape, const TensorParallel* ranks, Value x) {
  if (ranks == nullptr) return x;
  const int32_t x_node = x.node;
  Result<Tensor> sum = ranks->sequence()
                           ? ReduceScattered(context, tape.component(), *ranks, x.tensor)
                           : AllReduced(context, tape.component(), *ranks, std::move(x.tensor));
  WEFT_RETURN_IF_ERROR(sum.status());
  Value y = tape.NewValue(*std::move(sum), x_node != Value::kNoNode);
  if (!tape.Records(y)) return y;
  tape.Record("leave shards", [ranks, x_node, y_node = y.node](Context& ctx, Tape& t) -> Status {
    Tensor dx = t.TakeGradient(y_node);
    if (ranks->sequence()) {
      WEFT_ASSIGN_OR_RETURN(dx, AllGathered(ctx, Component::kWorkspace, *ranks, dx));
    }
    return t.AddGradient(ctx, x_node, std::move(dx));
  });
  return y;
}

Status SumPartialGradients(Context& context, const TensorParallel& ranks,
                           const ParameterSet& parameters, std::span<const ParameterPart> parts) {
  std::vector<TensorView> gradients;
  int64_t count = 0;
  const auto add = [&](int64_t index, const TensorView& gradient) {
    if (!parameters[index].trainable() || !parameters.Partial(index)) return;
    if (gradient.shape.Elements() == 0) return;
    gradients.push_back(gradient);
    count += gradient.shape.Elements();
  };
  for (const ParameterPart& part : parts) add(part.index, part.gradient);
  for (int64_t i = 0; parts.empty() && i < parameters.size(); ++i) add(i, parameters.gradient(i));
  if (count == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Tensor all,
                        Tensor::New(context, Component::kCommunication, DType::kF32, {count}));
  const auto for_each = [&](auto&& copy) -> Status {
    int64_t begin = 0;
    for (const TensorView& gradient : gradients) {
      TensorView part = gradient;
      part.data = all.As<float>() + begin;
      begin += gradient.shape.Elements();
      WEFT_RETURN_IF_ERROR(copy(gradient, part));
    }
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(for_each([&](const TensorView& gradient, const TensorView& part) {
    return CopyRows(context.stream, gradient, part);
  }));
  WEFT_RETURN_IF_ERROR(ranks.group()
                           .AllReduce(context.stream, all, Reduction::kSum, "gradients by rows")
                           .Wait(context.stream));
  return for_each([&](const TensorView& gradient, const TensorView& part) {
    return CopyRows(context.stream, part, gradient);
  });
}

}  // namespace weft::engine
