#pragma once

#include <cstddef>
#include <string>

namespace weft::engine {

/// Proof, on a fresh connection between two ranks, that both ends know the token of their attempt,
/// without saying it: challenge and response with HMAC-SHA-256. What comes after is Gloo's, which
/// trusts whoever it talks to.
///
///   who accepted -> who connected: challenge a, 32 random bytes
///   who connected -> who accepted: challenge c, 32 random bytes; HMAC(token, "connects" a c)
///   who accepted -> who connected: HMAC(token, "accepts" a c)
class RankHandshake {
 public:
  enum class Side { kAccepts, kConnects };
  enum class State {
    kPending,  ///< Waits for the other end.
    kProved,   ///< Both ends know the token; nothing else was read or is left to send.
    kRefused,  ///< The other end does not, or is gone.
  };

  RankHandshake(std::string token, Side side);

  /// Does what the non-blocking socket lets it do now. Call it when the connection is there, and
  /// whenever something can be read.
  State Advance(int fd);

 private:
  /// Whether `incoming_` has `bytes` bytes; reads no more than that.
  bool Receive(int fd, size_t bytes);
  /// Fails unless all fits into the empty buffer of a fresh socket.
  bool Send(int fd, const std::string& bytes);
  std::string Proof(const char* role) const;

  const std::string token_;
  const Side side_;
  State state_ = State::kPending;
  std::string accepter_challenge_;
  std::string connecter_challenge_;
  std::string incoming_;
};

}  // namespace weft::engine
