#include "worker/engine/techniques/peft/token_adapters.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/linear/linear.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/techniques/peft/token_adapters_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// The rows of a table that are here.
struct RowsHere {
  int64_t first = 0;
  int64_t count = 0;
  int64_t vocabulary = 0;  ///< Rows of the whole table.

  static RowsHere Of(const Parameter& table) {
    const int64_t first = table.shard.whole() ? 0 : table.shard.ranges.front().begin;
    return {first, table.shape[0], table.logical_shape()[0]};
  }
};

/// LoRA besides the table W [vocabulary, width]: x = W[token] + scale A[token] Bᵀ, where A
/// [vocabulary, rank] is looked up as W is. Of ranks that have rows of W each looks up those of A.
class TableFactors : public TokenGraft {
 public:
  TableFactors(ParameterSet* parameters, int64_t a, const RowsHere& rows, float scale,
               DType compute)
      : parameters_(parameters),
        a_(a),
        rows_(rows),
        scale_(scale),
        compute_(compute),
        b_(parameters, a + 1, compute) {
    parameters->SetReadDirectly(a);
  }

  Status Pack(Context& context, Repack what) override { return b_.Pack(context, what); }

  Result<Value> Forward(Context& context, Tape& tape, Value x,
                        const Tensor& tokens) const override {
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, LookUp(context, tokens));
    // In place: the table's lookup keeps nothing of its result.
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(
        context.stream, {.x = middle, .weight = b_.packed(), .y = x.tensor, .accumulate = true}));
    CountProduct(context, tokens);
    tape.UseParameter(a_);
    tape.UseParameter(b_.index());
    Value y = tape.NewValue(std::move(x.tensor), true);
    if (!tape.Records(y)) return y;
    tape.Record("token adapter backward",
                [this, of_table = x.node, node = y.node, tokens](Context& ctx, Tape& t) {
                  return Backward(ctx, t, t.TakeGradient(node), of_table, tokens);
                });
    return y;
  }

 private:
  /// scale A[tokens], [count, rank].
  Result<Tensor> LookUp(Context& context, const Tensor& tokens) const {
    WEFT_ASSIGN_OR_RETURN(Tensor middle, NewMiddle(context, tokens));
    WEFT_RETURN_IF_ERROR(
        kernels::EmbeddingForward(context.stream, {.tokens = tokens,
                                                   .positions = {},
                                                   .token_table = Own(parameters_->operand(a_)),
                                                   .position_table = {},
                                                   .out = middle,
                                                   .part = {rows_.first, rows_.vocabulary}}));
    WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {middle, scale_}));
    return middle;
  }

  /// The rows of A, or of its gradient, that are looked up here.
  TensorView Own(const TensorView& a) const { return RowsOf(a, rows_.first, rows_.count); }

  Result<Tensor> NewMiddle(Context& context, const Tensor& tokens) const {
    const int64_t rank = (*parameters_)[a_].shape[1];
    return Tensor::New(context, Component::kWorkspace, compute_, {tokens.shape()[0], rank});
  }

  void CountProduct(Context& context, const Tensor& tokens) const {
    const int64_t numbers = (*parameters_)[b_.index()].shape.Elements();
    CountWork(context.profiler, 2.0 * static_cast<double>(tokens.shape()[0] * numbers));
  }

  Status Backward(Context& context, Tape& tape, const Tensor& dy, int32_t of_table,
                  const Tensor& tokens) const {
    WEFT_ASSIGN_OR_RETURN(const Tensor dmiddle, NewMiddle(context, tokens));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = dy, .weight = b_.packed(), .dx = dmiddle}));
    WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {dmiddle, scale_}));
    WEFT_ASSIGN_OR_RETURN(const TensorView da, tape.parameters().Add(context, a_));
    WEFT_RETURN_IF_ERROR(
        kernels::EmbeddingBackward(context.stream, {.tokens = tokens,
                                                    .positions = {},
                                                    .dout = dmiddle,
                                                    .dtoken_table = Own(da),
                                                    .dposition_table = {},
                                                    .part = {rows_.first, rows_.vocabulary}}));
    WEFT_ASSIGN_OR_RETURN(const Tensor middle, LookUp(context, tokens));
    WEFT_ASSIGN_OR_RETURN(const auto db, tape.parameters().Write(b_.index()));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream,
        {.x = middle, .dy = dy, .dweight = db.gradient, .accumulate = db.accumulate}));
    CountProduct(context, tokens);
    CountProduct(context, tokens);
    WEFT_RETURN_IF_ERROR(tape.parameters().Done(a_));
    WEFT_RETURN_IF_ERROR(tape.parameters().Done(b_.index()));
    return tape.AddGradient(context, of_table, dy);
  }

  const ParameterSet* parameters_;
  int64_t a_;
  RowsHere rows_;
  float scale_;
  DType compute_;
  PackedParameter b_;
};

/// Copies the trained rows between a parameter, or what the device has of it, and the table, either
/// way.
Status CopyTrainedRows(const ParameterSet& parameters, int64_t table, const TrainedTableRows& rows,
                       bool to_table) {
  const Stream& stream = parameters.stream();
  const TensorView trained =
      to_table ? parameters.operand(rows.parameter) : parameters.value(rows.parameter);
  for (const TrainedTableRows::Run& run : rows.runs) {
    const TensorView in_table = RowsOf(parameters.value(table), run.first, run.count);
    const TensorView own = RowsOf(trained, run.row, run.count);
    if (to_table) {
      WEFT_RETURN_IF_ERROR(CopyRows(stream, own, in_table));
    } else if (own.device.type == DeviceType::kCpu) {  // of an offloaded optimizer, too
      WEFT_RETURN_IF_ERROR(Download(stream, in_table, own.data));
    } else {
      WEFT_RETURN_IF_ERROR(CopyRows(stream, in_table, own));
    }
  }
  return OkStatus();
}

/// Rows of the table that are those of a trained parameter, whenever the table is read.
class TableRows : public TokenGraft {
 public:
  TableRows(const ParameterSet* parameters, int64_t table, TrainedTableRows rows)
      : parameters_(parameters),
        table_(table),
        here_(RowsHere::Of((*parameters)[table])),
        rows_(std::move(rows)) {}

  // Sharded ones are written whenever they have been brought (BroughtRows).
  Status Pack(Context& /*context*/, Repack /*what*/) override {
    if (parameters_->values_sharded()) return OkStatus();
    return CopyTrainedRows(*parameters_, table_, rows_, /*to_table=*/true);
  }

  Result<Value> Forward(Context& /*context*/, Tape& tape, Value x,
                        const Tensor& tokens) const override {
    tape.UseParameter(rows_.parameter);
    Value y = tape.NewValue(std::move(x.tensor), true);
    if (!tape.Records(y)) return y;
    tape.Record("trained tokens backward",
                [this, of_table = x.node, node = y.node, tokens](Context& ctx, Tape& t) {
                  return Backward(ctx, t, t.TakeGradient(node), of_table, tokens);
                });
    return y;
  }

  const TrainedTableRows* trained_rows() const override { return &rows_; }

 private:
  Status Backward(Context& context, Tape& tape, const Tensor& dy, int32_t of_table,
                  const Tensor& tokens) const {
    WEFT_ASSIGN_OR_RETURN(const TensorView gradient,
                          tape.parameters().Add(context, rows_.parameter));
    for (const TrainedTableRows::Run& run : rows_.runs) {
      WEFT_RETURN_IF_ERROR(kernels::EmbeddingBackward(
          context.stream, {.tokens = tokens,
                           .positions = {},
                           .dout = dy,
                           .dtoken_table = RowsOf(gradient, run.row, run.count),
                           .dposition_table = {},
                           .part = {here_.first + run.first, here_.vocabulary}}));
    }
    WEFT_RETURN_IF_ERROR(tape.parameters().Done(rows_.parameter));
    return tape.AddGradient(context, of_table, dy);
  }

  const ParameterSet* parameters_;
  int64_t table_;
  RowsHere here_;
  TrainedTableRows rows_;
};

/// Those of `tokens` that are here, which follow each other in both.
std::vector<TrainedTableRows::Run> RunsOf(const std::vector<int64_t>& tokens,
                                          const RowsHere& here) {
  std::vector<TrainedTableRows::Run> runs;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t row = tokens[i] - here.first;
    if (row < 0 || row >= here.count) continue;
    const auto own = static_cast<int64_t>(i);
    if (!runs.empty() && runs.back().first + runs.back().count == row &&
        runs.back().row + runs.back().count == own) {
      ++runs.back().count;
    } else {
      runs.push_back({row, own, 1});
    }
  }
  return runs;
}

/// Rows of the table go to the parameter: ranks have those of their parts of the table each.
/// Sharded values have been brought.
Status StartTrainedRows(ParameterSet& parameters, int64_t table, const TrainedTableRows& rows,
                        Collective* tensor_ranks) {
  if (tensor_ranks == nullptr && !parameters.values_sharded()) {
    return CopyTrainedRows(parameters, table, rows, /*to_table=*/false);
  }
  WEFT_RETURN_IF_ERROR(Clear(parameters.stream(), parameters.value(rows.parameter)));
  WEFT_RETURN_IF_ERROR(CopyTrainedRows(parameters, table, rows, /*to_table=*/false));
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> own,
                        WholeValue(parameters, rows.parameter, nullptr));
  std::vector<double> all(own.begin(), own.end());
  if (tensor_ranks != nullptr) WEFT_RETURN_IF_ERROR(SumScalars(*tensor_ranks, all));
  return SetWholeValue(parameters, rows.parameter, {all.begin(), all.end()});
}

/// `count` numbers of a contiguous tensor.
TensorView Numbers(const TensorView& all, int64_t first, int64_t count) {
  char* const data =
      static_cast<char*>(all.data) + static_cast<size_t>(first) * DTypeSize(all.dtype);
  return {data, all.dtype, {count}, all.device};
}

}  // namespace

/// Writes the trained rows to the table when sharded values of both have been brought to be looked
/// up, and to this rank's part of it, which is brought again for a classifier. Those that are whole
/// are written when they are packed (TableRows).
class BroughtRows : public DerivedCopies {
 public:
  BroughtRows(const ParameterSet* parameters, int64_t table, TrainedTableRows rows)
      : parameters_(parameters), table_(table), rows_(std::move(rows)) {}

  /// Whether the rows have no values yet.
  void SetWaiting(bool waits) { waits_ = waits; }

  bool trained() const override { return true; }
  Status Reserve(Context& /*context*/) override { return OkStatus(); }
  Status Make(Context& context) override {
    if (waits_ || !parameters_->values_sharded()) return OkStatus();
    WEFT_RETURN_IF_ERROR(CopyTrainedRows(*parameters_, table_, rows_, /*to_table=*/true));
    const ParameterSet::HeldValue held = parameters_->held_value(table_);
    const int64_t held_end = held.first + held.view.shape.Elements();
    const int64_t width = (*parameters_)[table_].shape[1];
    for (const TrainedTableRows::Run& run : rows_.runs) {
      const int64_t begin = run.first * width, end = begin + run.count * width;
      const int64_t from = std::clamp(held.first, begin, end);
      const int64_t count = std::clamp(held_end, begin, end) - from;
      if (count == 0) continue;
      const TensorView own = RowsOf(parameters_->value(rows_.parameter), run.row, run.count);
      WEFT_RETURN_IF_ERROR(CopyRows(context.stream, Numbers(own, from - begin, count),
                                    Numbers(held.view, from - held.first, count)));
    }
    return OkStatus();
  }
  bool read_values() const override { return true; }
  void Drop() override {}

 private:
  const ParameterSet* parameters_;
  int64_t table_;
  TrainedTableRows rows_;
  bool waits_ = false;
};

void TokenAdapter::Put(const ModelSpec& model, const GraftSite& site, Grafts& grafts) {
  if (site.sub_layer || site.token_table < 0) return;
  // A classifier has the table without factors besides it.
  if (AdaptsTokenTable(model) && !site.looks_up) return;
  ParameterSet* const parameters = site.parameters;
  const int64_t first = parameters->size();
  for (const ParameterInfo& tensor : TokenAdapterTensors(model)) {
    const int64_t index =
        parameters->Register(tensor.name, {tensor.shape[0], tensor.shape[1]}, tensor.role,
                             {.read_directly = tensor.read_directly,
                              .read_backward = tensor.read_backward,
                              .adapter_of = tensor.adapter_of,
                              .adapter = tensor.adapter});
    if (!(*parameters)[site.token_table].shard.whole()) parameters->SetPartialGradient(index);
  }
  const RowsHere rows = RowsHere::Of((*parameters)[site.token_table]);
  if (AdaptsTokenTable(model)) {
    const auto scale = static_cast<float>(LoraScale(model.peft, TokenTable(model)));
    factor_ = first + 1;
    grafts.SetTokenGraft(
        std::make_unique<TableFactors>(parameters, first, rows, scale, site.products->compute));
  } else if (HasTokenAdapter(model)) {
    table_ = site.token_table;
    rows_ = {first, RunsOf(model.peft.trainable_token_indices, rows)};
    grafts.SetTokenGraft(std::make_unique<TableRows>(parameters, table_, rows_));
    brought_ = std::make_shared<BroughtRows>(parameters, table_, rows_);
    parameters->AddCopies(first, brought_);
  }
}

// As in peft, whose A is zero here.
void TokenAdapter::SetStarts(ParameterSet& parameters, Collective* tensor_ranks) {
  if (factor_ >= 0) parameters.SetStart(factor_, {.deviation = 1});
  if (table_ < 0) return;
  tensor_ranks_ = tensor_ranks;
  parameters.AddValuesHook([this, &parameters](Context&, ValuesFrom from) {
    // Sharded values are not gathered before the training.
    waits_ = from != ValuesFrom::kCheckpoint && parameters.values_sharded();
    brought_->SetWaiting(waits_);
    if (from == ValuesFrom::kCheckpoint) return OkStatus();
    if (!waits_) return StartTrainedRows(parameters, table_, rows_, tensor_ranks_);
    return training_ != nullptr ? StartSharded(parameters) : OkStatus();
  });
}

Status TokenAdapter::OnTraining(Context* context, ParameterSet& parameters) {
  training_ = context;
  return waits_ ? StartSharded(parameters) : OkStatus();
}

Status TokenAdapter::StartSharded(ParameterSet& parameters) {
  WEFT_RETURN_IF_ERROR(ForEachUnit(*training_, parameters, [&](int64_t unit) {
    if (unit != parameters[table_].unit) return OkStatus();
    return StartTrainedRows(parameters, table_, rows_, tensor_ranks_);
  }));
  waits_ = false;
  brought_->SetWaiting(false);
  return OkStatus();
}

std::vector<float> MergedTable(const ModelSpec& model, std::span<const float> table,
                               const std::vector<std::vector<float>>& tensors) {
  std::vector<float> merged(table.begin(), table.end());
  const size_t width = table.size() / static_cast<size_t>(model.vocab_size);
  if (!AdaptsTokenTable(model)) {
    const RowsHere all{0, model.vocab_size, model.vocab_size};
    for (const TrainedTableRows::Run& run : RunsOf(model.peft.trainable_token_indices, all)) {
      std::copy_n(tensors[0].begin() + run.row * static_cast<int64_t>(width),
                  run.count * static_cast<int64_t>(width),
                  merged.begin() + run.first * static_cast<int64_t>(width));
    }
    return merged;
  }
  const std::vector<float>& a = tensors[0];
  const std::vector<float>& b = tensors[1];
  const double scale = LoraScale(model.peft, TokenTable(model));
  const size_t rank = b.size() / width;
  for (size_t i = 0; i < merged.size(); ++i) {
    double sum = 0;
    for (size_t k = 0; k < rank; ++k) {
      sum += static_cast<double>(a[i / width * rank + k]) * b[i % width * rank + k];
    }
    merged[i] = static_cast<float>(merged[i] + scale * sum);
  }
  return merged;
}

}  // namespace weft::engine
