#include "kernels/gather_rows/gather_rows.h"

#include <cstring>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/gather_rows/gather_rows_check.h"

namespace weft::kernels::cpu {
namespace {

// Bytes a thread must copy for a parallel region to pay.
constexpr size_t kGrainBytes = 65536;

Status CheckIndices(const char* op, const TensorView& rows, const TensorView& all) {
  const auto* index = rows.As<int32_t>();
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    if (index[i] >= 0 && index[i] < all.shape[0]) continue;
    return InvalidError(std::string(op) + ": rows[" + std::to_string(i) + "] is " +
                        std::to_string(index[i]) + ", outside of [0, " +
                        std::to_string(all.shape[0]) + ")");
  }
  return OkStatus();
}

// Calls copy(row of `all`, row of `picked`, bytes) for each index.
template <class Copy>
void ForEachRow(const TensorView& all, const TensorView& rows, const TensorView& picked,
                Copy&& copy) {
  const size_t element = DTypeSize(all.dtype);
  const size_t bytes = static_cast<size_t>(all.shape[1]) * element;
  const auto* index = rows.As<int32_t>();
  const auto grain = static_cast<int64_t>(kGrainBytes / (bytes + 1) + 1);
  ParallelFor(rows.shape[0], grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      copy(static_cast<char*>(all.data) + static_cast<size_t>(index[i] * all.row_stride) * element,
           static_cast<char*>(picked.data) + static_cast<size_t>(i * picked.row_stride) * element,
           bytes);
    }
  });
}

}  // namespace

Status GatherRows(const Stream& stream, const GatherRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGatherRows(stream, args));
  WEFT_RETURN_IF_ERROR(CheckIndices("GatherRows", args.rows, args.x));
  ForEachRow(args.x, args.rows, args.y,
             [](const char* all, char* picked, size_t bytes) { std::memcpy(picked, all, bytes); });
  return OkStatus();
}

Status ScatterRows(const Stream& stream, const ScatterRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScatterRows(stream, args));
  WEFT_RETURN_IF_ERROR(CheckIndices("ScatterRows", args.rows, args.y));
  ForEachRow(args.y, args.rows, args.x,
             [](char* all, const char* picked, size_t bytes) { std::memcpy(all, picked, bytes); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
