// Times 2:4 sparse products against our own dense ones, in turns in one run:
//   product  y = x Wᵀ, dx = dy W and dW = dyᵀ x of a layer of an MLP, each by itself
//   ffn      an MLP (width, 4 width, width) forward and backward, with what a step of sparse
//   training
//            adds: packing of the weights, the draws of the gradient estimate, and the share of a
//            search for masks every 40 steps
//   mask     the search for a transposable mask against the greedy one, which takes the largest
//            magnitude of a block whose row and column have room, and keeps less
//
//   sparse24_bench [--json FILE] [--threads N] [--widths 512,1024,2048] [--tokens 1024]

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
#include "kernels/activation/activation.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/engine/tensor/profiler.h"

namespace weft {
namespace {

constexpr int64_t kMaskInterval = 40;

struct Options {
  std::vector<int64_t> widths = {512, 1024, 2048};
  int64_t tokens = 1024;
  int rounds = 9;
};

struct Matrix {
  Matrix(DType type, Shape shape)
      : memory(
            kernels::cpu::AllocateAligned(static_cast<size_t>(shape.Elements()) * DTypeSize(type))),
        view(memory.get(), type, shape) {}

  Matrix& Random(uint32_t site, float scale) {
    PhiloxStream rng({.seed = 1, .step = 0, .site = site});
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      view.As<float>()[i] = scale * static_cast<float>(rng.Normal());
    }
    return *this;
  }

  kernels::cpu::AlignedMemory memory;
  TensorView view;
};

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
Result<Pair> TimeInTurns(int rounds, const Work& dense, const Work& sparse) {
  std::vector<double> dense_seconds, sparse_seconds, ratios;
  for (int round = -1; round < rounds; ++round) {
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(dense());
    const double first = watch.Lap();
    WEFT_RETURN_IF_ERROR(sparse());
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
  Layer(int64_t tokens, int64_t in, int64_t out)
      : weight(DType::kF32, {out, in}),
        mask(DType::kU16, {out / 4, in / 4}),
        x(DType::kF32, {tokens, in}),
        y(DType::kF32, {tokens, out}),
        dx(DType::kF32, {tokens, in}),
        dy(DType::kF32, {tokens, out}),
        estimate(DType::kF32, {tokens, out}),
        dweight(DType::kF32, {out, in}) {
    weight.Random(1, 0.02f);
    x.Random(2, 1.0f);
    dy.Random(3, 1.0f);
    std::fill_n(dweight.view.As<float>(), out * in, 0.0f);
  }

  Status Init() {
    const DType type = DType::kF32;
    const int64_t out = weight.view.shape[0], in = weight.view.shape[1];
    WEFT_ASSIGN_OR_RETURN(dense, kernels::NewPackedWeight({}, out, in, type));
    WEFT_ASSIGN_OR_RETURN(sparse, kernels::NewSparseWeight({}, out, in, type));
    WEFT_RETURN_IF_ERROR(dense->Pack({}, weight.view));
    WEFT_RETURN_IF_ERROR(SearchMask());
    WEFT_RETURN_IF_ERROR(sparse->Pack({}, weight.view));
    return Estimate();
  }

  Status SearchMask() {
    WEFT_RETURN_IF_ERROR(kernels::TransposableMask({}, {.weight = weight.view, .mask = mask.view}));
    return sparse->SetMask({}, mask.view);
  }
  Status Estimate() {
    return kernels::Mvue({}, {.x = dy.view, .y = estimate.view, .key = {.seed = 7}});
  }

  Status DenseForward() {
    return kernels::LinearForward({}, {.x = x.view, .weight = dense.get(), .y = y.view});
  }
  Status SparseForward() {
    return kernels::SparseForward({}, {.x = x.view, .weight = sparse.get(), .y = y.view});
  }
  Status DenseBackwardInput() {
    return kernels::LinearBackwardInput({}, {.dy = dy.view, .weight = dense.get(), .dx = dx.view});
  }
  Status SparseBackwardInput() {
    return kernels::SparseBackwardInput({}, {.dy = dy.view, .weight = sparse.get(), .dx = dx.view});
  }
  Status DenseBackwardWeight() {
    return kernels::LinearBackwardWeight({}, {.x = x.view, .dy = dy.view, .dweight = dweight.view});
  }
  Status SparseBackwardWeight() {
    return kernels::SparseBackwardWeight(
        {}, {.x = x.view, .dy = estimate.view, .dweight = dweight.view});
  }

  Matrix weight, mask, x, y, dx, dy, estimate, dweight;
  std::unique_ptr<kernels::PackedWeight> dense;
  std::unique_ptr<kernels::SparseWeight> sparse;
};

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {
    std::printf("%-8s %-16s %6s %7s %12s %12s %7s\n", "part", "what", "width", "tokens",
                "dense [ms]", "sparse [ms]", "ratio");
  }

  Status Run() {
    for (const int64_t width : options_.widths) {
      Layer up(options_.tokens, width, 4 * width), down(options_.tokens, 4 * width, width);
      WEFT_RETURN_IF_ERROR(up.Init());
      WEFT_RETURN_IF_ERROR(down.Init());
      WEFT_RETURN_IF_ERROR(Products(width, "up", up));
      WEFT_RETURN_IF_ERROR(Products(width, "down", down));
      WEFT_RETURN_IF_ERROR(Ffn(width, up, down));
      WEFT_RETURN_IF_ERROR(Mask(width, up));
    }
    return OkStatus();
  }

  const Json& rows() const { return rows_; }

 private:
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

  Status Ffn(int64_t width, Layer& up, Layer& down) {
    const auto gelu = [&]() -> Status {
      return kernels::GeluForward({}, {up.y.view, down.x.view, kernels::GeluForm::kTanh});
    };
    const auto gelu_backward = [&]() -> Status {
      return kernels::GeluBackward({},
                                   {.dy = down.dx.view, .x = up.y.view, .dx = up.dy.view, .y = {}});
    };
    const Work dense = [&]() -> Status {
      for (Layer* layer : {&up, &down}) {
        WEFT_RETURN_IF_ERROR(layer->dense->Pack({}, layer->weight.view));
      }
      WEFT_RETURN_IF_ERROR(up.DenseForward());
      WEFT_RETURN_IF_ERROR(gelu());
      WEFT_RETURN_IF_ERROR(down.DenseForward());
      WEFT_RETURN_IF_ERROR(down.DenseBackwardWeight());
      WEFT_RETURN_IF_ERROR(down.DenseBackwardInput());
      WEFT_RETURN_IF_ERROR(gelu_backward());
      WEFT_RETURN_IF_ERROR(up.DenseBackwardWeight());
      return up.DenseBackwardInput();
    };
    const Work sparse = [&]() -> Status {
      for (Layer* layer : {&up, &down}) {
        WEFT_RETURN_IF_ERROR(layer->sparse->Pack({}, layer->weight.view));
      }
      WEFT_RETURN_IF_ERROR(up.SparseForward());
      WEFT_RETURN_IF_ERROR(gelu());
      WEFT_RETURN_IF_ERROR(down.SparseForward());
      WEFT_RETURN_IF_ERROR(down.Estimate());
      WEFT_RETURN_IF_ERROR(down.SparseBackwardWeight());
      WEFT_RETURN_IF_ERROR(down.SparseBackwardInput());
      WEFT_RETURN_IF_ERROR(gelu_backward());
      WEFT_RETURN_IF_ERROR(up.Estimate());
      WEFT_RETURN_IF_ERROR(up.SparseBackwardWeight());
      return up.SparseBackwardInput();
    };
    WEFT_ASSIGN_OR_RETURN(Pair pair, TimeInTurns(options_.rounds, dense, sparse));
    engine::Stopwatch watch;
    WEFT_RETURN_IF_ERROR(up.SearchMask());
    WEFT_RETURN_IF_ERROR(down.SearchMask());
    const double search = watch.Lap();
    const double sparse_seconds = pair.sparse + search / kMaskInterval;
    pair.ratio *= pair.sparse / sparse_seconds;
    pair.sparse = sparse_seconds;
    Add("ffn", "forward+backward", width, pair);
    // SetMask wants the values again.
    WEFT_RETURN_IF_ERROR(up.sparse->Pack({}, up.weight.view));
    return down.sparse->Pack({}, down.weight.view);
  }

  Status Mask(int64_t width, Layer& layer) {
    Matrix mask(DType::kU16, layer.mask.view.shape);
    return Time(
        "mask", "greedy", width,
        [&] {
          GreedyMask(layer.weight.view, mask.view);
          return OkStatus();
        },
        [&] {
          return kernels::TransposableMask({}, {.weight = layer.weight.view, .mask = mask.view});
        });
  }

  Status Time(std::string_view part, const std::string& what, int64_t width, const Work& dense,
              const Work& sparse) {
    WEFT_ASSIGN_OR_RETURN(const Pair pair, TimeInTurns(options_.rounds, dense, sparse));
    Add(part, what, width, pair);
    return OkStatus();
  }

  void Add(std::string_view part, const std::string& what, int64_t width, const Pair& pair) {
    std::printf("%-8s %-16s %6lld %7lld %12.2f %12.2f %7.2f\n", std::string(part).c_str(),
                what.c_str(), static_cast<long long>(width),
                static_cast<long long>(options_.tokens), 1e3 * pair.dense, 1e3 * pair.sparse,
                pair.ratio);
    std::fflush(stdout);
    rows_.push_back({{"isa", std::string(kernels::cpu::IsaName(kernels::cpu::ActiveIsa()))},
                     {"precision", "fp32"},
                     {"part", std::string(part)},
                     {"what", what},
                     {"width", width},
                     {"tokens", options_.tokens},
                     {"threads", kernels::cpu::Threads()},
                     {"dense_seconds", pair.dense},
                     {"sparse_seconds", pair.sparse},
                     {"ratio", pair.ratio}});
  }

  Options options_;
  Json rows_ = Json::array();
};

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  CLI::App app("Times 2:4 sparse products against dense ones, see the head of the source.");
  weft::Options options;
  std::string json;
  int threads = 0;
  app.add_option("--json", json, "Also write the rows to this file");
  app.add_option("--threads", threads, "Compute threads (default: OMP_NUM_THREADS or all cores)");
  app.add_option("--widths", options.widths, "Widths of the MLP")->delimiter(',');
  app.add_option("--tokens", options.tokens, "Rows of x");
  app.add_option("--rounds", options.rounds, "Rounds whose median counts");
  CLI11_PARSE(app, argc, argv);
  if (threads > 0) weft::kernels::cpu::SetThreads(threads);
  weft::Bench bench(options);
  if (const weft::Status status = bench.Run(); !status.ok()) {
    std::fprintf(stderr, "sparse24_bench: %s\n", status.message().c_str());
    return 1;
  }
  if (!json.empty()) std::ofstream(json) << bench.rows().dump(1) << "\n";
  return 0;
}
