#include "worker/engine/techniques/parallel/data_parallel.h"

#include <cstring>
#include <string>

namespace weft::engine {

DataParallel::DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes)
    : group_(group),
      gradients_(parameters->gradients().view().As<float>(),
                 static_cast<size_t>(parameters->GradientCount())),
      layout_(CutBuckets(*parameters, bucket_bytes)),
      thread_([this] { Communicate(); }) {}

DataParallel::~DataParallel() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

Status DataParallel::Begin(bool last_micro_batch) {
  last_micro_batch_ = last_micro_batch;
  std::lock_guard lock(mutex_);
  if (last_micro_batch) {
    missing_.clear();
    for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters);
    reduced_ = 0;
  }
  return status_;
}

Status DataParallel::OnGradientReady(int64_t index) {
  WEFT_CHECK(last_micro_batch_, "gradients are complete in the last micro-batch only");
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  int64_t& missing = missing_[static_cast<size_t>(bucket)];
  WEFT_CHECK(missing > 0, "a gradient was reported twice");
  if (--missing > 0) return OkStatus();
  std::lock_guard lock(mutex_);
  queue_.push_back(bucket);
  changed_.notify_all();
  return status_;
}

Status DataParallel::Finish() {
  for (int64_t missing : missing_) WEFT_CHECK(missing == 0, "a gradient was not reported");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] {
    return !status_.ok() || reduced_ == static_cast<int64_t>(layout_.buckets.size());
  });
  return status_;
}

Status DataParallel::SumScalars(std::span<double> values) {
  Profiler* profiler = nullptr;
  {
    std::lock_guard lock(mutex_);
    WEFT_RETURN_IF_ERROR(status_);
    WEFT_CHECK(queue_.empty() && !communicating_, "gradients are being reduced");
    profiler = profiler_;
  }
  Stopwatch watch;
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group_->AllGather(own));
  if (profiler != nullptr) {
    profiler->AddCollective("gather scalars", watch.Lap(), static_cast<double>(own.size()));
  }
  std::vector<double> sums(values.size(), 0.0);
  for (const std::string& part : all) {
    if (part.size() != values.size_bytes()) {
      return InternalError(
          "ranks sum different numbers of values: " + std::to_string(part.size() / sizeof(double)) +
          " and " + std::to_string(values.size()));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      double value = 0;
      std::memcpy(&value, part.data() + i * sizeof(double), sizeof(double));
      sums[i] += value;
    }
  }
  std::memcpy(values.data(), sums.data(), values.size_bytes());
  return OkStatus();
}

void DataParallel::SetProfiler(Profiler* profiler) {
  std::lock_guard lock(mutex_);
  profiler_ = profiler;
}

double DataParallel::communication_seconds() const {
  std::lock_guard lock(mutex_);
  return communication_seconds_;
}

void DataParallel::Communicate() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
    if (closing_) return;
    const GradientBucket& bucket = layout_.buckets[static_cast<size_t>(queue_.front())];
    queue_.pop_front();
    communicating_ = true;
    Profiler* const profiler = profiler_;
    lock.unlock();

    const std::span<float> values = gradients_.subspan(
        static_cast<size_t>(bucket.begin), static_cast<size_t>(bucket.end - bucket.begin));
    Stopwatch watch;
    Status status = group_->AllReduceSum(values);
    const double seconds = watch.Lap();
    if (profiler != nullptr) {
      profiler->AddCollective("all-reduce gradients", seconds,
                              static_cast<double>(values.size_bytes()));
    }

    lock.lock();
    communicating_ = false;
    communication_seconds_ += seconds;
    if (status.ok()) {
      ++reduced_;
    } else {
      if (status_.ok()) status_ = status;
      queue_.clear();
    }
    changed_.notify_all();
  }
}

}  // namespace weft::engine
