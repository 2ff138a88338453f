#include "coordinator/service/network_links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace weft::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr seconds kNow(1000);
constexpr size_t kMany = 100;

class NetworkLinksTest : public ::testing::Test {
 protected:
  void Put(const std::string& one, const std::string& other, double rate) {
    const MachinePair pair = PairOf(one, other);
    links_.Put({pair.first, pair.second, "at-" + pair.first, "at-" + pair.second, rate, 1e-4, 1});
  }
  void PutAt(const std::string& one, const std::string& other, double measured_at) {
    links_.Put({one, other, "at-" + one, "at-" + other, 1e9, 1e-4, measured_at});
  }
  /// What is measured again of machines that all know each other.
  std::vector<MachinePair> Old(const std::vector<std::string>& machines, double old_before) {
    return links_.Choose(machines, kNow, kMany, old_before);
  }

  NetworkLinks links_{3, minutes(10)};
};

TEST_F(NetworkLinksTest, RateIsTheMedianInTwoDigits) {
  EXPECT_EQ(links_.RateOf({"a"}), std::nullopt);
  Put("a", "b", 1.2345e9);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a"}), 1.2e9);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"b"}), 1.2e9);
  // The lower one of two counts: which of the three machines is slow is not known.
  Put("c", "a", 1e8);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a"}), 1e8);
  // One slow peer does not make a machine slow.
  Put("a", "d", 1.19e9);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a"}), 1.2e9);
  links_.Fail(PairOf("a", "e"), "no route", kNow);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a"}), 1.2e9);
}

TEST_F(NetworkLinksTest, TheSlowestLinkIsThatBetweenTheMachinesAlone) {
  Put("a", "b", 1.25e8);
  Put("a", "c", 1e9);
  Put("b", "d", 1e7);
  EXPECT_EQ(links_.SlowestBetween({"a"}), std::nullopt);
  EXPECT_EQ(links_.SlowestBetween({"c", "d"}), std::nullopt) << "nobody measured it";
  EXPECT_EQ(links_.SlowestBetween({"a", "c"}), 1e9);
  EXPECT_EQ(links_.SlowestBetween({"a", "b", "c"}), 1.25e8) << "as it was measured";
}

TEST_F(NetworkLinksTest, LatenciesAreTheMedianOrTheLongestOfTheSameLinks) {
  links_.Put({"a", "b", "", "", 1e9, 2.04e-5, 1});
  links_.Put({"b", "c", "", "", 1e9, 1e-3, 1});
  links_.Put({"c", "d", "", "", 1e9, 5e-4, 1});
  EXPECT_DOUBLE_EQ(*links_.LatencyOf({"a"}), 2e-5) << "in two digits";
  EXPECT_DOUBLE_EQ(*links_.LatencyOf({"b"}), 1e-3) << "the higher of two";
  EXPECT_DOUBLE_EQ(*links_.LatencyOf({"a", "b", "c"}), 5e-4);
  EXPECT_EQ(links_.LatencyOf({"e"}), std::nullopt);
  EXPECT_EQ(links_.LongestLatencyBetween({"a", "b", "c"}), 1e-3);
  EXPECT_EQ(links_.LongestLatencyBetween({"c", "d"}), 5e-4);
  EXPECT_EQ(links_.LongestLatencyBetween({"a", "c"}), std::nullopt);
}

TEST_F(NetworkLinksTest, RateOfSeveralMachinesIsTheMedianOfAllTheirLinks) {
  Put("a", "b", 1e8);
  Put("a", "c", 1e9);
  Put("b", "d", 1e9);
  Put("c", "d", 1e7);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a", "b"}), 1e9) << "the link between them counts once";
  EXPECT_DOUBLE_EQ(*links_.RateOf({"b", "e"}), 1e8) << "one without a measured rate";
  EXPECT_EQ(links_.RateOf({"e"}), std::nullopt);
}

TEST_F(NetworkLinksTest, ANewcomerIsMeasuredToSomeAndNotToAll) {
  std::vector<std::string> machines;
  std::set<MachinePair> measured;
  for (char name = 'a'; name <= 'z'; ++name) {
    machines.emplace_back(1, name);
    while (true) {
      const auto pairs = links_.Choose(machines, kNow, kMany);
      if (pairs.empty()) break;
      for (const MachinePair& pair : pairs) {
        EXPECT_TRUE(measured.insert(pair).second) << pair.first << pair.second;
        Put(pair.first, pair.second, 1e9);
      }
    }
    const size_t others = machines.size() - 1;
    EXPECT_GE(links_.Of(machines.back()).size(), std::min<size_t>(others, 3)) << name;
  }
  EXPECT_LE(measured.size(), 3 * machines.size());
}

TEST_F(NetworkLinksTest, NoMachineMeasuresTwiceAtATime) {
  const auto pairs = links_.Choose({"a", "b", "c", "d", "e"}, kNow, kMany);
  ASSERT_THAT(pairs, SizeIs(2));
  EXPECT_THAT(pairs, ElementsAre(Pair("a", "b"), Pair("c", "d")));
  EXPECT_THAT(links_.Choose({"a", "b", "c", "d", "e"}, kNow, 1), SizeIs(1));
  EXPECT_THAT(links_.Choose({"a"}, kNow, kMany), IsEmpty());
}

TEST_F(NetworkLinksTest, FailuresCountUntilTheyAreOld) {
  const std::vector<std::string> machines = {"a", "b", "c", "d", "e", "f"};
  for (const char* peer : {"b", "c", "d"}) links_.Fail(PairOf("a", peer), "no route", kNow);
  for (const MachinePair& pair : links_.Choose(machines, kNow, kMany)) {
    EXPECT_NE(pair.first, "a") << "three failed";
  }
  EXPECT_THAT(links_.Choose({"a", "b"}, kNow, kMany), IsEmpty());
  EXPECT_THAT(links_.Choose({"a", "b"}, kNow + minutes(11), kMany), ElementsAre(Pair("a", "b")));
  ASSERT_THAT(links_.Of("a"), SizeIs(3));
  EXPECT_EQ(links_.Of("a")[0].error, "no route");
  // Who joins anew may be reached now.
  EXPECT_FALSE(links_.Join("a", {"at-a"}));
  EXPECT_THAT(links_.Of("a"), IsEmpty());
}

TEST_F(NetworkLinksTest, APairThatFailsAgainIsLeftAloneForTwiceAsLong) {
  seconds now = kNow;
  for (const minutes pause : {minutes(10), minutes(20), minutes(40)}) {
    EXPECT_EQ(links_.Fail(PairOf("a", "b"), "no route", now), pause);
    EXPECT_THAT(links_.Choose({"a", "b"}, now + pause - seconds(1), kMany), IsEmpty());
    now += pause;
    EXPECT_THAT(links_.Choose({"a", "b"}, now, kMany), SizeIs(1));
  }
  for (int i = 0; i < 9; ++i) links_.Fail(PairOf("a", "b"), "no route", now);
  EXPECT_EQ(links_.Fail(PairOf("a", "b"), "no route", now), std::chrono::hours(24));
  links_.Join("b", {"at-b"});
  EXPECT_EQ(links_.Fail(PairOf("a", "b"), "no route", now), minutes(10));
}

TEST_F(NetworkLinksTest, OldFailuresOfMachinesThatAreGoneAreForgotten) {
  links_.Fail(PairOf("a", "b"), "no route", kNow);
  links_.Fail(PairOf("a", "c"), "no route", kNow);
  links_.ForgetFailures({"a", "b"}, kNow + minutes(9));
  EXPECT_THAT(links_.Of("a"), SizeIs(2));
  links_.ForgetFailures({"a", "b"}, kNow + minutes(10));
  ASSERT_THAT(links_.Of("a"), SizeIs(1));
  EXPECT_EQ(links_.Of("a")[0].machine, "b");
  EXPECT_THAT(links_.Of("c"), IsEmpty());
}

TEST_F(NetworkLinksTest, OldLinksAreMeasuredAgainTheOldestFirst) {
  PutAt("a", "b", 1000);
  PutAt("a", "c", 500);
  PutAt("b", "c", 2000);
  PutAt("d", "e", 3000);
  const std::vector<std::string> machines = {"a", "b", "c", "d", "e"};
  EXPECT_THAT(Old({"a", "b", "c"}, 0), IsEmpty());
  EXPECT_THAT(Old({"a", "b", "c"}, 500), IsEmpty()) << "not older than that";
  EXPECT_THAT(Old({"a", "b", "c"}, 5000), ElementsAre(Pair("a", "c"))) << "no machine twice";
  EXPECT_THAT(Old({"b", "c"}, 5000), ElementsAre(Pair("b", "c"))) << "of those that are idle";
  EXPECT_THAT(links_.Choose({"d", "e"}, kNow, kMany, 3001), ElementsAre(Pair("d", "e")));
  // What is not known goes first.
  EXPECT_THAT(links_.Choose(machines, kNow, 1, 5000), ElementsAre(Pair("a", "d")));
  EXPECT_DOUBLE_EQ(*links_.RateOf({"d"}), 1e9) << "until then it counts";
  PutAt("a", "c", 6000);
  EXPECT_THAT(Old({"a", "b", "c"}, 5000), ElementsAre(Pair("a", "b")));
}

TEST_F(NetworkLinksTest, AnOldLinkStaysWhereItCannotBeMeasuredAgain) {
  PutAt("a", "b", 1000);
  links_.Fail(PairOf("a", "b"), "no route", kNow);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"a"}), 1e9);
  ASSERT_THAT(links_.Of("a"), SizeIs(1));
  EXPECT_EQ(links_.Of("a")[0].error, "");
  EXPECT_THAT(Old({"a", "b"}, 5000), IsEmpty()) << "not at once";
  EXPECT_THAT(links_.Choose({"a", "b"}, kNow + minutes(10), kMany, 5000),
              ElementsAre(Pair("a", "b")));
  links_.ForgetFailures({"b"}, kNow + minutes(10));
  EXPECT_THAT(links_.Of("a"), SizeIs(1));
}

TEST_F(NetworkLinksTest, AMachineThatMovesIsMeasuredAgain) {
  Put("a", "b", 1e9);
  Put("b", "c", 2e9);
  EXPECT_FALSE(links_.Join("a", {"at-a"}));
  EXPECT_THAT(links_.Choose({"a", "b"}, kNow, kMany), IsEmpty());
  EXPECT_FALSE(links_.Join("a", {"elsewhere", "at-a"})) << "another worker of it is there";
  EXPECT_THAT(links_.Of("a"), SizeIs(1));
  EXPECT_TRUE(links_.Join("a", {"elsewhere"}));
  EXPECT_EQ(links_.RateOf({"a"}), std::nullopt);
  EXPECT_DOUBLE_EQ(*links_.RateOf({"b"}), 2e9);
  EXPECT_THAT(links_.Choose({"a", "b"}, kNow, kMany), ElementsAre(Pair("a", "b")));
}

}  // namespace
}  // namespace weft::coordinator
