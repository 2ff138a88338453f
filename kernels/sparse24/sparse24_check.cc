#include "kernels/sparse24/sparse24_check.h"

#include <algorithm>
#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// Elements of a sparse weight are numbered in 32 bits.
constexpr int64_t kMostElements = int64_t{1} << 32;

int64_t RowsOf(const TensorView& view) {
  return view.shape.rank == 2 ? view.shape[0] : 0;
}

}  // namespace

Status CheckSparseWeight(int64_t out_features, int64_t in_features, DType compute) {
  if (out_features > 0 && in_features > 0 && out_features % 4 == 0 && in_features % 4 == 0 &&
      out_features <= kMostElements / in_features &&
      std::find(kFloatTypes.begin(), kFloatTypes.end(), compute) != kFloatTypes.end()) {
    return OkStatus();
  }
  return InvalidError("SparseWeight: there is none of [" + std::to_string(out_features) + ", " +
                      std::to_string(in_features) + "] " + std::string(DTypeName(compute)) +
                      "; hint: sizes that are multiples of 4, and a type of activations");
}

Status CheckSparseMask(const Stream& stream, const SparseWeight& weight, const TensorView& mask) {
  const Shape blocks = {weight.out_features() / 4, weight.in_features() / 4};
  return ArgumentCheck(stream, "SparseWeight")
      .ContiguousTensor("mask", mask, blocks, {DType::kU16})
      .status();
}

Status CheckSparsePack(const Stream& stream, const SparseWeight& weight, const TensorView& values) {
  return ArgumentCheck(stream, "SparseWeight")
      .Tensor("weight", values, {weight.out_features(), weight.in_features()}, kMatrixTypes)
      .status();
}

Status CheckSparseForward(const Stream& stream, const SparseForwardArgs& args) {
  if (args.weight == nullptr) return InvalidError("SparseForward: no weight");
  const SparseWeight& weight = *args.weight;
  const int64_t rows = RowsOf(args.x);
  ArgumentCheck check(stream, "SparseForward");
  check.Tensor("x", args.x, {rows, weight.in_features()}, {weight.compute()})
      .Tensor("y", args.y, {rows, weight.out_features()}, {weight.compute()});
  if (args.bias) check.Tensor("bias", args.bias, {weight.out_features()}, {DType::kF32});
  if (args.active) {
    const bool gated = IsGated(args.activation);
    const int64_t out = weight.out_features();
    check.ContiguousTensor("y", args.y, {rows, out}, {weight.compute()})
        .ContiguousTensor("active", args.active, {rows, gated ? out / 2 : out}, {weight.compute()})
        .That(!gated || out % 8 == 0, "rows of gate and up in the weight are no multiple of 4");
  }
  return check.status();
}

Status CheckSparseBackwardInput(const Stream& stream, const SparseBackwardInputArgs& args) {
  if (args.weight == nullptr) return InvalidError("SparseBackwardInput: no weight");
  const SparseWeight& weight = *args.weight;
  const int64_t rows = RowsOf(args.dy), in = weight.in_features();
  const Shape input = {rows, args.before && IsGated(args.activation) ? 2 * in : in};
  ArgumentCheck check(stream, "SparseBackwardInput");
  check.Tensor("dy", args.dy, {rows, weight.out_features()}, {weight.compute()})
      .Tensor("dx", args.dx, input, {weight.compute()});
  if (args.before) {
    check.ContiguousTensor("dx", args.dx, input, {weight.compute()})
        .ContiguousTensor("before", args.before, input, {weight.compute()});
  }
  if (args.active) {
    check.ContiguousTensor("active", args.active, {rows, in}, {weight.compute()})
        .That(static_cast<bool>(args.before), "active without `before`");
  }
  return check.status();
}

Status CheckSparseBackwardWeight(const Stream& stream, const SparseBackwardWeightArgs& args) {
  const int64_t rows = RowsOf(args.x);
  ArgumentCheck check(stream, "SparseBackwardWeight");
  check.Tensor("x", args.x, args.x.shape, kFloatTypes)
      .That(args.x.shape.rank == 2 && args.dy.shape.rank == 2, "x and dy are no matrices");
  if (!check.status().ok()) return check.status();
  return check.Tensor("dy", args.dy, {rows, args.dy.shape[1]}, {args.x.dtype})
      .That(args.dy.shape[1] % 4 == 0, "columns of dy are no multiple of 4")
      .Tensor("dweight", args.dweight, {args.dy.shape[1], args.x.shape[1]}, {DType::kF32})
      .That(args.estimate == nullptr || args.estimate->first_row % 4 == 0,
            "first_row of the estimate is not a multiple of 4")
      .status();
}

Status CheckSampledBackwardWeight(const Stream& stream, const SampledBackwardWeightArgs& args) {
  if (args.weight == nullptr) return InvalidError("SampledBackwardWeight: no weight");
  const SparseWeight& weight = *args.weight;
  const int64_t tokens = RowsOf(args.x), in = weight.in_features();
  const int64_t rows = args.dy.shape.rank == 2 ? args.dy.shape[1] : 0;
  return ArgumentCheck(stream, "SampledBackwardWeight")
      .Tensor("x", args.x, {tokens, in}, {weight.compute()})
      .Tensor("dy", args.dy, {tokens, rows}, {weight.compute()})
      .Tensor("dweight", args.dweight, {rows, in}, {DType::kF32})
      .That(rows > 0 && rows % 4 == 0 && args.first_row >= 0 && args.first_row % 4 == 0 &&
                args.first_row <= weight.out_features() - rows,
            "dy is not of rows of the weight, in fours")
      .status();
}

}  // namespace weft::kernels
