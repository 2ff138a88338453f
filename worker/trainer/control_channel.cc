#include "worker/trainer/control_channel.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "common/clock.h"
#include "common/log.h"

namespace weft::trainer {
namespace {

/// Progress that the daemon does not take is dropped past this many lines: the next one says more.
constexpr size_t kMaxQueuedProgress = 1000;
constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr auto kDrainTimeout = std::chrono::seconds(10);

/// What the daemon may take longer than the timeout it was asked to keep.
constexpr auto kReplyMargin = std::chrono::seconds(30);

}  // namespace

ControlChannel::ControlChannel(int fd, void (*gone)(bool aborted))
    : fd_(fd), gone_(gone), writer_([this] { WriteLoop(); }), reader_([this] { ReadLoop(); }) {}

ControlChannel::~ControlChannel() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kDrainTimeout,
                      [this] { return broken_ || (outgoing_.empty() && !writing_); });
    closing_ = true;
  }
  changed_.notify_all();
  shutdown(fd_, SHUT_RDWR);  // wakes the threads
  writer_.join();
  reader_.join();
  close(fd_);
}

void ControlChannel::Report(const RankMessage& message) {
  std::string line = ToLine(message) + "\n";
  std::lock_guard lock(mutex_);
  if (std::holds_alternative<ProgressMessage>(message) && outgoing_.size() >= kMaxQueuedProgress) {
    return;
  }
  outgoing_.push_back(std::move(line));
  changed_.notify_all();
}

Status ControlChannel::Set(const std::string& key, std::string_view value) {
  const int64_t id = next_request_++;
  return Ask(id, StoreSetMessage{id, key, ToHex(value)}, kReplyMargin).status();
}

Result<std::string> ControlChannel::Get(const std::string& key, std::chrono::milliseconds timeout) {
  const int64_t id = next_request_++;
  const double seconds = ToSeconds(timeout);
  return Ask(id, StoreGetMessage{id, key, seconds}, timeout + kReplyMargin);
}

Result<std::string> ControlChannel::Ask(int64_t request_id, const RankMessage& request,
                                        std::chrono::milliseconds timeout) {
  Report(request);
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout,
                         [&] { return broken_ || replies_.count(request_id) > 0; }) ||
      replies_.count(request_id) == 0) {
    return UnavailableError("the worker did not answer a rendezvous request");
  }
  const StoreReplyMessage reply = std::move(replies_[request_id]);
  replies_.erase(request_id);
  if (!reply.error.empty()) return UnavailableError("rendezvous: " + reply.error);
  return FromHex(reply.value_hex);
}

void ControlChannel::ReadLoop() {
  std::string pending;
  char buffer[65536];
  while (true) {
    const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || pending.size() > kMaxLineBytes) break;
    pending.append(buffer, static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = 0; (end = pending.find('\n', begin)) != std::string::npos; begin = end + 1) {
      OnLine(std::string_view(pending).substr(begin, end - begin));
    }
    pending.erase(0, begin);
  }
  bool closing = false;
  {
    std::lock_guard lock(mutex_);
    broken_ = true;
    closing = closing_;
  }
  changed_.notify_all();
  if (!closing) gone_(false);
}

void ControlChannel::OnLine(std::string_view line) {
  Result<DaemonMessage> message = ParseDaemonMessage(line);
  if (!message.ok()) {
    WEFT_LOG_ERROR << "from the worker: " << message.status().message();
    return;
  }
  if (std::holds_alternative<StopMessage>(*message)) {
    stop_ = true;
  } else if (auto* profile = std::get_if<ProfileMessage>(&*message)) {
    profile_steps_ = profile->steps;
  } else if (auto* membership = std::get_if<MembershipMessage>(&*message)) {
    OnMembership(std::move(*membership));
  } else if (std::holds_alternative<AbortMessage>(*message)) {
    gone_(true);
  } else {
    auto& reply = std::get<StoreReplyMessage>(*message);
    std::lock_guard lock(mutex_);
    replies_[reply.request_id] = std::move(reply);
    changed_.notify_all();
  }
}

void ControlChannel::WatchMembership(std::function<void(const MembershipMessage&)> told) {
  const std::lock_guard lock(membership_mutex_);
  membership_watcher_ = std::move(told);
  if (membership_watcher_ && membership_) membership_watcher_(*membership_);
}

void ControlChannel::OnMembership(MembershipMessage membership) {
  const std::lock_guard lock(membership_mutex_);
  if (membership_ && membership.number <= membership_->number) return;  // it came before
  membership_ = std::move(membership);
  if (membership_watcher_) membership_watcher_(*membership_);
}

void ControlChannel::WriteLoop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return closing_ || broken_ || !outgoing_.empty(); });
    if (closing_ || broken_) return;
    const std::string line = std::move(outgoing_.front());
    outgoing_.pop_front();
    writing_ = true;
    lock.unlock();
    const bool written = WriteAll(line);
    lock.lock();
    writing_ = false;
    if (!written) broken_ = true;  // the reader sees the end of file
    changed_.notify_all();
  }
}

bool ControlChannel::WriteAll(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace weft::trainer
