// Whoever connects to a rank without the token of its attempt is turned away.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/secret.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/comm/rank_handshake.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = RankHandshake::State;
using Side = RankHandshake::Side;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// A pair of connected sockets.
class Ends {
 public:
  Ends() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_.data()), 0); }
  ~Ends() {
    close(fds_[0]);
    if (fds_[1] >= 0) close(fds_[1]);
  }
  int accepts() const { return fds_[0]; }
  int connects() const { return fds_[1]; }
  void CloseConnects() { close(std::exchange(fds_[1], -1)); }

 private:
  std::array<int, 2> fds_{};
};

TEST(RankHandshake, BothEndsProveTheTokenAndReadNothingElse) {
  Ends ends;
  RankHandshake accepts("token", Side::kAccepts), connects("token", Side::kConnects);
  EXPECT_EQ(accepts.Advance(ends.accepts()), State::kPending);
  EXPECT_EQ(connects.Advance(ends.connects()), State::kPending);
  EXPECT_EQ(accepts.Advance(ends.accepts()), State::kProved);
  ASSERT_EQ(send(ends.accepts(), "gloo", 4, 0), 4);  // at once behind its proof
  EXPECT_EQ(connects.Advance(ends.connects()), State::kProved);
  char next[8];
  EXPECT_EQ(std::string(next, static_cast<size_t>(recv(ends.connects(), next, 8, 0))), "gloo");
}

TEST(RankHandshake, AnotherTokenIsRefusedByEitherEnd) {
  Ends ends;
  RankHandshake accepts("token", Side::kAccepts), connects("other", Side::kConnects);
  (void)accepts.Advance(ends.accepts());
  (void)connects.Advance(ends.connects());
  EXPECT_EQ(accepts.Advance(ends.accepts()), State::kRefused);

  // One that only claims to be a rank: it lets everybody pass, but cannot prove itself.
  Ends others;
  RankHandshake caller("token", Side::kConnects);
  ASSERT_EQ(send(others.accepts(), std::string(32, 'a').data(), 32, 0), 32);
  EXPECT_EQ(caller.Advance(others.connects()), State::kPending);
  ASSERT_EQ(send(others.accepts(), std::string(32, 'b').data(), 32, 0), 32);
  EXPECT_EQ(caller.Advance(others.connects()), State::kRefused);
}

TEST(RankHandshake, WhatWasHeardOnceIsWorthNothingLater) {
  Ends first;
  RankHandshake accepts("token", Side::kAccepts), connects("token", Side::kConnects);
  (void)accepts.Advance(first.accepts());
  (void)connects.Advance(first.connects());
  std::array<char, 64> heard{};
  ASSERT_EQ(recv(first.accepts(), heard.data(), heard.size(), MSG_PEEK), 64);
  EXPECT_EQ(accepts.Advance(first.accepts()), State::kProved);

  Ends second;
  RankHandshake again("token", Side::kAccepts);
  (void)again.Advance(second.accepts());
  ASSERT_EQ(send(second.connects(), heard.data(), heard.size(), 0), 64);
  EXPECT_EQ(again.Advance(second.accepts()), State::kRefused);
}

TEST(RankHandshake, TakesBytesAsTheyComeAndSeesTheEnd) {
  Ends ends;
  RankHandshake accepts("token", Side::kAccepts);
  (void)accepts.Advance(ends.accepts());
  ASSERT_EQ(send(ends.connects(), "abc", 3, 0), 3);
  EXPECT_EQ(accepts.Advance(ends.accepts()), State::kPending);
  ends.CloseConnects();
  EXPECT_EQ(accepts.Advance(ends.accepts()), State::kRefused);
}

/// Ports of this process that listen.
std::vector<uint16_t> ListeningPorts() {
  std::vector<uint16_t> ports;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in address{};
    size = sizeof(address);
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) continue;
    if (address.sin_family == AF_INET) ports.push_back(ntohs(address.sin_port));
  }
  return ports;
}

class Stranger {
 public:
  explicit Stranger(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~Stranger() {
    if (fd_ >= 0) close(fd_);
  }
  void Say(const std::string& bytes) const {
    (void)send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  /// All that it receives until the other side ends the connection; "open" if it does not.
  std::string HearToTheEnd() const {
    const timeval wait{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    std::string heard;
    char bytes[256];
    while (true) {
      const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
      if (got == 0 || (got < 0 && errno == ECONNRESET)) return heard;
      if (got < 0) return "open";
      heard.append(bytes, static_cast<size_t>(got));
    }
  }

 private:
  int fd_;
};

Result<std::unique_ptr<Collective>> Join(int rank, Store& store,
                                         milliseconds timeout = seconds(2)) {
  CollectiveOptions options;
  options.rank = rank;
  options.size = 2;
  options.connect_timeout = seconds(30);
  options.timeout = timeout;
  return ConnectCollective(options, store);
}

TEST(Strangers, AreTurnedAwayWhileTheRanksJoinAndWork) {
  HashStore store;
  const std::vector<uint16_t> before = ListeningPorts();
  Result<std::unique_ptr<Collective>> first = UnavailableError("not yet");
  std::thread rank0([&] { first = Join(0, store); });
  // Rank 0 listens, and its peer has not come.
  std::vector<uint16_t> ports;
  for (int i = 0; i < 2000 && ports.size() <= before.size(); ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    ports = ListeningPorts();
  }
  ASSERT_GT(ports.size(), before.size());
  const uint16_t port = ports.back();
  std::vector<Stranger> strangers;
  for (int i = 0; i < 3; ++i) strangers.emplace_back(port);
  strangers[0].Say("GET / HTTP/1.1\r\n\r\n" + std::string(100, 'x'));
  strangers[1].Say(RandomBytes(64));
  // The third is silent; those that said the wrong thing are out before the peer comes.
  EXPECT_EQ(strangers[0].HearToTheEnd().size(), 32u) << "a challenge, and nothing else";
  EXPECT_EQ(strangers[1].HearToTheEnd().size(), 32u);

  Result<std::unique_ptr<Collective>> second = UnavailableError("not yet");
  std::thread rank1([&] { second = Join(1, store); });
  rank0.join();
  rank1.join();
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(strangers[2].HearToTheEnd().size(), 32u);
  std::thread peer([&] { EXPECT_TRUE((*second)->Barrier().ok()); });
  EXPECT_TRUE((*first)->Barrier().ok());
  peer.join();
}

TEST(Strangers, MoreThanARankWaitsForDoNotKeepItsPeerOut) {
  HashStore store;
  const size_t before = ListeningPorts().size();
  Result<std::unique_ptr<Collective>> first = UnavailableError("not yet");
  std::thread rank0([&] { first = Join(0, store); });
  for (int i = 0; i < 2000 && ListeningPorts().size() <= before; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  ASSERT_GT(ListeningPorts().size(), before);
  std::vector<Stranger> silent;
  for (int i = 0; i < 40; ++i) silent.emplace_back(ListeningPorts().back());
  EXPECT_EQ(silent[0].HearToTheEnd().size(), 32u) << "the oldest make room";
  Result<std::unique_ptr<Collective>> second = Join(1, store);
  rank0.join();
  EXPECT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(second.ok()) << second.status().message();
}

/// Gives one rank another token than the others.
class OtherToken : public Store {
 public:
  explicit OtherToken(Store& store) : store_(store) {}
  Status Set(const std::string& key, std::string_view value) override {
    return store_.Set(key, value);
  }
  Result<std::string> Get(const std::string& key, milliseconds timeout) override {
    if (key == "token") return std::string(32, 'x');
    return store_.Get(key, timeout);
  }

 private:
  Store& store_;
};

TEST(Strangers, ARankWithAnotherTokenDoesNotJoin) {
  HashStore store;
  OtherToken others(store);
  // Gloo waits five times as long for a connection.
  constexpr milliseconds kSoon(200);
  Result<std::unique_ptr<Collective>> first = UnavailableError("not yet");
  std::thread rank0([&] { first = Join(0, store, kSoon); });
  Result<std::unique_ptr<Collective>> second = Join(1, others, kSoon);
  rank0.join();
  EXPECT_EQ(first.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  const std::string said = first.status().message() + second.status().message();
  EXPECT_THAT(said, HasSubstr("does not know the token of this attempt"));
  const Result<std::string> token = store.Get("token", milliseconds(0));
  ASSERT_TRUE(token.ok()) << token.status().message();
  for (const std::string& hidden : {*token, HexOf(*token), std::string(32, 'x')}) {
    EXPECT_THAT(said, Not(HasSubstr(hidden)));
  }
}

/// Has a rank read, in place of the addresses of one peer, a port that nobody answers on.
class Unreachable : public Store {
 public:
  Unreachable(Store& store, int peer) : store_(store), peer_(std::to_string(peer)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 8), 0);  // and never accepts
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = address.sin_port;
  }
  ~Unreachable() override { close(fd_); }
  Status Set(const std::string& key, std::string_view value) override {
    return store_.Set(key, value);
  }
  Result<std::string> Get(const std::string& key, milliseconds timeout) override {
    Result<std::string> value = store_.Get(key, timeout);
    if (!value.ok() || !key.ends_with(peer_)) return value;
    // Gloo's addresses of all pairs: a sockaddr in each.
    for (size_t at = 0; at + sizeof(sockaddr_in) <= value->size(); ++at) {
      sockaddr_in address{};
      std::memcpy(&address, value->data() + at, sizeof(address));
      if (address.sin_family != AF_INET || address.sin_addr.s_addr != htonl(INADDR_LOOPBACK)) {
        continue;
      }
      address.sin_port = port_;
      std::memcpy(value->data() + at, &address, sizeof(address));
    }
    return value;
  }

 private:
  Store& store_;
  const std::string peer_;
  const int fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  in_port_t port_ = 0;
};

TEST(Strangers, ARankThatReachesAPeerInVainNamesIt) {
  HashStore store;
  // Either of the two may be the one that connects: the order of their addresses says.
  Unreachable from_0(store, 2), from_2(store, 0);
  std::array<Result<std::unique_ptr<Collective>>, 3> joined = {
      UnavailableError("not yet"), UnavailableError("not yet"), UnavailableError("not yet")};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      CollectiveOptions options;
      options.rank = rank;
      options.size = 3;
      options.timeout = milliseconds(400);
      Store& seen = rank == 0   ? static_cast<Store&>(from_0)
                    : rank == 2 ? static_cast<Store&>(from_2)
                                : store;
      joined[static_cast<size_t>(rank)] = ConnectCollective(options, seen);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(joined[0].status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(joined[0].status().message(),
              AllOf(HasSubstr("rank 0 of 3 could not join its peers from 127.0.0.1"),
                    HasSubstr("no connection to rank 2"), HasSubstr("hint: ")));
}

}  // namespace
}  // namespace weft::engine
