#include "worker/engine/tensor/profiler.h"

#include "common/check.h"
#include "common/clock.h"

namespace weft::engine {
namespace {

double SecondsBetween(Profiler::Time from, Profiler::Time to) {
  return ToSeconds(to - from);
}

Profiler::Time Before(Profiler::Time time, double seconds) {
  return time - FromSeconds(seconds);
}

}  // namespace

void Profiler::StartTrace(const Allocator* allocator) {
  allocator_ = allocator;
  std::lock_guard lock(mutex_);
  trace_ = {};
}

void Profiler::Open(std::string_view name) {
  open_.push_back({name, std::chrono::steady_clock::now()});
}

void Profiler::Close() {
  WEFT_CHECK(!open_.empty(), "no operation is open");
  const Time now = std::chrono::steady_clock::now();
  const Frame frame = open_.back();
  open_.pop_back();
  const double seconds = SecondsBetween(frame.begin, now);
  if (!open_.empty()) open_.back().inner_seconds += seconds;
  Keep({Track::kOperations, frame.name, {}, frame.begin, seconds, frame.flops, frame.bytes},
       seconds - frame.inner_seconds);
  if (allocator_ == nullptr || trace_.memory.size() >= kMaxEvents) return;
  const MemoryBreakdown live = allocator_->Live();
  if (trace_.memory.empty() || trace_.memory.back().live != live) {
    trace_.memory.push_back({now, live});
  }
}

void Profiler::CountWork(double flops, double bytes) {
  if (open_.empty()) return;
  open_.back().flops += flops;
  open_.back().bytes += bytes;
}

void Profiler::AddPhase(std::string_view name, double seconds) {
  AddPhase(name, seconds, Before(std::chrono::steady_clock::now(), seconds));
}

void Profiler::AddPhase(std::string_view name, double seconds, Time begin) {
  Keep({Track::kPhases, name, {}, begin, seconds, 0, 0}, seconds);
}

void Profiler::AddCollective(std::string_view name, std::string_view group, double seconds,
                             double bytes) {
  const Time begin = Before(std::chrono::steady_clock::now(), seconds);
  Keep({Track::kCollectives, name, group, begin, seconds, 0, bytes}, seconds);
}

void Profiler::Clear() {
  std::lock_guard lock(mutex_);
  for (Entries& entries : entries_) entries.clear();
}

void Profiler::Keep(const Event& event, double self_seconds) {
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[static_cast<size_t>(event.track)][event.name];
  entry.seconds += event.seconds;
  entry.self_seconds += self_seconds;
  ++entry.calls;
  entry.flops += event.flops;
  entry.bytes += event.bytes;
  if (allocator_ == nullptr) return;
  if (trace_.events.size() < kMaxEvents) {
    trace_.events.push_back(event);
  } else {
    ++trace_.dropped;
  }
}

}  // namespace weft::engine
