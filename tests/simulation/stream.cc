#include "tests/simulation/stream.h"

#include <algorithm>
#include <utility>

#include "tests/simulation/worker.h"

namespace weft::simulation {

using coordinator::AttemptKey;
using coordinator::MembershipOrder;
using coordinator::PlacementReport;
using coordinator::Service;
using coordinator::StartOrder;
using std::chrono::microseconds;
using std::chrono::milliseconds;

Stream::Stream(Timeline& timeline, Coordinator& coordinator, Worker& worker)
    : timeline_(timeline), coordinator_(coordinator), worker_(worker), life_(coordinator.life()) {}

Duration Stream::Latency() {
  return timeline_.Between(microseconds(100), milliseconds(timeline_.Chance(0.02) ? 500 : 5));
}

void Stream::Send(ToService message) {
  to_service_.push_back(std::move(message));
  last_to_service_ = std::max(last_to_service_, timeline_.now() + Latency());
  timeline_.After(last_to_service_ - timeline_.now(),
                  [self = shared_from_this()] { self->DeliverToService(); });
}

void Stream::DeliverToService() {
  if (to_service_.empty() || life_ != coordinator_.life() || !coordinator_.service()) return;
  if (worker_.cut_until() >= timeline_.now()) {
    timeline_.After(worker_.cut_until() - timeline_.now() + milliseconds(1),
                    [self = shared_from_this()] { self->DeliverToService(); });
    return;
  }
  const ToService message = std::move(to_service_.front());
  to_service_.pop_front();
  arrived_ = true;
  message(*coordinator_.service(), shared_from_this());
}

void Stream::HangUp() {
  left_ = true;
  if (!arrived_) to_service_.clear();
  if (detached_) return;
  detached_ = true;
  Send([](Service& service, const auto& self) { service.Detach(self); });
}

void Stream::Drop(bool silent) {
  left_ = true;
  to_service_.clear();
  if (silent || std::exchange(detached_, true)) return;
  Send([](Service& service, const auto& self) { service.Detach(self); });
}

void Stream::EndLife() {
  to_service_.clear();
  ToWorker([](Worker& worker) { worker.OnClosed(); });
}

void Stream::ToWorker(std::function<void(Worker&)> message) {
  to_worker_.push_back(std::move(message));
  last_to_worker_ = std::max(last_to_worker_, timeline_.now() + Latency());
  timeline_.After(last_to_worker_ - timeline_.now(),
                  [self = shared_from_this()] { self->DeliverToWorker(); });
}

void Stream::DeliverToWorker() {
  if (to_worker_.empty() || left_ || !worker_.Has(*this)) return;
  const Duration held = std::max(worker_.cut_until(), worker_.frozen_until());
  if (held >= timeline_.now()) {
    timeline_.After(held - timeline_.now() + milliseconds(1),
                    [self = shared_from_this()] { self->DeliverToWorker(); });
    return;
  }
  const std::function<void(Worker&)> message = std::move(to_worker_.front());
  to_worker_.pop_front();
  message(worker_);
}

void Stream::SendRegistered(double lease_seconds, double heartbeat_seconds,
                            const std::vector<AttemptKey>& adopted) {
  ToWorker([=](Worker& worker) { worker.OnRegistered(lease_seconds, heartbeat_seconds, adopted); });
}

void Stream::Refuse(const std::string& why) {
  ToWorker([why](Worker& worker) { worker.OnRefused(why); });
}

void Stream::AckHeartbeat(int64_t sequence) {
  ToWorker([sequence](Worker& worker) { worker.OnHeartbeatAck(sequence); });
}

void Stream::Start(const StartOrder& order) {
  ToWorker([order](Worker& worker) { worker.OnStart(order); });
}

void Stream::Stop(const std::string& job_id, int64_t epoch, bool graceful) {
  ToWorker([=](Worker& worker) { worker.OnStop(job_id, epoch, graceful); });
}

void Stream::SetMembership(const MembershipOrder& order) {
  ToWorker([order](Worker& worker) { worker.OnMembership(order); });
}

void Stream::AckReport(const std::string& job_id, const PlacementReport& report) {
  ToWorker([=](Worker& worker) { worker.OnReportAck({job_id, report.epoch}, report); });
}

void Stream::AckLogs(const coordinator::LogAppend& logs, int64_t position) {
  ToWorker([key = Worker::Key{logs.job_id, logs.epoch}, first_rank = logs.first_rank,
            position](Worker& worker) { worker.OnLogAck(key, first_rank, position); });
}

void Stream::CheckHealth(int64_t request_id, double) {
  ToWorker([request_id](Worker& worker) { worker.OnCheckHealth(request_id); });
}

void Stream::Close() {
  ToWorker([](Worker& worker) { worker.OnClosed(); });
  if (std::exchange(detached_, true)) return;
  timeline_.After(Latency(), [self = shared_from_this()] {
    if (self->life_ != self->coordinator_.life() || !self->coordinator_.service()) return;
    self->to_service_.clear();
    self->coordinator_.service()->Detach(self);
  });
}

}  // namespace weft::simulation
