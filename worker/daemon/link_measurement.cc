#include "worker/daemon/link_measurement.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <utility>

#include "common/clock.h"
#include "worker/daemon/link_rate.h"

namespace weft::daemon {
namespace {

constexpr double kLongestSeconds = 60;

/// A thread that was asked to stop ends within this time, but while it looks up a name.
constexpr std::chrono::milliseconds kEndPatience{100};

LinkLimit LimitOf(const v1::MeasureLink& request, const std::atomic<bool>& stop) {
  const double seconds = std::clamp(request.limit_seconds(), 0.0, kLongestSeconds);
  return {std::chrono::steady_clock::now() + FromSeconds(seconds), &stop};
}

Status Listen(const std::string& host, const v1::MeasureLink& request, const LinkLimit& limit,
              const std::function<void(int)>& opened) {
  if (request.token().size() != kLinkTokenBytes) return InvalidError("the token is none");
  WEFT_ASSIGN_OR_RETURN(LinkListener listener, LinkListener::Open(host));
  opened(listener.port());
  return listener.Serve(request.token(), limit);
}

}  // namespace

/// What both threads know of one measurement.
struct LinkMeasurement::Run {
  explicit Run(const v1::MeasureLink& asked) : request(asked) {}
  const v1::MeasureLink request;
  std::atomic<bool> stop = false;
  bool over = false;        // answered; of the io_context's thread
  std::promise<void> done;  // by the measurement's own thread, at its end
  std::future<void> ended = done.get_future();
};

LinkMeasurement::LinkMeasurement(boost::asio::io_context& io, std::string host,
                                 std::function<void(v1::LinkReply)> answer)
    : io_(io), host_(std::move(host)), answer_(std::move(answer)) {}

LinkMeasurement::~LinkMeasurement() {
  Join();
}

void LinkMeasurement::Join() {
  if (run_ != nullptr) {
    run_->stop = true;
    run_->over = true;
  }
  if (thread_.joinable()) thread_.join();
  run_.reset();
}

void LinkMeasurement::Start(const v1::MeasureLink& request) {
  Stop("another measurement began");
  if (run_ != nullptr && run_->ended.wait_for(kEndPatience) != std::future_status::ready) {
    v1::LinkReply reply;
    reply.set_request_id(request.request_id());
    reply.set_error("an earlier measurement has not ended yet");
    return answer_(std::move(reply));
  }
  Join();
  run_ = std::make_shared<Run>(request);
  thread_ = std::thread([this, run = run_] {
    Measure(run);
    run->done.set_value();
  });
}

void LinkMeasurement::Measure(const std::shared_ptr<Run>& run) {
  const LinkLimit limit = LimitOf(run->request, run->stop);
  v1::LinkReply reply;
  if (run->request.host().empty()) {
    const Status status = Listen(host_, run->request, limit, [&](int port) {
      v1::LinkReply opened;
      opened.set_port(port);
      SendReply(run, std::move(opened), false);
    });
    if (status.ok()) {  // the other end reports the result
      boost::asio::post(io_, [run] { run->over = true; });
      return;
    }
    reply.set_error(status.message());
  } else {
    const Result<LinkRate> rate =
        MeasureLink(run->request.host(), run->request.port(), run->request.token(), limit);
    if (rate.ok()) {
      reply.set_send_bytes_per_second(rate->send_bytes_per_second);
      reply.set_receive_bytes_per_second(rate->receive_bytes_per_second);
      reply.set_round_trip_seconds(rate->round_trip_seconds);
    } else {
      reply.set_error(rate.status().message());
    }
  }
  SendReply(run, std::move(reply), true);
}

void LinkMeasurement::SendReply(const std::shared_ptr<Run>& run, v1::LinkReply reply, bool last) {
  reply.set_request_id(run->request.request_id());
  boost::asio::post(io_, [this, run, last, reply = std::move(reply)] {
    if (run->over) return;  // also when this object is gone
    run->over = last;
    answer_(reply);
  });
}

void LinkMeasurement::Stop(const std::string& why) {
  if (run_ == nullptr || std::exchange(run_->over, true)) return;
  run_->stop = true;
  v1::LinkReply reply;
  reply.set_request_id(run_->request.request_id());
  reply.set_error(why);
  answer_(std::move(reply));
}

}  // namespace weft::daemon
