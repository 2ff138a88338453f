#include <algorithm>
#include <vector>

#include "kernels/argument_check.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear/cpu_weight.h"
#include "kernels/linear/linear_bf16_simd.h"

namespace weft::kernels::cpu {
namespace {

using avx512_bf16::kBlock;

// Output features whose gradient is transposed at a time, which bounds the scratch memory.
constexpr int64_t kTransposedFeatures = 4096;

// 32 elements on a cache line of their own, as tiles are loaded fastest.
struct alignas(64) Line {
  BFloat16 elements[kBlock];
};
using Lines = std::vector<Line>;

BFloat16* Data(Lines& lines) {
  return lines.data()->elements;
}
const BFloat16* Data(const Lines& lines) {
  return lines.data()->elements;
}

// Memory for `elements` (a multiple of 32) that stays with the thread for its next product.
template <int kUse>
BFloat16* ThreadScratch(int64_t elements) {
  thread_local Lines lines;
  auto count = static_cast<size_t>(elements / kBlock);
  if (lines.size() < count) lines.resize(count);
  return Data(lines);
}

// c [rows, 32 * panels] spread over the threads: by rows, or by panels when rows are few.
void Spread(const avx512_bf16::Product& product, int64_t rows, int64_t panels) {
  int64_t blocks = (rows + kBlock - 1) / kBlock;
  if (blocks >= 2 * Threads() || blocks >= panels) {
    ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::Multiply(product, begin * kBlock, std::min(end * kBlock, rows), 0, panels,
                            ThreadScratch<0>(kBlock * product.k));
    });
  } else {
    ParallelFor(panels, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::Multiply(product, 0, rows, begin, end, ThreadScratch<0>(kBlock * product.k));
    });
  }
}

avx512_bf16::Product ProductOf(const TensorView& a, const BFloat16* b, const TensorView& c,
                               bool accumulate) {
  bool f32 = c.dtype == DType::kF32;
  return {.a = a.As<BFloat16>(),
          .a_stride = a.row_stride,
          .k = a.shape[1],
          .b = b,
          .bias = nullptr,
          .c_f32 = f32 ? c.As<float>() : nullptr,
          .c_bf16 = f32 ? nullptr : c.As<BFloat16>(),
          .c_stride = c.row_stride,
          .accumulate = accumulate};
}

class AmxWeight final : public CpuWeight {
 public:
  AmxWeight(int64_t out, int64_t in)
      : CpuWeight(out, in, DType::kBF16), forward_(out * in / kBlock), backward_(forward_.size()) {}

  Status Pack(const Stream& stream, const TensorView& master) override {
    int64_t out = out_features(), in = in_features();
    WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "PackedWeight::Pack")
                             .ContiguousTensor("master", master, Shape{out, in}, {DType::kF32})
                             .status());
    const auto* w = master.As<float>();
    ParallelFor(out / kBlock, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::PackColumns(w, in, in, begin, end, Data(forward_));
    });
    ParallelFor(in / kBlock, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::PackRows(w, in, out, begin, end, Data(backward_));
    });
    return OkStatus();
  }

  int64_t Bytes() const override {
    return static_cast<int64_t>((forward_.size() + backward_.size()) * sizeof(Line));
  }

  Status Forward(const TensorView& x, const TensorView& bias, const TensorView& y) const override {
    avx512_bf16::Product product = ProductOf(x, Data(forward_), y, false);
    product.bias = static_cast<const float*>(bias.data);
    Spread(product, x.shape[0], out_features() / kBlock);
    return OkStatus();
  }

  Status BackwardInput(const TensorView& dy, const TensorView& dx, bool accumulate) const override {
    Spread(ProductOf(dy, Data(backward_), dx, accumulate), dy.shape[0], in_features() / kBlock);
    return OkStatus();
  }

 private:
  Lines forward_;
  Lines backward_;
};

}  // namespace

bool AmxServes(int64_t out_features, int64_t in_features, DType compute) {
  return compute == DType::kBF16 && ActiveIsa() >= Isa::kAmx && out_features % kBlock == 0 &&
         in_features % kBlock == 0;
}

std::unique_ptr<CpuWeight> NewAmxWeight(int64_t out_features, int64_t in_features) {
  return std::make_unique<AmxWeight>(out_features, in_features);
}

void AmxBackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                       bool accumulate) {
  int64_t rows = x.shape[0], in = x.shape[1], out = dy.shape[1];
  int64_t padded = (rows + kBlock - 1) / kBlock * kBlock;
  BFloat16* packed_x = ThreadScratch<1>(padded * in);
  ParallelFor(in / kBlock, 1, [&](int64_t begin, int64_t end) {
    avx512_bf16::PackBf16Rows(x.As<BFloat16>(), x.row_stride, rows, begin, end, packed_x);
  });
  BFloat16* dy_transposed = ThreadScratch<2>(padded * std::min(out, kTransposedFeatures));
  for (int64_t first = 0; first < out; first += kTransposedFeatures) {
    int64_t features = std::min(kTransposedFeatures, out - first);
    ParallelFor(features / kBlock, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::TransposeBf16(dy.As<BFloat16>() + first, dy.row_stride, rows, begin, end,
                                 dy_transposed, padded);
    });
    TensorView a(dy_transposed, DType::kBF16, {features, padded});
    TensorView c(dweight.As<float>() + first * in, DType::kF32, {features, in});
    Spread(ProductOf(a, packed_x, c, accumulate), features, in / kBlock);
  }
}

}  // namespace weft::kernels::cpu
