#include "worker/engine/comm/gloo_device.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

namespace weft::engine {
namespace {

namespace tcp = gloo::transport::tcp;

/// How long one connection keeps the events of the others waiting at most. It must end: a sender
/// that finds its connection broken waits for the thread of the events.
constexpr std::chrono::microseconds kPatience(100);

/// Threads that send on a connection. Made before it, since it may have events as soon as it is.
class Senders {
 public:
  void Enter() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    if (--count_ == 0) changed_.notify_one();
  }
  /// Whether there are none within kPatience.
  bool WaitTillGone() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
};

class PatientPair : private Senders, public tcp::Pair {
 public:
  using tcp::Pair::Pair;

  ~PatientPair() override {
    // As the base does, but before what handleEvents uses is gone.
    const std::lock_guard lock(m_);
    if (state_ != CLOSED) tcp::Pair::changeState(CLOSED);
  }

  void send(gloo::transport::UnboundBuffer* buffer, uint64_t tag, size_t offset,
            size_t bytes) override {
    const Sending sending(*this);
    tcp::Pair::send(buffer, tag, offset, bytes);
  }

  // It sends too: that this rank is ready.
  void recv(gloo::transport::UnboundBuffer* buffer, uint64_t tag, size_t offset,
            size_t bytes) override {
    const Sending sending(*this);
    tcp::Pair::recv(buffer, tag, offset, bytes);
  }

  void handleEvents(int events) override {
    if (WaitTillGone()) tcp::Pair::handleEvents(events);
  }

 private:
  class Sending {
   public:
    explicit Sending(Senders& senders) : senders_(senders) { senders_.Enter(); }
    ~Sending() { senders_.Leave(); }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;

   private:
    Senders& senders_;
  };
};

class PatientContext : public tcp::Context {
 public:
  using tcp::Context::Context;

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    std::unique_ptr<gloo::transport::Pair>& pair = pairs_[static_cast<size_t>(peer)];
    pair = std::make_unique<PatientPair>(this, device_.get(), peer, getTimeout());
    return pair;
  }
};

class PatientDevice : public gloo::transport::Device {
 public:
  explicit PatientDevice(std::shared_ptr<tcp::Device> device) : device_(std::move(device)) {}

  std::string str() const override { return device_->str(); }
  const std::string& getPCIBusID() const override { return device_->getPCIBusID(); }
  int getInterfaceSpeed() const override { return device_->getInterfaceSpeed(); }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
    return std::make_shared<PatientContext>(device_, rank, size);
  }

 private:
  const std::shared_ptr<tcp::Device> device_;
};

}  // namespace

std::shared_ptr<gloo::transport::Device> NewGlooDevice(const std::string& host) {
  auto device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(tcp::attr(host.c_str())));
  return std::make_shared<PatientDevice>(std::move(device));
}

}  // namespace weft::engine
