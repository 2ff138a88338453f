#include "worker/engine/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/orthogonalize/orthogonalize.h"
#include "worker/engine/optim/fused_optimizer.h"

namespace weft::engine {
namespace {

double StepScale(const std::string& kind, int64_t rows, int64_t columns) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
  return kind == "original" ? std::sqrt(std::max(1.0, r / c)) : 0.2 * std::sqrt(std::max(r, c));
}

}  // namespace

Result<std::unique_ptr<Optimizer>> Muon::New(Context& context, const OptimizerSpec& spec,
                                             const ParameterSet& parameters,
                                             const std::vector<ParameterRule>& rules,
                                             DType compute) {
  std::unique_ptr<Muon> muon(new Muon(spec, compute));
  std::vector<int64_t> matrices;
  std::vector<ParameterPart> rest;
  for (int64_t i : TrainedParameters(parameters)) {
    if (UpdatedByMuon(parameters[i], static_cast<size_t>(parameters[i].shape.rank))) {
      matrices.push_back(i);
    } else {
      rest.push_back(WholePart(parameters, i));
    }
  }
  for (int64_t i : matrices) muon->state_.Add(spec, parameters, WholePart(parameters, i));
  WEFT_RETURN_IF_ERROR(muon->state_.Allocate(context));
  for (size_t k = 0; k < matrices.size(); ++k) {
    const Parameter& parameter = parameters[matrices[k]];
    const auto index = static_cast<size_t>(matrices[k]);
    Matrix matrix = {UpdateTensorOf(parameters, WholePart(parameters, matrices[k]), rules[index]),
                     parameter.shape[1], parameter.parts};
    if (matrix.parts.empty()) matrix.parts = {parameter.shape[0]};
    matrix.tensor.state[0] = muon->state_[k];
    if (spec.muon_learning_rate > 0 && spec.learning_rate > 0) {
      matrix.tensor.learning_rate_scale *=
          static_cast<float>(spec.muon_learning_rate / spec.learning_rate);
    }
    muon->matrices_.push_back(matrix);
  }
  OptimizerSpec adamw = spec;
  adamw.name = "adamw";
  WEFT_ASSIGN_OR_RETURN(muon->rest_, FusedOptimizer::New(context, adamw, *FindFusedRule(adamw),
                                                         parameters, rules, rest));
  return std::unique_ptr<Optimizer>(std::move(muon));
}

Status Muon::Update(Context& context, const UpdateArgs& args) {
  for (const Matrix& matrix : matrices_) {
    WEFT_RETURN_IF_ERROR(UpdateMatrix(context, args, matrix));
  }
  return rest_->Update(context, args);
}

Status Muon::UpdateMatrix(Context& context, const UpdateArgs& args, const Matrix& matrix) const {
  const int64_t longest = *std::max_element(matrix.parts.begin(), matrix.parts.end());
  WEFT_ASSIGN_OR_RETURN(Tensor direction, Tensor::New(context, Component::kWorkspace, DType::kF32,
                                                      {matrix.tensor.count}));
  WEFT_ASSIGN_OR_RETURN(
      Tensor workspace,
      Tensor::New(context, Component::kWorkspace, DType::kU8,
                  {kernels::OrthogonalizeWorkspace(longest, matrix.columns, compute_)}));
  std::vector<kernels::UpdateTensor> tensor = {matrix.tensor};
  tensor[0].state[1] = direction.As<float>();
  WEFT_RETURN_IF_ERROR(
      kernels::Momentum(context.stream, {.update = InputsOf(context, args, tensor),
                                         .momentum = static_cast<float>(spec_.momentum),
                                         .nesterov = spec_.nesterov}));
  // Each part is a step of plain gradient descent along its orthogonalized direction.
  kernels::UpdateTensor& part = tensor[0];
  part.gradient = direction.As<float>();
  for (int64_t rows : matrix.parts) {
    part.count = rows * matrix.columns;
    const TensorView view(direction.As<float>() + part.first_element, DType::kF32,
                          {rows, matrix.columns}, direction.view().device);
    const int64_t bytes = kernels::OrthogonalizeWorkspace(rows, matrix.columns, compute_);
    WEFT_RETURN_IF_ERROR(
        kernels::Orthogonalize(context.stream, {.matrix = view,
                                                .workspace = workspace.Elements(0, bytes),
                                                .iterations = spec_.muon_iterations,
                                                .compute = compute_}));
    const double scale = StepScale(spec_.muon_scale, rows, matrix.columns);
    WEFT_RETURN_IF_ERROR(kernels::Sgd(
        context.stream, {.update = InputsOf(context,
                                            {.learning_rate = args.learning_rate,
                                             .gradient_scale = scale,
                                             .gate = {.factor = nullptr, .made = args.gate.made}},
                                            tensor)}));
    if (part.parameter != nullptr) part.parameter += part.count;
    if (part.bf16_parameter != nullptr) part.bf16_parameter += part.count;
    part.gradient += part.count;
    part.first_element += part.count;
  }
  return OkStatus();
}

std::vector<NamedTensor> Muon::StateTensors() const {
  std::vector<NamedTensor> tensors = state_.Named();
  for (NamedTensor& tensor : rest_->StateTensors()) tensors.push_back(std::move(tensor));
  return tensors;
}

}  // namespace weft::engine
