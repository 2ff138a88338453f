#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {

void UpdateProgress::Start() {
  std::lock_guard lock(mutex_);
  done_ = 0;
}

void UpdateProgress::Reach(int64_t index) {
  std::lock_guard lock(mutex_);
  done_ = index;
  changed_.notify_all();
}

void UpdateProgress::Finish() {
  Reach(INT64_MAX);
}

void UpdateProgress::WaitFor(int64_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return index < done_; });
}

}  // namespace weft::engine
