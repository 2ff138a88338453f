#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/optimizer_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

/// An update rule with settings of its own, and its truth.
struct Rule {
  std::string name;
  int states = 0;
  std::function<Status(const Stream&, const UpdateInputs&)> run;
  std::function<UpdateRefState(UpdateRefState, const UpdateRefInputs&)> reference;
  int second_moment = -1;  ///< The state that is never negative.
  float gradient_limit = 0.4f;
  double passes = 0;  ///< Over an f32 tensor of the parameter's size; 0: as for most rules.
};

std::vector<Rule> Rules() {
  std::vector<Rule> rules;
  for (float momentum : {0.0f, 0.9f}) {
    for (bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      rules.push_back({.name = momentum == 0 ? "sgd"
                               : nesterov    ? "nesterov"
                                             : "momentum",
                       .states = momentum == 0 ? 0 : 1,
                       .run =
                           [=](const Stream& stream, const UpdateInputs& update) {
                             return Sgd(stream, {update, momentum, nesterov});
                           },
                       .reference =
                           [=](const UpdateRefState& s, const UpdateRefInputs& in) {
                             return SgdRef(s, in, momentum, nesterov);
                           }});
    }
  }
  rules.push_back(
      {.name = "lars",
       .states = 1,
       .run =
           [](const Stream& stream, const UpdateInputs& update) {
             return Lars(stream, {update, 0.9f, 0.5f, 1e-3f});
           },
       .reference = [](const UpdateRefState& s,
                       const UpdateRefInputs& in) { return LarsRef(s, in, 0.9f, 0.5f, 1e-3f); },
       .gradient_limit = std::numeric_limits<float>::infinity()});
  for (bool decoupled : {false, true}) {
    const std::string name = decoupled ? "adamw" : "adam";
    const auto add = [&](const std::string& variant, int64_t step, bool keeps_second) {
      rules.push_back(
          {.name = name + variant,
           .states = 2,
           .run =
               [=](const Stream& stream, const UpdateInputs& update) {
                 return Adam(stream, {update, 0.9f, 0.95f, 1e-6f, step, decoupled, keeps_second});
               },
           .reference =
               [=](const UpdateRefState& s, const UpdateRefInputs& in) {
                 return AdamRef(s, in, 0.9f, 0.95f, 1e-6f, step, decoupled, keeps_second);
               },
           .second_moment = 1});
    };
    for (int64_t step : {1, 1000}) add("/step" + std::to_string(step), step, false);
    add("/second moments kept", 1000, true);
  }
  rules.push_back(
      {.name = "lamb",
       .states = 2,
       .run =
           [](const Stream& stream, const UpdateInputs& update) {
             return Lamb(stream, {update, 0.9f, 0.95f, 1e-6f, 7});
           },
       .reference = [](const UpdateRefState& s,
                       const UpdateRefInputs& in) { return LambRef(s, in, 0.9f, 0.95f, 1e-6f, 7); },
       .second_moment = 1});
  rules.push_back(
      {.name = "lion",
       .states = 1,
       .run =
           [](const Stream& stream, const UpdateInputs& update) {
             return Lion(stream, {update, 0.9f, 0.98f});
           },
       .reference = [](const UpdateRefState& s,
                       const UpdateRefInputs& in) { return LionRef(s, in, 0.9f, 0.98f); }});
  for (bool nesterov : {false, true}) {
    rules.push_back({.name = nesterov ? "muon_nesterov" : "muon_momentum",
                     .states = 2,
                     .run =
                         [=](const Stream& stream, const UpdateInputs& update) {
                           return Momentum(stream, {update, 0.95f, nesterov});
                         },
                     .reference =
                         [=](const UpdateRefState& s, const UpdateRefInputs& in) {
                           return MomentumRef(s, in, 0.95f, nesterov);
                         },
                     .passes = 4});  // The momentum is read and written, the direction written.
  }
  rules.push_back({.name = "schedule_free_adamw",
                   .states = 3,
                   .run =
                       [](const Stream& stream, const UpdateInputs& update) {
                         return ScheduleFreeAdamW(stream, {update, 0.9f, 0.95f, 1e-6f, 7, 0.25f});
                       },
                   .reference =
                       [](const UpdateRefState& s, const UpdateRefInputs& in) {
                         return ScheduleFreeRef(s, in, 0.9f, 0.95f, 1e-6f, 7, 0.25f);
                       },
                   .second_moment = 2});
  return rules;
}

constexpr float kLearningRate = 0.02f;
constexpr float kGradientScale = 0.5f;

// Tensors alternate between decay and none, two rates, and a layer-wise rate and none.
UpdateTensor AddTensor(OpRun& run, const Rule& rule, int64_t count, bool even) {
  UpdateTensor tensor = {.count = count,
                         .learning_rate_scale = even ? 1.0f : 0.25f,
                         .weight_decay = even ? 0.1f : 0.0f,
                         .layer_rate = even};
  TestTensor& p = run.Input(DType::kF32, {count});
  TestTensor& g = run.Input(DType::kF32, {count});
  tensor.parameter = p.view().As<float>();
  tensor.gradient = g.view().As<float>();
  std::vector<TestTensor*> states;
  for (int k = 0; k < rule.states; ++k) {
    TestTensor& s = run.Input(DType::kF32, {count});
    if (k == rule.second_moment) s.Absolute();
    tensor.state[k] = s.view().As<float>();
    states.push_back(&s);
  }
  const auto reference = [=, &p, &g, apply = rule.reference, limit = rule.gradient_limit] {
    UpdateRefState s{.parameter = p.InitialValues(), .state = {}};
    for (size_t k = 0; k < states.size(); ++k) s.state[k] = states[k]->InitialValues();
    UpdateRefInputs in{.gradient = g.InitialValues(),
                       .learning_rate = double{kLearningRate} * tensor.learning_rate_scale,
                       .weight_decay = tensor.weight_decay,
                       .layer_rate = tensor.layer_rate};
    for (double& value : in.gradient) {
      value = std::clamp<double>(kGradientScale * value, -limit, limit);
    }
    return apply(s, in);
  };
  run.Check("parameter", p, 1, [reference] { return reference().parameter; });
  for (int k = 0; k < rule.states; ++k) {
    run.Check("state " + std::to_string(k), *states[k], 1,
              [reference, k] { return reference().state[k]; });
  }
  // Reads everything, writes all but the gradient.
  const double passes = rule.passes > 0 ? rule.passes : 3.0 + 2.0 * rule.states;
  run.bytes += passes * static_cast<double>(p.view().Bytes());
  return tensor;
}

OpCase UpdateCase(const Rule& rule, const std::vector<int64_t>& counts, CaseUse use) {
  std::string name = rule.name;
  for (int64_t count : counts) name += "/" + std::to_string(count);
  return {name, use, [=](OpRun& run) {
            auto tensors = std::make_shared<std::vector<UpdateTensor>>();
            for (int64_t count : counts) {
              tensors->push_back(AddTensor(run, rule, count, tensors->size() % 2 == 0));
            }
            UpdateInputs update = {.learning_rate = kLearningRate,
                                   .gradient_scale = kGradientScale,
                                   .gradient_limit = rule.gradient_limit};
            if (use == CaseUse::kSpeed || counts.size() == 1) {
              run.run = [rule, tensors, update](const Stream& stream) mutable {
                update.tensors = *tensors;
                return rule.run(stream, update);
              };
              return;
            }
            // First an update that is not made, then one with half of its factor behind the gate.
            TestTensor& factor = run.tensors.emplace_back(DType::kF32, Shape{1}).Assign({0.5});
            TestTensor& made = run.tensors.emplace_back(DType::kI32, Shape{2}).Assign({0, 1});
            run.run = [rule, tensors, update, &factor, &made](const Stream& stream) mutable {
              update.tensors = *tensors;
              update.gradient_scale = 2 * kGradientScale;
              update.gate = {factor.view().As<float>(), made.view().As<int32_t>()};
              WEFT_RETURN_IF_ERROR(rule.run(stream, update));
              ++update.gate.made;
              return rule.run(stream, update);
            };
          }};
}

}  // namespace

std::vector<OpCase> OptimizerCases() {
  std::vector<OpCase> cases;
  for (const Rule& rule : Rules()) {
    cases.push_back(UpdateCase(rule, {1}, CaseUse::kTest));
    cases.push_back(UpdateCase(rule, {17, 0, 40000, 3}, CaseUse::kTest));
    cases.push_back(UpdateCase(rule, {int64_t{1} << 24, int64_t{1} << 20}, CaseUse::kSpeed));
    cases.push_back(UpdateCase(rule, {int64_t{1} << 26, int64_t{1} << 20}, CaseUse::kDeviceSpeed));
  }
  return cases;
}

}  // namespace weft::kernels::testing
