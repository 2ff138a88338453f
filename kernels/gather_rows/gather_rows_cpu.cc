#include "kernels/gather_rows/gather_rows.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/gather_rows/gather_rows_check.h"

namespace weft::kernels::cpu {
namespace {

// Bytes a thread must copy for a parallel region to pay.
constexpr size_t kGrainBytes = 65536;

// Rows of `all` that the indices are among.
int64_t PeriodOf(const TensorView& all, int64_t period) {
  return period > 0 ? period : all.shape[0];
}

Status CheckIndices(const char* op, const TensorView& rows, int64_t period) {
  const auto* index = rows.As<int32_t>();
  for (int64_t i = 0; i < rows.shape[0]; ++i) {
    if (index[i] >= 0 && index[i] < period) continue;
    return InvalidError(std::string(op) + ": rows[" + std::to_string(i) + "] is " +
                        std::to_string(index[i]) + ", outside of [0, " + std::to_string(period) +
                        ")");
  }
  return OkStatus();
}

// Columns of matrices are rows of one number, whose copies are not to be calls.
void CopyBytes(char* to, const char* from, size_t bytes) {
  if (bytes == sizeof(uint32_t)) {
    std::memcpy(to, from, sizeof(uint32_t));
  } else {
    std::memcpy(to, from, bytes);
  }
}

// Calls copy(row of `all`, row of `picked`, bytes) for each index of each group.
template <class Copy>
void ForEachRow(const TensorView& all, const TensorView& rows, const TensorView& picked,
                int64_t period, Copy&& copy) {
  const size_t element = DTypeSize(all.dtype);
  const size_t bytes = static_cast<size_t>(all.shape[1]) * element;
  const auto* index = rows.As<int32_t>();
  const int64_t count = rows.shape[0];
  if (count == 0) return;
  const auto grain = static_cast<int64_t>(kGrainBytes / (bytes + 1) + 1);
  ParallelFor(picked.shape[0], grain, [&](int64_t begin, int64_t end) {
    int64_t first = begin / count * period;  // of the group in `all`
    for (int64_t i = begin, k = begin % count; i < end; ++i) {
      const int64_t row = first + index[k];
      copy(static_cast<char*>(all.data) + static_cast<size_t>(row * all.row_stride) * element,
           static_cast<char*>(picked.data) + static_cast<size_t>(i * picked.row_stride) * element,
           bytes);
      if (++k < count) continue;
      k = 0;
      first += period;
    }
  });
}

}  // namespace

Status GatherRows(const Stream& stream, const GatherRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGatherRows(stream, args));
  const int64_t period = PeriodOf(args.x, args.period);
  WEFT_RETURN_IF_ERROR(CheckIndices("GatherRows", args.rows, period));
  ForEachRow(args.x, args.rows, args.y, period,
             [](const char* all, char* picked, size_t bytes) { CopyBytes(picked, all, bytes); });
  return OkStatus();
}

Status ScatterRows(const Stream& stream, const ScatterRowsArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckScatterRows(stream, args));
  const int64_t period = PeriodOf(args.y, args.period);
  WEFT_RETURN_IF_ERROR(CheckIndices("ScatterRows", args.rows, period));
  ForEachRow(args.y, args.rows, args.x, period,
             [](char* all, const char* picked, size_t bytes) { CopyBytes(all, picked, bytes); });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
