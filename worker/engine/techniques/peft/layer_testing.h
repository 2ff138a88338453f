#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/techniques/peft/peft_products.h"
#include "worker/engine/testing/float64_matrices.h"

namespace weft::engine {

/// A layer with two outputs, some with adapters, and a frozen base.
struct LayerRun {
  static constexpr int64_t kIn = 24, kRows[2] = {16, 40}, kOut = 56, kRank = 3;
  Allocator allocator;
  Context context;
  ModelSpec model;
  ParameterSet parameters;
  PeftProductsFactory factory;
  Linear linear;
  std::unique_ptr<ParameterGradients> gradients;

  LayerRun(const PeftSpec& spec, DType compute, bool bias)
      : model(ModelOf(spec)),
        factory(model, nullptr),
        linear(&parameters, {{{"h.0.a", kRows[0]}, {"h.0.b", kRows[1]}}, kIn, bias},
               {compute, &factory}) {
    kernels::cpu::SetThreads(1);
    context.allocator = &allocator;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      parameters.SetStart(i, {.deviation = 0.3});
      if (parameters[i].adapter == AdapterSide::kNone) parameters.SetFrozen(i);
    }
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    WEFT_CHECK(parameters.Initialize(4).ok(), "initialize");
    WEFT_CHECK(linear.Pack(context, Repack::kAll).ok(), "pack");
    gradients = std::make_unique<ParameterGradients>(parameters.DifferentiatedGradients());
    gradients->StartStep();
  }
  static ModelSpec ModelOf(const PeftSpec& spec) {
    ModelSpec model;
    model.peft = spec;
    return model;
  }
  Tensor Random(const Shape& shape, DType dtype, uint64_t seed) {
    auto tensor = Tensor::New(context, Component::kActivations, dtype, shape);
    const std::vector<float> values = Normal(static_cast<size_t>(shape.Elements()), seed);
    kernels::cpu::WithFloatType(dtype, [&]<class T>() {
      for (size_t i = 0; i < values.size(); ++i) tensor->As<T>()[i] = FromFloat<T>(values[i]);
    });
    return *tensor;
  }
  Doubles Value(const std::string& name) const {
    return AsDoubles(parameters.value(*parameters.Find(name)));
  }
  Doubles Gradient(const std::string& name) const {
    return AsDoubles(parameters.gradient(*parameters.Find(name)));
  }
  /// "A" or "B" of a layer.
  std::string Factor(const std::string& layer, const std::string& which) const {
    return layer + ".lora_" + which + (has_diagonal() ? "" : ".weight");
  }
  bool has_diagonal() const { return model.peft.method == "adalora"; }
  /// What A is multiplied by, row by row.
  Doubles Diagonal(const std::string& layer) const {
    return has_diagonal() ? Value(layer + ".lora_E") : Doubles(kRank, 1.0);
  }
  /// diag(E) A.
  Doubles ScaledA(const std::string& layer) const {
    Doubles a = Value(Factor(layer, "A"));
    const Doubles diagonal = Diagonal(layer);
    for (size_t i = 0; i < a.size(); ++i) a[i] *= diagonal[i / kIn];
    return a;
  }
};

}  // namespace weft::engine
