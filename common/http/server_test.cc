#include "common/http/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio.hpp>
#include <mutex>
#include <vector>

#include "common/http/address.h"

namespace weft::http {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Tcp = boost::asio::ip::tcp;

Page Says(const std::string& text) {
  return [text](const Answer& answer) { answer({200, text}); };
}

class HttpServer : public testing::Test {
 protected:
  void Start(std::map<std::string, Page> pages, Limits limits = {}) {
    auto server = Server::Listen("127.0.0.1:0", std::move(pages), limits);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(*server);
  }
  Result<Reply> Fetch(const std::string& path) {
    return Get(server_->local_address(), path, milliseconds(5000));
  }
  Tcp::socket Connect() {
    Tcp::socket socket(io_);
    socket.connect(
        {boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(server_->port())});
    return socket;
  }
  /// Sends the bytes, and reads until the server ends the connection.
  std::string Exchange(const std::string& bytes) {
    Tcp::socket socket = Connect();
    boost::system::error_code ignored;
    boost::asio::write(socket, boost::asio::buffer(bytes), ignored);
    return ReadAll(socket);
  }
  static std::string ReadAll(Tcp::socket& socket) {
    std::string text;
    boost::system::error_code end;
    boost::asio::read(socket, boost::asio::dynamic_buffer(text), end);
    return text;
  }

  boost::asio::io_context io_;
  std::unique_ptr<Server> server_;
};

TEST_F(HttpServer, ServesItsPagesAndSaysWhichThereAre) {
  Start({{"/a", Says("alpha")}, {"/b", Says("beta")}});
  auto reply = Fetch("/a?x=1");
  ASSERT_TRUE(reply.ok()) << reply.status().message();
  EXPECT_EQ(reply->status, 200);
  EXPECT_EQ(reply->body, "alpha");
  reply = Fetch("/c");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->status, 404);
  EXPECT_THAT(reply->body, HasSubstr("/a, /b"));
  const std::string head = Exchange("HEAD /b HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 4\r\n"));
  EXPECT_THAT(head, testing::EndsWith("\r\n\r\n"));
}

TEST_F(HttpServer, RefusesWhatIsNoRequest) {
  Start({{"/a", Says("alpha")}});
  EXPECT_THAT(Exchange("POST /a HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Exchange("PRI * HTTP/2.0\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Exchange("GET\r\n\r\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Exchange(std::string("\0\xff\r\n\r\n", 6)), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(Exchange("GET /a HTTP/1.1\r\nX: " + std::string(8190, 'x')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_TRUE(Fetch("/a").ok());
}

TEST_F(HttpServer, SilentClientsTakeNobodysPlace) {
  Limits limits;
  limits.connections = 4;
  limits.request = std::chrono::hours(1);
  Start({{"/a", Says("alpha")}}, limits);
  std::vector<Tcp::socket> silent;
  for (int i = 0; i < 12; ++i) {
    silent.push_back(Connect());
    if (i % 2 == 1) boost::asio::write(silent.back(), boost::asio::buffer("GET /a HT", 9));
    auto reply = Fetch("/a");
    ASSERT_TRUE(reply.ok()) << "with " << i + 1 << " silent ones";
    EXPECT_EQ(reply->body, "alpha");
  }
  EXPECT_EQ(ReadAll(silent.front()), "") << "the oldest gave way";
}

TEST_F(HttpServer, ASilentClientIsLetGoAfterItsTime) {
  Limits limits;
  limits.request = milliseconds(50);
  Start({{"/a", Says("alpha")}}, limits);
  Tcp::socket silent = Connect();
  EXPECT_EQ(ReadAll(silent), "");
}

TEST_F(HttpServer, AClientThatDoesNotReadIsLetGo) {
  Limits limits;
  limits.send = milliseconds(50);
  limits.connections = 1000;
  Start({{"/a", Says(std::string(32 << 20, 'x'))}}, limits);
  Tcp::socket deaf = Connect();
  boost::asio::write(deaf, boost::asio::buffer("GET /a HTTP/1.0\r\n\r\n", 19));
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_LT(ReadAll(deaf).size(), size_t{32} << 20);
}

TEST_F(HttpServer, APageThatDoesNotAnswerIsUnavailableAndHoldsUpNoOther) {
  std::mutex mutex;
  std::vector<Answer> kept;
  Limits limits;
  limits.answer = milliseconds(200);
  Start({{"/stuck",
          [&](const Answer& answer) {
            std::lock_guard lock(mutex);
            kept.push_back(answer);
          }},
         {"/a", Says("alpha")}},
        limits);
  Tcp::socket stuck = Connect();
  boost::asio::write(stuck, boost::asio::buffer("GET /stuck HTTP/1.0\r\n\r\n", 23));
  auto reply = Fetch("/a");
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->body, "alpha");
  EXPECT_THAT(ReadAll(stuck), StartsWith("HTTP/1.1 503 "));
  {
    std::lock_guard lock(mutex);
    ASSERT_EQ(kept.size(), 1u);
    kept[0]({200, "too late"});
  }
  server_.reset();
  kept[0]({200, "far too late"});
}

TEST_F(HttpServer, SaysWhyItCannotListen) {
  Start({});
  auto second = Server::Listen(server_->local_address(), {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), StatusCode::kUnavailable);
  for (const char* address : {"", "7071", "a:b", "::1:80", "127.0.0.1:70000", "127.0.0.1:"}) {
    EXPECT_EQ(Server::Listen(address, {}).status().code(), StatusCode::kInvalid) << address;
  }
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "::1");
  EXPECT_EQ(ParseAddress(":80")->host, "");
}

TEST(HttpGet, SaysThatNobodyAnswers) {
  EXPECT_EQ(Get("127.0.0.1:1", "/", milliseconds(500)).status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::http
