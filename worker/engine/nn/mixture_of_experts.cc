#include "worker/engine/nn/mixture_of_experts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "kernels/gather_rows/gather_rows.h"
#include "kernels/moe_combine/moe_combine.h"
#include "kernels/moe_route/moe_route.h"
#include "kernels/swiglu/swiglu.h"
#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

LinearOptions Router(const MixtureOfExpertsOptions& o) {
  return {{{o.name + ".gate", o.experts, ParameterRole::kRouter}}, o.width, false};
}

std::string NameOf(const MixtureOfExpertsOptions& o, int64_t expert) {
  return o.name + ".experts." + std::to_string(expert);
}

/// What a rank has of an expert: its tensor-parallel shard, or all of it.
LinearOptions Up(const MixtureOfExpertsOptions& o, int64_t expert, const TensorParallel* ranks) {
  LinearOptions options{{}, o.width, false};
  for (const char* each : {".w1", ".w3"}) {
    ParameterList::StackedPart part{NameOf(o, expert) + each, o.inner, ParameterRole::kMlpUp};
    part.expert = expert;
    if (ranks != nullptr) {
      part.shard = ranks->Rows({o.inner});
      part.rows = part.shard.size();
    }
    options.outputs.push_back(std::move(part));
  }
  return options;
}

LinearOptions Down(const MixtureOfExpertsOptions& o, int64_t expert, const TensorParallel* ranks) {
  LinearOptions options{
      {{NameOf(o, expert) + ".w2", o.width, ParameterRole::kMlpDown}}, o.inner, false};
  options.outputs[0].expert = expert;
  if (ranks == nullptr) return options;
  options.inputs = ranks->Columns(o.inner);
  options.in_features = options.inputs.size();
  return options;
}

// Waits for the device, because the host must know the number of rows to multiply.
Result<std::vector<int64_t>> Numbers(Context& context, const Tensor& counts) {
  std::vector<int32_t> numbers(static_cast<size_t>(counts.shape().Elements()));
  WEFT_RETURN_IF_ERROR(Download(context.stream, counts, numbers.data()));
  return std::vector<int64_t>(numbers.begin(), numbers.end());
}

/// Tokens that an expert takes when all of them together have made this many choices.
int64_t Capacity(const MixtureOfExpertsOptions& o, int64_t choices) {
  const double mean = static_cast<double>(choices) / static_cast<double>(o.experts);
  return static_cast<int64_t>(std::ceil(o.capacity * mean));
}

}  // namespace

/// What the gradients of an expert's weights are made of: its rows.
struct MixtureOfExperts::ExpertProducts {
  size_t expert = 0;
  int64_t first = 0;        ///< Of its rows in what experts read, the first product too.
  Tensor active;            ///< What the second product reads ...
  OutputGradient dresults;  ///< ... and the gradient of what it makes.
  OutputGradient dbefore;   ///< Likewise of what the first one makes.
};

struct MixtureOfExperts::Saved {
  Tensor probabilities;        ///< [count, experts] f32
  Tensor chosen;               ///< [count, per_token] i32; -1 for padding.
  Tensor weights;              ///< [count, per_token] f32
  Tensor places;               ///< [count, per_token] i32
  std::vector<double> wanted;  ///< By expert: how many tokens have chosen it ...
  double tokens = 0;           ///< ... of this many ...
  double balance = 0;          ///< ... and what the gradient of their loss is multiplied by.
  ExpertRows rows;
  std::vector<int64_t> counts;      ///< Of rows, by expert here.
  SavedTensor inputs;               ///< [received rows, width]
  std::vector<SavedTensor> before;  ///< By expert here: [its rows, 2 * inner]
  SavedTensor results;              ///< [sent rows, width]
  std::vector<SavedTensor> route;   ///< Of the choices, between the passes.

  std::vector<Tensor*> Choices() { return {&probabilities, &chosen, &weights, &places}; }
  void PutChoicesAside(const Tape& tape) {
    for (Tensor* tensor : Choices()) route.push_back(tape.Save(std::move(*tensor)));
  }
  Status RestoreChoices(Context& context) {
    size_t next = 0;
    for (Tensor* tensor : Choices()) {
      WEFT_ASSIGN_OR_RETURN(*tensor, route[next++].Restore(context));
    }
    route.clear();
    return OkStatus();
  }
};

MixtureOfExperts::MixtureOfExperts(ParameterSet* parameters, const MixtureOfExpertsOptions& o,
                                   const ProductOptions& products)
    : options_(o),
      tensor_(products.tensor),
      // Small differences of its results decide who gets a token.
      router_(parameters, Router(o), products.Dense()),
      inner_(tensor_ == nullptr ? o.inner : tensor_->Columns(o.inner).size()) {
  if (tensor_ != nullptr) parameters->SetPartialGradient(router_.weight_index());
  const int64_t here = o.ranks == nullptr ? o.experts : o.experts / o.ranks->degree();
  const int64_t first = o.ranks == nullptr ? 0 : o.ranks->rank() * here;
  for (int64_t e = first; e < first + here; ++e) {
    LinearOptions up = Up(o, e, tensor_), down = Down(o, e, tensor_);
    // Which rows an expert gets is by chance.
    up.group = o.name + ".experts.up";
    down.group = o.name + ".experts.down";
    experts_.push_back({{parameters, up, products}, {parameters, down, products}});
  }
}

Status MixtureOfExperts::Pack(Context& context, Repack what) {
  WEFT_RETURN_IF_ERROR(router_.Pack(context, what));
  for (Expert& expert : experts_) {
    WEFT_RETURN_IF_ERROR(expert.up.Pack(context, what));
    WEFT_RETURN_IF_ERROR(expert.down.Pack(context, what));
  }
  return OkStatus();
}

bool MixtureOfExperts::Trains(const Tape& tape) const {
  for (const Expert& expert : experts_) {
    if (expert.up.Trains(tape) || expert.down.Trains(tape)) return true;
  }
  return false;
}

Status MixtureOfExperts::Route(Context& context, const Tape& tape, const Tensor& logits,
                               const TokenBatch& batch, Saved& saved) const {
  const Shape choices = {logits.shape().Rows(), options_.per_token};
  const auto make = [&](Tensor& tensor, DType dtype, const Shape& shape) -> Status {
    WEFT_ASSIGN_OR_RETURN(tensor, Tensor::New(context, tape.component(), dtype, shape));
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(make(saved.probabilities, DType::kF32, logits.shape()));
  WEFT_RETURN_IF_ERROR(make(saved.chosen, DType::kI32, choices));
  WEFT_RETURN_IF_ERROR(make(saved.weights, DType::kF32, choices));
  WEFT_RETURN_IF_ERROR(make(saved.places, DType::kI32, choices));
  return kernels::MoeRoute(context.stream, {.logits = logits,
                                            .probabilities = saved.probabilities,
                                            .chosen = saved.chosen,
                                            .weights = saved.weights,
                                            .lengths = batch.lengths,
                                            .normalize = options_.normalize});
}

Status MixtureOfExperts::Weigh(const Tape& tape, std::span<const int64_t> wanted,
                               const TokenBatch& batch, Saved& saved) const {
  if (!tape.recording()) return OkStatus();
  saved.wanted.assign(wanted.begin(), wanted.end());
  saved.tokens = static_cast<double>(batch.real_tokens);
  // The first tensor-parallel rank has it; the others have zero, because they add it up.
  const bool first = tensor_ == nullptr || tensor_->rank() == 0;
  saved.balance = first ? options_.balance * static_cast<double>(tape.auxiliary_scale()) : 0;
  if (options_.sequences == nullptr || options_.balance == 0) return OkStatus();
  std::vector<double> sums = saved.wanted;
  sums.insert(sums.end(), {saved.tokens, saved.balance});
  WEFT_RETURN_IF_ERROR(SumScalars(options_.sequences->group(), sums));
  saved.balance = sums.back();
  sums.pop_back();
  saved.tokens = sums.back();
  sums.pop_back();
  saved.wanted = std::move(sums);
  return OkStatus();
}

// The ranks exchange how often each chunk of their sequences has chosen each expert; in the
// order of the tokens these numbers add up to what an expert has taken before.
Result<Tensor> MixtureOfExperts::ShareCapacity(Context& context, const Tensor& chosen,
                                               const TokenBatch& batch) const {
  const ContextParallel& ranks = *options_.sequences;
  const int64_t degree = ranks.degree(), experts = options_.experts;
  const int64_t counted = 2 * batch.sequences * experts;
  std::vector<int32_t> own(static_cast<size_t>(chosen.shape().Elements()));
  WEFT_RETURN_IF_ERROR(Download(context.stream, chosen, own.data()));
  WEFT_ASSIGN_OR_RETURN(Tensor numbers, Tensor::New(context, Component::kWorkspace, DType::kI32,
                                                    {degree + 1, counted}));
  const int64_t of_chunk = std::max<int64_t>(std::ssize(own) / (2 * batch.sequences), 1);
  WEFT_RETURN_IF_ERROR(
      FillOnHost(context.stream, numbers.Rows(0, 1), [&](const TensorView& to_send) {
        auto* counts = to_send.As<int32_t>();
        std::fill_n(counts, counted, 0);
        for (int64_t i = 0; i < std::ssize(own); ++i) {
          const int32_t expert = own[static_cast<size_t>(i)];
          if (expert >= 0) ++counts[i / of_chunk * experts + expert];
        }
      }));
  const Tensor all = numbers.Rows(1, degree);
  WEFT_RETURN_IF_ERROR(ranks.group()
                           .AllGather(context.stream, numbers.Rows(0, 1), all, "choices of experts")
                           .Wait(context.stream));
  std::vector<int32_t> counts(static_cast<size_t>(degree * counted));
  WEFT_RETURN_IF_ERROR(Download(context.stream, all, counts.data()));
  const auto choices = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  std::vector<int64_t> left(static_cast<size_t>(experts), Capacity(options_, choices));
  std::vector<int32_t> taken(static_cast<size_t>(experts));
  for (int64_t chunk = 0; chunk < 2 * degree * batch.sequences; ++chunk) {
    const int64_t sequence = chunk / (2 * degree), number = chunk % (2 * degree);
    const bool second = number >= degree;
    const int64_t rank = second ? 2 * degree - 1 - number : number;
    const int64_t first = rank * counted + (2 * sequence + (second ? 1 : 0)) * experts;
    for (size_t e = 0; e < taken.size(); ++e) {
      const int64_t takes = std::min<int64_t>(counts[static_cast<size_t>(first) + e], left[e]);
      left[e] -= takes;
      if (rank == ranks.rank()) taken[e] += static_cast<int32_t>(takes);
    }
  }
  WEFT_ASSIGN_OR_RETURN(Tensor capacities,
                        Tensor::New(context, Component::kWorkspace, DType::kI32, {experts}));
  WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, capacities, [&](const TensorView& host) {
    std::copy(taken.begin(), taken.end(), host.As<int32_t>());
  }));
  return capacities;
}

Result<Tensor> MixtureOfExperts::Dispatch(Context& context, const Tape& tape, const Tensor& x,
                                          const TokenBatch& batch, Saved& saved) const {
  const int64_t choices = saved.chosen.shape().Elements();
  WEFT_ASSIGN_OR_RETURN(Tensor rows,
                        Tensor::New(context, Component::kWorkspace, DType::kI32, {choices}));
  const bool drops = tape.differentiable() && options_.capacity > 0;
  Tensor capacities;
  if (drops && options_.sequences != nullptr) {
    WEFT_ASSIGN_OR_RETURN(capacities, ShareCapacity(context, saved.chosen, batch));
  }
  // Holds the choices of each expert, and then those that it takes.
  WEFT_ASSIGN_OR_RETURN(Tensor wanted, Tensor::New(context, Component::kWorkspace, DType::kI32,
                                                   {2 * options_.experts}));
  WEFT_RETURN_IF_ERROR(kernels::MoeDispatch(
      context.stream,
      {.chosen = saved.chosen,
       .capacity = drops ? Capacity(options_, batch.real_tokens * options_.per_token) : 0,
       .capacities = capacities,
       .rows = rows,
       .places = saved.places,
       .wanted_count = wanted.Elements(0, options_.experts),
       .taken_count = wanted.Elements(options_.experts, options_.experts)}));
  WEFT_ASSIGN_OR_RETURN(std::vector<int64_t> numbers, Numbers(context, wanted));
  std::vector<int64_t> taken(numbers.begin() + options_.experts, numbers.end());
  numbers.resize(static_cast<size_t>(options_.experts));
  WEFT_RETURN_IF_ERROR(Weigh(tape, numbers, batch, saved));
  const ExpertParallel* ranks = options_.ranks;
  if (ranks == nullptr) {
    saved.counts = std::move(taken);
    saved.rows = {saved.counts, saved.counts};
  } else {
    WEFT_ASSIGN_OR_RETURN(saved.rows, ranks->Agree(context, std::move(taken)));
    for (auto of = saved.rows.received.begin(); of != saved.rows.received.end();
         of += ranks->degree()) {
      saved.counts.push_back(std::accumulate(of, of + ranks->degree(), int64_t{0}));
    }
  }
  const int64_t sent = saved.rows.SentRows(), width = options_.width;
  const Component component = ranks == nullptr ? tape.component() : Component::kWorkspace;
  WEFT_ASSIGN_OR_RETURN(Tensor own, Tensor::New(context, component, x.dtype(), {sent, width}));
  WEFT_RETURN_IF_ERROR(kernels::GatherRows(context.stream, {x, rows.Elements(0, sent), own}));
  if (ranks == nullptr) return own;
  WEFT_ASSIGN_OR_RETURN(Tensor inputs, Tensor::New(context, tape.component(), x.dtype(),
                                                   {saved.rows.ReceivedRows(), width}));
  WEFT_RETURN_IF_ERROR(ranks->ToExperts(context, saved.rows, own, inputs));
  return inputs;
}

Result<SavedTensor> MixtureOfExperts::Kept(Context& context, const Tape& tape, bool records,
                                           Tensor tensor, const ColumnPart& part) const {
  if (!records) return Tape::AsItIs(std::move(tensor));
  return tape.Keep(context, tensor, part);
}

Status MixtureOfExperts::RunExperts(Context& context, const Tape& tape, bool records,
                                    const Tensor& inputs, Saved& saved,
                                    const Tensor& results) const {
  const int64_t columns = tensor_ == nullptr ? 1 : tensor_->columns();
  const ColumnPart part{.whole = columns * inner_,
                        .first = tensor_ == nullptr ? 0 : tensor_->column() * inner_,
                        .pieces = 2,
                        .rows_of_token = SenderRanks()};
  int64_t first = 0;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const int64_t count = saved.counts[e];
    WEFT_ASSIGN_OR_RETURN(Tensor before,
                          experts_[e].up.Apply(context, tape, inputs.Rows(first, count)));
    WEFT_ASSIGN_OR_RETURN(Tensor active, Tensor::New(context, Component::kWorkspace, before.dtype(),
                                                     {count, inner_}));
    WEFT_RETURN_IF_ERROR(kernels::SwiGluForward(
        context.stream, {before.Columns(0, inner_), before.Columns(inner_, inner_), active}));
    WEFT_RETURN_IF_ERROR(
        experts_[e].down.ApplyTo(context, tape, active, results.Rows(first, count)));
    active = {};
    WEFT_ASSIGN_OR_RETURN(SavedTensor kept, Kept(context, tape, records, std::move(before), part));
    saved.before.push_back(std::move(kept));
    first += count;
  }
  return OkStatus();
}

Result<Value> MixtureOfExperts::Forward(Context& context, Tape& tape, const Value& x,
                                        const TokenBatch& batch) const {
  WEFT_ASSIGN_OR_RETURN(ShardsInput in, CopyToTensorParallelRegion(context, tape, tensor_, x));
  WEFT_ASSIGN_OR_RETURN(Value logits,
                        router_.Forward(context, tape, in.value, std::move(in.saved)));
  WEFT_ASSIGN_OR_RETURN(Value out,
                        Mix(context, tape, std::move(in.value), std::move(logits), batch));
  return ReduceFromTensorParallelRegion(context, tape, tensor_, std::move(out));
}

Result<Value> MixtureOfExperts::Mix(Context& context, Tape& tape, Value x, Value logits,
                                    const TokenBatch& batch) const {
  ProfileScope scope(context.profiler, "experts forward");
  const auto saved = std::make_shared<Saved>();
  WEFT_RETURN_IF_ERROR(Route(context, tape, logits.tensor, batch, *saved));
  logits.tensor = {};
  WEFT_ASSIGN_OR_RETURN(Tensor inputs, Dispatch(context, tape, x.tensor, batch, *saved));
  const bool records =
      tape.recording() && (x.needs_gradient() || logits.needs_gradient() || Trains(tape));
  const DType dtype = x.tensor.dtype();
  const Shape shape = x.tensor.shape();
  x.tensor = {};
  const auto new_results = [&](Component component, int64_t rows) {
    return Tensor::New(context, component, dtype, {rows, options_.width});
  };
  WEFT_ASSIGN_OR_RETURN(Tensor results, new_results(tape.component(), saved->rows.SentRows()));
  if (options_.ranks == nullptr) {
    WEFT_RETURN_IF_ERROR(RunExperts(context, tape, records, inputs, *saved, results));
  } else {
    WEFT_ASSIGN_OR_RETURN(Tensor there,
                          new_results(Component::kWorkspace, saved->rows.ReceivedRows()));
    WEFT_RETURN_IF_ERROR(RunExperts(context, tape, records, inputs, *saved, there));
    WEFT_RETURN_IF_ERROR(options_.ranks->FromExperts(context, saved->rows, there, results));
  }
  const int64_t choices = options_.per_token;
  WEFT_ASSIGN_OR_RETURN(saved->inputs, Kept(context, tape, records, std::move(inputs),
                                            {.rows_of_token = choices * SenderRanks()}));
  for (const Expert& expert : experts_) {
    expert.up.Use(tape);
    expert.down.Use(tape);
  }
  WEFT_ASSIGN_OR_RETURN(Tensor sum, Tensor::New(context, tape.component(), dtype, shape));
  WEFT_RETURN_IF_ERROR(
      kernels::MoeCombine(context.stream, {results, saved->places, saved->weights, sum}));
  WEFT_ASSIGN_OR_RETURN(
      saved->results, Kept(context, tape, records, std::move(results), {.rows_of_token = choices}));
  Value y =
      tape.NewValue(std::move(sum), x.needs_gradient() || logits.needs_gradient() || Trains(tape));
  if (!tape.Records(y)) return y;
  saved->PutChoicesAside(tape);
  tape.Record("experts backward",
              [this, saved, logits_node = logits.node, x_node = x.node, y_node = y.node](
                  Context& ctx, Tape& t) -> Status {
                WEFT_RETURN_IF_ERROR(saved->RestoreChoices(ctx));
                return Backward(ctx, t, *saved, logits_node, x_node, t.TakeGradient(y_node));
              });
  return y;
}

// In the places of what is saved: the gradients of gate and up in that of their values. The last
// expert first, as buckets of gradients are filled.
Status MixtureOfExperts::RunExpertsBackward(Context& context, Tape& tape, Saved& saved,
                                            const Tensor& gradients, const Tensor& dinputs) const {
  std::vector<ExpertProducts> deferred;
  SavedTensor kept = std::exchange(saved.inputs, {});
  Tensor inputs;
  if (!tape.defers()) {
    WEFT_ASSIGN_OR_RETURN(inputs, kept.Restore(context));
  }
  int64_t first = gradients.shape().Rows();
  for (size_t e = experts_.size(); e-- > 0;) {
    const Expert& expert = experts_[e];
    const int64_t count = saved.counts[e];
    first -= count;
    const SavedTensor of_expert = std::exchange(saved.before[e], {});
    WEFT_ASSIGN_OR_RETURN(const Tensor before, of_expert.Restore(context));
    const Tensor rows = gradients.Rows(first, count);
    const Tensor gate = before.Columns(0, inner_), up = before.Columns(inner_, inner_);
    ExpertProducts products{e, first, gate, {}, {}};  // with no rows
    WEFT_ASSIGN_OR_RETURN(products.dresults, expert.down.Prepare(context, tape, rows, true, true));
    if (count > 0) {
      // The gradient of the activation, and then the activation itself.
      WEFT_ASSIGN_OR_RETURN(products.active, expert.down.InputGradient(context, products.dresults));
      const Tensor& active = products.active;
      WEFT_RETURN_IF_ERROR(kernels::SwiGluBackward(
          context.stream,
          {.dy = active, .gate = gate, .up = up, .dgate = gate, .dup = up, .y = active}));
    }
    if (!tape.defers()) {
      WEFT_RETURN_IF_ERROR(AddDownGradient(context, tape, products));
      products.active = {};
      products.dresults = {};
    }
    const bool for_input = dinputs && count > 0;
    WEFT_ASSIGN_OR_RETURN(products.dbefore,
                          expert.up.Prepare(context, tape, before, for_input, true));
    if (!tape.defers()) WEFT_RETURN_IF_ERROR(AddUpGradient(context, tape, inputs, products));
    if (for_input) {
      WEFT_RETURN_IF_ERROR(
          expert.up.InputGradientTo(context, products.dbefore, dinputs.Rows(first, count)));
    }
    if (!tape.defers()) continue;
    products.dresults = products.dresults.ForWeight();
    products.dbefore = products.dbefore.ForWeight();
    deferred.push_back(std::move(products));
  }
  if (deferred.empty()) return OkStatus();
  tape.Defer("experts backward",
             [this, deferred = std::move(deferred), kept = std::move(kept)](Context& ctx,
                                                                            Tape& later) -> Status {
               WEFT_ASSIGN_OR_RETURN(const Tensor read, kept.Restore(ctx));
               for (const ExpertProducts& products : deferred) {
                 WEFT_RETURN_IF_ERROR(AddDownGradient(ctx, later, products));
                 WEFT_RETURN_IF_ERROR(AddUpGradient(ctx, later, read, products));
               }
               return OkStatus();
             });
  return OkStatus();
}

Status MixtureOfExperts::AddDownGradient(Context& context, Tape& tape,
                                         const ExpertProducts& products) const {
  return experts_[products.expert].down.AddWeightGradient(context, tape, products.active,
                                                          products.dresults);
}

Status MixtureOfExperts::AddUpGradient(Context& context, Tape& tape, const Tensor& inputs,
                                       const ExpertProducts& products) const {
  const int64_t rows = products.dbefore.dy.shape().Rows();
  return experts_[products.expert].up.AddWeightGradient(
      context, tape, inputs.Rows(products.first, rows), products.dbefore);
}

Status MixtureOfExperts::Backward(Context& context, Tape& tape, Saved& saved, int32_t logits_node,
                                  int32_t x_node, Tensor dy) const {
  const bool for_input = x_node != Value::kNoNode;
  const int64_t count = saved.places.shape()[0];
  const Shape received = {saved.rows.ReceivedRows(), options_.width};
  // In the place of the results are then their gradients.
  WEFT_ASSIGN_OR_RETURN(const Tensor results, std::exchange(saved.results, {}).Restore(context));
  WEFT_ASSIGN_OR_RETURN(Tensor dweights, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                     saved.weights.shape()));
  WEFT_RETURN_IF_ERROR(kernels::MoeCombineBackward(
      context.stream, {dy, results, saved.places, saved.weights, results, dweights}));
  const DType dtype = dy.dtype();
  dy = {};
  if (logits_node != Value::kNoNode) {
    // The gradient of experts * sum of f P: P is a mean over the tokens, f the share of the
    // choices.
    WEFT_ASSIGN_OR_RETURN(Tensor balance, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                      {options_.experts}));
    WEFT_RETURN_IF_ERROR(FillOnHost(context.stream, balance, [&](const TensorView& host) {
      float* to = host.As<float>();
      const double tokens = std::max(saved.tokens, 1.0);  // of padding alone: none
      for (const double wanted : saved.wanted) {
        *to++ = static_cast<float>(saved.balance * static_cast<double>(options_.experts) * wanted /
                                   tokens / tokens);
      }
    }));
    WEFT_ASSIGN_OR_RETURN(Tensor dlogits, Tensor::New(context, Component::kWorkspace, dtype,
                                                      saved.probabilities.shape()));
    WEFT_RETURN_IF_ERROR(
        kernels::MoeRouteBackward(context.stream, {.probabilities = saved.probabilities,
                                                   .chosen = saved.chosen,
                                                   .weights = saved.weights,
                                                   .dweights = dweights,
                                                   .balance = balance,
                                                   .dlogits = dlogits,
                                                   .normalize = options_.normalize}));
    WEFT_RETURN_IF_ERROR(tape.AddGradient(context, logits_node, std::move(dlogits)));
  }
  Tensor there = results;
  if (options_.ranks != nullptr) {
    WEFT_ASSIGN_OR_RETURN(there, Tensor::New(context, Component::kWorkspace, dtype, received));
    WEFT_RETURN_IF_ERROR(options_.ranks->ToExperts(context, saved.rows, results, there));
  }
  // In the place of the gradients of results, unless these are read later.
  Tensor dinputs = for_input ? there : Tensor();
  if (for_input && tape.defers()) {
    WEFT_ASSIGN_OR_RETURN(dinputs, Tensor::New(context, Component::kWorkspace, dtype, received));
  }
  WEFT_RETURN_IF_ERROR(RunExpertsBackward(context, tape, saved, there, dinputs));
  if (!for_input) return OkStatus();
  Tensor own = dinputs;
  if (options_.ranks != nullptr) {
    own = results;
    WEFT_RETURN_IF_ERROR(options_.ranks->FromExperts(context, saved.rows, dinputs, own));
  }
  WEFT_ASSIGN_OR_RETURN(
      Tensor dx, Tensor::New(context, Component::kWorkspace, dtype, {count, options_.width}));
  WEFT_RETURN_IF_ERROR(kernels::MoeCombine(context.stream, {own, saved.places, {}, dx}));
  return tape.AddGradient(context, x_node, std::move(dx));
}

}  // namespace weft::engine
