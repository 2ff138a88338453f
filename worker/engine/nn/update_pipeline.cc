#include "worker/engine/nn/update_pipeline.h"

#include <algorithm>

namespace weft::engine {

size_t UpdatePipeline::PlaceOf(int64_t unit) const {
  return static_cast<size_t>(std::lower_bound(units_.begin(), units_.end(), unit) - units_.begin());
}

bool UpdatePipeline::Brings(int64_t unit) const {
  const size_t at = PlaceOf(unit);
  return open_ && at >= passed_ && at < units_.size() && units_[at] == unit;
}

Status UpdatePipeline::Open() {
  WEFT_CHECK(!open_, "one update at a time");
  units_.clear();
  for (int64_t unit = 0; unit < file_->parameters().units(); ++unit) {
    if (file_->values().bytes(static_cast<size_t>(unit)) > 0) units_.push_back(unit);
  }
  passed_ = started_ = updated_ = 0;
  open_ = true;
  for (size_t i = 0; i < kAhead; ++i) WEFT_RETURN_IF_ERROR(Start());
  return OkStatus();
}

// Its values are written as soon as they have been updated, which frozen ones are not.
Status UpdatePipeline::Start() {
  if (started_ == units_.size()) return OkStatus();
  const size_t at = started_;
  const int64_t unit = units_[at];
  WEFT_RETURN_IF_ERROR(file_->Start(unit));
  for (const size_t b : file_->BucketsOf(unit)) {
    WEFT_RETURN_IF_ERROR(file_->gradients().Start(b));
  }
  if (!file_->BucketsOf(unit).empty()) {
    file_->values().Write(static_cast<size_t>(unit), [this, at] { return AwaitUpdated(at); });
  }
  std::lock_guard lock(mutex_);
  ++started_;
  changed_.notify_all();
  return OkStatus();
}

Status UpdatePipeline::Pass(int64_t unit) {
  for (; passed_ < units_.size() && units_[passed_] <= unit; ++passed_) {
    WEFT_RETURN_IF_ERROR(AwaitUpdated(passed_));
    const int64_t passed = units_[passed_];
    WEFT_RETURN_IF_ERROR(file_->AwaitUncounted(passed));
    file_->Drop(passed);
    for (const size_t b : file_->BucketsOf(passed)) file_->gradients().Drop(b);
    WEFT_RETURN_IF_ERROR(file_->values().FinishWrites(1));
    WEFT_RETURN_IF_ERROR(Start());
  }
  return OkStatus();
}

Status UpdatePipeline::Close() {
  if (!open_) return OkStatus();
  WEFT_RETURN_IF_ERROR(Pass(file_->parameters().units()));
  WEFT_RETURN_IF_ERROR(file_->values().FinishWrites());
  open_ = false;
  return OkStatus();
}

Status UpdatePipeline::AwaitUpdated(size_t at) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return at < updated_ || !failed_.ok(); });
  return at < updated_ ? OkStatus() : failed_;
}

Status UpdatePipeline::MoveTo(int64_t unit) {
  const size_t at = PlaceOf(unit);
  {
    std::unique_lock lock(mutex_);
    updated_ = at;
    changed_.notify_all();
    changed_.wait(lock, [&] { return at < started_ || !failed_.ok(); });
    WEFT_RETURN_IF_ERROR(failed_);
  }
  WEFT_RETURN_IF_ERROR(file_->AwaitUncounted(unit));
  for (const size_t b : file_->BucketsOf(unit)) {
    WEFT_RETURN_IF_ERROR(file_->gradients().AwaitUncounted(b));
  }
  return OkStatus();
}

Status UpdatePipeline::Finish() {
  std::lock_guard lock(mutex_);
  updated_ = units_.size();
  changed_.notify_all();
  return OkStatus();
}

void UpdatePipeline::Fail(const Status& status) {
  std::lock_guard lock(mutex_);
  if (failed_.ok()) failed_ = status;
  changed_.notify_all();
}

}  // namespace weft::engine
