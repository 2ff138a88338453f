#include "worker/daemon/health.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <iostream>

#include "common/env.h"
#include "common/json.h"

namespace weft::daemon {
namespace {

constexpr std::chrono::seconds kPatience{3};

Result<http::Reply> Ask(const std::string& data_dir) {
  std::string path = JoinPath(data_dir, "daemon.json");
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, 1 << 16));
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  if (!json.is_object() || !json.contains("metrics_address") ||
      !json["metrics_address"].is_string()) {
    return InvalidError("the worker serves no health; hint: give it --metrics-listen");
  }
  return http::Get(json["metrics_address"].get<std::string>(), "/readyz", kPatience);
}

}  // namespace

void Health::Wait(const std::string& why) {
  std::lock_guard lock(mutex_);
  why_ = why;
}

void Health::Serve(boost::asio::io_context& io) {
  std::lock_guard lock(mutex_);
  io_ = &io;
}

void Health::Stop() {
  std::lock_guard lock(mutex_);
  io_ = nullptr;
  why_ = "stopping";
}

void Health::Alive(const http::Answer& answer) {
  std::lock_guard lock(mutex_);
  if (io_ == nullptr) {
    answer({200, "alive: " + why_ + "\n"});
  } else {
    boost::asio::post(*io_, [answer] { answer({200, "alive\n"}); });
  }
}

void Health::Ready(const http::Answer& answer) {
  std::lock_guard lock(mutex_);
  if (io_ == nullptr) {
    answer({503, why_ + "\n"});
    return;
  }
  boost::asio::post(*io_, [this, answer] {
    if (metrics_.attached()) {
      answer({200, "attached\n"});
    } else {
      answer({503, "the worker runs but is not attached to its coordinator\n"});
    }
  });
}

std::map<std::string, http::Page> Health::Pages() {
  return {{"/metrics",
           [this](const http::Answer& answer) {
             answer({200, metrics_.Text(), "text/plain; version=0.0.4; charset=utf-8"});
           }},
          {"/healthz", [this](const http::Answer& answer) { Alive(answer); }},
          {"/readyz", [this](const http::Answer& answer) { Ready(answer); }}};
}

Status WriteHealthFile(const std::string& data_dir, const http::Server* pages) {
  Json json{{"pid", getpid()}, {"metrics_port", pages != nullptr ? pages->port() : 0}};
  if (pages != nullptr) json["metrics_address"] = pages->local_address();
  return WriteFileAtomic(Env::Posix(), JoinPath(data_dir, "daemon.json"), json.dump(2) + "\n");
}

int CheckHealth(const std::string& data_dir) {
  const Result<http::Reply> reply = Ask(data_dir);
  const bool ready = reply.ok() && reply->status == 200;
  (ready ? std::cout : std::cerr) << "weft-worker: "
                                  << (reply.ok() ? reply->body : reply.status().message() + "\n")
                                  << std::flush;
  return ready ? 0 : 1;
}

}  // namespace weft::daemon
