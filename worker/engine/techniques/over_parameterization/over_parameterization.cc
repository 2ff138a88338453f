#include "worker/engine/techniques/over_parameterization/over_parameterization.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/glob.h"
#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "kernels/cpu/float_types.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "worker/engine/techniques/over_parameterization/over_parameterization_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// By weight, whether `spec` names it.
Result<std::vector<bool>> Choose(const OverParameterizationSpec& spec,
                                 const ParameterList& parameters) {
  std::vector<bool> chosen(static_cast<size_t>(parameters.size()), false);
  std::vector<bool> eligible = chosen;
  std::vector<std::string> names;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    eligible[i] = parameters[i].block_matrix() && parameters[i].trainable();
    if (eligible[i]) names.push_back(parameters[i].name);
  }
  if (spec.layers.empty()) return eligible;
  for (const std::string& pattern : spec.layers) {
    bool used = false;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (!eligible[i] || !GlobMatches(pattern, parameters[i].name)) continue;
      chosen[i] = used = true;
    }
    if (used) continue;
    const std::string nearest = NearestName(pattern, names);
    return InvalidError("model.over_parameterization.layers '" + pattern +
                        "' matches no trained matrix of a block; hint: " +
                        (nearest.empty() ? names.empty() ? "model.freeze leaves none to train"
                                                         : "names are like " + names.front()
                                         : "did you mean '" + nearest + "'?"));
  }
  return chosen;
}

Initializer CopyStart(const Parameter& weight, int64_t copies) {
  Initializer initializer = weight.initializer;
  initializer.deviation *= std::sqrt(static_cast<double>(copies + 1) / 2);
  return initializer;
}

// Of a factor whose first rows will become an identity.
Initializer RandomRows(const Shape& shape) {
  return {.deviation = 1 / std::sqrt(static_cast<double>(shape[-1]))};
}

/// The two factors of a product.
struct Product {
  int64_t out_index, in_index;
  TensorView out_factor, in_factor;  ///< [inner, out] and [inner, in]
};

Product ProductOf(const ParameterSet& parameters, int64_t weight) {
  const int64_t first = parameters[weight].first_source;
  return {first, first + 1, parameters.value(first), parameters.value(first + 1)};
}

void CountProduct(Context& context, const Product& p) {
  CountWork(context.profiler, 2.0 * static_cast<double>(p.out_factor.shape[0]) *
                                  static_cast<double>(p.out_factor.shape[1]) *
                                  static_cast<double>(p.in_factor.shape[1]));
}

Status MergeMixture(Context& context, const ParameterSet& parameters, int64_t index,
                    const MixtureKey* key) {
  const Parameter& weight = parameters[index];
  std::vector<float> p(static_cast<size_t>(weight.sources),
                       1.0f / static_cast<float>(weight.sources));
  if (key != nullptr) p = MixtureOf(*key, weight.name, weight.sources);
  for (int64_t k = 0; k < weight.sources; ++k) {
    WEFT_RETURN_IF_ERROR(
        kernels::AddScaled(context.stream, {.x = parameters.value(weight.first_source + k),
                                            .y = parameters.value(index),
                                            .factor = p[k],
                                            .keep = k == 0 ? 0.0f : 1.0f}));
  }
  CountWork(context.profiler, 2.0 * static_cast<double>(weight.sources) *
                                  static_cast<double>(weight.shape.Elements()));
  return OkStatus();
}

Status SplitMixture(Context& context, const ParameterSet& parameters, int64_t index,
                    const MixtureKey& key) {
  const Parameter& weight = parameters[index];
  const std::vector<float> p = MixtureOf(key, weight.name, weight.sources);
  for (int64_t k = 0; k < weight.sources; ++k) {
    WEFT_RETURN_IF_ERROR(
        kernels::AddScaled(context.stream, {.x = parameters.gradient(index),
                                            .y = parameters.gradient(weight.first_source + k),
                                            .factor = p[k],
                                            .keep = 0}));
  }
  CountWork(context.profiler,
            static_cast<double>(weight.sources) * static_cast<double>(weight.shape.Elements()));
  return OkStatus();
}

/// A matrix as f32: itself, or a copy that `storage` holds.
Result<TensorView> InF32(Context& context, const TensorView& matrix, Tensor& storage) {
  if (matrix.dtype == DType::kF32) return matrix;
  WEFT_ASSIGN_OR_RETURN(storage,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, matrix.shape));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {matrix, storage}));
  return storage.view();
}

/// The gradient of a weight, packed for both products with it.
class PackedGradient {
 public:
  Status Pack(Context& context, const TensorView& gradient) {
    const Shape& shape = gradient.shape;
    const bool fits = packed_ != nullptr && packed_->out_features() == shape[0] &&
                      packed_->in_features() == shape[1];
    if (!fits) {
      packed_.reset();
      WEFT_ASSIGN_OR_RETURN(packed_, kernels::NewPackedWeight(context.stream.device, shape[0],
                                                              shape[1], DType::kF32));
    }
    WEFT_RETURN_IF_ERROR(packed_->Pack(context.stream, gradient));
    return held_.Set(context.allocator, Component::kWorkspace, packed_->Bytes());
  }
  const kernels::PackedWeight* get() const { return packed_.get(); }

 private:
  std::unique_ptr<kernels::PackedWeight> packed_;
  ExternalBytes held_;
};

Status SplitProduct(Context& context, const ParameterSet& parameters, int64_t index,
                    PackedGradient& packed) {
  const Product p = ProductOf(parameters, index);
  WEFT_RETURN_IF_ERROR(packed.Pack(context, parameters.gradient(index)));
  Tensor storage;
  {
    WEFT_ASSIGN_OR_RETURN(const TensorView in_factor, InF32(context, p.in_factor, storage));
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(
        context.stream, {in_factor, packed.get(), {}, parameters.gradient(p.out_index)}));
  }
  storage = {};
  WEFT_ASSIGN_OR_RETURN(const TensorView out_factor, InF32(context, p.out_factor, storage));
  WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
      context.stream, {out_factor, packed.get(), parameters.gradient(p.in_index), false}));
  CountProduct(context, p);
  CountProduct(context, p);
  return OkStatus();
}

/// The weights that have factors, equal shapes one after the other.
std::vector<int64_t> WeightsWithFactors(const ParameterList& parameters) {
  std::vector<int64_t> weights;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].derived()) weights.push_back(i);
  }
  std::stable_sort(weights.begin(), weights.end(), [&](int64_t a, int64_t b) {
    return parameters[a].shape.dims < parameters[b].shape.dims;
  });
  return weights;
}

/// Makes the product of the factors of `index` the weight that it has: its smaller side becomes the
/// identity's.
Status StartProduct(const Stream& stream, const ParameterSet& parameters, int64_t index) {
  const Product p = ProductOf(parameters, index);
  const int64_t out = parameters[index].shape[0], in = parameters[index].shape[1];
  const bool wide = out < in;
  const TensorView identity = wide ? p.out_factor : p.in_factor;
  const TensorView rest = wide ? p.in_factor : p.out_factor;
  const int64_t n = std::min(out, in);
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(stream, parameters.value(index)));
  const auto* weight = copy.view().As<float>();
  // What the identity's factor has beyond n rows stays as it was drawn.
  TensorView square = identity;
  square.shape = {n, n};
  WEFT_RETURN_IF_ERROR(FillOnHost(stream, square, [&](const TensorView& host) {
    kernels::cpu::WithFloatType(host.dtype, [&]<class T>() {
      std::fill_n(host.As<T>(), n * n, FromFloat<T>(0));
      for (int64_t i = 0; i < n; ++i) host.As<T>()[i * n + i] = FromFloat<T>(1);
    });
  }));
  return FillOnHost(stream, rest, [&](const TensorView& host) {
    kernels::cpu::WithFloatType(host.dtype, [&]<class T>() {
      std::fill_n(host.As<T>(), host.shape.Elements(), FromFloat<T>(0));
      for (int64_t o = 0; o < out; ++o) {
        for (int64_t i = 0; i < in; ++i) {
          host.As<T>()[wide ? o * in + i : i * out + o] = FromFloat<T>(weight[o * in + i]);
        }
      }
    });
  });
}

bool IsMixture(const OverParameterizationSpec& spec) {
  return spec.kind == "majority_kernels";
}

/// Starts the factors. Those of a product are the weight and an identity, so that the network is
/// the plain one; what `inner` exceeds the weight's smaller side by is random beside zeros. Copies
/// of a mixture are drawn independently with a variance that gives mixtures that of the weight on
/// average (the deviation grows by sqrt((copies + 1) / 2)), or are all equal to an imported weight.
Status StartFactors(Context& context, const OverParameterizationSpec& spec,
                    const ParameterSet& parameters, ValuesFrom from) {
  for (int64_t i : WeightsWithFactors(parameters)) {
    const Parameter& weight = parameters[i];
    if (!IsMixture(spec)) {
      WEFT_RETURN_IF_ERROR(StartProduct(context.stream, parameters, i));
      continue;
    }
    for (int64_t k = 0; from == ValuesFrom::kImported && k < weight.sources; ++k) {
      WEFT_RETURN_IF_ERROR(kernels::Cast(
          context.stream, {parameters.value(i), parameters.value(weight.first_source + k)}));
    }
  }
  return OkStatus();
}

class OverParameterization : public Technique {
 public:
  explicit OverParameterization(OverParameterizationSpec spec) : spec_(std::move(spec)) {}

  Status OnParameters(ParameterSet& parameters) override {
    parameters_ = &parameters;
    WEFT_ASSIGN_OR_RETURN(const std::vector<bool> chosen, Choose(spec_, parameters));
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) RegisterFactors(parameters, static_cast<int64_t>(i));
    }
    parameters.AddValuesHook([this](Context& context, ValuesFrom from) {
      if (from != ValuesFrom::kCheckpoint) {
        WEFT_RETURN_IF_ERROR(StartFactors(context, spec_, *parameters_, from));
      }
      return MergeWeights(context, spec_, *parameters_, nullptr);
    });
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override {
    return IsMixture(spec_) ? "mixtures of weights are drawn on the host" : "";
  }

  bool WeightsDependOnStep() const override { return IsMixture(spec_); }

  Status BeforeForward(Context& context, std::optional<int64_t> step) override {
    const MixtureKey key{context.seed, step.value_or(0)};
    return MergeWeights(context, spec_, *parameters_, step ? &key : nullptr);
  }

  Status OnGradients(Context& context, int64_t step) override {
    return SplitGradients(context, spec_, *parameters_, {context.seed, step});
  }

 private:
  void RegisterFactors(ParameterList& parameters, int64_t index) const {
    const Parameter& weight = parameters[index];
    std::vector<ParameterList::Source> factors;
    for (const ParameterInfo& info :
         FactorsOf(spec_, {weight, weight.name, {weight.shape[0], weight.shape[1]}})) {
      const Shape shape{info.shape[0], info.shape[1]};
      factors.push_back({info.name, shape,
                         IsMixture(spec_) ? CopyStart(weight, spec_.copies) : RandomRows(shape),
                         info.parts});
    }
    parameters.Derive(index, std::move(factors));
  }

  OverParameterizationSpec spec_;
  ParameterSet* parameters_ = nullptr;
};

}  // namespace

std::unique_ptr<Technique> NewOverParameterization(const TechniqueInputs& inputs) {
  const OverParameterizationSpec& spec = inputs.model.over_parameterization;
  return spec.kind == "none" ? nullptr : std::make_unique<OverParameterization>(spec);
}

// The gaps between sorted uniform numbers; with 24 bits each, every one of them is exact in f32,
// and no library function is involved that machines could differ in.
std::vector<float> MixtureOf(const MixtureKey& key, const std::string& name, int64_t copies) {
  PhiloxStream stream(
      {key.seed, static_cast<uint32_t>(key.step), SiteHash((name + "/mixture").c_str())});
  constexpr uint32_t kOne = 1u << 24;
  std::vector<uint32_t> cuts;
  for (int64_t i = 1; i < copies; ++i) cuts.push_back(stream.Next() >> 8);
  std::sort(cuts.begin(), cuts.end());
  cuts.push_back(kOne);
  std::vector<float> p;
  uint32_t from = 0;
  for (uint32_t cut : cuts) {
    p.push_back(static_cast<float>(cut - from) / static_cast<float>(kOne));
    from = cut;
  }
  return p;
}

Status MergeWeights(Context& context, const OverParameterizationSpec& spec,
                    const ParameterSet& parameters, const MixtureKey* key) {
  ProfileScope scope(context.profiler, "merge weights");
  for (int64_t i : WeightsWithFactors(parameters)) {
    if (IsMixture(spec)) {
      WEFT_RETURN_IF_ERROR(MergeMixture(context, parameters, i, key));
      continue;
    }
    const Product p = ProductOf(parameters, i);
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {p.in_factor, p.out_factor, parameters.value(i), {}, false}));
    CountProduct(context, p);
  }
  return OkStatus();
}

Status SplitGradients(Context& context, const OverParameterizationSpec& spec,
                      const ParameterSet& parameters, const MixtureKey& key) {
  ProfileScope scope(context.profiler, "split gradients");
  PackedGradient packed;
  for (int64_t i : WeightsWithFactors(parameters)) {
    WEFT_RETURN_IF_ERROR(IsMixture(spec) ? SplitMixture(context, parameters, i, key)
                                         : SplitProduct(context, parameters, i, packed));
  }
  return OkStatus();
}

}  // namespace weft::engine
