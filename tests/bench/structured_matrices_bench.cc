// Times products with structured matrices against our own dense ones, in turns in one run, as the
// engine computes them:
//   up, down   a layer of an MLP (width, 4 width, width): forward, input gradient, weight gradient.
//              Each gradient has a preparation of its own, which a step shares
//   mlp        the MLP forward and backward, with the packing of its weights
//
//   structured_matrices_bench [--json FILE] [--threads N] [--widths 512,1024,2048] [--tokens 1024]

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/structured_matrices/structured_products.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {
namespace {

struct Options {
  std::vector<int64_t> widths = {512, 1024, 2048};
  int64_t tokens = 1024;
  int rounds = 7;
};

struct Kind {
  std::string name;
  StructuredMatricesSpec spec;
};

/// The first is dense.
std::vector<Kind> Kinds() {
  std::vector<Kind> kinds = {{"dense", {}}, {"monarch4", {}}, {"monarch8", {}}, {"pixelfly", {}}};
  kinds[1].spec.kind = kinds[2].spec.kind = "monarch";
  kinds[1].spec.blocks = 4;
  kinds[2].spec.blocks = 8;
  kinds[3].spec.kind = "pixelfly";
  return kinds;
}

ModelSpec ModelWith(const StructuredMatricesSpec& spec) {
  ModelSpec model;
  model.structured_matrices = spec;
  return model;
}

Result<Tensor> Normal(Context& context, DType type, const Shape& shape, uint32_t site) {
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::New(context, Component::kActivations, type, shape));
  PhiloxStream random({.seed = 1, .step = 0, .site = site});
  kernels::cpu::WithFloatType(type, [&]<class T>() {
    for (int64_t i = 0; i < shape.Elements(); ++i) {
      tensor.As<T>()[i] = FromFloat<T>(static_cast<float>(random.Normal()));
    }
  });
  return tensor;
}

/// A layer with the products of a kind.
class Layer {
 public:
  Layer(const StructuredMatricesSpec& spec, DType compute, int64_t in, int64_t out)
      : compute_(compute), factory_(ModelWith(spec)) {
    ParameterInfo weight;
    weight.shape = {out, in};
    weight.role = ParameterRole::kMlpUp;
    weight.name = "layer.weight";
    const std::vector<ParameterInfo> tensors = factory_.ReplacementsOf(weight);
    OutputWeight output{.rows = out, .tensors = static_cast<int64_t>(tensors.size())};
    for (const ParameterInfo& tensor : tensors) {
      parameters_.Register(tensor.name, {tensor.shape[0], tensor.shape[1]}, tensor.role,
                           {.in_place_of = weight.name,
                            .weight_shape = {out, in},
                            .parts = tensor.parts,
                            .read_directly = tensor.read_directly});
    }
    if (tensors.empty()) parameters_.Register(weight.name, {out, in}, weight.role);
    for (int64_t i = 0; i < parameters_.size(); ++i) parameters_.SetStart(i, {.deviation = 0.02});
    products_ = factory_.Make(
        {.parameters = &parameters_, .weights = {output}, .in_features = in, .compute = compute});
  }

  Status Init(Context& context, int64_t tokens) {
    WEFT_RETURN_IF_ERROR(parameters_.Allocate(context, /*with_gradients=*/true));
    WEFT_RETURN_IF_ERROR(parameters_.Initialize(1));
    WEFT_RETURN_IF_ERROR(factory_.Allocate(context));
    const Shape& weight =
        parameters_[0].in_place_of.empty() ? parameters_[0].shape : parameters_[0].weight_shape;
    WEFT_ASSIGN_OR_RETURN(x, Normal(context, compute_, {tokens, weight[1]}, 2));
    WEFT_ASSIGN_OR_RETURN(dy, Normal(context, compute_, {tokens, weight[0]}, 3));
    WEFT_ASSIGN_OR_RETURN(y, Normal(context, compute_, {tokens, weight[0]}, 4));
    WEFT_ASSIGN_OR_RETURN(dx, Normal(context, compute_, {tokens, weight[1]}, 5));
    target_ = {.columns = weight[0], .accumulate = true};
    const bool replaced = !parameters_[0].in_place_of.empty();
    for (int64_t i = 0; i < parameters_.size(); ++i) {
      const TensorView gradient = parameters_.gradient(i);
      std::fill_n(gradient.As<float>(), gradient.shape.Elements(), 0.0f);
      if (replaced) target_.dtensors.push_back(gradient);
    }
    if (!replaced) target_.dweight = parameters_.gradient(0);
    return Pack(context);
  }

  Status Pack(Context& context) { return products_->Pack(context, Repack::kAll); }
  Status Forward(Context& context, const GeluValue& active = {}) {
    return products_->Forward(context, x, y, active, {.training = true});
  }
  Result<OutputGradient> Prepare(Context& context, bool for_input, bool for_weight) {
    return products_->Prepare(context, dy, {.for_input = for_input, .for_weight = for_weight});
  }
  Status InputGradient(Context& context, const OutputGradient& gradient,
                       const Tensor& before = {}) {
    return products_->InputGradient(context, gradient, dx, before, {});
  }
  Status WeightGradient(Context& context, const OutputGradient& gradient) {
    return products_->WeightGradient(context, x, gradient, {&target_, 1});
  }

  Tensor x, y, dx, dy;

 private:
  DType compute_;
  ParameterSet parameters_;
  StructuredProductsFactory factory_;
  std::unique_ptr<WeightProducts> products_;
  WeightGradientTarget target_;
};

/// An MLP: what `up` makes is what `down` reads.
struct Mlp {
  Layer up, down;

  Mlp(const StructuredMatricesSpec& spec, DType compute, int64_t width)
      : up(spec, compute, width, 4 * width), down(spec, compute, 4 * width, width) {}

  Status Step(Context& context) {
    WEFT_RETURN_IF_ERROR(up.Pack(context));
    WEFT_RETURN_IF_ERROR(down.Pack(context));
    WEFT_RETURN_IF_ERROR(up.Forward(context, {.value = down.x}));
    WEFT_RETURN_IF_ERROR(down.Forward(context));
    {
      WEFT_ASSIGN_OR_RETURN(const OutputGradient dy, down.Prepare(context, true, true));
      WEFT_RETURN_IF_ERROR(down.WeightGradient(context, dy));
      WEFT_RETURN_IF_ERROR(down.InputGradient(context, dy, up.y));
    }
    WEFT_ASSIGN_OR_RETURN(const OutputGradient dy, up.Prepare(context, true, true));
    WEFT_RETURN_IF_ERROR(up.WeightGradient(context, dy));
    return up.InputGradient(context, dy);
  }
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    context_.allocator = &allocator_;
    std::printf("%-5s %-9s %-13s %6s %7s %12s %16s %7s\n", "", "kind", "part", "width", "tokens",
                "dense [ms]", "structured [ms]", "ratio");
  }

  Status Run() {
    for (const int64_t width : options_.widths) {
      for (const DType type : {DType::kF32, DType::kBF16}) {
        WEFT_RETURN_IF_ERROR(RunWidth(width, type));
      }
    }
    return OkStatus();
  }

  const Json& rows() const { return rows_; }

 private:
  using Work = std::function<Status(Mlp&)>;

  Status RunWidth(int64_t width, DType type) {
    std::vector<std::unique_ptr<Mlp>> mlps;
    for (const Kind& kind : kinds_) {
      mlps.push_back(std::make_unique<Mlp>(kind.spec, type, width));
      WEFT_RETURN_IF_ERROR(mlps.back()->up.Init(context_, options_.tokens));
      WEFT_RETURN_IF_ERROR(mlps.back()->down.Init(context_, options_.tokens));
      // The gradient of what `up` makes is written where it is read.
      mlps.back()->up.dy = mlps.back()->down.dx;
    }
    for (Layer Mlp::*layer : {&Mlp::up, &Mlp::down}) {
      const std::string name = layer == &Mlp::up ? "up " : "down ";
      WEFT_RETURN_IF_ERROR(Time(name + "forward", width, type, mlps,
                                [&](Mlp& mlp) { return (mlp.*layer).Forward(context_); }));
      WEFT_RETURN_IF_ERROR(Time(name + "input", width, type, mlps, [&](Mlp& mlp) -> Status {
        WEFT_ASSIGN_OR_RETURN(const OutputGradient dy, (mlp.*layer).Prepare(context_, true, false));
        return (mlp.*layer).InputGradient(context_, dy);
      }));
      WEFT_RETURN_IF_ERROR(Time(name + "weight", width, type, mlps, [&](Mlp& mlp) -> Status {
        WEFT_ASSIGN_OR_RETURN(const OutputGradient dy, (mlp.*layer).Prepare(context_, false, true));
        return (mlp.*layer).WeightGradient(context_, dy);
      }));
    }
    return Time("mlp", width, type, mlps, [&](Mlp& mlp) { return mlp.Step(context_); });
  }

  /// Medians of rounds in turns, after one to warm up.
  Status Time(const std::string& part, int64_t width, DType type,
              const std::vector<std::unique_ptr<Mlp>>& mlps, const Work& work) {
    std::vector<std::vector<double>> seconds(mlps.size()), ratios(mlps.size());
    for (int round = -1; round < options_.rounds; ++round) {
      double dense = 0;
      for (size_t i = 0; i < mlps.size(); ++i) {
        Stopwatch watch;
        WEFT_RETURN_IF_ERROR(work(*mlps[i]));
        const double taken = watch.Lap();
        if (i == 0) dense = taken;
        if (round < 0) continue;
        seconds[i].push_back(taken);
        ratios[i].push_back(dense / taken);
      }
    }
    for (size_t i = 1; i < mlps.size(); ++i) {
      Add(kinds_[i].name, part, width, type, Median(seconds[0]), Median(seconds[i]),
          Median(ratios[i]));
    }
    return OkStatus();
  }

  void Add(const std::string& kind, const std::string& part, int64_t width, DType type,
           double dense, double structured, double ratio) {
    const char* precision = type == DType::kF32 ? "fp32" : "bf16";
    std::printf("%-5s %-9s %-13s %6lld %7lld %12.2f %16.2f %7.2f\n", precision, kind.c_str(),
                part.c_str(), static_cast<long long>(width),
                static_cast<long long>(options_.tokens), 1e3 * dense, 1e3 * structured, ratio);
    std::fflush(stdout);
    rows_.push_back({{"isa", std::string(kernels::cpu::IsaName(kernels::cpu::ActiveIsa()))},
                     {"precision", precision},
                     {"kind", kind},
                     {"part", part},
                     {"width", width},
                     {"tokens", options_.tokens},
                     {"threads", kernels::cpu::Threads()},
                     {"dense_seconds", dense},
                     {"structured_seconds", structured},
                     {"ratio", ratio}});
  }

  Options options_;
  std::vector<Kind> kinds_ = Kinds();
  Allocator allocator_;
  Context context_;
  Json rows_ = Json::array();
};

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  CLI::App app(
      "Times products with structured matrices against dense ones, see the head of the "
      "source.");
  weft::engine::Options options;
  std::string json;
  int threads = 0;
  app.add_option("--json", json, "Also write the rows to this file");
  app.add_option("--threads", threads, "Compute threads (default: OMP_NUM_THREADS or all cores)");
  app.add_option("--widths", options.widths, "Widths of the MLP")->delimiter(',');
  app.add_option("--tokens", options.tokens, "Rows of x");
  app.add_option("--rounds", options.rounds, "Rounds whose median counts");
  CLI11_PARSE(app, argc, argv);
  if (threads > 0) weft::kernels::cpu::SetThreads(threads);
  weft::engine::Bench bench(options);
  if (const weft::Status status = bench.Run(); !status.ok()) {
    std::fprintf(stderr, "structured_matrices_bench: %s\n", status.message().c_str());
    return 1;
  }
  if (!json.empty()) std::ofstream(json) << bench.rows().dump(1) << "\n";
  return 0;
}
