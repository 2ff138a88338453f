#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// What machines cost while a job uses them. What is not known is 0, and nobody guesses it.
struct MachineCost {
  std::string workers = "*";
  double price_per_hour = 0;
  double device_price_per_hour = 0;
  double watts = 0;
  double device_watts = 0;

  bool operator==(const MachineCost&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("workers", "Machines that this is said of: a worker_id, with * for any characters.")
              .Range(1, 256),
          self.workers);
    visit(Field("price_per_hour", "Of a machine, whatever is used of it; 0: unknown or in devices.")
              .Range(0, 1e9),
          self.price_per_hour);
    visit(Field("device_price_per_hour", "Of each GPU in use; 0: unknown or in the machine.")
              .Range(0, 1e9),
          self.device_price_per_hour);
    visit(Field("watts", "Draw of a machine at work without its GPUs; 0: unknown.")
              .Unit("watts")
              .Range(0, 1e9),
          self.watts);
    visit(
        Field("device_watts", "Draw of each GPU at work; 0: unknown.").Unit("watts").Range(0, 1e9),
        self.device_watts);
  }
};

/// Prices and powers of a cluster: `costs` of a cluster file, or a file of their own.
struct ClusterCosts {
  std::string currency;
  std::vector<MachineCost> machines;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("currency", "Of all prices: USD, EUR, credits.").Range(0, 16), self.currency);
    visit(Field("machines", "The first entry that names a machine counts.").Range(0, 10000),
          self.machines);
  }
};

/// What a user asks of a plan beyond the job.
struct PlanQuery {
  bool any_mesh = false;
  int64_t top = 10;
  int64_t most_devices = 0;
  double finish_within_seconds = 0;
  std::string goal = "fastest";
  bool frontier = false;
  int64_t measure = 0;
  int64_t phase = 0;
  ClusterCosts costs = {};

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("any_mesh", "The planner chooses the mesh, where the job does not."),
          self.any_mesh);
    visit(Field("top", "Candidates in the answer.").Range(1, 1000), self.top);
    visit(Field("most_devices", "GPUs, or machines without, that it may use; 0: all.")
              .Range(0, 1 << 20),
          self.most_devices);
    visit(Field("finish_within_seconds", "Time in which all steps are to be made; 0: any.")
              .Unit("seconds")
              .Range(0, 1e12),
          self.finish_within_seconds);
    visit(Field("goal", "What the best plan has least of: time, or the price of the whole run.")
              .OneOf({"fastest", "cheapest"}),
          self.goal);
    visit(Field("frontier", "The best plan for each number of devices, too."), self.frontier);
    visit(Field("measure", "Runs to find that would tell most of the others, if measured; 0: none.")
              .Range(0, 100),
          self.measure);
    visit(Field("phase", "Phase of the job that is planned, from 1; 0: the job, or all its phases.")
              .Range(0, 1 << 20),
          self.phase);
    visit(Field("costs", "What machines cost."), self.costs);
  }
};

}  // namespace weft
