#include "worker/engine/techniques/over_parameterization/over_parameterization.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/techniques/factor_products.h"
#include "worker/engine/techniques/over_parameterization/branches.h"
#include "worker/engine/techniques/over_parameterization/over_parameterization_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Initializer CopyStart(const Parameter& weight, int64_t copies) {
  Initializer initializer = weight.initializer;
  initializer.deviation *= std::sqrt(static_cast<double>(copies + 1) / 2);
  return initializer;
}

// Starts a factor whose first rows will become an identity.
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

Status SplitProduct(Context& context, const ParameterSet& parameters, int64_t index,
                    PackedGradient& packed) {
  const Product p = ProductOf(parameters, index);
  WEFT_RETURN_IF_ERROR(packed.Pack(context, parameters.gradient(index)));
  WEFT_RETURN_IF_ERROR(packed.ToOutFactor(context, p.in_factor, parameters.gradient(p.out_index)));
  return packed.ToInFactor(context, p.out_factor, parameters.gradient(p.in_index));
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

bool HasBranches(const OverParameterizationSpec& spec) {
  return spec.kind == "branches";
}

/// Starts the factors (of branches see StartBranches). Those of a product are the weight and an
/// identity, so that the network is the plain one; what `inner` exceeds the weight's smaller side
/// by is random, next to zeros. Copies of a mixture are drawn independently with a variance that
/// gives mixtures that of the weight on average (the deviation grows by sqrt((copies + 1) / 2)), or
/// are all equal to an imported weight.
Status StartFactors(Context& context, const OverParameterizationSpec& spec,
                    const ParameterSet& parameters, ValuesFrom from) {
  for (int64_t i : DerivedMatrices(parameters)) {
    const Parameter& weight = parameters[i];
    if (!IsMixture(spec)) {
      WEFT_RETURN_IF_ERROR(HasBranches(spec) ? StartBranches(context.stream, parameters, i)
                                             : StartProduct(context.stream, parameters, i));
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
    const std::vector<bool> chosen = ChooseTrainedMatrices(spec_.layers, parameters);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) RegisterFactors(parameters, static_cast<int64_t>(i));
    }
    parameters.AddValuesHook([this](Context& context, ValuesFrom from) {
      if (from != ValuesFrom::kCheckpoint) {
        WEFT_RETURN_IF_ERROR(StartFactors(context, spec_, *parameters_, from));
        // Merging takes memory, which there may not be yet.
        if (HasBranches(spec_)) return OkStatus();
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

  Status OnDerivedGradients(Context& context, std::span<const int64_t> derived,
                            int64_t step) override {
    return SplitGradients(context, spec_, *parameters_, derived, {context.seed, step});
  }

 private:
  void RegisterFactors(ParameterList& parameters, int64_t index) const {
    const Parameter& weight = parameters[index];
    std::vector<ParameterList::Source> factors;
    for (const ParameterInfo& info :
         FactorsOf(spec_, {weight, weight.name, {weight.shape[0], weight.shape[1]}})) {
      const bool vector = info.shape.size() == 1;
      const Shape shape = vector ? Shape{info.shape[0]} : Shape{info.shape[0], info.shape[1]};
      factors.push_back({info.name, shape, StartOf(weight, shape), info.parts});
    }
    parameters.Derive(index, std::move(factors));
  }

  Initializer StartOf(const Parameter& weight, const Shape& shape) const {
    if (IsMixture(spec_)) return CopyStart(weight, spec_.copies);
    const bool full_branch = HasBranches(spec_) && shape == weight.shape;
    return full_branch ? weight.initializer : RandomRows(shape);
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
  for (int64_t i : DerivedMatrices(parameters)) {
    if (IsMixture(spec)) {
      WEFT_RETURN_IF_ERROR(MergeMixture(context, parameters, i, key));
      continue;
    }
    if (HasBranches(spec)) {
      WEFT_RETURN_IF_ERROR(MergeBranches(context, parameters, i));
      continue;
    }
    const Product p = ProductOf(parameters, i);
    WEFT_RETURN_IF_ERROR(MultiplyFactors(context, p.out_factor, p.in_factor, parameters.value(i),
                                         /*accumulate=*/false));
  }
  return OkStatus();
}

Status SplitGradients(Context& context, const OverParameterizationSpec& spec,
                      const ParameterSet& parameters, std::span<const int64_t> weights,
                      const MixtureKey& key) {
  ProfileScope scope(context.profiler, "split gradients");
  PackedGradient packed;
  for (const int64_t i : weights) {
    WEFT_RETURN_IF_ERROR(IsMixture(spec)     ? SplitMixture(context, parameters, i, key)
                         : HasBranches(spec) ? SplitBranches(context, parameters, i)
                                             : SplitProduct(context, parameters, i, packed));
  }
  return OkStatus();
}

}  // namespace weft::engine
