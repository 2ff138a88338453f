// Many small clusters, each with faults of its own (docs/benchmarks/chaos.md):
//   WEFT_SIMULATION_SEEDS=10000 simulation_test: the seeds 1 to 10000
//   WEFT_SIMULATION_SEED=17 WEFT_SIMULATION_TRACE=1 simulation_test: one of them, and all it does
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "common/log.h"
#include "tests/simulation/simulation.h"

namespace weft::simulation {
namespace {

uint64_t Setting(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class Simulated : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const bool traced = std::getenv("WEFT_SIMULATION_TRACE") != nullptr;
    InitLog("simulation", traced ? LogLevel::kInfo : LogLevel::kError);
  }
};

TEST_F(Simulated, ClustersKeepAllRulesWithEverySeed) {
  const uint64_t only = Setting("WEFT_SIMULATION_SEED", 0);
  const uint64_t first = only > 0 ? only : Setting("WEFT_SIMULATION_FIRST", 1);
  const uint64_t last = only > 0 ? only : first + Setting("WEFT_SIMULATION_SEEDS", 25) - 1;
  int64_t disturbances = 0;
  double seconds = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    Simulation simulation(seed);
    simulation.Run();
    for (const std::string& broken : simulation.broken()) {
      ADD_FAILURE() << "seed " << seed << ", " << broken;
    }
    disturbances += simulation.disturbances();
    seconds += simulation.SecondsTaken();
  }
  RecordProperty("seeds", static_cast<int>(last - first + 1));
  RecordProperty("disturbances", static_cast<int>(disturbances));
  RecordProperty("hours", static_cast<int>(seconds / 3600));
  std::printf("%llu seeds, %lld disturbances in %.0f h\n",
              static_cast<unsigned long long>(last - first + 1),
              static_cast<long long>(disturbances), seconds / 3600);
}

TEST_F(Simulated, ClustersDoTheSameAgain) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    uint64_t hashes[2];
    for (uint64_t& hash : hashes) {
      Simulation simulation(seed);
      simulation.Run();
      hash = simulation.hash();
    }
    EXPECT_EQ(hashes[0], hashes[1]) << "seed " << seed;
  }
}

}  // namespace
}  // namespace weft::simulation
