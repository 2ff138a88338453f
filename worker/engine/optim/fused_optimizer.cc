#include "worker/engine/optim/fused_optimizer.h"

#include <limits>
#include <optional>

#include "common/rng.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/parameter_file_iterator.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

using kernels::UpdateInputs;

// Elements of a tile of an offloaded update: enough for all threads, few compared with a block's
// weights.
constexpr int64_t kTileElements = int64_t{1} << 20;

float F32(double value) {
  return static_cast<float>(value);
}

Status RunSgd(const Stream& stream, const OptimizerSpec& spec, const UpdateInputs& inputs,
              const RuleArgs&) {
  return kernels::Sgd(stream, {inputs, F32(spec.momentum), spec.nesterov});
}

Status RunLars(const Stream& stream, const OptimizerSpec& spec, const UpdateInputs& inputs,
               const RuleArgs&) {
  return kernels::Lars(
      stream, {inputs, F32(spec.momentum), F32(spec.trust_coefficient), F32(spec.epsilon)});
}

template <bool kDecoupled>
Status RunAdam(const Stream& stream, const OptimizerSpec& spec, const UpdateInputs& inputs,
               const RuleArgs& args) {
  return kernels::Adam(stream, {.update = inputs,
                                .beta1 = F32(spec.beta1),
                                .beta2 = F32(spec.beta2),
                                .epsilon = F32(spec.epsilon),
                                .step = args.update,
                                .decoupled_decay = kDecoupled,
                                .keeps_second_moments = args.keeps_second_moments});
}

Status RunLamb(const Stream& stream, const OptimizerSpec& spec, const UpdateInputs& inputs,
               const RuleArgs& args) {
  return kernels::Lamb(stream,
                       {inputs, F32(spec.beta1), F32(spec.beta2), F32(spec.epsilon), args.update});
}

Status RunLion(const Stream& stream, const OptimizerSpec& spec, const UpdateInputs& inputs,
               const RuleArgs&) {
  return kernels::Lion(stream, {inputs, F32(spec.beta1), F32(spec.beta2)});
}

}  // namespace

const FusedRule* FindFusedRule(const OptimizerSpec& spec) {
  static constexpr FusedRule kRules[] = {
      {"sgd", RunSgd},          {"lars", RunLars}, {"adam", RunAdam<false>},
      {"adamw", RunAdam<true>}, {"lamb", RunLamb}, {"lion", RunLion},
  };
  for (const FusedRule& rule : kRules) {
    if (rule.name == spec.name) return &rule;
  }
  return nullptr;
}

kernels::UpdateTensor UpdateTensorOf(const ParameterSet& parameters, const ParameterPart& part,
                                     const ParameterRule& rule) {
  const int64_t index = part.index;
  const bool f32 = part.value.dtype == DType::kF32;
  return {.parameter = f32 ? part.value.As<float>() : nullptr,
          .bf16_parameter = f32 ? nullptr : part.value.As<BFloat16>(),
          .gradient = part.gradient.As<float>(),
          .state = {},
          .count = part.count(),
          .learning_rate_scale = F32(rule.learning_rate_scale),
          .weight_decay = F32(rule.weight_decay),
          .rounding_site = SiteHash((parameters[index].name + "/rounding").c_str()),
          .first_element = f32 ? 0 : part.first,
          .layer_rate = parameters[index].decay()};
}

void MoveGradient(const float* from, const float* to, kernels::UpdateTensor& tensor) {
  if (to != nullptr) tensor.gradient = to + (tensor.gradient - from);
}

void PlaceOf(const ParameterSet& parameters, const ParameterPart& part,
             kernels::UpdateTensor& tensor) {
  if (parameters.file() == nullptr) return;
  const ParameterPart placed = parameters.file()->InMemory(part);
  const bool f32 = placed.value.dtype == DType::kF32;
  tensor.parameter = f32 ? placed.value.As<float>() : nullptr;
  tensor.bf16_parameter = f32 ? nullptr : placed.value.As<BFloat16>();
  tensor.gradient = placed.gradient.As<float>();
}

UpdateInputs InputsOf(const Context& context, const UpdateArgs& args,
                      const std::vector<kernels::UpdateTensor>& tensors) {
  return {.tensors = tensors,
          .learning_rate = context.Number(F32(args.learning_rate), &StepNumbers::learning_rate),
          .gradient_scale = F32(args.gradient_scale),
          .gradient_limit = args.gradient_limit > 0 ? F32(args.gradient_limit)
                                                    : std::numeric_limits<float>::infinity(),
          .seed = context.seed,
          .step = context.Number(static_cast<uint32_t>(context.step), &StepNumbers::step),
          .gate = args.gate};
}

Result<std::unique_ptr<Optimizer>> FusedOptimizer::New(Context& context, const OptimizerSpec& spec,
                                                       const FusedRule& rule,
                                                       const ParameterSet& parameters,
                                                       const std::vector<ParameterRule>& rules,
                                                       std::span<const ParameterPart> parts) {
  std::unique_ptr<FusedOptimizer> optimizer(new FusedOptimizer(spec, rule, parameters));
  OptimizerState& state = optimizer->state_;
  std::vector<size_t> firsts;  // by part, of its state, and the end
  for (const ParameterPart& part : parts) firsts.push_back(state.Add(spec, parameters, part));
  firsts.push_back(state.size());
  WEFT_RETURN_IF_ERROR(state.Allocate(context));
  if (parameters.gradients()) optimizer->gradients_ = parameters.gradients().As<float>();
  for (size_t p = 0; p < parts.size(); ++p) {
    kernels::UpdateTensor tensor =
        UpdateTensorOf(parameters, parts[p], rules[static_cast<size_t>(parts[p].index)]);
    for (size_t k = firsts[p]; k < firsts[p + 1]; ++k) tensor.state[k - firsts[p]] = state[k];
    optimizer->tensors_.push_back(tensor);
    optimizer->parts_.push_back(parts[p]);
  }
  return std::unique_ptr<Optimizer>(std::move(optimizer));
}

std::vector<kernels::UpdateTensor> FusedOptimizer::Moved(const std::vector<bool>& frozen) const {
  if (frozen.empty()) return tensors_;
  std::vector<kernels::UpdateTensor> moved;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!frozen[static_cast<size_t>(parts_[i].index)]) moved.push_back(tensors_[i]);
  }
  return moved;
}

Status FusedOptimizer::Update(Context& context, const UpdateArgs& args) {
  const auto update = context.Number(args.update, &StepNumbers::update);
  const std::vector<bool>& restarted = args.restarted.parameters;
  if (restarted.empty()) return UpdateAs(update, context, args);
  UpdateArgs others = args, theirs = args;
  others.frozen = theirs.frozen = restarted;
  theirs.frozen.flip();
  for (size_t i = 0; i < args.frozen.size(); ++i) {
    if (args.frozen[i]) others.frozen[i] = theirs.frozen[i] = true;
  }
  WEFT_RETURN_IF_ERROR(UpdateAs(update, context, others));
  return UpdateAs(args.restarted.updates + 1, context, theirs);
}

Status FusedOptimizer::UpdateAs(kernels::StepValue<int64_t> update, Context& context,
                                const UpdateArgs& args) {
  const std::vector<kernels::UpdateTensor> moved = Moved(args.frozen);
  UpdateInputs inputs = InputsOf(context, args, moved);
  const RuleArgs rule = {.update = update, .keeps_second_moments = args.keeps_second_moments};
  if (!IsInHostMemoryPool(context)) return rule_.run(context.stream, spec_, inputs, rule);
  std::optional<ParameterFileIterator> own;
  UnitIterator* walk = args.walk;
  if (walk == nullptr && set_.file() != nullptr) walk = &own.emplace(set_.file(), kUpdateIteration);
  const auto unit_of = [this](size_t i) { return set_[parts_[i].index].unit; };
  const std::span<const kernels::UpdateTensor> all = inputs.tensors;
  for (size_t begin = 0; begin < all.size();) {
    size_t end = begin;
    for (int64_t elements = 0; end < all.size() && elements < kTileElements; ++end) {
      if (walk && unit_of(end) != unit_of(begin)) break;
      elements += all[end].count;
    }
    if (walk) WEFT_RETURN_IF_ERROR(walk->MoveTo(unit_of(begin)));
    const auto tile = all.subspan(begin, end - begin);
    std::vector<kernels::UpdateTensor> tensors(tile.begin(), tile.end());
    for (size_t i = begin; i < end; ++i) {
      MoveGradient(gradients_, args.gradients, tensors[i - begin]);
      PlaceOf(set_, parts_[i], tensors[i - begin]);
    }
    inputs.tensors = tensors;
    WEFT_RETURN_IF_ERROR(rule_.run(context.stream, spec_, inputs, rule));
    context.host->updated().Reach(parts_[end - 1].index + 1);
    begin = end;
  }
  return walk ? walk->Finish() : OkStatus();
}

}  // namespace weft::engine
