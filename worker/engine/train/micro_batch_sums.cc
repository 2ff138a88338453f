#include "worker/engine/train/micro_batch_sums.h"

#include <algorithm>
#include <string>

#include "kernels/elementwise/elementwise.h"

namespace weft::engine {

Result<std::unique_ptr<MicroBatchSums>> MicroBatchSums::New(Context& context,
                                                            ParameterSet* parameters,
                                                            int64_t micro_batches,
                                                            bool adds_gradients) {
  std::unique_ptr<MicroBatchSums> sums(
      new MicroBatchSums(parameters, micro_batches, adds_gradients));
  if (!adds_gradients) return sums;
  sums->next_.resize(static_cast<size_t>(parameters->size()));
  WEFT_ASSIGN_OR_RETURN(sums->tree_,
                        MicroBatchTree::New(context, parameters->GradientCount(), micro_batches));
  return sums;
}

void MicroBatchSums::Start() {
  std::fill(next_.begin(), next_.end(), 0);
  loss_of_one_ = {};
  total_loss_ = {};
}

TensorView MicroBatchSums::PlaceGradient(int64_t index) {
  const ParameterSet::Range range = parameters_->GradientRange(index);
  const TensorView waits =
      tree_.PlaceOf(next_[static_cast<size_t>(index)], range.begin, range.size());
  float* const all = parameters_->gradients().As<float>();
  parameters_->PlaceGradients(range, waits ? waits.As<float>() : all + range.begin);
  return parameters_->gradient(index);
}

Result<bool> MicroBatchSums::OnGradient(const Stream& stream, int64_t index) {
  const ParameterSet::Range range = parameters_->GradientRange(index);
  const int64_t number = next_[static_cast<size_t>(index)]++;
  const Tensor sum = parameters_->gradients().Elements(range.begin, range.size());
  const TensorView waits = tree_.PlaceOf(number, range.begin, range.size());
  WEFT_RETURN_IF_ERROR(tree_.Add(stream, number, range.begin, waits ? waits : sum.view(), sum));
  return number + 1 == micro_batches_;
}

Result<bool> MicroBatchSums::ClearUnused(const Stream& stream, int64_t index) {
  const int64_t used = next_[static_cast<size_t>(index)];
  if (used == micro_batches_) return false;
  if (used > 0) {
    return InternalError((*parameters_)[index].name + " has gradients of " + std::to_string(used) +
                         " of " + std::to_string(micro_batches_) + " micro-batches");
  }
  const ParameterSet::Range range = parameters_->GradientRange(index);
  const Tensor sum = parameters_->gradients().Elements(range.begin, range.size());
  parameters_->PlaceGradients(range, sum.As<float>());
  WEFT_RETURN_IF_ERROR(kernels::Fill(stream, {sum, 0.0f}));
  return true;
}

void MicroBatchSums::OnLoss() {
  total_loss_.Add(loss_of_one_);
  loss_of_one_ = {};
}

}  // namespace weft::engine
