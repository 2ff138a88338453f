#include <array>
#include <cmath>
#include <memory>

#include "kernels/activation/activation_ref.h"
#include "kernels/linear/linear_ref.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mask/sparse24_patterns.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

enum class Product : uint8_t { kForward, kBackwardInput, kBackwardWeight, kSampledWeight };

// kRows keeps two of each four of a row, but not of a column; kAny half of all elements, kEighth an
// eighth.
enum class MaskKind : uint8_t { kTransposable, kRows, kAny, kEighth };

// An activation is of a product that was rounded, and is rounded itself.
constexpr int kRoundings = 3;

double SquaredRelu(double x) {
  return ref::Relu(x) * ref::Relu(x);
}
double SquaredReluDerivative(double x) {
  return 2 * ref::Relu(x);
}

// An activation, and in float64 what it or its gate goes through.
struct Activation {
  ProductActivation kind;
  const char* name;
  ref::UnitFunctions functions;

  bool gated() const { return IsGated(kind); }
  bool is_gelu() const {
    return kind == ProductActivation::kTanhGelu || kind == ProductActivation::kErfGelu;
  }
};
constexpr Activation kActivations[] = {
    {ProductActivation::kTanhGelu, "/gelu", {ref::Gelu, ref::GeluDerivative}},
    {ProductActivation::kErfGelu, "/erf_gelu", {ref::ErfGelu, ref::ErfGeluDerivative}},
    {ProductActivation::kSquaredRelu, "/squared_relu", {SquaredRelu, SquaredReluDerivative}},
    {ProductActivation::kSwiGlu, "/swiglu", {ref::Silu, ref::SiluDerivative}},
    {ProductActivation::kGeglu, "/geglu", {ref::Gelu, ref::GeluDerivative}},
    {ProductActivation::kErfGeglu, "/erf_geglu", {ref::ErfGelu, ref::ErfGeluDerivative}},
};

// Activates rows of `columns` numbers; a gated row has gate and up, half of it each.
std::vector<double> Activated(const Activation& activation, const std::vector<double>& x,
                              int64_t columns) {
  std::vector<double> y;
  const auto count = static_cast<int64_t>(x.size());
  const int64_t width = activation.gated() ? columns / 2 : columns;
  for (int64_t row = 0; row < count; row += columns) {
    for (int64_t c = 0; c < width; ++c) {
      const double value = activation.functions.value(x[row + c]);
      y.push_back(activation.gated() ? value * x[row + width + c] : value);
    }
  }
  return y;
}

// The gradient of such an x from that of its result.
std::vector<double> Differentiated(const Activation& activation, const std::vector<double>& dy,
                                   const std::vector<double>& x, int64_t columns) {
  std::vector<double> dx(x.size());
  const auto count = static_cast<int64_t>(x.size());
  const int64_t width = activation.gated() ? columns / 2 : columns;
  size_t next = 0;
  for (int64_t row = 0; row < count; row += columns) {
    for (int64_t c = 0; c < width; ++c) {
      const double d = dy[next++], at = x[row + c];
      dx[row + c] = d * activation.functions.derivative(at);
      if (!activation.gated()) continue;
      dx[row + c] *= x[row + width + c];
      dx[row + width + c] = d * activation.functions.value(at);
    }
  }
  return dx;
}

struct Problem {
  int64_t rows, in, out;
  DType dtype = DType::kF32;
  MaskKind mask = MaskKind::kTransposable;
  int64_t padding = 0;  // behind each row of x, y, dx and dy
  bool bias = false, accumulate = false;

  std::string Name(Product product) const {
    const std::string_view what = product == Product::kForward          ? "forward"
                                  : product == Product::kBackwardInput  ? "backward_input"
                                  : product == Product::kBackwardWeight ? "backward_weight"
                                                                        : "sampled_weight";
    return "sparse24_" + std::string(what) + "/" + std::to_string(rows) + "x" + std::to_string(in) +
           "x" + std::to_string(out) + "/" + std::string(DTypeName(dtype)) +
           (mask == MaskKind::kEighth ? "/eighth"
            : mask == MaskKind::kAny  ? "/any_mask"
            : mask == MaskKind::kRows ? "/mask_of_rows"
                                      : "") +
           (padding > 0 ? "/padded" : "") + (bias ? "/bias" : "") +
           (accumulate ? "/accumulate" : "");
  }
};

// A mask, and the weight under it.
TestTensor& RandomMask(OpRun& run, const Problem& p) {
  TestTensor& mask = run.tensors.emplace_back(DType::kU16, Shape{p.out / 4, p.in / 4});
  std::vector<double> blocks(p.out / 4 * p.in / 4);
  for (double& block : blocks) {
    switch (p.mask) {
      case MaskKind::kTransposable:
        block = kTransposable.of[run.rng.Below(kTransposablePatterns)].bits;
        break;
      case MaskKind::kRows:
        for (int row = 0; row < 4; ++row) {
          const KeptPair pair = kKeptPairs[run.rng.Below(kPairs)];
          block += (1 << pair.first | 1 << pair.second) << (4 * row);
        }
        break;
      case MaskKind::kAny:
        block = static_cast<double>(run.rng.Below(1 << 16));
        break;
      case MaskKind::kEighth:
        block = static_cast<double>(run.rng.Below(1 << 16) & run.rng.Below(1 << 16) &
                                    run.rng.Below(1 << 16));
        break;
    }
  }
  return mask.Assign(blocks);
}

std::vector<double> Masked(const std::vector<double>& weight, const std::vector<double>& mask,
                           int64_t in) {
  std::vector<double> masked = weight;
  for (size_t i = 0; i < masked.size(); ++i) {
    const int64_t row = static_cast<int64_t>(i) / in, column = static_cast<int64_t>(i) % in;
    const auto block = static_cast<int>(mask[row / 4 * (in / 4) + column / 4]);
    if ((block >> (4 * (row % 4) + column % 4) & 1) == 0) masked[i] = 0;
  }
  return masked;
}

// With elements that bf16 and f16 hold exactly, so that packing loses nothing.
TestTensor& RandomWeight(OpRun& run, const Problem& p) {
  TestTensor& weight = run.Input(DType::kF32, {p.out, p.in});
  if (p.dtype == DType::kF32) return weight;
  std::vector<double> rounded = weight.Values();
  for (double& value : rounded) value = std::round(value * 128) / 128;
  return weight.Assign(rounded);
}

// A test makes the weight each time, since its form follows the instruction set; what is timed is
// the product.
void BuildWithWeight(OpRun& run, const Problem& p, Product product, bool timed) {
  const bool forward = product == Product::kForward;
  TestTensor& weight = timed ? run.Input(DType::kF32, {p.out, p.in}) : RandomWeight(run, p);
  TestTensor& mask = RandomMask(run, p);
  TestTensor& from = run.Input(p.dtype, {p.rows, forward ? p.in : p.out}, p.padding);
  TestTensor* bias = p.bias ? &run.Input(DType::kF32, {p.out}) : nullptr;
  TestTensor& to = run.Output(
      forward ? "y" : "dx", p.dtype, {p.rows, forward ? p.out : p.in}, p.padding,
      forward ? p.in : p.out, [=, &weight, &mask, &from] {
        const std::vector<double> w = Masked(weight.Values(), mask.Values(), p.in);
        if (!forward) return LinearBackwardInputRef(from.Values(), w, {}, p.rows, p.in, p.out);
        return LinearForwardRef(from.Values(), w, bias ? bias->Values() : std::vector<double>(),
                                p.rows, p.in, p.out);
      });
  auto made = std::make_shared<std::unique_ptr<SparseWeight>>();
  run.run = [=, &weight, &mask, &from, &to](const Stream& stream) -> Status {
    std::unique_ptr<SparseWeight>& sparse = *made;
    if (sparse == nullptr || !timed) {
      WEFT_ASSIGN_OR_RETURN(sparse, NewSparseWeight(stream.device, p.out, p.in, p.dtype));
      WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask.view()));
      WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight.view()));
    }
    if (!forward) {
      return SparseBackwardInput(stream,
                                 {.dy = from.view(), .weight = sparse.get(), .dx = to.view()});
    }
    return SparseForward(stream, {.x = from.view(),
                                  .weight = sparse.get(),
                                  .bias = bias ? bias->view() : TensorView(),
                                  .y = to.view()});
  };
}

// y and its activation.
void BuildForwardActivated(OpRun& run, const Problem& p, const Activation& activation) {
  TestTensor& weight = RandomWeight(run, p);
  TestTensor& mask = RandomMask(run, p);
  // Sums are around 0, where activations bend.
  const double scale = 1 / std::sqrt(static_cast<double>(p.in));
  TestTensor& x = run.Input(p.dtype, {p.rows, p.in}, 0, scale);
  TestTensor& bias = run.Input(DType::kF32, {p.out});
  const auto product = [=, &weight, &mask, &x, &bias] {
    return LinearForwardRef(x.Values(), Masked(weight.Values(), mask.Values(), p.in), bias.Values(),
                            p.rows, p.in, p.out);
  };
  TestTensor& y = run.Output("y", p.dtype, {p.rows, p.out}, 0, p.in, product);
  const int64_t width = activation.gated() ? p.out / 2 : p.out;
  TestTensor& active = run.Output("active", p.dtype, {p.rows, width}, 0, p.in,
                                  [=] { return Activated(activation, product(), p.out); });
  run.outputs.back().roundings = kRoundings;
  run.run = [=, &weight, &mask, &x, &bias, &y, &active](const Stream& stream) -> Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SparseWeight> sparse,
                          NewSparseWeight(stream.device, p.out, p.in, p.dtype));
    WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask.view()));
    WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight.view()));
    return SparseForward(stream, {.x = x.view(),
                                  .weight = sparse.get(),
                                  .bias = bias.view(),
                                  .y = y.view(),
                                  .active = active.view(),
                                  .activation = activation.kind});
  };
}

// dx on its way through an activation, and that again.
void BuildBackwardActivated(OpRun& run, const Problem& p, const Activation& activation) {
  const int64_t columns = activation.gated() ? 2 * p.in : p.in;
  TestTensor& weight = RandomWeight(run, p);
  TestTensor& mask = RandomMask(run, p);
  TestTensor& dy = run.Input(p.dtype, {p.rows, p.out});
  TestTensor& before = run.Input(p.dtype, {p.rows, columns});
  TestTensor& dx =
      run.Output("dx", p.dtype, {p.rows, columns}, 0, p.out, [=, &weight, &mask, &dy, &before] {
        const std::vector<double> w = Masked(weight.Values(), mask.Values(), p.in);
        return Differentiated(activation,
                              LinearBackwardInputRef(dy.Values(), w, {}, p.rows, p.in, p.out),
                              before.Values(), columns);
      });
  run.outputs.back().roundings = kRoundings;
  // The roundings within the formula count like those of a sum.
  TestTensor& active = run.Output("active", p.dtype, {p.rows, p.in}, 0, 4, [=, &before] {
    return Activated(activation, before.Values(), columns);
  });
  run.run = [=, &weight, &mask, &dy, &before, &dx, &active](const Stream& stream) -> Status {
    WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<SparseWeight> sparse,
                          NewSparseWeight(stream.device, p.out, p.in, p.dtype));
    WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask.view()));
    WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight.view()));
    return SparseBackwardInput(stream, {.dy = dy.view(),
                                        .weight = sparse.get(),
                                        .dx = dx.view(),
                                        .before = before.view(),
                                        .active = active.view(),
                                        .activation = activation.kind});
  };
}

// At what the mask keeps; the rest of dW becomes 0, or stays.
void BuildSampledGradient(OpRun& run, const Problem& p, bool timed) {
  TestTensor& mask = RandomMask(run, p);
  const TestTensor& weight = run.Input(DType::kF32, {p.out, p.in});
  TestTensor& x = run.Input(p.dtype, {p.rows, p.in}, p.padding);
  TestTensor& dy = run.Input(p.dtype, {p.rows, p.out}, p.padding);
  TestTensor& dweight = run.tensors.emplace_back(DType::kF32, Shape{p.out, p.in});
  dweight.Random(run.rng);
  run.Check("dweight", dweight, p.rows, [=, &x, &dy, &mask, &dweight] {
    const std::vector<double> before =
        p.accumulate ? dweight.InitialValues() : std::vector<double>(p.out * p.in);
    const std::vector<double> gradient = LinearBackwardWeightRef(
        x.Values(), dy.Values(), std::vector<double>(p.out * p.in), p.rows, p.in, p.out);
    std::vector<double> sampled = Masked(gradient, mask.Values(), p.in);
    for (size_t i = 0; i < sampled.size(); ++i) sampled[i] += before[i];
    return sampled;
  });
  auto made = std::make_shared<std::unique_ptr<SparseWeight>>();
  run.run = [=, &mask, &weight, &x, &dy, &dweight](const Stream& stream) -> Status {
    std::unique_ptr<SparseWeight>& sparse = *made;
    if (sparse == nullptr || !timed) {
      WEFT_ASSIGN_OR_RETURN(sparse, NewSparseWeight(stream.device, p.out, p.in, p.dtype));
      WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask.view()));
      WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight.view()));
    }
    return SampledBackwardWeight(stream, {.x = x.view(),
                                          .dy = dy.view(),
                                          .weight = sparse.get(),
                                          .dweight = dweight.view(),
                                          .accumulate = p.accumulate});
  };
}

// Makes the estimate on the way, to be timed: it alone knows the two of four elements.
void BuildEstimatedGradient(OpRun& run, const Problem& p) {
  const TestTensor& x = run.Input(p.dtype, {p.rows, p.in});
  const TestTensor& dy = run.Input(p.dtype, {p.rows, p.out});
  const TestTensor& dweight = run.Input(DType::kF32, {p.out, p.in});
  run.run = [=, &x, &dy, &dweight](const Stream& stream) {
    const MvueArgs numbers = {.x = {}, .y = {}, .key = {.seed = 1}};
    return SparseBackwardWeight(
        stream, {.x = x.view(), .dy = dy.view(), .dweight = dweight.view(), .estimate = &numbers});
  };
}

// dy is 2:4 sparse along its rows, or keeps any elements.
void BuildWeightGradient(OpRun& run, const Problem& p) {
  TestTensor& x = run.Input(p.dtype, {p.rows, p.in}, p.padding);
  TestTensor& dy = run.tensors.emplace_back(p.dtype, Shape{p.rows, p.out}, p.padding);
  std::vector<double> values(p.rows * p.out);
  for (int64_t row = 0; row < p.rows; ++row) {
    for (int64_t c = 0; c < p.out; ++c) {
      const auto word =
          Philox({.seed = 3, .step = 0, .site = 1}, static_cast<uint64_t>(row / 4 * p.out + c))
              .v[0];
      const KeptPair pair = kKeptPairs[word % kPairs];
      const bool kept = p.mask == MaskKind::kAny ? run.rng.Below(2) == 0
                                                 : row % 4 == pair.first || row % 4 == pair.second;
      values[row * p.out + c] = kept ? run.rng.Uniform() - 0.5 : 0;
    }
  }
  dy.Assign(values);
  TestTensor& dweight = run.tensors.emplace_back(DType::kF32, Shape{p.out, p.in});
  if (p.accumulate) dweight.Random(run.rng);
  run.Check("dweight", dweight, p.rows, [=, &x, &dy, &dweight] {
    return LinearBackwardWeightRef(
        x.Values(), dy.Values(),
        p.accumulate ? dweight.InitialValues() : std::vector<double>(p.out * p.in), p.rows, p.in,
        p.out);
  });
  run.run = [=, &x, &dy, &dweight](const Stream& stream) {
    return SparseBackwardWeight(
        stream,
        {.x = x.view(), .dy = dy.view(), .dweight = dweight.view(), .accumulate = p.accumulate});
  };
}

OpCase Case(const Problem& p, Product product, CaseUse use) {
  const bool timed = use != CaseUse::kTest, weight_gradient = product == Product::kBackwardWeight;
  return {p.Name(product) + (timed && weight_gradient ? "/estimate" : ""), use, [=](OpRun& run) {
            if (product == Product::kSampledWeight) {
              BuildSampledGradient(run, p, timed);
            } else if (!weight_gradient) {
              BuildWithWeight(run, p, product, timed);
            } else if (timed) {
              BuildEstimatedGradient(run, p);
            } else {
              BuildWeightGradient(run, p);
            }
            // Half of those of a dense product, or an eighth.
            const double kept = p.mask == MaskKind::kEighth ? 1.0 / 8 : 1.0 / 2;
            run.flops = 2 * kept * static_cast<double>(p.rows * p.in * p.out);
            run.compute = p.dtype;
            const auto size = static_cast<int64_t>(DTypeSize(p.dtype)), elements = p.in * p.out;
            const bool writes_weight = weight_gradient || product == Product::kSampledWeight;
            run.bytes = static_cast<double>(
                p.rows * (p.in + p.out) * size +
                (writes_weight ? 8 * elements : elements / 2 * size + elements / 8));
          }};
}

constexpr Product kProducts[] = {Product::kForward, Product::kBackwardInput,
                                 Product::kBackwardWeight};

void AddActivationCases(std::vector<OpCase>& cases) {
  const Problem problems[] = {
      {.rows = 5, .in = 16, .out = 24},
      {.rows = 33, .in = 72, .out = 136, .dtype = DType::kBF16},
      {.rows = 17, .in = 264, .out = 40, .dtype = DType::kF16},
      // Rows that no device reads 16 bytes at a time, and a mask that is not sparse for one.
      {.rows = 7, .in = 20, .out = 12, .dtype = DType::kBF16},
      {.rows = 9, .in = 16, .out = 24, .dtype = DType::kBF16, .mask = MaskKind::kAny},
      // Gates that blocks of a device have next to their up, and several strips of a CPU's rows.
      {.rows = 35, .in = 64, .out = 256, .dtype = DType::kBF16},
      {.rows = 19, .in = 16, .out = 1096},
  };
  for (const Problem& p : problems) {
    for (const Activation& activation : kActivations) {
      // What rounds y doubles in its square, and a gated activation has it twice: more than what a
      // result of 16 bits may be off. Tests of their bits against those of passes stand for these.
      const bool forward = activation.is_gelu() || p.dtype == DType::kF32;
      if (forward && (!activation.gated() || p.out % 8 == 0)) {
        cases.push_back({p.Name(Product::kForward) + activation.name, CaseUse::kTest,
                         [=](OpRun& run) { BuildForwardActivated(run, p, activation); }});
      }
      cases.push_back({p.Name(Product::kBackwardInput) + activation.name, CaseUse::kTest,
                       [=](OpRun& run) { BuildBackwardActivated(run, p, activation); }});
    }
  }
}

// Masks that keep any elements.
void AddUnstructuredCases(std::vector<OpCase>& cases) {
  const Problem problems[] = {
      {.rows = 1, .in = 4, .out = 4, .mask = MaskKind::kAny},
      {.rows = 33, .in = 16, .out = 8, .mask = MaskKind::kEighth, .padding = 8},
      {.rows = 67, .in = 500, .out = 52, .mask = MaskKind::kAny, .padding = 8, .accumulate = true},
      {.rows = 461, .in = 232, .out = 308, .mask = MaskKind::kEighth},
      {.rows = 130, .in = 68, .out = 300, .dtype = DType::kBF16, .mask = MaskKind::kEighth},
      {.rows = 65,
       .in = 300,
       .out = 72,
       .dtype = DType::kF16,
       .mask = MaskKind::kAny,
       .accumulate = true},
      // More rows than are packed at a time, and more sums than stay in the cache.
      {.rows = 2100, .in = 64, .out = 2048, .mask = MaskKind::kEighth},
  };
  for (const Problem& p : problems) {
    cases.push_back(Case(p, Product::kSampledWeight, CaseUse::kTest));
  }
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{768, 3072}, {3072, 768}}) {
    for (const Product product :
         {Product::kForward, Product::kBackwardInput, Product::kSampledWeight}) {
      cases.push_back(Case({.rows = 2048, .in = in, .out = out, .mask = MaskKind::kEighth}, product,
                           CaseUse::kSpeed));
    }
  }
}

}  // namespace

std::vector<OpCase> Sparse24Cases() {
  std::vector<OpCase> cases;
  AddActivationCases(cases);
  AddUnstructuredCases(cases);
  const Problem problems[] = {
      {.rows = 1, .in = 4, .out = 4},
      {.rows = 3, .in = 16, .out = 8, .bias = true},
      {.rows = 67, .in = 36, .out = 52, .padding = 8},
      {.rows = 130, .in = 232, .out = 12, .bias = true, .accumulate = true},
      {.rows = 40, .in = 500, .out = 308, .mask = MaskKind::kAny, .padding = 8, .bias = true},
      {.rows = 461, .in = 20, .out = 132, .mask = MaskKind::kAny, .accumulate = true},
      {.rows = 33, .in = 68, .out = 300, .dtype = DType::kBF16, .bias = true},
      {.rows = 65, .in = 300, .out = 72, .dtype = DType::kF16, .accumulate = true},
      // Rows that a device reads 16 bytes at a time, and several of its blocks and steps.
      {.rows = 203, .in = 192, .out = 264, .dtype = DType::kBF16, .padding = 8, .bias = true},
      {.rows = 136, .in = 264, .out = 136, .dtype = DType::kF16, .accumulate = true},
      {.rows = 456, .in = 72, .out = 328, .dtype = DType::kBF16, .accumulate = true},
      // Sums over so many rows that a device cuts them into parts.
      {.rows = 2103, .in = 24, .out = 8, .dtype = DType::kBF16, .accumulate = true},
      {.rows = 3200, .in = 12, .out = 12, .dtype = DType::kF16},
      // More rows of the result than stay in the cache at a time, few of x.
      {.rows = 5, .in = 8, .out = 4100},
  };
  // A device multiplies gradients that are not sparse only in f32.
  const Problem dense_on_devices[] = {
      {.rows = 21, .in = 40, .out = 24, .dtype = DType::kBF16, .mask = MaskKind::kAny},
      {.rows = 9,
       .in = 140,
       .out = 20,
       .dtype = DType::kF16,
       .mask = MaskKind::kRows,
       .bias = true},
  };
  for (const Problem& p : dense_on_devices) {
    cases.push_back(Case(p, Product::kForward, CaseUse::kTest));
    cases.push_back(Case(p, Product::kBackwardInput, CaseUse::kTest));
  }
  for (const Product product : kProducts) {
    for (const Problem& p : problems) cases.push_back(Case(p, product, CaseUse::kTest));
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{768, 3072}, {3072, 768}}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        cases.push_back(
            Case({.rows = 2048, .in = in, .out = out, .dtype = dtype}, product, CaseUse::kSpeed));
      }
    }
    // The MLPs of GPT-2 124M and 1.5B, and of a Llama of about 1B.
    for (const auto& [rows, in, out] : {std::array<int64_t, 3>{65536, 768, 3072},
                                        {65536, 3072, 768},
                                        {16384, 1600, 6400},
                                        {16384, 6400, 1600},
                                        {16384, 2048, 8192},
                                        {16384, 8192, 2048}}) {
      cases.push_back(Case({.rows = rows, .in = in, .out = out, .dtype = DType::kBF16}, product,
                           CaseUse::kDeviceSpeed));
    }
  }
  return cases;
}

}  // namespace weft::kernels::testing
