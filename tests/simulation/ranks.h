#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/recovery/job_logic.h"
#include "coordinator/service/worker_link.h"
#include "tests/simulation/rules.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

/// The daemon of a machine with ranks.
class RankListener {
 public:
  using Key = std::pair<std::string, int64_t>;  ///< Job id, epoch.

  virtual ~RankListener() = default;
  virtual const std::string& id() const = 0;
  /// Its processes run.
  virtual bool Runs() const = 0;
  /// They reach those of other machines.
  virtual bool IsReached() const = 0;
  /// A rank prints a line.
  virtual void OnLine(const Key& key, int64_t rank) = 0;
  virtual void OnReport(const Key& key, coordinator::PlacementReport report) = 0;
  virtual void OnCheckpoint(const Key& key, coordinator::CheckpointRecord checkpoint,
                            std::optional<int64_t> resume_step) = 0;
};

/// What the ranks of all attempts do: they start, meet, load the newest checkpoint, make steps
/// together, save, and end. One that goes takes the others with it.
class Ranks {
 public:
  using Key = RankListener::Key;

  Ranks(Timeline& timeline, Rules& rules) : timeline_(timeline), rules_(rules) {}

  /// Ranks of the attempt start there.
  void Start(RankListener& worker, const coordinator::StartOrder& order);
  /// They save and stop at the next step.
  void Stop(RankListener& worker, const Key& key);
  /// Of ranks that come and go: these train together from their next step on.
  void SetMembership(RankListener& worker, const Key& key,
                     const coordinator::MembershipOrder& order);
  /// They are gone at once; nothing is reported.
  void Kill(RankListener& worker, const Key& key);

  // What happens to some attempt that trains; nothing where none does.
  void FailSome();
  void HangSome();

  /// As a heartbeat says it.
  coordinator::RunningAttempt Describe(const RankListener& worker, const Key& key) const;
  /// The newest verified checkpoint of the job; 0: none.
  int64_t SavedStep(const std::string& job_id) const;
  /// Whether its ranks come and go while it runs.
  bool ComeAndGo(const Key& key) const;
  /// A rank of it runs somewhere.
  bool AnyOf(const std::string& job_id) const;

 private:
  struct Member {
    RankListener* worker = nullptr;
    std::vector<int64_t> ranks;
    bool joins = false;  ///< The attempt ran before it.
    bool started = false;
    bool over = false;
    bool trained = false;  ///< It has made a step.
    coordinator::MembershipOrder
        membership;  ///< The newest that it knows, where ranks come and go.
  };
  struct Gang {
    Key key;
    std::string run_dir;
    int64_t steps = 0;
    int64_t save_every = 0;
    Duration step_time{0};
    size_t machines = 0;
    std::map<std::string, Member*> members;  ///< The last ones on each machine.
    std::vector<std::unique_ptr<Member>> all;
    bool elastic = false;  ///< Its ranks come and go.
    bool waits = false;    ///< They do, and some are not there.
    bool meets = false;    ///< All are there,
    bool loaded = false;   ///< and know where they go on.
    bool broken = false;   ///< One is gone.
    bool hung = false;
    bool stopping = false;
    bool training = false;  ///< A step was made.
    bool ends = false;      ///< They end as they should.
    int64_t step = 0;
    std::optional<int64_t> resumed_from;
    std::optional<int64_t> saved;
    Duration alive_at{0};
  };

  Member* Living(const RankListener& worker, const Key& key);
  static bool Whole(const Gang& gang);
  /// Some member does.
  static bool Lives(const Gang& gang);
  void Meet(Gang& gang);
  void StepLater(Gang& gang, Duration delay);
  void Step(Gang& gang);
  /// A step of ranks that come and go.
  void StepTogether(Gang& gang);
  void MakeStep(Gang& gang, const std::vector<Member*>& members);
  /// Those that train together, if all of them run and reach each other now; else empty.
  std::vector<Member*> Peers(const Gang& gang) const;
  void CheckAlone(const Gang& gang);
  /// They save, then go on or end.
  void Save(Gang& gang);
  void EndAll(Gang& gang, coordinator::PlacementEvent event);
  void End(Gang& gang, Member& member, coordinator::PlacementEvent event,
           coordinator::Reason reason = coordinator::Reason::kNone, const std::string& message = "",
           int64_t signal = 0);
  /// One is gone: the others notice.
  void Break(Gang& gang);
  void FailRest(Gang& gang);
  Gang* SomeThatTrains();

  Timeline& timeline_;
  Rules& rules_;
  std::map<Key, std::unique_ptr<Gang>> gangs_;
  std::map<std::string, int64_t> saved_;
};

}  // namespace weft::simulation
