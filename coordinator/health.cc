#include "coordinator/health.h"

namespace weft::coordinator {

void Health::Wait(const std::string& why) {
  std::lock_guard lock(mutex_);
  why_ = why;
}

void Health::Serve(Service& service, std::function<Status()> writable) {
  std::lock_guard lock(mutex_);
  service_ = &service;
  writable_ = std::move(writable);
}

void Health::Stop() {
  std::lock_guard lock(mutex_);
  service_ = nullptr;
  why_ = "stopping";
}

void Health::Alive(const http::Answer& answer) {
  std::lock_guard lock(mutex_);
  if (service_ == nullptr) {
    answer({200, "alive: " + why_ + "\n"});
  } else {
    service_->Ping([answer] { answer({200, "alive\n"}); });
  }
}

void Health::Ready(const http::Answer& answer) {
  std::lock_guard lock(mutex_);
  if (service_ == nullptr) {
    answer({503, why_ + "\n"});
    return;
  }
  // Workers must reach it even while it can store nothing: they would lose their leases.
  const Status writable = writable_();
  std::string text =
      writable.ok() ? "ready\n" : "degraded, read-only: " + writable.message() + "\n";
  service_->Ping([answer, text] { answer({200, text}); });
}

std::map<std::string, http::Page> Health::Pages(const Metrics& metrics) {
  return {{"/metrics",
           [&metrics](const http::Answer& answer) {
             answer({200, metrics.Text(), "text/plain; version=0.0.4; charset=utf-8"});
           }},
          {"/healthz", [this](const http::Answer& answer) { Alive(answer); }},
          {"/readyz", [this](const http::Answer& answer) { Ready(answer); }}};
}

}  // namespace weft::coordinator
