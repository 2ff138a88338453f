#include "worker/engine/nn/tensor_parallel.h"

#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/nn/device_staging.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// The sum over the ranks, in place when nobody else looks at `x`. `beside` runs meanwhile.
template <class Fn>
Result<Tensor> AllReducedWithOverlap(Context& context, Component component, Collective& ranks,
                                     Tensor x, Fn&& beside) {
  if (!x.unique()) {
    WEFT_ASSIGN_OR_RETURN(Tensor copy, Tensor::New(context, component, x.dtype(), x.shape()));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {x, copy}));
    x = std::move(copy);
  }
  const Work sum = ranks.AllReduce(context.stream, x, Reduction::kSum, "sum of shards");
  WEFT_RETURN_IF_ERROR(beside());
  WEFT_RETURN_IF_ERROR(sum.Wait(context.stream));
  return x;
}

Result<Tensor> AllReduced(Context& context, Component component, Collective& ranks, Tensor x) {
  return AllReducedWithOverlap(context, component, ranks, std::move(x), [] { return OkStatus(); });
}

// `x`, whose gradient is the sum over the ranks.
Value SumGradient(Tape& tape, Collective& ranks, Value x) {
  Value y = tape.NewValue(std::move(x.tensor), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.SumsGradient(y.node);
  tape.Record(
      "enter shards", [&ranks, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
        WEFT_ASSIGN_OR_RETURN(Tensor dx, AllReducedWithOverlap(ctx, Component::kWorkspace, ranks,
                                                               t.TakeGradient(y_node), [&] {
                                                                 return t.RunOverlapped(ctx);
                                                               }));
        return t.AddGradient(ctx, x_node, std::move(dx));
      });
  return y;
}

// The sum over the ranks of `x`.
Result<Value> SumValue(Context& context, Tape& tape, Collective& ranks, Value x) {
  const int32_t x_node = x.node;
  WEFT_ASSIGN_OR_RETURN(Tensor sum,
                        AllReduced(context, tape.component(), ranks, std::move(x.tensor)));
  Value y = tape.NewValue(std::move(sum), x_node != Value::kNoNode);
  if (!tape.Records(y)) return y;
  tape.Record("leave shards", [x_node, y_node = y.node](Context& ctx, Tape& t) {
    return t.AddGradient(ctx, x_node, t.TakeGradient(y_node));
  });
  return y;
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

Result<TensorParallel> TensorParallel::New(Collective* group, bool sequence, int64_t rows) {
  TensorParallel ranks(group, sequence);
  if (rows == 1) return ranks;
  if (rows < 1 || group->size() % rows != 0) {
    return InvalidError("a grid of " + std::to_string(rows) + " rows cannot be made of " +
                        std::to_string(group->size()) + " ranks");
  }
  const int64_t columns = group->size() / rows;
  WEFT_ASSIGN_OR_RETURN(ranks.rows_, group->Split(group->rank() % columns, "tensor column"));
  WEFT_ASSIGN_OR_RETURN(ranks.owned_columns_, group->Split(group->rank() / columns, "tensor row"));
  ranks.columns_ = ranks.owned_columns_.get();
  return ranks;
}

Shard TensorParallel::Rows(const std::vector<int64_t>& blocks, int64_t unit) const {
  Shard shard;
  for (int64_t rows : blocks) {
    const Shard::Range part = Part(rows / unit);
    shard.ranges.push_back({shard.extent + part.begin * unit, shard.extent + part.end * unit});
    shard.extent += rows;
  }
  shard.first = row() == 0;
  return shard;
}

Shard TensorParallel::Columns(int64_t extent, int64_t unit) const {
  Shard shard = Rows({extent}, unit);
  shard.axis = 1;
  return shard;
}

Shard TensorParallel::Features(int64_t width, int axis) const {
  if (rows() == 1) return {};
  WEFT_CHECK(width % rows() == 0, "each row of the grid has as many features");
  Shard shard{axis, width, {{row() * Features(width), (row() + 1) * Features(width)}}};
  shard.first = column() == 0;
  return shard;
}

int64_t TensorParallel::held_bytes() const {
  int64_t bytes = group_->held_bytes();
  if (rows_ != nullptr) bytes += rows_->held_bytes() + owned_columns_->held_bytes();
  return bytes;
}

std::vector<AxisAccount> TensorParallel::Accounts() const {
  if (rows_ == nullptr) return {};
  return {{"tensor", &rows_->account()}, {"tensor", &owned_columns_->account()}};
}

Status TensorParallel::CheckRows(int64_t rows) const {
  if (rows % degree() == 0) return OkStatus();
  return InvalidError(std::to_string(rows) + " tokens cannot be partitioned over " +
                      std::to_string(degree()) +
                      " tensor-parallel ranks; hint: sequences whose length is a multiple of it, "
                      "or no sequence parallelism");
}

Status TensorParallel::SumScalars(std::span<double> values) const {
  return engine::SumScalars(*group_, values);
}

Result<ShardsInput> CopyToTensorParallelRegion(Context& context, Tape& tape,
                                               const TensorParallel* ranks, Value x) {
  Collective* row = ranks == nullptr ? nullptr : ranks->along_row();
  SavedTensor saved = Tape::AsItIs(x.tensor);
  if (tape.recording()) {
    WEFT_ASSIGN_OR_RETURN(saved, tape.Keep(context, x.tensor));
  }
  if (row == nullptr) return ShardsInput{std::move(x), std::move(saved)};
  if (!ranks->sequence()) {
    Value y = SumGradient(tape, *row, std::move(x));
    return ShardsInput{std::move(y), std::move(saved)};
  }
  // All rows are there for the product alone.
  WEFT_ASSIGN_OR_RETURN(Tensor all, AllGathered(context, Component::kWorkspace, *ranks, x.tensor));
  saved = Tape::Save(
      {}, [ranks, kept = std::move(saved)](Context& ctx, const Tensor&) -> Result<Tensor> {
        WEFT_ASSIGN_OR_RETURN(const Tensor own, kept.Restore(ctx));
        return AllGathered(ctx, Component::kWorkspace, *ranks, own);
      });
  Value y = tape.NewValue(std::move(all), x.needs_gradient());
  if (!tape.Records(y)) return ShardsInput{std::move(y), std::move(saved)};
  tape.Record(
      "enter shards", [ranks, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
        WEFT_ASSIGN_OR_RETURN(
            Tensor dx, ReduceScattered(ctx, Component::kWorkspace, *ranks, t.TakeGradient(y_node)));
        return t.AddGradient(ctx, x_node, std::move(dx));
      });
  return ShardsInput{std::move(y), std::move(saved)};
}

Result<Value> ReduceFromTensorParallelRegion(Context& context, Tape& tape,
                                             const TensorParallel* ranks, Value x) {
  Collective* row = ranks == nullptr ? nullptr : ranks->along_row();
  if (row == nullptr) return x;
  if (!ranks->sequence()) return SumValue(context, tape, *row, std::move(x));
  WEFT_ASSIGN_OR_RETURN(Tensor sum, ReduceScattered(context, tape.component(), *ranks, x.tensor));
  Value y = tape.NewValue(std::move(sum), x.needs_gradient());
  if (!tape.Records(y)) return y;
  tape.Record(
      "leave shards", [ranks, x_node = x.node, y_node = y.node](Context& ctx, Tape& t) -> Status {
        WEFT_ASSIGN_OR_RETURN(
            Tensor dx, AllGathered(ctx, Component::kWorkspace, *ranks, t.TakeGradient(y_node)));
        return t.AddGradient(ctx, x_node, std::move(dx));
      });
  return y;
}

Value CopyToFeatureRegion(Tape& tape, const TensorParallel* ranks, Value x) {
  Collective* column = ranks == nullptr ? nullptr : ranks->along_column();
  if (column == nullptr) return x;
  return SumGradient(tape, *column, std::move(x));
}

Result<Value> ReduceFromFeatureRegion(Context& context, Tape& tape, const TensorParallel* ranks,
                                      Value x) {
  Collective* column = ranks == nullptr ? nullptr : ranks->along_column();
  if (column == nullptr) return x;
  return SumValue(context, tape, *column, std::move(x));
}

Result<Tensor> SumOverFeatures(Context& context, const TensorParallel* ranks, Tensor x,
                               const std::function<Status()>& beside) {
  Collective* column = ranks == nullptr ? nullptr : ranks->along_column();
  if (column == nullptr) {
    WEFT_RETURN_IF_ERROR(beside());
    return x;
  }
  return AllReducedWithOverlap(context, Component::kWorkspace, *column, std::move(x), beside);
}

Status SumPartialGradients(Context& context, const TensorParallel& ranks,
                           const ParameterSet& parameters, std::span<const ParameterPart> parts) {
  ParameterFile* const file = parameters.file();
  std::vector<ParameterPart> whole;
  if (parts.empty()) parts = whole = TrainedParts(parameters);
  std::vector<ParameterPart> partial;
  int64_t count = 0;
  for (const ParameterPart& part : parts) {
    if (!parameters.Partial(part.index) || part.count() == 0) continue;
    partial.push_back(part);
    count += part.count();
  }
  if (count == 0) return OkStatus();
  const auto sum = [&](const TensorView& all) {
    return ranks.group().AllReduce(context.stream, all, Reduction::kSum, "gradients by rows");
  };
  if (parameters.offloaded() && DeviceStaging::IsNeededBy(context)) {
    const auto copy_all = [&partial](TransferQueue& lane, std::byte* above, bool up) {
      for (const ParameterPart& part : partial) {
        const size_t bytes = part.gradient.Bytes();
        up ? lane.Copy(above, part.gradient.data, bytes)
           : lane.Copy(part.gradient.data, above, bytes);
        above += bytes;
      }
    };
    DeviceStaging transfer(context);
    WEFT_RETURN_IF_ERROR(transfer.Pass(
        DType::kF32, count,
        [&](TransferQueue& lane, std::byte* above) { copy_all(lane, above, true); }, sum,
        [&](TransferQueue& lane, std::byte* above) { copy_all(lane, above, false); }));
    return transfer.Finish();
  }
  Context state = parameters.offloaded() ? InHostMemoryPool(context) : context;
  WEFT_ASSIGN_OR_RETURN(Tensor all,
                        Tensor::New(state, Component::kCommunication, DType::kF32, {count}));
  const auto for_each = [&](auto&& copy) -> Status {
    int64_t begin = 0;
    for (const ParameterPart& part : partial) {
      const TensorView gradient(part.gradient.data, DType::kF32, {part.count()},
                                part.gradient.device);
      TensorView packed = gradient;
      packed.data = all.As<float>() + begin;
      begin += part.count();
      WEFT_RETURN_IF_ERROR(copy(part, gradient, packed));
    }
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(for_each(
      [&](const ParameterPart& part, const TensorView& gradient, const TensorView& packed) {
        return file == nullptr ? CopyRows(context.stream, gradient, packed)
                               : file->ReadGradient(part, packed);
      }));
  WEFT_RETURN_IF_ERROR(sum(all).Wait(context.stream));
  return for_each(
      [&](const ParameterPart& part, const TensorView& gradient, const TensorView& packed) {
        return file == nullptr ? CopyRows(context.stream, packed, gradient)
                               : file->WriteGradient(part, packed);
      });
}

}  // namespace weft::engine
