#include "worker/engine/comm/gloo_device.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>

#include "worker/engine/comm/rank_handshake.h"

namespace weft::engine {
namespace {

namespace tcp = gloo::transport::tcp;

/// How long one connection keeps the events of the others waiting at most. It must end: a sender
/// that finds its connection broken waits for the thread of the events.
constexpr std::chrono::microseconds kPatience(100);

/// While a peer does not connect the caller is asked this often whether it still waits.
constexpr std::chrono::milliseconds kAskAgain(100);

/// Gloo's own: a first connection may take this many times as long as an operation.
constexpr int kConnectTimeouts = 5;

/// Connections to one listener that have not proved anything yet; one more replaces the oldest.
constexpr size_t kMostVisitors = 16;

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

class PatientPair;

/// A connection to the listener that has to prove itself. One that has ended may still have an
/// event under way, so these stay in their places until the pair goes.
struct Visitor : public tcp::Handler {
  void handleEvents(int events) override;

  PatientPair* pair = nullptr;
  int fd = -1;
  std::optional<RankHandshake> handshake;
};

/// Who connects, and whether it has proved to be the peer. Made before the connection, as Senders.
struct Proof {
  explicit Proof(const std::string& token) : token_(token) {}

  const std::string token_;
  RankHandshake handshake_{token_, RankHandshake::Side::kConnects};
  std::unique_ptr<std::array<Visitor, kMostVisitors>> visitors_;
  size_t next_visitor_ = 0;
  std::atomic<bool> proved_ = false;
};

class PatientPair : private Senders, private Proof, public tcp::Pair {
 public:
  PatientPair(tcp::Context* context, tcp::Device* device, int rank,
              std::chrono::milliseconds timeout, const std::string& token,
              std::function<Status()> still_wanted)
      : Proof(token),
        tcp::Pair(context, device, rank, timeout),
        still_wanted_(std::move(still_wanted)) {}

  ~PatientPair() override {
    // As the base does, but before what handleEvents uses is gone.
    const std::lock_guard lock(m_);
    TurnAwayAll();
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
    if (!WaitTillGone()) return;
    if (!proved_) {
      const std::unique_lock lock(m_, std::try_to_lock);
      // As the base does: another thread changes this, and the events come again.
      if (!lock) return;
      if (state_ == LISTENING) return Accept();
      if (state_ == CONNECTING) return Connect(events);
    }
    tcp::Pair::handleEvents(events);
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

  friend struct Visitor;

  // With m_ held, on the thread of the events.

  void Accept() {
    const int fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    if (visitors_ == nullptr) visitors_ = std::make_unique<std::array<Visitor, kMostVisitors>>();
    Visitor& visitor = (*visitors_)[next_visitor_];
    next_visitor_ = (next_visitor_ + 1) % kMostVisitors;
    TurnAway(visitor);
    visitor.pair = this;
    visitor.fd = fd;
    visitor.handshake.emplace(token_, RankHandshake::Side::kAccepts);
    device_->registerDescriptor(fd, EPOLLIN, &visitor);
    // It may have spoken before it was asked, or answer at once, and have nothing more to say.
    Advance(visitor);
  }

  void Hear(Visitor& visitor) {
    const std::unique_lock lock(m_, std::try_to_lock);
    if (lock && visitor.fd >= 0) Advance(visitor);
  }

  void Advance(Visitor& visitor) {
    const RankHandshake::State state = visitor.handshake->Advance(visitor.fd);
    if (state == RankHandshake::State::kPending && state_ == LISTENING) return;
    if (state != RankHandshake::State::kProved || state_ != LISTENING) return TurnAway(visitor);
    device_->unregisterDescriptor(fd_, this);
    ::close(fd_);
    device_->unregisterDescriptor(visitor.fd, &visitor);
    fd_ = std::exchange(visitor.fd, -1);
    TurnAwayAll();
    proved_ = true;
    handleConnected();
  }

  void Connect(int events) {
    // A connection that failed is the base's matter.
    if ((events & (EPOLLERR | EPOLLHUP)) != 0) return handleConnecting();
    // It can be written all the time.
    device_->registerDescriptor(fd_, EPOLLIN, this);
    switch (handshake_.Advance(fd_)) {
      case RankHandshake::State::kPending:
        return;
      case RankHandshake::State::kProved:
        TurnAwayAll();  // of the listener that this end had
        proved_ = true;
        return handleConnecting();
      case RankHandshake::State::kRefused:
        return signalException("the peer does not know the token of this attempt");
    }
  }

  // With m_ held.

  void TurnAway(Visitor& visitor) {
    if (visitor.fd < 0) return;
    device_->unregisterDescriptor(visitor.fd, &visitor);
    ::close(std::exchange(visitor.fd, -1));
  }

  void TurnAwayAll() {
    if (visitors_ == nullptr) return;
    for (Visitor& visitor : *visitors_) TurnAway(visitor);
  }

  /// The base may have heard a stranger before this object was whole, and does not say whom it
  /// waited for.
  void waitUntilConnected(std::unique_lock<std::mutex>& lock, bool use_timeout) override {
    const auto until = std::chrono::steady_clock::now() + kConnectTimeouts * timeout_;
    Status wanted;
    try {
      const auto connected = [this] {
        throwIfException();
        return state_ >= CONNECTED;
      };
      while (!cv_.wait_for(lock, kAskAgain, connected) && wanted.ok()) {
        if (use_timeout && std::chrono::steady_clock::now() > until) {
          signalAndThrowException("it did not connect in time");
        }
        if (!still_wanted_) continue;
        lock.unlock();
        wanted = still_wanted_();
        lock.lock();
      }
    } catch (const gloo::IoException& error) {
      throw NoConnection(rank_, error.what());
    }
    if (!wanted.ok()) {
      signalException(wanted.message());
      throw std::runtime_error(wanted.message());
    }
    if (!proved_) signalAndThrowException("a stranger connected in the place of a rank");
  }

  const std::function<Status()> still_wanted_;
};

void Visitor::handleEvents(int /*events*/) {
  pair->Hear(*this);
}

class PatientContext : public tcp::Context {
 public:
  PatientContext(std::shared_ptr<tcp::Device> device, int rank, int size, std::string token,
                 std::function<Status()> still_wanted)
      : tcp::Context(std::move(device), rank, size),
        token_(std::move(token)),
        still_wanted_(std::move(still_wanted)) {}

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    std::unique_ptr<gloo::transport::Pair>& pair = pairs_[static_cast<size_t>(peer)];
    pair = std::make_unique<PatientPair>(this, device_.get(), peer, getTimeout(), token_,
                                         still_wanted_);
    return pair;
  }

 private:
  const std::string token_;
  const std::function<Status()> still_wanted_;
};

class PatientDevice : public gloo::transport::Device {
 public:
  PatientDevice(std::shared_ptr<tcp::Device> device, std::string token,
                std::function<Status()> still_wanted)
      : device_(std::move(device)),
        token_(std::move(token)),
        still_wanted_(std::move(still_wanted)) {}

  std::string str() const override { return device_->str(); }
  const std::string& getPCIBusID() const override { return device_->getPCIBusID(); }
  int getInterfaceSpeed() const override { return device_->getInterfaceSpeed(); }
  std::shared_ptr<gloo::transport::Context> createContext(int rank, int size) override {
    return std::make_shared<PatientContext>(device_, rank, size, token_, still_wanted_);
  }

 private:
  const std::shared_ptr<tcp::Device> device_;
  const std::string token_;
  const std::function<Status()> still_wanted_;
};

}  // namespace

std::shared_ptr<gloo::transport::Device> NewGlooDevice(const std::string& host,
                                                       const std::string& token,
                                                       std::function<Status()> still_wanted) {
  auto device = std::dynamic_pointer_cast<tcp::Device>(tcp::CreateDevice(tcp::attr(host.c_str())));
  return std::make_shared<PatientDevice>(std::move(device), token, std::move(still_wanted));
}

}  // namespace weft::engine
