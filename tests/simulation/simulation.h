#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/coordinator.h"
#include "tests/simulation/ranks.h"
#include "tests/simulation/rules.h"
#include "tests/simulation/timeline.h"
#include "tests/simulation/users.h"
#include "tests/simulation/worker.h"

namespace weft::simulation {

/// A cluster whose coordinator is real and whose time, network, disk, machines and users are not.
/// For some minutes all goes wrong that can. Then nothing does any more, and each job must end.
class Simulation {
 public:
  explicit Simulation(uint64_t seed);

  void Run();
  /// What did not hold; empty: all did.
  const std::vector<std::string>& broken() const { return rules_.broken(); }
  /// The same of two runs of a seed, and of no others.
  uint64_t hash() const { return timeline_.hash(); }
  /// Of the simulated time.
  double SecondsTaken() const { return ToSeconds(timeline_.now()); }
  int64_t disturbances() const { return disturbances_; }

 private:
  coordinator::ServiceOptions Options(uint64_t seed);
  /// The next thing goes wrong after a while, until that time.
  void DisturbUntil(Duration end);
  void Disturb();
  /// Until then, or until a rule is broken.
  void RunUntil(Duration end);

  bool has_spare_ = false;  ///< First: options of the coordinator set it.
  Timeline timeline_;
  Rules rules_;
  Coordinator coordinator_;
  Ranks ranks_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Users> users_;
  Duration pause_{0};  ///< Between two disturbances, on average.
  int64_t disturbances_ = 0;
};

}  // namespace weft::simulation
