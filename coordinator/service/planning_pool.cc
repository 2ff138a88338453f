#include "coordinator/service/planning_pool.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weft::coordinator {

PlanningPool::PlanningPool(const Clock& clock, int threads, size_t most_waiting)
    : watch_(clock), most_waiting_(most_waiting) {
  if (threads == 0) return;
  watch_.Start();
  for (int i = 0; i < std::max(threads, 2); ++i) {
    threads_.emplace_back([this, i] { Serve(i == 0); });
  }
}

std::shared_ptr<PlanTicket> PlanningPool::Add(std::chrono::nanoseconds budget, Work work) {
  auto ticket = std::make_shared<PlanTicket>();
  ticket->work_ = std::move(work);
  ticket->budget_ = budget;
  {
    const std::lock_guard lock(mutex_);
    if (stopping_ || waiting_.size() >= most_waiting_) return nullptr;
    waiting_.push_back(ticket);
  }
  changed_.notify_one();
  return ticket;
}

void PlanningPool::MoveToEnd(const std::vector<std::shared_ptr<PlanTicket>>& tickets) {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<PlanTicket>& ticket : tickets) {
    const auto found = std::find(waiting_.begin(), waiting_.end(), ticket);
    if (found != waiting_.end()) std::rotate(found, std::next(found), waiting_.end());
  }
}

void PlanningPool::Cancel(const std::shared_ptr<PlanTicket>& ticket) {
  ticket->source_.request_stop();
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(waiting_.begin(), waiting_.end(), ticket);
    if (found == waiting_.end()) return;
    waiting_.erase(found);
  }
  std::exchange(ticket->work_, nullptr)(*ticket);
}

bool PlanningPool::RunFirst() {
  std::unique_lock lock(mutex_);
  if (waiting_.empty()) return false;
  const std::shared_ptr<PlanTicket> ticket = waiting_.front();
  waiting_.pop_front();
  lock.unlock();
  std::exchange(ticket->work_, nullptr)(*ticket);
  return true;
}

void PlanningPool::Serve(bool from_head) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::shared_ptr<PlanTicket> ticket = from_head ? waiting_.front() : waiting_.back();
    if (from_head) {
      waiting_.pop_front();
    } else {
      waiting_.pop_back();
    }
    running_.push_back(ticket);
    lock.unlock();
    watch_.PostAfter(ticket->budget_, [weak = std::weak_ptr(ticket)] {
      const std::shared_ptr<PlanTicket> late = weak.lock();
      if (late == nullptr) return;
      if (!late->source_.stop_requested()) late->overran_ = true;
      late->source_.request_stop();
    });
    std::exchange(ticket->work_, nullptr)(*ticket);
    lock.lock();
    std::erase(running_, ticket);
  }
}

void PlanningPool::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const auto& list : {waiting_, decltype(waiting_)(running_.begin(), running_.end())}) {
      for (const std::shared_ptr<PlanTicket>& ticket : list) ticket->source_.request_stop();
    }
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  while (RunFirst()) continue;  // of a pool without threads
  watch_.Stop();
}

}  // namespace weft::coordinator
