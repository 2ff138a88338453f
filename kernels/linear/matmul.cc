#include "kernels/linear/matmul.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "common/check.h"
#include "common/log.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/linear/padded_sum.h"
#include "kernels/linear/product_check.h"

namespace weft::kernels::cpu {
namespace {

using Desc = dnnl::memory::desc;
using Tag = dnnl::memory::format_tag;

// Rows of the left matrix for which packed layouts are chosen; any other number works with them.
constexpr int64_t kTypicalRows = 2048;

// Shapes of a training step number in the tens; serving odd batch sizes must not grow memory.
constexpr size_t kCachedPrimitives = 256;

// A packed matrix's rest starts on a cache line of its own.
constexpr int64_t kRestAlignment = 64;

dnnl::cpu_isa MaxOneDnnIsa(Isa isa) {
  switch (isa) {
    case Isa::kBaseline:
      return dnnl::cpu_isa::sse41;
    case Isa::kAvx2:
      return dnnl::cpu_isa::avx2;
    case Isa::kAvx512:
      return dnnl::cpu_isa::avx512_core;
    case Isa::kAvx512Bf16:
      return dnnl::cpu_isa::avx512_core_bf16;
    case Isa::kAmx:
      return dnnl::cpu_isa::avx512_core_amx;
  }
  return dnnl::cpu_isa::all;
}

const dnnl::engine& Engine() {
  static const dnnl::engine kEngine = [] {
    // The limit only counts before the first primitive; oneDNN's own variable, which may ask for
    // less, is left to it when ours does not restrict.
    if (ProcessIsa() < DetectedIsa()) dnnl::set_max_cpu_isa(MaxOneDnnIsa(ProcessIsa()));
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return kEngine;
}

dnnl::stream& ThreadStream() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

dnnl::memory::data_type ToOneDnn(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

// oneDNN reports failures by exceptions; they end here.
template <class Fn>
Status Guarded(const char* what, Fn&& fn) {
  try {
    fn();
    return OkStatus();
  } catch (const dnnl::error& error) {
    std::string message = std::string("oneDNN: ") + what + ": " + error.message;
    return error.status == dnnl_out_of_memory ? ExhaustedError(message) : InternalError(message);
  } catch (const std::bad_alloc&) {
    return ExhaustedError(std::string("oneDNN: ") + what + ": out of memory");
  }
}

std::string Describe(const MatmulShape& shape) {
  return "matmul of " + std::string(DTypeName(shape.input)) + " [" + std::to_string(shape.m) +
         ", " + std::to_string(shape.k) + "] by [" + std::to_string(shape.k) + ", " +
         std::to_string(shape.n) + "]";
}

Desc PackedDesc(int64_t k, int64_t n, DType dtype) {
  dnnl::memory::data_type type = ToOneDnn(dtype);
  Desc a({kTypicalRows, k}, type, Tag::ab), b({k, n}, type, Tag::any);
  Desc c({kTypicalRows, n}, type, Tag::ab);
  return dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), Engine()).weights_desc();
}

struct Product {
  dnnl::matmul primitive;
  Desc a, b, bias, c, scratchpad;
};

Product MakeProduct(const MatmulShape& shape) {
  dnnl::memory::data_type in = ToOneDnn(shape.input);
  dnnl::memory::dims a_strides = {shape.a_stride, 1};
  if (shape.a_transposed) std::swap(a_strides[0], a_strides[1]);
  const dnnl::memory::dims b_strides = {shape.b_stride, 1};
  Product product;
  product.a = Desc({shape.m, shape.k}, in, a_strides);
  product.b = shape.b_stride == 0 ? PackedDesc(shape.k, shape.n, shape.input)
                                  : Desc({shape.k, shape.n}, in, b_strides);
  product.c =
      Desc({shape.m, shape.n}, ToOneDnn(shape.output), dnnl::memory::dims{shape.c_stride, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  if (shape.bias) {
    product.bias = Desc({1, shape.n}, dnnl::memory::data_type::f32, Tag::ab);
  }
  dnnl::matmul::desc desc = shape.bias
                                ? dnnl::matmul::desc(product.a, product.b, product.bias, product.c)
                                : dnnl::matmul::desc(product.a, product.b, product.c);
  dnnl::matmul::primitive_desc primitive_desc(desc, attributes, Engine());
  product.scratchpad = primitive_desc.scratchpad_desc();
  product.primitive = dnnl::matmul(primitive_desc);
  return product;
}

// The most recently used primitives; the least recently used goes first. A primitive is laid out
// for a number of threads, which therefore belongs to its key.
class ProductCache {
 public:
  std::shared_ptr<const Product> Get(const MatmulShape& shape) {
    int threads = Threads();
    std::lock_guard lock(mutex_);
    auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.shape == shape && entry.threads == threads;
    });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      return entries_.front().product;
    }
    auto product = std::make_shared<const Product>(MakeProduct(shape));
    entries_.push_front({shape, threads, product});
    if (entries_.size() > kCachedPrimitives) entries_.pop_back();
    return product;
  }

 private:
  struct Entry {
    MatmulShape shape;
    int threads;
    std::shared_ptr<const Product> product;
  };

  std::mutex mutex_;
  std::list<Entry> entries_;
};

ProductCache& Cache() {
  static ProductCache cache;
  return cache;
}

struct Scratch;

dnnl::memory Wrap(const Desc& desc, const void* data) {
  return {desc, Engine(), const_cast<void*>(data)};
}

// The one call of oneDNN's products.
Status RunOnLibrary(const MatmulShape& shape, const void* a, const void* b, const float* bias,
                    void* c) {
  WEFT_CHECK(SplitSum(shape.input, shape.k).rest == 0, "oneDNN gets sums without a rest only");
  std::string what = Describe(shape);
  return Guarded(what.c_str(), [&] {
    std::shared_ptr<const Product> product = Cache().Get(shape);
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, Wrap(product->a, a)},
        {DNNL_ARG_WEIGHTS, Wrap(product->b, b)},
        {DNNL_ARG_DST, Wrap(product->c, c)},
        {DNNL_ARG_SCRATCHPAD,
         Wrap(product->scratchpad, ThreadScratch<Scratch, uint8_t>(
                                       static_cast<int64_t>(product->scratchpad.get_size())))},
    };
    if (shape.bias) arguments.emplace(DNNL_ARG_BIAS, Wrap(product->bias, bias));
    product->primitive.execute(ThreadStream(), arguments);
    ThreadStream().wait();
  });
}

}  // namespace

bool MatmulHasBf16() {
  static const bool kHas = [] {
    Engine();
    // Each set of instructions has the bits of those that it contains.
    constexpr auto kBf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    if ((isa & kBf16) != kBf16) return false;
    const std::string wrong = CheckProducts(Matmul);
    if (wrong.empty()) return true;
    WEFT_LOG_ERROR << "oneDNN multiplies bf16 matrices wrongly on this CPU: " << wrong
                   << "; products of sizes that need it are computed in f32, which is slower; "
                      "hint: WEFT_ISA=avx512 may avoid the fault";
    return false;
  }();
  return kHas;
}

Status PackedMatrix::Reset(int64_t k, int64_t n, DType dtype) {
  return Guarded("layout of a weight matrix", [&] {
    const SumParts parts = SplitSum(dtype, k);
    int64_t bytes = 0;
    if (parts.whole > 0) {
      const auto packed = static_cast<int64_t>(PackedDesc(parts.whole, n, dtype).get_size());
      bytes = (packed + kRestAlignment - 1) / kRestAlignment * kRestAlignment;
    }
    whole_bytes_ = bytes;
    if (parts.rest > 0) bytes += kSumMultiple * n * static_cast<int64_t>(DTypeSize(dtype));
    if (bytes > bytes_) {
      bytes_ = 0;
      memory_.reset();
      memory_ = AllocateAligned(static_cast<size_t>(bytes));
      if (memory_ == nullptr) throw std::bad_alloc();
      bytes_ = bytes;
    }
    k_ = k;
    n_ = n;
    dtype_ = dtype;
  });
}

Status PackedMatrix::Pack(const void* from, DType dtype, int64_t row_stride,
                          int64_t column_stride) {
  return Guarded("packing a weight matrix", [&] {
    const SumParts parts = SplitSum(dtype_, k_);
    // Rows [first, first + rows) of the matrix to `to`, laid out as `desc`.
    auto reorder = [&](int64_t first, int64_t rows, const Desc& desc, void* to) {
      Desc plain({rows, n_}, ToOneDnn(dtype), dnnl::memory::dims{row_stride, column_stride});
      const int64_t skipped = first * row_stride * static_cast<int64_t>(DTypeSize(dtype));
      dnnl::memory source = Wrap(plain, static_cast<const char*>(from) + skipped);
      dnnl::memory target = Wrap(desc, to);
      dnnl::reorder(source, target).execute(ThreadStream(), source, target);
      ThreadStream().wait();
    };
    if (parts.whole > 0) {
      reorder(0, parts.whole, PackedDesc(parts.whole, n_, dtype_), memory_.get());
    }
    if (parts.rest > 0) {
      const int64_t row_bytes = n_ * static_cast<int64_t>(DTypeSize(dtype_));
      reorder(parts.whole, parts.rest, Desc({parts.rest, n_}, ToOneDnn(dtype_), Tag::ab), rest());
      std::memset(static_cast<char*>(rest()) + parts.rest * row_bytes, 0,
                  static_cast<size_t>((kSumMultiple - parts.rest) * row_bytes));
    }
  });
}

void* PackedMatrix::rest() const {
  return static_cast<char*>(memory_.get()) + whole_bytes_;
}

MatmulRight PackedMatrix::view() const {
  return {.data = memory_.get(), .rest = SplitSum(dtype_, k_).rest > 0 ? rest() : nullptr};
}

Status Matmul(const MatmulShape& shape, const void* a, const MatmulRight& b, const float* bias,
              void* c) {
  if (SplitSum(shape.input, shape.k).rest == 0) return RunOnLibrary(shape, a, b.data, bias, c);
  return RunPaddedSum(shape, a, b, bias, c, RunOnLibrary);
}

}  // namespace weft::kernels::cpu
