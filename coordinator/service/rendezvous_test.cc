#include "coordinator/service/rendezvous.h"

#include <gtest/gtest.h>

#include <optional>

namespace weft::coordinator {
namespace {

TEST(Rendezvous, AGetWaitsForItsKeyAndForNoOther) {
  Rendezvous store;
  std::optional<Result<std::string>> answer;
  auto reply = [&](Result<std::string> value) { answer = std::move(value); };
  EXPECT_GT(store.Get("j", 1, 2, "k", reply), 0);
  ASSERT_TRUE(store.Set("j", 2, 2, "k", "other attempt").ok());
  ASSERT_TRUE(store.Set("j", 1, 2, "x", "other key").ok());
  EXPECT_FALSE(answer);
  ASSERT_TRUE(store.Set("j", 1, 2, "k", "v").ok());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->value(), "v");
  answer.reset();
  EXPECT_EQ(store.Get("j", 1, 2, "k", reply), 0);
  EXPECT_EQ(answer->value(), "v");
}

TEST(Rendezvous, WaitersAreAnsweredWhenTheTimeOrTheAttemptIsOver) {
  Rendezvous store;
  std::vector<StatusCode> status_codes;
  auto reply = [&](const Result<std::string>& value) {
    status_codes.push_back(value.status().code());
  };
  int64_t ticket = store.Get("j", 1, 2, "k", reply);
  store.Expire(ticket);
  store.Expire(ticket);
  store.Get("j", 1, 2, "k", reply);
  store.Drop("j", 1);
  EXPECT_EQ(status_codes,
            (std::vector<StatusCode>{StatusCode::kUnavailable, StatusCode::kAborted}));
}

TEST(Rendezvous, WhatAnAttemptTakesIsBounded) {
  Rendezvous store;
  EXPECT_EQ(store.Set("j", 1, 2, "k", std::string((1 << 20) + 1, 'x')).code(),
            StatusCode::kExhausted);
  EXPECT_EQ(store.Set("j", 1, 2, std::string(1025, 'k'), "").code(), StatusCode::kExhausted);
  const std::string value(1 << 20, 'x');
  int64_t values = 0;
  Status status;
  while ((status = store.Set("j", 1, 2, std::to_string(values), value)).ok()) {
    ASSERT_LT(++values, 100);
  }
  EXPECT_EQ(status.code(), StatusCode::kExhausted);
  EXPECT_NE(status.message().find("bytes for 2 ranks"), std::string::npos) << status.message();
  EXPECT_EQ(values, 64) << "and their keys";
  // What replaces another value takes its place.
  EXPECT_TRUE(store.Set("j", 1, 2, "0", value).ok());
  EXPECT_TRUE(store.Set("j", 1, 2, "0", "").ok());
  EXPECT_TRUE(store.Set("j", 1, 2, "another", value).ok());
  // More ranks may take more, and other attempts have limits of their own.
  EXPECT_TRUE(store.Set("j", 1, 2048, "more", value).ok());
  EXPECT_TRUE(store.Set("j", 2, 2, "k", value).ok());
  store.Drop("j", 1);
  EXPECT_TRUE(store.Set("j", 1, 2, "k", value).ok());
}

TEST(Rendezvous, ALargeWorldCanMeet) {
  constexpr int64_t kRanks = 1024, kBytesAboutAPeer = 160;
  const int64_t needed = kRanks * (kRanks * kBytesAboutAPeer + 8);
  EXPECT_LT(3 * needed, Rendezvous::MostBytes(kRanks));
  EXPECT_LT(kRanks * kBytesAboutAPeer, Rendezvous::kMostValueBytes);
  EXPECT_GT(Rendezvous::MostWaiters(kRanks), 2 * kRanks);
}

TEST(Rendezvous, WaitsAreBounded) {
  Rendezvous store;
  int exhausted = 0, answered = 0;
  const auto reply = [&](const Result<std::string>& value) {
    ++(value.status().code() == StatusCode::kExhausted ? exhausted : answered);
  };
  const int64_t most = Rendezvous::MostWaiters(2);
  int64_t ticket = 0;
  for (int64_t i = 0; i < most; ++i) {
    ticket = store.Get("j", 1, 2, i % 2 == 0 ? "even" : "odd", reply);
    EXPECT_GT(ticket, 0);
  }
  EXPECT_EQ(store.Get("j", 1, 2, "more", reply), 0);
  EXPECT_EQ(exhausted, 1);
  EXPECT_GT(store.Get("j", 2, 2, "other attempt", reply), 0);
  // Whoever was answered makes room.
  store.Expire(ticket);
  EXPECT_GT(store.Get("j", 1, 2, "more", reply), 0);
  EXPECT_EQ(store.Get("j", 1, 2, "more", reply), 0);
  EXPECT_EQ(exhausted, 2);
  ASSERT_TRUE(store.Set("j", 1, 2, "even", "").ok());
  EXPECT_EQ(answered, 1 + most / 2);
  EXPECT_GT(store.Get("j", 1, 2, "more", reply), 0);
  EXPECT_EQ(exhausted, 2);
}

}  // namespace
}  // namespace weft::coordinator
