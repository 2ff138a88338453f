#include <algorithm>
#include <string>

#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/embedding_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of memory traffic.
constexpr int64_t kGrain = 16384;

void CheckIndices(ArgumentCheck& check, const char* name, const TensorView& indices,
                  int64_t limit) {
  if (!check.status().ok()) return;
  const int32_t* index = indices.As<int32_t>();
  int64_t count = indices.shape.Elements();
  for (int64_t i = 0; i < count; ++i) {
    if (index[i] >= 0 && index[i] < limit) continue;
    check.That(false, std::string(name) + "[" + std::to_string(i) + "] is " +
                          std::to_string(index[i]) + ", outside of [0, " + std::to_string(limit) +
                          ")");
    return;
  }
}

// The checks that both directions share: `rows` is out or dout, the tables those or their
// gradients, where some may be missing.
Status Check(const Stream& stream, const char* op, const TensorView& tokens,
             const TensorView& positions, const TensorView& token_table,
             const TensorView& position_table, const char* rows_name, const TensorView& rows,
             std::initializer_list<DType> table_types) {
  ArgumentCheck check(stream, op);
  check.That(tokens.shape.rank == 1, "tokens is not a vector")
      .That(rows.shape.rank == 2, std::string(rows_name) + " is not a matrix")
      .That(!token_table || token_table.shape.rank == 2, "the token table is not a matrix")
      .That(static_cast<bool>(positions) == static_cast<bool>(position_table),
            "positions and their table come together")
      .That(!position_table || position_table.shape.rank == 2,
            "the position table is not a matrix");
  if (!check.status().ok()) return check.status();
  int64_t count = tokens.shape[0], width = rows.shape[1];
  check.ContiguousTensor("tokens", tokens, tokens.shape, {DType::kI32})
      .ContiguousTensor(rows_name, rows, {count, width}, kFloatTypes);
  if (token_table) {
    check.ContiguousTensor("the token table", token_table, {token_table.shape[0], width},
                           table_types);
    CheckIndices(check, "tokens", tokens, token_table.shape[0]);
  }
  if (position_table) {
    check.ContiguousTensor("positions", positions, {count}, {DType::kI32})
        .ContiguousTensor("the position table", position_table, {position_table.shape[0], width},
                          {token_table.dtype});
    CheckIndices(check, "positions", positions, position_table.shape[0]);
  }
  return check.status();
}

// Which of `parts` owns a table row; spreads neighbours, since frequent tokens have near numbers.
int64_t Owner(int32_t row, int64_t parts) {
  uint32_t hash = static_cast<uint32_t>(row) * 2654435769u;
  return static_cast<int64_t>(static_cast<uint64_t>(hash) * static_cast<uint64_t>(parts) >> 32);
}

// Adds rows of `dout` to the rows of `dtable` that one part owns, in token order.
template <class T>
void AccumulateOwned(const TensorView& indices, const TensorView& dout, const TensorView& dtable,
                     int64_t part, int64_t parts) {
  const EmbeddingLoops<T>& loops = PickEmbeddingKernels().Of<T>();
  const int32_t* index = indices.As<int32_t>();
  int64_t count = indices.shape[0], width = dtable.shape[1];
  for (int64_t t = 0; t < count; ++t) {
    if (Owner(index[t], parts) != part) continue;
    loops.accumulate(dout.As<T>() + t * width, dtable.As<float>() + index[t] * width, width);
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
                  const W* token = args.token_table.As<W>() + tokens[t] * width;
                  const W* position = positions == nullptr
                                          ? nullptr
                                          : args.position_table.As<W>() + positions[t] * width;
                  loops.Add(token, position, args.out.As<T>() + t * width, width);
                }
              });
}

}  // namespace

Status EmbeddingForward(const Stream& stream, const EmbeddingForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(ArgumentCheck(stream, "EmbeddingForward")
                           .That(static_cast<bool>(args.token_table), "the token table is missing")
                           .status());
  WEFT_RETURN_IF_ERROR(Check(stream, "EmbeddingForward", args.tokens, args.positions,
                             args.token_table, args.position_table, "out", args.out, kMatrixTypes));
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
  // Without a gradient table for them, positions do not matter.
  WEFT_RETURN_IF_ERROR(Check(stream, "EmbeddingBackward", args.tokens,
                             args.dposition_table ? args.positions : TensorView(),
                             args.dtoken_table, args.dposition_table, "dout", args.dout,
                             {DType::kF32}));
  // Every thread walks all tokens and takes those of its own rows: no two write to one row, and
  // each row gets its sum in token order.
  int64_t parts = std::clamp<int64_t>(args.dout.shape.Elements() / kGrain, 1, Threads());
  WithFloatType(args.dout.dtype, [&]<class T>() {
    ParallelFor(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        if (args.dtoken_table) {
          AccumulateOwned<T>(args.tokens, args.dout, args.dtoken_table, part, parts);
        }
        if (args.dposition_table) {
          AccumulateOwned<T>(args.positions, args.dout, args.dposition_table, part, parts);
        }
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
