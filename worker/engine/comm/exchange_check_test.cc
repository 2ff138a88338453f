#include "worker/engine/comm/exchange_check.h"

#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;

/// A group whose gathers or sums are changed as they arrive.
class CorruptGroup : public Collective {
 public:
  using Change = std::function<void(CollectiveKind kind, float* values)>;

  CorruptGroup(Collective& inner, Change change)
      : Collective(inner.rank(), inner.size(), inner.device(), inner.name(), inner.members()),
        inner_(inner),
        change_(std::move(change)) {}

  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    return inner_.AllGather(bytes);
  }
  Status Broadcast(std::span<std::byte> bytes, int root) override {
    return inner_.Broadcast(bytes, root);
  }
  Status Barrier() override { return inner_.Barrier(); }
  Result<std::unique_ptr<Collective>> Split(int64_t color, const std::string& name) override {
    return inner_.Split(color, name);
  }
  void Abort() override { inner_.Abort(); }

 protected:
  Work Start(const Stream& stream, CollectiveCall call) override {
    const bool sums = call.kind == CollectiveKind::kAllReduce;
    const Status status =
        (sums ? inner_.AllReduce(stream, call.input, call.reduction)
              : static_cast<Collective&>(inner_).AllGather(stream, call.input, call.output))
            .Wait(stream);
    change_(call.kind, call.output.As<float>());
    return Work(status);
  }

 private:
  Collective& inner_;
  const Change change_;
};

/// What three ranks find, whose results `change` changes.
ExchangeCheck Check(const std::function<void(int rank, CollectiveKind, float*)>& change) {
  std::vector<ExchangeCheck> found(3);
  RunRanks(3, milliseconds(20000), [&](Collective& group) {
    Allocator allocator;
    Context context;
    context.allocator = &allocator;
    CorruptGroup corrupt(
        group, [&](CollectiveKind kind, float* values) { change(group.rank(), kind, values); });
    const Result<ExchangeCheck> check = CheckExchange(corrupt, context);
    ASSERT_TRUE(check.ok()) << check.status().message();
    found[static_cast<size_t>(group.rank())] = *check;
  });
  for (const ExchangeCheck& other : found) {
    EXPECT_EQ(other.error, found[0].error);
    EXPECT_EQ(other.suspects, found[0].suspects);
  }
  return found[0];
}

TEST(CheckExchange, FindsNothingWhereAllIsWell) {
  EXPECT_EQ(Check([](int, CollectiveKind, float*) {}).error, "");
}

TEST(CheckExchange, NamesWhoseNumbersArriveWrong) {
  // One number of rank 1 reaches rank 2 wrong, and so is its sum.
  const ExchangeCheck found = Check([](int rank, CollectiveKind kind, float* values) {
    if (rank != 2) return;
    values[kind == CollectiveKind::kAllGather ? (1 << 14) + 77 : 77] += 1;
  });
  EXPECT_EQ(found.error, "numbers of rank 1 reached other ranks wrong");
  EXPECT_THAT(found.suspects, ElementsAre(1));
}

TEST(CheckExchange, NamesWhereSumsAreWrong) {
  const ExchangeCheck found = Check([](int rank, CollectiveKind kind, float* values) {
    if (rank != 1 && kind == CollectiveKind::kAllReduce) values[5] += 1;
  });
  EXPECT_EQ(found.error, "sums over the ranks were wrong on ranks 0 and 2");
  EXPECT_THAT(found.suspects, ElementsAre(0, 2));
}

TEST(CheckExchange, BlamesNobodyForSumsThatAreWrongEverywhere) {
  const ExchangeCheck found = Check([](int, CollectiveKind kind, float* values) {
    if (kind == CollectiveKind::kAllReduce) values[0] *= 2;
  });
  EXPECT_EQ(found.error, "sums over the ranks were wrong on all of them");
  EXPECT_THAT(found.suspects, IsEmpty());
}

}  // namespace
}  // namespace weft::engine
