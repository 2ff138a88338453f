#include "worker/engine/nn/parameter_file_iterator.h"

namespace weft::engine {

ParameterFileIterator::ParameterFileIterator(ParameterFile* file, const What& what)
    : file_(file), what_(what) {
  for (int64_t unit = 0; unit < file->parameters().units(); ++unit) {
    if (!what.trained_alone || !file->BucketsOf(unit).empty()) units_.push_back(unit);
  }
}

ParameterFileIterator::~ParameterFileIterator() {
  for (size_t at = at_; at < units_.size() && at < at_ + 2; ++at) {
    const int64_t unit = units_[at];
    if (what_.values) {
      (void)file_->AwaitUncounted(unit);
      file_->Drop(unit);
    }
    for (const size_t b : file_->BucketsOf(unit)) {
      if (!what_.gradients) continue;
      (void)file_->gradients().AwaitUncounted(b);
      file_->gradients().Drop(b);
    }
  }
}

Status ParameterFileIterator::Start(size_t at) {
  if (at >= units_.size()) return OkStatus();
  if (what_.values) WEFT_RETURN_IF_ERROR(file_->Start(units_[at], what_.reads_values));
  if (!what_.gradients) return OkStatus();
  for (const size_t b : file_->BucketsOf(units_[at])) {
    WEFT_RETURN_IF_ERROR(file_->gradients().Start(b));
  }
  return OkStatus();
}

// One unit is written while this one is looked at and the next one is read.
Status ParameterFileIterator::Enter(size_t at) {
  entered_ = true;
  WEFT_RETURN_IF_ERROR(Start(at));
  if (what_.changes_values) WEFT_RETURN_IF_ERROR(file_->values().FinishWrites(1));
  WEFT_RETURN_IF_ERROR(Start(at + 1));
  const int64_t unit = units_[at];
  if (what_.values) {
    WEFT_RETURN_IF_ERROR(file_->Await(unit));
    if (!what_.reads_values) file_->ClearValues(unit);
  }
  if (!what_.gradients) return OkStatus();
  for (const size_t b : file_->BucketsOf(unit)) {
    WEFT_RETURN_IF_ERROR(file_->gradients().Await(b));
  }
  return OkStatus();
}

Status ParameterFileIterator::Leave(size_t at) {
  const int64_t unit = units_[at];
  entered_ = false;
  if (what_.values && what_.changes_values) file_->WriteBehind(unit);
  if (what_.values && !what_.changes_values) file_->Drop(unit);
  if (!what_.gradients) return OkStatus();
  for (const size_t b : file_->BucketsOf(unit)) {
    file_->gradients().Drop(b);
  }
  return OkStatus();
}

Status ParameterFileIterator::Next() {
  if (!entered_) return Enter(at_);
  WEFT_RETURN_IF_ERROR(Leave(at_++));
  return at_ < units_.size() ? Enter(at_) : OkStatus();
}

Status ParameterFileIterator::MoveTo(int64_t unit) {
  while (!entered_ || units_[at_] < unit) {
    if (at_ == units_.size()) break;
    WEFT_RETURN_IF_ERROR(Next());
  }
  WEFT_CHECK(at_ < units_.size() && units_[at_] == unit, "the walk goes by this unit");
  return OkStatus();
}

Status ParameterFileIterator::Finish() {
  while (at_ < units_.size()) WEFT_RETURN_IF_ERROR(Next());
  return what_.changes_values ? file_->values().FinishWrites() : OkStatus();
}

}  // namespace weft::engine
