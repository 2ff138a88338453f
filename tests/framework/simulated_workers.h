#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::testing {

/// Workers without ranks, thousands of them in one process: each has its own connection and speaks
/// the protocol of a real one (registers, sends heartbeats, reports attempts until they are
/// acknowledged, dials again after a break, gives attempts up when its lease runs out). What it is
/// told to start trains for a while and ends. For load, and for histories of many short jobs.
class SimulatedWorkers {
 public:
  struct Options {
    std::string address;  ///< Of the coordinator.
    int64_t count = 1;
    int64_t cores = 2;                            ///< Offered by each.
    std::chrono::milliseconds attach_over{0};     ///< They join evenly over this time.
    std::chrono::milliseconds train_for{50};      ///< From the start of an attempt to its end.
    double failure_share = 0;                     ///< Attempts that end with a dead rank, 0 to 1.
    std::chrono::milliseconds redial_after{100};  ///< After a break, and after a dial in vain.
    uint64_t seed = 1;                            ///< Of what fails.
  };

  explicit SimulatedWorkers(Options options);
  /// Ends all streams and waits for them.
  ~SimulatedWorkers();
  SimulatedWorkers(const SimulatedWorkers&) = delete;
  SimulatedWorkers& operator=(const SimulatedWorkers&) = delete;

  /// Workers that the coordinator has registered and whose stream is open.
  int64_t attached() const;
  /// Streams that ended although nobody here ended them.
  int64_t broken_streams() const;
  /// Attempts that ended, with success or not.
  int64_t ended_attempts() const;
  /// Worker `index` dies: its connection breaks and it never dials again.
  void Kill(int64_t index);
  /// Times from a heartbeat to its acknowledgement since the last call. Unit: seconds.
  std::vector<double> TakeRoundTrips();

  /// The worker_id of worker `index`.
  static std::string IdOf(int64_t index) { return "simulated-" + std::to_string(index); }

 private:
  class Worker;
  class Stream;
  class Timers;
  struct Shared;

  std::unique_ptr<Shared> shared_;
  std::vector<std::shared_ptr<Worker>> workers_;
};

}  // namespace weft::testing
