#include "worker/daemon/health_check.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "common/json.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "worker/daemon/machine_check.h"
#include "worker/daemon/program_output.h"

namespace weft::daemon {
namespace {

constexpr double kLongestSeconds = 3600;

}  // namespace

/// What both threads know of one check.
struct HealthCheck::Run {
  explicit Run(const v1::CheckHealth& asked) : request(asked) {}
  const v1::CheckHealth request;
  std::atomic<bool> stop = false;
};

HealthCheck::HealthCheck(boost::asio::io_context& io, std::string program,
                         const WorkerProfile& profile, std::function<void(v1::HealthReply)> answer)
    : io_(io), program_(std::move(program)), cores_(profile.cores), answer_(std::move(answer)) {
  std::copy_if(profile.devices.begin(), profile.devices.end(), std::back_inserter(devices_),
               [](const DeviceSpec& device) { return device.unusable.empty(); });
}

HealthCheck::~HealthCheck() {
  Stop();
}

void HealthCheck::Stop() {
  if (run_ != nullptr) run_->stop = true;
  if (thread_.joinable()) thread_.join();
  run_.reset();
}

void HealthCheck::Start(const v1::CheckHealth& request) {
  Stop();
  run_ = std::make_shared<Run>(request);
  thread_ = std::thread([this, run = run_] {
    std::optional<v1::HealthReply> reply = Check(*run);
    if (!reply) return;
    boost::asio::post(io_, [this, run, reply = *std::move(reply)] {
      if (!run->stop) answer_(reply);  // else this object may be gone
    });
  });
}

std::optional<v1::HealthReply> HealthCheck::Check(const Run& run) const {
  v1::HealthReply reply;
  reply.set_request_id(run.request.request_id());
  reply.set_device(-1);
  if (program_.empty()) return reply;
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(std::clamp(run.request.limit_seconds(), 0.0, kLongestSeconds)));
  const Result<std::string> output = OutputOf({program_, "--check-machine", std::to_string(cores_)},
                                              EnvironmentWith(devices_), limit, &run.stop);
  if (output.status().code() == StatusCode::kAborted) {
    WEFT_LOG_WARNING << "the check of this machine has no result: " << output.status().message();
    return std::nullopt;
  }
  if (!output.ok()) {
    reply.set_error("its check did not end well: " + output.status().message());
    return reply;
  }
  const Result<Json> json = ParseJson(*output);
  const Result<MachineCheck> check =
      json.ok() ? FromJson<MachineCheck>(*json) : Result<MachineCheck>(json.status());
  if (!check.ok()) {
    reply.set_error("its check gave no result: " + check.status().message());
    return reply;
  }
  reply.set_error(check->error);
  if (check->device >= 0 && check->device < std::ssize(devices_)) {
    reply.set_device(devices_[static_cast<size_t>(check->device)].index);
  }
  reply.set_flops_per_second(check->flops_per_second);
  reply.set_memory_bytes_per_second(check->memory_bytes_per_second);
  return reply;
}

}  // namespace weft::daemon
