#include "worker/engine/comm/rank_handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "common/secret.h"
#include "common/sha256.h"

namespace weft::engine {
namespace {

constexpr size_t kChallengeBytes = 32;

}  // namespace

RankHandshake::RankHandshake(std::string token, Side side)
    : token_(std::move(token)), side_(side) {}

std::string RankHandshake::Proof(const char* role) const {
  return HmacSha256(token_, std::string(role) + accepter_challenge_ + connecter_challenge_);
}

bool RankHandshake::Receive(int fd, size_t bytes) {
  while (incoming_.size() < bytes) {
    char buffer[kChallengeBytes + Sha256::kBytes];
    const ssize_t got = recv(fd, buffer, bytes - incoming_.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (got <= 0) {
      state_ = State::kRefused;
      return false;
    }
    incoming_.append(buffer, static_cast<size_t>(got));
  }
  return true;
}

bool RankHandshake::Send(int fd, const std::string& bytes) {
  const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent == std::ssize(bytes)) return true;
  state_ = State::kRefused;
  return false;
}

RankHandshake::State RankHandshake::Advance(int fd) {
  if (state_ != State::kPending) return state_;
  if (side_ == Side::kAccepts) {
    if (accepter_challenge_.empty()) {
      accepter_challenge_ = RandomBytes(kChallengeBytes);
      if (!Send(fd, accepter_challenge_)) return state_;
    }
    if (!Receive(fd, kChallengeBytes + Sha256::kBytes)) return state_;
    connecter_challenge_ = incoming_.substr(0, kChallengeBytes);
    const bool knows = SameSecret(incoming_.substr(kChallengeBytes), Proof("connects"));
    if (knows && Send(fd, Proof("accepts"))) state_ = State::kProved;
    if (!knows) state_ = State::kRefused;
    return state_;
  }
  if (connecter_challenge_.empty()) {
    if (!Receive(fd, kChallengeBytes)) return state_;
    accepter_challenge_ = std::exchange(incoming_, "");
    connecter_challenge_ = RandomBytes(kChallengeBytes);
    if (!Send(fd, connecter_challenge_ + Proof("connects"))) return state_;
  }
  if (!Receive(fd, Sha256::kBytes)) return state_;
  state_ = SameSecret(incoming_, Proof("accepts")) ? State::kProved : State::kRefused;
  return state_;
}

}  // namespace weft::engine
