#include "coordinator/service/rendezvous.h"

#include <gtest/gtest.h>

#include <optional>

namespace weft::coordinator {
namespace {

TEST(Rendezvous, AGetWaitsForItsKeyAndForNoOther) {
  Rendezvous store;
  std::optional<Result<std::string>> answer;
  auto reply = [&](Result<std::string> value) { answer = std::move(value); };
  EXPECT_GT(store.Get("j", 1, "k", reply), 0);
  ASSERT_TRUE(store.Set("j", 2, "k", "other attempt").ok());
  ASSERT_TRUE(store.Set("j", 1, "x", "other key").ok());
  EXPECT_FALSE(answer);
  ASSERT_TRUE(store.Set("j", 1, "k", "v").ok());
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->value(), "v");
  answer.reset();
  EXPECT_EQ(store.Get("j", 1, "k", reply), 0);
  EXPECT_EQ(answer->value(), "v");
}

TEST(Rendezvous, WaitersAreAnsweredWhenTheTimeOrTheAttemptIsOver) {
  Rendezvous store;
  std::vector<StatusCode> status_codes;
  auto reply = [&](const Result<std::string>& value) {
    status_codes.push_back(value.status().code());
  };
  int64_t ticket = store.Get("j", 1, "k", reply);
  store.Expire(ticket);
  store.Expire(ticket);
  store.Get("j", 1, "k", reply);
  store.Drop("j", 1);
  EXPECT_EQ(status_codes,
            (std::vector<StatusCode>{StatusCode::kUnavailable, StatusCode::kAborted}));
  EXPECT_EQ(store.Set("j", 1, "k", std::string((1 << 20) + 1, 'x')).code(), StatusCode::kExhausted);
}

}  // namespace
}  // namespace weft::coordinator
