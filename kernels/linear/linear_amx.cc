#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/linear/cpu_weight.h"
#include "kernels/linear/linear_bf16_simd.h"
#include "kernels/linear/linear_check.h"
#include "kernels/linear/operand.h"

namespace weft::kernels::cpu {
namespace {

using avx512_bf16::kBlock;
using avx512_bf16::ProductGelu;

// Rows that a weight gradient is summed over at a time: bounds the scratch memory.
constexpr int64_t kSummedRows = 4096;

// Up to this many rows of a weight are packed at once for the gradient of its input.
constexpr int64_t kPackedRows = 4096;

// Uses of scratch memory.
struct Working;
struct Right;

void MultiplyPart(const avx512_bf16::Product& product, int64_t row_begin, int64_t row_end,
                  int64_t begin, int64_t end) {
  const avx512_bf16::ScratchSize size =
      avx512_bf16::ScratchOf(product.k, row_end - row_begin, end - begin);
  // At least a huge page: on small ones rows of a cost a look into the page table every other step.
  const int64_t bytes = size.a * int64_t{sizeof(BFloat16)} + size.sums * int64_t{sizeof(float)};
  auto* a = reinterpret_cast<BFloat16*>(
      ThreadScratch<Working, std::byte>(std::max(bytes, static_cast<int64_t>(kHugePageBytes))));
  avx512_bf16::Multiply(product, row_begin, row_end, begin, end,
                        {a, reinterpret_cast<float*>(a + size.a)});
}

// c [rows, 32 * panels] spread over the threads: by rows, or by panels when rows are few.
void Spread(const avx512_bf16::Product& product, int64_t rows, int64_t panels) {
  int64_t blocks = (rows + kBlock - 1) / kBlock;
  if (blocks >= 2 * Threads() || blocks >= panels) {
    ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
      MultiplyPart(product, begin * kBlock, std::min(end * kBlock, rows), 0, panels);
    });
  } else {
    ParallelFor(panels, 1,
                [&](int64_t begin, int64_t end) { MultiplyPart(product, 0, rows, begin, end); });
  }
}

avx512_bf16::Product ProductOf(const TensorView& a, const BFloat16* b, const TensorView& c,
                               bool accumulate) {
  bool f32 = c.dtype == DType::kF32;
  return {.a = a.As<BFloat16>(),
          .a_stride = a.row_stride,
          .a_columns = false,
          .k_valid = a.shape[1],
          .a_sums = nullptr,
          .k = a.shape[1],
          .b = b,
          .bias = nullptr,
          .c_f32 = f32 ? c.As<float>() : nullptr,
          .c_bf16 = f32 ? nullptr : c.As<BFloat16>(),
          .c_stride = c.row_stride,
          .accumulate = accumulate,
          .gelu = ProductGelu::kNone,
          .before = nullptr,
          .active = nullptr};
}

class AmxWeight final : public CpuWeight {
 public:
  AmxWeight(int64_t out, int64_t in, AlignedMemory packed)
      : CpuWeight(out, in, DType::kBF16), packed_(std::move(packed)) {}

  Status Pack(const Stream& stream, const TensorView& master) override {
    WEFT_RETURN_IF_ERROR(CheckPack(stream, *this, master));
    if (master.dtype == DType::kF32) {
      PackFrom(master.As<float>());
    } else {
      PackFrom(master.As<BFloat16>());
    }
    return OkStatus();
  }

  bool reads_master() const override { return false; }

  int64_t Bytes() const override {
    return out_features() * in_features() * int64_t{sizeof(BFloat16)};
  }

  Status Forward(const LinearForwardArgs& args) const override {
    avx512_bf16::Product product = ProductOf(args.x, packed(), args.y, args.accumulate);
    product.bias = static_cast<const float*>(args.bias.data);
    if (args.active) {
      product.gelu = args.gelu == GeluForm::kErf ? ProductGelu::kErf : ProductGelu::kTanh;
      product.active = args.active.As<BFloat16>();
    }
    Spread(product, args.x.shape[0], out_features() / kBlock);
    return OkStatus();
  }

  // Packs for each product: that costs no more than a second copy to keep, which is as large. Of a
  // vocabulary's weight, part after part, multiplied while it is in cache.
  Status BackwardInput(const LinearBackwardInputArgs& args) const override {
    const int64_t out = out_features();
    if (out <= kPackedRows) {
      BackwardInputPart(args, 0, out);
      return OkStatus();
    }
    Operand sums(args.dx, DType::kF32, args.accumulate);
    LinearBackwardInputArgs part = {
        .dy = args.dy, .dx = sums.view(), .accumulate = args.accumulate};
    const int64_t rows = avx512_bf16::EvenPart(out, kPackedRows / 2);
    for (int64_t begin = 0; begin < out; begin += rows) {
      BackwardInputPart(part, begin, std::min(rows, out - begin));
      part.accumulate = true;
    }
    sums.WriteBack(args.dx);
    return OkStatus();
  }

  bool FusesGelu() const override { return true; }
  // Not of sums that are made in parts.
  bool FusesGeluGradient() const override { return out_features() <= kPackedRows; }

 private:
  template <class T>
  void PackFrom(const T* w) {
    const int64_t in = in_features();
    ParallelFor(out_features() / kBlock, 1, [&](int64_t begin, int64_t end) {
      avx512_bf16::PackColumns(w, in, in, begin, end, packed());
    });
  }

  // The product of columns [begin, begin + count) of dy with these rows of W.
  void BackwardInputPart(const LinearBackwardInputArgs& args, int64_t begin, int64_t count) const {
    const int64_t in = in_features();
    const TensorView& dy = args.dy;
    auto* transposed = ThreadScratch<Right, BFloat16>(count * in);
    ParallelFor(in / kBlock, 1, [&](int64_t first, int64_t last) {
      avx512_bf16::PackTransposed(packed() + begin * in, in, count, first, last, transposed);
    });
    TensorView part(dy.As<BFloat16>() + begin, DType::kBF16, {dy.shape[0], count});
    part.row_stride = dy.row_stride;
    avx512_bf16::Product product = ProductOf(part, transposed, args.dx, args.accumulate);
    if (args.before) {
      const bool erf = args.gelu == GeluForm::kErf;
      product.gelu = erf ? ProductGelu::kErfGradient : ProductGelu::kTanhGradient;
      product.before = args.before.As<BFloat16>();
      product.active = args.active ? args.active.As<BFloat16>() : nullptr;
    }
    Spread(product, dy.shape[0], in / kBlock);
  }

  BFloat16* packed() const { return static_cast<BFloat16*>(packed_.get()); }

  AlignedMemory packed_;  // Wᵀ
};

// dweight (+)= dyᵀ x and dbias += column sums of dy, over `rows` rows.
void BackwardWeightOfRows(const BFloat16* x, int64_t x_stride, const BFloat16* dy,
                          int64_t dy_stride, int64_t rows, const TensorView& dweight, float* dbias,
                          bool accumulate) {
  int64_t out = dweight.shape[0], in = dweight.shape[1];
  int64_t blocks = (rows + kBlock - 1) / kBlock, padded = blocks * kBlock;
  auto* packed_x = ThreadScratch<Right, BFloat16>(padded * in);
  ParallelFor(blocks, 1, [&](int64_t begin, int64_t end) {
    avx512_bf16::PackRows(x, x_stride, rows, in, begin, end, packed_x);
  });
  Spread({.a = dy,
          .a_stride = dy_stride,
          .a_columns = true,
          .k_valid = rows,
          .a_sums = dbias,
          .k = padded,
          .b = packed_x,
          .bias = nullptr,
          .c_f32 = dweight.As<float>(),
          .c_bf16 = nullptr,
          .c_stride = in,
          .accumulate = accumulate,
          .gelu = ProductGelu::kNone,
          .before = nullptr,
          .active = nullptr},
         out, in / kBlock);
}

}  // namespace

bool AmxServes(int64_t out_features, int64_t in_features, DType compute) {
  return compute == DType::kBF16 && ActiveIsa() >= Isa::kAmx && out_features % kBlock == 0 &&
         in_features % kBlock == 0;
}

Result<std::unique_ptr<CpuWeight>> NewAmxWeight(int64_t out_features, int64_t in_features) {
  const size_t bytes = static_cast<size_t>(out_features * in_features) * sizeof(BFloat16);
  AlignedMemory packed = AllocateAligned(bytes);
  if (packed == nullptr) {
    return ExhaustedError("NewPackedWeight: no memory for a copy of " + std::to_string(bytes) +
                          " bytes");
  }
  return std::unique_ptr<CpuWeight>(
      std::make_unique<AmxWeight>(out_features, in_features, std::move(packed)));
}

void AmxBackwardWeight(const TensorView& x, const TensorView& dy, const TensorView& dweight,
                       const TensorView& dbias, bool accumulate) {
  int64_t out = dy.shape[1];
  if (dbias && !accumulate) std::fill_n(dbias.As<float>(), out, 0.0f);
  for (int64_t first = 0; first < x.shape[0]; first += kSummedRows) {
    int64_t rows = std::min(kSummedRows, x.shape[0] - first);
    BackwardWeightOfRows(x.As<BFloat16>() + first * x.row_stride, x.row_stride,
                         dy.As<BFloat16>() + first * dy.row_stride, dy.row_stride, rows, dweight,
                         static_cast<float*>(dbias.data), accumulate || first > 0);
  }
}

}  // namespace weft::kernels::cpu
