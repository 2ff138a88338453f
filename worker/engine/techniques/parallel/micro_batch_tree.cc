#include "worker/engine/techniques/parallel/micro_batch_tree.h"

#include <bit>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

Result<MicroBatchTree> MicroBatchTree::New(Context& context, int64_t count, int64_t micro_batches) {
  WEFT_CHECK(std::has_single_bit(static_cast<uint64_t>(micro_batches)),
             "a complete binary tree has a power of two leaves");
  MicroBatchTree tree;
  tree.micro_batches_ = micro_batches;
  for (int64_t size = 1; size < micro_batches; size *= 2) {
    WEFT_ASSIGN_OR_RETURN(Tensor sums,
                          Tensor::New(context, Component::kGradients, DType::kF32, {count}));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, sums));
    tree.waiting_.push_back(std::move(sums));
  }
  return tree;
}

TensorView MicroBatchTree::PlaceOf(int64_t number, int64_t first, int64_t count) const {
  if (is_last(number) || number % 2 == 1) return {};
  return waiting_[0].Elements(first, count);
}

Status MicroBatchTree::Add(const Stream& stream, int64_t number, int64_t first,
                           const TensorView& values, const TensorView& sum) const {
  // As many subtrees are complete with it as its number ends in ones.
  const auto complete = static_cast<size_t>(std::countr_one(static_cast<uint64_t>(number)));
  const auto waiting = [&](size_t level) {
    return waiting_[level].Elements(first, values.shape.Elements()).view();
  };
  const TensorView result = is_last(number) ? sum : waiting(complete);
  if (complete == 0) {
    return result.data == values.data ? OkStatus() : kernels::Cast(stream, {values, result});
  }
  for (size_t level = 0; level < complete; ++level) {
    const TensorView to = level + 1 == complete ? result : values;
    WEFT_RETURN_IF_ERROR(kernels::Add(stream, {waiting(level), values, to}));
  }
  return OkStatus();
}

}  // namespace weft::engine
