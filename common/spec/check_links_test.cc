#include "common/spec/check_links.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

WorkerProfile Machine(const std::string& id, const std::string& rack) {
  WorkerProfile worker;
  worker.worker_id = id;
  worker.rack = rack;
  worker.network_bytes_per_second = 1e9;
  return worker;
}

ClusterProfile FourMachines() {
  return {.workers = {Machine("a-0", "r1"), Machine("a-1", "r1"), Machine("b-0", "r2"),
                      Machine("c-0", "")},
          .links = {}};
}

LinkSpec Between(std::vector<std::string> workers, double bytes_per_second = 1e8) {
  return {.workers = std::move(workers), .bytes_per_second = bytes_per_second};
}

LinkSpec BetweenRacks(std::vector<std::string> racks, double bytes_per_second = 1e8) {
  return {.racks = std::move(racks), .bytes_per_second = bytes_per_second};
}

std::string Refusal(std::vector<LinkSpec> links) {
  ClusterProfile cluster = FourMachines();
  cluster.links = std::move(links);
  return CheckLinks(cluster).message();
}

TEST(CheckLinks, TakesLinksBetweenMachinesAndBetweenRacks) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({Between({"a-0", "b-0"}), Between({"c-0", "a-0"}, 1e9),
                     BetweenRacks({"r1", "r2"}), BetweenRacks({"r1", "r1"})}),
            "");
  LinkSpec far{.workers = {"a-0", "a-1"}};
  far.latency_seconds = 1e-3;
  EXPECT_EQ(Refusal({far}), "") << "the rate is that of the machines";
}

TEST(CheckLinks, RefusesWhatDoesNotNameTwo) {
  const std::string rule = "links[0] must name two machines or two racks";
  EXPECT_THAT(Refusal({Between({})}), HasSubstr(rule));
  EXPECT_THAT(Refusal({Between({"a-0"})}), HasSubstr(rule));
  EXPECT_THAT(Refusal({Between({"a-0", "a-1", "b-0"})}), HasSubstr(rule));
  EXPECT_THAT(Refusal({BetweenRacks({"r1"})}), HasSubstr(rule));
  LinkSpec both = Between({"a-0", "a-1"});
  both.racks = {"r1", "r2"};
  EXPECT_THAT(Refusal({both}), HasSubstr(rule));
  LinkSpec one_of_each = Between({"a-0"});
  one_of_each.racks = {"r2"};
  EXPECT_THAT(Refusal({one_of_each}), HasSubstr(rule));
}

TEST(CheckLinks, RefusesNamesThatAreNotThere) {
  EXPECT_THAT(Refusal({Between({"a-0", "b-0"}), Between({"a-0", "b-00"})}),
              HasSubstr("links[1]: no machine has the worker_id 'b-00'; did you mean 'b-0'?"));
  EXPECT_THAT(Refusal({BetweenRacks({"r1", "r3"})}), HasSubstr("no machine has the rack 'r3'"));
  EXPECT_THAT(Refusal({BetweenRacks({"r1", ""})}), HasSubstr("no machine has the rack ''"))
      << "machines without one are in none";
  const std::string endless(100000, 'x');
  EXPECT_LT(Refusal({Between({"a-0", endless})}).size(), 300u);
}

TEST(CheckLinks, RefusesLinksOfAMachineWithItself) {
  EXPECT_THAT(Refusal({Between({"a-0", "a-0"})}), HasSubstr("names the machine 'a-0' twice"));
  EXPECT_THAT(Refusal({BetweenRacks({"r2", "r2"})}), HasSubstr("'r2' has one machine alone"));
  ClusterProfile twins = FourMachines();
  twins.workers[1].worker_id = "a-0";
  twins.links = {Between({"a-0", "b-0"})};
  EXPECT_THAT(CheckLinks(twins).message(), HasSubstr("several machines have the worker_id 'a-0'"));
}

TEST(CheckLinks, RefusesTheSameTwoTwice) {
  EXPECT_THAT(Refusal({Between({"a-0", "b-0"}), Between({"b-0", "a-0"}, 1e7)}),
              HasSubstr("links[1]: an earlier link is between the same workers"));
  EXPECT_THAT(Refusal({BetweenRacks({"r2", "r1"}), BetweenRacks({"r1", "r2"})}),
              HasSubstr("between the same racks"));
}

TEST(CheckLinks, RefusesRatesThatNoMachineReaches) {
  EXPECT_THAT(Refusal({Between({"a-0", "b-0"}, 0)}),
              HasSubstr("says neither bytes_per_second nor latency_seconds"));
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(Refusal({Between({"a-0", "b-0"}, wrong)}), HasSubstr("must be 0 or more"));
    LinkSpec late = Between({"a-0", "b-0"});
    late.latency_seconds = wrong;
    EXPECT_THAT(Refusal({late}), HasSubstr("must be 0 or more"));
  }
  EXPECT_THAT(Refusal({Between({"a-0", "b-0"}, 2e9)}),
              HasSubstr("bytes_per_second is 2e+09, but 'a-0' sends 1e+09 in all; hint: "));
  // The slowest machine of a rack counts.
  ClusterProfile cluster = FourMachines();
  cluster.workers[1].network_bytes_per_second = 0;
  cluster.links = {BetweenRacks({"r2", "r1"})};
  EXPECT_THAT(CheckLinks(cluster).message(),
              HasSubstr("'a-1' does not say its network_bytes_per_second"));
}

TEST(CheckLinks, LinksAreReadStrictlyAndWrittenBack) {
  ClusterProfile cluster = FourMachines();
  cluster.links = {Between({"a-0", "b-0"}), BetweenRacks({"r1", "r2"})};
  cluster.links[1].latency_seconds = 2e-5;
  const Result<ClusterProfile> back = FromJson<ClusterProfile>(ToJson(cluster));
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->links, cluster.links);
  const auto read = [](const Json& link) {
    return FromJson<ClusterProfile>(Json{{"links", Json::array({link})}}).status().message();
  };
  EXPECT_EQ(read({{"workers", {"a", "b"}}}), "");
  EXPECT_THAT(read({{"worker", {"a", "b"}}}), HasSubstr("did you mean 'workers'?"));
  EXPECT_THAT(read({{"workers", {"a", "b", "c"}}}), HasSubstr("links[0].workers"));
  EXPECT_THAT(read({{"workers", "a"}}), HasSubstr("links[0].workers must be"));
  EXPECT_THAT(read({{"bytes_per_second", -1}}), HasSubstr("bytes_per_second is -1"));
  EXPECT_THAT(read({{"bytes_per_second", 1e300}}), HasSubstr("bytes_per_second"));
  EXPECT_THAT(read({{"latency_seconds", 61}}), HasSubstr("latency_seconds is 61"));
  const Json many{{"links", Json::array_t(257, Json::object())}};
  EXPECT_THAT(FromJson<ClusterProfile>(many).status().message(), HasSubstr("links"));
}

}  // namespace
}  // namespace weft
