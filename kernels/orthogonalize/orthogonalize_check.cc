#include "kernels/orthogonalize/orthogonalize_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckOrthogonalize(const Stream& stream, const OrthogonalizeArgs& args) {
  ArgumentCheck check(stream, "Orthogonalize");
  check.That(args.matrix.shape.rank == 2, "the matrix must have two dimensions");
  check.ContiguousTensor("matrix", args.matrix, args.matrix.shape, {DType::kF32});
  check.That(args.iterations >= 1, "there must be at least one iteration");
  check.That(args.compute == DType::kF32 || args.compute == DType::kBF16,
             "compute must be f32 or bf16");
  if (!check.status().ok()) return check.status();
  const int64_t rows = args.matrix.shape[0], columns = args.matrix.shape[1];
  if (rows == 0 || columns == 0) return OkStatus();
  check.ContiguousTensor("workspace", args.workspace,
                         {OrthogonalizeWorkspace(rows, columns, args.compute)}, {DType::kU8});
  return check.status();
}

}  // namespace weft::kernels
