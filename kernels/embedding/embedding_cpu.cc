#include <algorithm>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_check.h"
#include "kernels/embedding/embedding_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of memory traffic.
constexpr int64_t kGrain = 16384;

Status CheckIndices(const char* op, const char* name, const TensorView& indices,
                    const TensorView& table, const EmbeddingPart& part = {}) {
  if (!table) return OkStatus();
  const int32_t* index = indices.As<int32_t>();
  const int64_t count = indices.shape.Elements();
  const int64_t limit = part.vocabulary > 0 ? part.vocabulary : table.shape[0];
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] >= 0 && index[i] < limit) continue;
    return InvalidError(std::string(op) + ": " + name + "[" + std::to_string(i) + "] is " +
                        std::to_string(index[i]) + ", outside of [0, " + std::to_string(limit) +
                        ")");
  }
  return OkStatus();
}

// Which of `parts` owns a table row; spreads neighbours, since frequent tokens have near numbers.
int64_t Owner(int32_t row, int64_t parts) {
  uint32_t hash = static_cast<uint32_t>(row) * 2654435769u;
  return static_cast<int64_t>(static_cast<uint64_t>(hash) * static_cast<uint64_t>(parts) >> 32);
}

// Adds rows of `dout` to the rows of `dtable` that one part owns, in token order. Row 0 is that of
// index `first`.
template <class T>
void AccumulateOwned(const TensorView& indices, const TensorView& dout, const TensorView& dtable,
                     int64_t first, int64_t part, int64_t parts) {
  const EmbeddingLoops<T>& loops = PickEmbeddingKernels().Of<T>();
  const int32_t* index = indices.As<int32_t>();
  int64_t count = indices.shape[0], width = dtable.shape[1];
  for (int64_t t = 0; t < count; ++t) {
    if (Owner(index[t], parts) != part) continue;
    const int64_t row = index[t] - first;
    if (row < 0 || row >= dtable.shape[0]) continue;
    loops.accumulate(dout.As<T>() + t * width, dtable.As<float>() + row * width, width);
  }
}

template <class T, class W>
void Forward(const EmbeddingForwardArgs& args) {
  const EmbeddingLoops<T>& loops = PickEmbeddingKernels().Of<T>();
  const int64_t width = args.token_table.shape[1];
  const int32_t* tokens = args.tokens.As<int32_t>();
  const int32_t* positions = args.position_table ? args.positions.As<int32_t>() : nullptr;
  ParallelFor(args.tokens.shape[0], kGrain / std::max<int64_t>(width, 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t t = begin; t < end; ++t) {
                  T* out = args.out.As<T>() + t * width;
                  const int64_t row = tokens[t] - args.part.first_row;
                  const W* position = positions == nullptr
                                          ? nullptr
                                          : args.position_table.As<W>() + positions[t] * width;
                  if (row >= 0 && row < args.token_table.shape[0]) {
                    loops.Add(args.token_table.As<W>() + row * width, position, out, width);
                  } else if (position != nullptr) {
                    loops.Add(position, static_cast<const W*>(nullptr), out, width);
                  } else {
                    std::fill_n(out, width, T{});
                  }
                }
              });
}

}  // namespace

Status EmbeddingForward(const Stream& stream, const EmbeddingForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckEmbeddingForward(stream, args));
  WEFT_RETURN_IF_ERROR(
      CheckIndices("EmbeddingForward", "tokens", args.tokens, args.token_table, args.part));
  WEFT_RETURN_IF_ERROR(
      CheckIndices("EmbeddingForward", "positions", args.positions, args.position_table));
  WithFloatType(args.out.dtype, [&]<class T>() {
    if (args.token_table.dtype == DType::kF32) {
      Forward<T, float>(args);
    } else {
      Forward<T, BFloat16>(args);
    }
  });
  return OkStatus();
}

Status EmbeddingBackward(const Stream& stream, const EmbeddingBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckEmbeddingBackward(stream, args));
  WEFT_RETURN_IF_ERROR(
      CheckIndices("EmbeddingBackward", "tokens", args.tokens, args.dtoken_table, args.part));
  WEFT_RETURN_IF_ERROR(
      CheckIndices("EmbeddingBackward", "positions", args.positions, args.dposition_table));
  // Every thread walks all tokens and takes those of its own rows: no two write to one row, and
  // each row gets its sum in token order.
  int64_t parts = std::clamp<int64_t>(args.dout.shape.Elements() / kGrain, 1, Threads());
  WithFloatType(args.dout.dtype, [&]<class T>() {
    ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        if (args.dtoken_table) {
          AccumulateOwned<T>(args.tokens, args.dout, args.dtoken_table, args.part.first_row, part,
                             parts);
        }
        if (args.dposition_table) {
          AccumulateOwned<T>(args.positions, args.dout, args.dposition_table, 0, part, parts);
        }
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
