#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator/service/service.h"
#include "coordinator/store/sqlite_store.h"
#include "tests/simulation/late_store.h"
#include "tests/simulation/rules.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

class Stream;

/// The real service on a real store that outlives it, in one life after the other.
class Coordinator {
 public:
  Coordinator(Timeline& timeline, Rules& rules, coordinator::ServiceOptions options);
  ~Coordinator();

  void Start();
  /// The process is killed, and comes back after that time.
  void Die(Duration away);
  /// Changes cannot be stored for that time.
  void FailStore(Duration duration);

  /// Null while it is away.
  coordinator::Service* service() { return service_.get(); }
  /// Which one it is, from 1.
  int64_t life() const { return life_; }
  coordinator::Store& database() { return *database_; }

  /// Streams end with a life.
  void Add(const std::shared_ptr<Stream>& stream);
  void Remove(const Stream& stream);

  /// Runs what the service has to do now.
  void RunReady();
  std::optional<Duration> NextTimer();

 private:
  void PlanLater();

  Timeline& timeline_;
  Rules& rules_;
  coordinator::ServiceOptions options_;
  std::unique_ptr<coordinator::SqliteStore> database_;
  std::unique_ptr<coordinator::Metrics> metrics_;
  std::unique_ptr<LateStore> store_;
  std::unique_ptr<coordinator::Service> service_;
  std::vector<std::shared_ptr<Stream>> streams_;  ///< In the order of their making.
  int64_t life_ = 0;
  bool plans_ = false;  ///< It is about to plan.
};

}  // namespace weft::simulation
