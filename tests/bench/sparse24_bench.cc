// Times 2:4 sparse products against our own dense ones, in turns in one run:
//   product  y = x Wᵀ, dx = dy W and dW = dyᵀ x of a layer of an MLP, each by itself
//   ffn      an MLP (width, 4 width, width) forward and backward, with what a step of sparse
//   training
//            adds: packing of the weights, the draws of the gradient estimate, and the share of a
//            search for masks every 40 steps
//   mask     the search for a transposable mask against the greedy one, which takes the largest
//            magnitude of a block whose row and column have room, and keeps less (CPU)
// With --densities, products with weights that are pruned at random instead (CPU):
//   unstructured  each product by itself, with dW where weights are kept alone; "step": all three,
//            and packing
//
//   sparse24_bench [--device cpu|cuda] [--precision fp32|bf16] [--json FILE] [--threads N]
//                  [--widths 512,1024,2048] [--tokens 1024,4096] [--densities 0.25,0.125]
//                  [--mask transposable|rows]
//
// With --mask rows the masks are those of SR-STE. On CUDA the gradient of the input is then dense.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/tensor/transfer.h"

namespace weft {
namespace {

constexpr int64_t kMaskInterval = 40;

struct Options {
  std::vector<int64_t> widths = {512, 1024, 2048};
  std::vector<int64_t> tokens = {1024, 4096};
  std::vector<double> densities;
  int rounds = 9;
  DType type = DType::kF32;
  bool row_masks = false;
};

using engine::Component;
using engine::Context;
using engine::Tensor;

// Normal numbers, a table that repeats: drawing as many as a GPU multiplies would take minutes.
Result<Tensor> Random(Context& context, DType type, const Shape& shape, uint32_t site,
                      float scale) {
  constexpr int64_t kDrawn = 1'000'003;
  PhiloxStream rng({.seed = 1, .step = 0, .site = site});
  std::vector<float> drawn(static_cast<size_t>(std::min(kDrawn, shape.Elements())));
  for (float& number : drawn) number = scale * static_cast<float>(rng.Normal());
  WEFT_ASSIGN_OR_RETURN(Tensor tensor, Tensor::New(context, Component::kWorkspace, type, shape));
  WEFT_RETURN_IF_ERROR(engine::FillOnHost(context.stream, tensor, [&](const TensorView& to) {
    kernels::cpu::WithFloatType(type, [&]<class T>() {
      for (int64_t i = 0; i < shape.Elements(); ++i) {
        to.As<T>()[i] = FromFloat<T>(drawn[static_cast<size_t>(i) % drawn.size()]);
      }
    });
  }));
  return tensor;
}

// The greedy mask of a block of 4 x 4.
uint16_t GreedyBlock(const float* corner, int64_t stride) {
  std::array<float, 16> magnitudes;
  std::array<uint8_t, 16> order;
  for (int i = 0; i < 16; ++i) magnitudes[i] = std::abs(corner[i / 4 * stride + i % 4]);
  std::iota(order.begin(), order.end(), uint8_t{0});
  std::sort(order.begin(), order.end(),
            [&](uint8_t a, uint8_t b) { return magnitudes[a] > magnitudes[b]; });
  std::array<int, 4> rows{}, columns{};
  uint16_t kept = 0;
  for (const uint8_t i : order) {
    if (rows[i / 4] == 2 || columns[i % 4] == 2) continue;
    ++rows[i / 4];
    ++columns[i % 4];
    kept = static_cast<uint16_t>(kept | 1 << i);
  }
  return kept;
}

void GreedyMask(const TensorView& weight, const TensorView& mask) {
  const int64_t blocks = mask.shape[1];
  kernels::cpu::ParallelFor(mask.shape[0], 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t block = 0; block < blocks; ++block) {
        mask.As<uint16_t>()[row * blocks + block] = GreedyBlock(
            weight.As<float>() + 4 * row * weight.row_stride + 4 * block, weight.row_stride);
      }
    }
  });
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Work = std::function<Status()>;

struct Pair {
  double dense = 0, sparse = 0, ratio = 0;
};

// Medians of rounds in turns, after one of each to warm up.
Result<Pair> TimeInTurns(engine::ComputeDevice& device, int rounds, const Work& dense,
                         const Work& sparse) {
  std::vector<double> dense_seconds, sparse_seconds, ratios;
  for (int round = -1; round < rounds; ++round) {
    WEFT_RETURN_IF_ERROR(device.Synchronize());
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(dense());
    WEFT_RETURN_IF_ERROR(device.Synchronize());
    const double first = watch.Lap();
    WEFT_RETURN_IF_ERROR(sparse());
    WEFT_RETURN_IF_ERROR(device.Synchronize());
    const double second = watch.Lap();
    if (round < 0) continue;
    dense_seconds.push_back(first);
    sparse_seconds.push_back(second);
    ratios.push_back(first / second);
  }
  return Pair{Median(dense_seconds), Median(sparse_seconds), Median(ratios)};
}

// A layer of an MLP with all that its products read and write.
struct Layer {
  static Result<Layer> New(Context& context, const Options& options, int64_t tokens, int64_t in,
                           int64_t out) {
    const DType type = options.type;
    Layer layer;
    layer.stream = context.stream;
    layer.row_masks = options.row_masks;
    const auto empty = [&](DType of, const Shape& shape) {
      return Tensor::New(context, Component::kWorkspace, of, shape);
    };
    WEFT_ASSIGN_OR_RETURN(layer.weight, Random(context, DType::kF32, {out, in}, 1, 0.02f));
    WEFT_ASSIGN_OR_RETURN(layer.x, Random(context, type, {tokens, in}, 2, 1.0f));
    WEFT_ASSIGN_OR_RETURN(layer.dy, Random(context, type, {tokens, out}, 3, 1.0f));
    WEFT_ASSIGN_OR_RETURN(layer.mask, empty(DType::kU16, {out / 4, in / 4}));
    WEFT_ASSIGN_OR_RETURN(layer.y, empty(type, {tokens, out}));
    WEFT_ASSIGN_OR_RETURN(layer.dx, empty(type, {tokens, in}));
    WEFT_ASSIGN_OR_RETURN(layer.estimate, empty(type, {tokens, out}));
    WEFT_ASSIGN_OR_RETURN(layer.dweight, empty(DType::kF32, {out, in}));
    WEFT_RETURN_IF_ERROR(engine::Clear(context.stream, layer.dweight));
    const Device device = context.stream.device;
    WEFT_ASSIGN_OR_RETURN(layer.dense, kernels::NewPackedWeight(device, out, in, type));
    WEFT_ASSIGN_OR_RETURN(layer.sparse, kernels::NewSparseWeight(device, out, in, type));
    WEFT_RETURN_IF_ERROR(layer.dense->Pack(context.stream, layer.weight));
    WEFT_RETURN_IF_ERROR(layer.SearchMask());
    WEFT_RETURN_IF_ERROR(layer.sparse->Pack(context.stream, layer.weight));
    WEFT_RETURN_IF_ERROR(layer.Estimate());
    return layer;
  }

  Status SearchMask() {
    if (row_masks) {
      WEFT_RETURN_IF_ERROR(kernels::RowMask(stream, {.weight = weight, .mask = mask}));
    } else {
      WEFT_RETURN_IF_ERROR(kernels::TransposableMask(stream, {.weight = weight, .mask = mask}));
    }
    return sparse->SetMask(stream, mask);
  }
  /// Keeps a random share of the weights.
  Status Keep(double density) {
    PhiloxStream rng({.seed = 4});
    for (int64_t i = 0; i < mask.shape().Elements(); ++i) {
      int bits = 0;
      for (int bit = 0; bit < 16; ++bit) bits |= (rng.Uniform() < density ? 1 : 0) << bit;
      mask.view().As<uint16_t>()[i] = static_cast<uint16_t>(bits);
    }
    WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask));
    return sparse->Pack(stream, weight);
  }
  Status Estimate() { return kernels::Mvue(stream, {.x = dy, .y = estimate, .key = {.seed = 7}}); }

  /// `active` becomes GELU(y), or is none.
  Status DenseForward(const TensorView& active = {}) {
    return kernels::LinearForward(stream,
                                  {.x = x, .weight = dense.get(), .y = y, .active = active});
  }
  Status SparseForward(const TensorView& active = {}) {
    return kernels::SparseForward(stream,
                                  {.x = x, .weight = sparse.get(), .y = y, .active = active});
  }
  Status DenseBackwardInput() {
    return kernels::LinearBackwardInput(stream, {.dy = dy, .weight = dense.get(), .dx = dx});
  }
  Status SparseBackwardInput() {
    return kernels::SparseBackwardInput(stream, {.dy = dy, .weight = sparse.get(), .dx = dx});
  }
  /// To the gradient of the layer before, whose GELU is x.
  Status DenseBackwardTo(Layer& before) {
    return kernels::LinearBackwardInput(
        stream, {.dy = dy, .weight = dense.get(), .dx = before.dy, .before = before.y});
  }
  Status SparseBackwardTo(Layer& before) {
    return kernels::SparseBackwardInput(
        stream, {.dy = dy, .weight = sparse.get(), .dx = before.dy, .before = before.y});
  }
  Status DenseBackwardWeight() {
    return kernels::LinearBackwardWeight(stream, {.x = x, .dy = dy, .dweight = dweight});
  }
  Status SampledBackwardWeight() {
    return kernels::SampledBackwardWeight(
        stream, {.x = x, .dy = dy, .weight = sparse.get(), .dweight = dweight});
  }
  /// Multiplies a dy that is sparse already.
  Status SparseBackwardWeight() {
    return kernels::SparseBackwardWeight(stream, {.x = x, .dy = estimate, .dweight = dweight});
  }
  /// With the draws, as a step of training does; f32 on a GPU stores the estimate.
  Status EstimatedBackwardWeight() {
    if (dy.dtype() == DType::kF32 && stream.device.type == DeviceType::kCuda) {
      WEFT_RETURN_IF_ERROR(Estimate());
      return SparseBackwardWeight();
    }
    const kernels::MvueArgs draws = {.x = {}, .y = {}, .key = {.seed = 7}};
    return kernels::SparseBackwardWeight(
        stream, {.x = x, .dy = dy, .dweight = dweight, .estimate = &draws});
  }

  Stream stream;
  bool row_masks = false;
  Tensor weight, mask, x, y, dx, dy, estimate, dweight;
  std::unique_ptr<kernels::PackedWeight> dense;
  std::unique_ptr<kernels::SparseWeight> sparse;
};

class Bench {
 public:
  Bench(const Options& options, engine::ComputeDevice* device)
      : options_(options), device_(device), context_(device->NewContext()) {
    std::printf("%-12s %-19s %6s %7s %12s %12s %7s\n", "part", "what", "width", "tokens",
                "dense [ms]", "sparse [ms]", "ratio");
  }

  Status Run() {
    for (const int64_t tokens : options_.tokens) {
      tokens_ = tokens;
      for (const int64_t width : options_.widths) WEFT_RETURN_IF_ERROR(RunWidth(width));
    }
    return OkStatus();
  }

  const Json& rows() const { return rows_; }

 private:
  Status RunWidth(int64_t width) {
    WEFT_ASSIGN_OR_RETURN(Layer up, Layer::New(context_, options_, tokens_, width, 4 * width));
    WEFT_ASSIGN_OR_RETURN(Layer down, Layer::New(context_, options_, tokens_, 4 * width, width));
    if (!options_.densities.empty()) {
      WEFT_RETURN_IF_ERROR(Unstructured(width, "up", up));
      return Unstructured(width, "down", down);
    }
    WEFT_RETURN_IF_ERROR(Products(width, "up", up));
    WEFT_RETURN_IF_ERROR(Products(width, "down", down));
    WEFT_RETURN_IF_ERROR(Ffn(width, up, down));
    // No search for a mask reads tokens.
    const bool searches = context_.stream.device.type == DeviceType::kCpu && !options_.row_masks;
    return searches && tokens_ == options_.tokens.front() ? Mask(width, up) : OkStatus();
  }

  Status Products(int64_t width, const std::string& name, Layer& layer) {
    WEFT_RETURN_IF_ERROR(Time(
        "product", name + " forward", width, [&] { return layer.DenseForward(); },
        [&] { return layer.SparseForward(); }));
    WEFT_RETURN_IF_ERROR(Time(
        "product", name + " input", width, [&] { return layer.DenseBackwardInput(); },
        [&] { return layer.SparseBackwardInput(); }));
    return Time(
        "product", name + " weight", width, [&] { return layer.DenseBackwardWeight(); },
        [&] { return layer.SparseBackwardWeight(); });
  }

  Status Unstructured(int64_t width, const std::string& name, Layer& layer) {
    for (const double density : options_.densities) {
      WEFT_RETURN_IF_ERROR(layer.Keep(density));
      const auto time = [&](const std::string& what, const Work& dense, const Work& sparse) {
        char shown[16];
        std::snprintf(shown, sizeof shown, "%g", density);
        return Time("unstructured", name + " " + what + " " + shown, width, dense, sparse);
      };
      WEFT_RETURN_IF_ERROR(time(
          "forward", [&] { return layer.DenseForward(); }, [&] { return layer.SparseForward(); }));
      WEFT_RETURN_IF_ERROR(time(
          "input", [&] { return layer.DenseBackwardInput(); },
          [&] { return layer.SparseBackwardInput(); }));
      WEFT_RETURN_IF_ERROR(time(
          "weight", [&] { return layer.DenseBackwardWeight(); },
          [&] { return layer.SampledBackwardWeight(); }));
      const Work dense = [&]() -> Status {
        WEFT_RETURN_IF_ERROR(layer.dense->Pack(layer.stream, layer.weight));
        WEFT_RETURN_IF_ERROR(layer.DenseForward());
        WEFT_RETURN_IF_ERROR(layer.DenseBackwardInput());
        return layer.DenseBackwardWeight();
      };
      const Work sparse = [&]() -> Status {
        WEFT_RETURN_IF_ERROR(layer.sparse->Pack(layer.stream, layer.weight));
        WEFT_RETURN_IF_ERROR(layer.SparseForward());
        WEFT_RETURN_IF_ERROR(layer.SparseBackwardInput());
        return layer.SampledBackwardWeight();
      };
      WEFT_RETURN_IF_ERROR(time("step", dense, sparse));
    }
    return OkStatus();
  }

  Status Ffn(int64_t width, Layer& up, Layer& down) {
    const Work dense = [&]() -> Status {
      for (Layer* layer : {&up, &down}) {
        WEFT_RETURN_IF_ERROR(layer->dense->Pack(context_.stream, layer->weight));
      }
      WEFT_RETURN_IF_ERROR(up.DenseForward(down.x));
      WEFT_RETURN_IF_ERROR(down.DenseForward());
      WEFT_RETURN_IF_ERROR(down.DenseBackwardWeight());
      WEFT_RETURN_IF_ERROR(down.DenseBackwardTo(up));
      WEFT_RETURN_IF_ERROR(up.DenseBackwardWeight());
      return up.DenseBackwardInput();
    };
    const Work sparse = [&]() -> Status {
      for (Layer* layer : {&up, &down}) {
        WEFT_RETURN_IF_ERROR(layer->sparse->Pack(context_.stream, layer->weight));
      }
      WEFT_RETURN_IF_ERROR(up.SparseForward(down.x));
      WEFT_RETURN_IF_ERROR(down.SparseForward());
      WEFT_RETURN_IF_ERROR(down.EstimatedBackwardWeight());
      WEFT_RETURN_IF_ERROR(down.SparseBackwardTo(up));
      WEFT_RETURN_IF_ERROR(up.EstimatedBackwardWeight());
      return up.SparseBackwardInput();
    };
    WEFT_ASSIGN_OR_RETURN(Pair pair, TimeInTurns(*device_, options_.rounds, dense, sparse));
    WEFT_RETURN_IF_ERROR(device_->Synchronize());
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(up.SearchMask());
    WEFT_RETURN_IF_ERROR(down.SearchMask());
    WEFT_RETURN_IF_ERROR(device_->Synchronize());
    const double search = watch.Lap();
    const double sparse_seconds = pair.sparse + search / kMaskInterval;
    pair.ratio *= pair.sparse / sparse_seconds;
    pair.sparse = sparse_seconds;
    Add("ffn", "forward+backward", width, pair);
    // SetMask wants the values again.
    WEFT_RETURN_IF_ERROR(up.sparse->Pack(context_.stream, up.weight));
    return down.sparse->Pack(context_.stream, down.weight);
  }

  Status Mask(int64_t width, Layer& layer) {
    WEFT_ASSIGN_OR_RETURN(const Tensor mask, Tensor::New(context_, Component::kWorkspace,
                                                         DType::kU16, layer.mask.shape()));
    return Time(
        "mask", "greedy", width,
        [&] {
          GreedyMask(layer.weight, mask);
          return OkStatus();
        },
        [&] { return kernels::TransposableMask({}, {.weight = layer.weight, .mask = mask}); });
  }

  Status Time(std::string_view part, const std::string& what, int64_t width, const Work& dense,
              const Work& sparse) {
    WEFT_ASSIGN_OR_RETURN(const Pair pair, TimeInTurns(*device_, options_.rounds, dense, sparse));
    Add(part, what, width, pair);
    return OkStatus();
  }

  void Add(std::string_view part, const std::string& what, int64_t width, const Pair& pair) {
    std::printf("%-12s %-19s %6lld %7lld %12.2f %12.2f %7.2f\n", std::string(part).c_str(),
                what.c_str(), static_cast<long long>(width), static_cast<long long>(tokens_),
                1e3 * pair.dense, 1e3 * pair.sparse, pair.ratio);
    std::fflush(stdout);
    const bool cpu = context_.stream.device.type == DeviceType::kCpu;
    const std::string_view isa = kernels::cpu::IsaName(kernels::cpu::ActiveIsa());
    rows_.push_back({{"isa", cpu ? std::string(isa) : "cuda"},
                     {"precision", options_.type == DType::kF32 ? "fp32" : "bf16"},
                     {"part", std::string(part)},
                     {"what", what},
                     {"width", width},
                     {"tokens", tokens_},
                     {"threads", kernels::cpu::Threads()},
                     {"dense_seconds", pair.dense},
                     {"sparse_seconds", pair.sparse},
                     {"ratio", pair.ratio}});
  }

  Options options_;
  engine::ComputeDevice* device_;
  Context context_;
  int64_t tokens_ = 0;
  Json rows_ = Json::array();
};

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  CLI::App app("Times 2:4 sparse products against dense ones, see the head of the source.");
  weft::Options options;
  std::string json, device_name = "cpu", precision = "fp32", mask = "transposable";
  int threads = 0;
  app.add_option("--json", json, "Also write the rows to this file");
  app.add_option("--device", device_name, "cpu, or cuda for the first CUDA device")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--precision", precision, "Of x, y and the products")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--threads", threads, "Compute threads (default: OMP_NUM_THREADS or all cores)");
  app.add_option("--widths", options.widths, "Widths of the MLP")->delimiter(',');
  app.add_option("--tokens", options.tokens, "Rows of x")->delimiter(',');
  app.add_option("--densities", options.densities,
                 "Times products with weights that are pruned to these densities (CPU)")
      ->delimiter(',');
  app.add_option("--mask", mask, "Masks of blocks of 4 x 4, or of rows alone")
      ->check(CLI::IsMember({"transposable", "rows"}));
  app.add_option("--rounds", options.rounds, "Rounds whose median counts");
  CLI11_PARSE(app, argc, argv);
  if (threads > 0) weft::kernels::cpu::SetThreads(threads);
  if (precision == "bf16") options.type = weft::DType::kBF16;
  options.row_masks = mask == "rows";
  weft::Device on;
  if (device_name == "cuda") on.type = weft::DeviceType::kCuda;
  const auto failed = [](const weft::Status& status) {
    std::fprintf(stderr, "sparse24_bench: %s\n", status.ToString().c_str());
    return 1;
  };
  const auto device = weft::engine::ComputeDevice::Open({.device = on});
  if (!device.ok()) return failed(device.status());
  weft::Bench bench(options, device->get());
  const weft::Status status = bench.Run();
  if (!json.empty()) std::ofstream(json) << bench.rows().dump(1) << "\n";
  return status.ok() ? 0 : failed(status);
}
