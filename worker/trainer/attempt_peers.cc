// An attempt whose ranks come and go: how those that are there come together anew.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/json.h"
#include "common/spec/spec_json.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/trainer/attempt.h"
#include "worker/trainer/run_folder.h"

namespace weft::trainer {
namespace {

/// The first rank writes and reads back as long as it takes; one that is lost is noticed before.
constexpr std::chrono::minutes kSavePatience(30);

/// What each rank tells the others when they come together.
struct Arrival {
  engine::RoundPosition position;
  int64_t last_outer_step = 0;
  std::string data;
  bool outer_step_made = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("position", "How far it is."), self.position);
    visit(Field("last_outer_step", "Before the newest, as far as it knows.").Range(0, 1e12),
          self.last_outer_step);
    visit(Field("data", "Fingerprint of what it trains on."), self.data);
    visit(Field("outer_step_made", "And what follows it is not done."), self.outer_step_made);
  }
};

/// What a rank that is behind takes from the one that has the state, besides its tensors.
struct Handover {
  engine::TrainCounters counters;
  engine::RoundPosition position;
  std::vector<double> speeds;
  int64_t first_step = 0;
  std::optional<int64_t> resume_step;
  int64_t skipped_in_a_row = 0;
  std::string base_fingerprint;
  std::vector<std::string> base_tensors;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("counters", "Of the training."), self.counters);
    visit(Field("position", "Of the rank that has the state."), self.position);
    visit(Field("speeds", "Expected of the ranks, by rank.").Range(0, 1e18), self.speeds);
    visit(Field("first_step", "Of the attempt.").Range(0, 1e12), self.first_step);
    visit(Field("resume_step", "Of the checkpoint that the attempt started from; absent: none."),
          self.resume_step);
    visit(Field("skipped_in_a_row", "Rounds whose update was dropped.").Range(0, 1e12),
          self.skipped_in_a_row);
    visit(Field("base_fingerprint", "As in a checkpoint."), self.base_fingerprint);
    visit(Field("base_tensors", "As in a checkpoint."), self.base_tensors);
  }
};

/// What all take for the outer step before the newest: they evaluate and save together when that is
/// due since then. Some may have gone on from the newest one while others had yet to do what
/// follows it: that is due again.
Result<int64_t> LastOuterStep(const std::vector<engine::RoundPosition>& positions,
                              const std::vector<int64_t>& told) {
  WEFT_ASSIGN_OR_RETURN(const engine::Regrouping how, engine::PlanRegrouping(positions));
  int64_t last = told[static_cast<size_t>(how.source)];
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (how.current[rank]) last = std::min(last, told[rank]);
  }
  return last;
}

template <class T>
Result<T> FromText(const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  return FromJson<T>(json);
}

}  // namespace

Result<bool> Attempt::PrepareToJoin() {
  // It will save its share there, too, and without that the others could save nothing.
  WEFT_RETURN_IF_ERROR(CheckRunFolder(env_, spec_.run_dir, peers_->members().number));
  group_ = nullptr;
  WEFT_RETURN_IF_ERROR(Join());
  WEFT_RETURN_IF_ERROR(LoadAddedNetwork());
  WEFT_RETURN_IF_ERROR(BuildModel());
  WEFT_RETURN_IF_ERROR(CountParameters());
  WEFT_ASSIGN_OR_RETURN(const bool joined, Regroup(spec_.membership));
  if (!joined) return false;
  first_tokens_ = trainer_->counters().tokens;
  reported_step_ = trainer_->counters().step;
  reporter_.Report(
      StartedMessage{trainer_->counters().step, "", parameters_, SecondsSince(begin_)});
  return true;
}

bool Attempt::MayRegroup(const Status& status) {
  return peers_ != nullptr && !rolling_back_ && status.code() == StatusCode::kUnavailable &&
         group_ != nullptr && !group_->Health().ok();
}

Result<bool> Attempt::Regroup(int64_t least) {
  ReportActivity("joining");
  for (;;) {
    Result<bool> regrouped = TryToRegroup(least);
    if (regrouped.ok()) {
      ReportActivity("training");
      return regrouped;
    }
    // A connection that does not come is one of a group that is not there yet.
    const bool lost = group_ == nullptr || !group_->Health().ok();
    if (regrouped.status().code() != StatusCode::kUnavailable || !lost) return regrouped;
    if (peers_->members().membership < least) return regrouped;  // none came in time
    Event("warning", "ranks could not come together: " + regrouped.status().message());
    least = peers_->members().membership + 1;
  }
}

Result<bool> Attempt::TryToRegroup(int64_t least) {
  LeavePeers();
  WEFT_ASSIGN_OR_RETURN(const bool stays, peers_->Await(least, /*joins=*/!has_state_));
  if (!stays) return false;
  // What the trainer refers to stays until it has the new ones.
  const std::unique_ptr<engine::Collective> group_before = std::exchange(group_, nullptr);
  const engine::MeshGroups groups_before = std::exchange(groups_, {});
  const std::unique_ptr<engine::BucketReducer> outer_before = std::exchange(outer_, nullptr);
  WEFT_RETURN_IF_ERROR(ConnectPeers());

  const Arrival own{has_state_ ? trainer_->position() : engine::RoundPosition(), last_outer_step_,
                    data_.fingerprint, outer_step_made_};
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        group_->AllGather(ToJson(own).dump()));
  std::vector<engine::RoundPosition> positions;
  std::vector<int64_t> last_outer_steps;
  for (const std::string& text : texts) {
    WEFT_ASSIGN_OR_RETURN(Arrival arrival, FromText<Arrival>(text));
    outer_step_made_ = outer_step_made_ || arrival.outer_step_made;
    if (arrival.data != own.data && !has_state_) {
      return AbortedError("rank " + std::to_string(peers_->members().number) + " read data " +
                          own.data + ", the others read " + arrival.data +
                          "; hint: the training files must be the same on all machines");
    }
    last_outer_steps.push_back(arrival.last_outer_step);
    positions.push_back(std::move(arrival.position));
  }
  if (has_state_) WEFT_RETURN_IF_ERROR(TakeFirstRank());
  WEFT_ASSIGN_OR_RETURN(last_outer_step_, LastOuterStep(positions, last_outer_steps));
  WEFT_ASSIGN_OR_RETURN(const std::optional<engine::StepReport> report,
                        trainer_->Regroup(outer_.get(), peers_->members(), positions));
  if (report) {
    outer_step_made_ = true;
    if (has_state_) {
      WEFT_RETURN_IF_ERROR(ReportStep(*report));
      CountSkipped(*report);
    }
  }
  WEFT_RETURN_IF_ERROR(CatchUp(positions));
  if (checkpoints_ == nullptr) WEFT_RETURN_IF_ERROR(OpenCheckpoints());
  if (first_rank()) {
    Event("info", "membership " + std::to_string(peers_->members().membership) + ": " +
                      std::to_string(group_->size()) + " ranks go on from step " +
                      std::to_string(trainer_->counters().step));
  }
  return true;
}

void Attempt::LeavePeers() {
  peers_->Watch(nullptr);
  // The others need not wait for this rank in the group of before, nor it for them.
  peers_->Leave();
  if (profile_) {
    profile_.reset();
    if (first_rank()) {
      reporter_.Report(ProfiledMessage{"ranks came or went before the steps were done", {}});
    }
  }
  checkpoints_.reset();
  saved_step_ = -1;  // the next writer knows nothing of it
  accounts_ = {};
  reported_collectives_.clear();
}

Status Attempt::ConnectPeers() {
  const engine::RoundMembers& members = peers_->members();
  spec_.rank = engine::PlaceAmong(members.members, members.number);
  spec_.world_size = spec_.plan.mesh.data = std::ssize(members.members);
  WEFT_ASSIGN_OR_RETURN(group_, peers_->Connect(GroupOptions()));
  peers_->Watch(group_.get());
  WEFT_RETURN_IF_ERROR(MakeGroups());
  outer_ = engine::NewOuterReducer(context_, spec_.plan, groups_.Along(reduction_axes().outer),
                                   nullptr, &model_->parameters());
  return OkStatus();
}

Status Attempt::CatchUp(const std::vector<engine::RoundPosition>& positions) {
  WEFT_ASSIGN_OR_RETURN(const engine::Regrouping how, engine::PlanRegrouping(positions));
  const bool all = std::all_of(how.current.begin(), how.current.end(), [](bool is) { return is; });
  if (all) return OkStatus();
  const auto source = static_cast<int>(how.source);
  const bool gives = group_->rank() == source;
  Handover handover;
  if (gives) {
    const std::span<const double> speeds = trainer_->round_speeds();
    handover = {trainer_->counters(), trainer_->position(), {speeds.begin(), speeds.end()},
                first_step_,          resume_step_,         skipped_in_a_row_,
                base_fingerprint_,    base_tensors_};
  }
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        group_->AllGather(gives ? ToJson(handover).dump() : ""));
  const Stream& stream = model_->parameters().stream();
  for (int rank = 0; rank < group_->size(); ++rank) {
    if (how.current[static_cast<size_t>(rank)] || !(gives || rank == group_->rank())) continue;
    // One that missed an outer step keeps the state of its own optimizer.
    const bool whole = positions[static_cast<size_t>(rank)].outer_steps < 0;
    for (const engine::NamedTensor& tensor : trainer_->StateTensors()) {
      const bool has_numbers = tensor.stored == nullptr && tensor.view.Bytes() > 0;
      if (!has_numbers || !(whole || tensor.everywhere)) continue;
      const engine::Work work = gives ? group_->Send(stream, tensor.view, rank, "hand over state")
                                      : group_->Receive(stream, tensor.view, source, "take state");
      WEFT_RETURN_IF_ERROR(work.Wait(stream));
    }
  }
  if (how.current[static_cast<size_t>(group_->rank())]) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(handover, FromText<Handover>(texts[static_cast<size_t>(source)]));
  WEFT_RETURN_IF_ERROR(trainer_->TakeOver(handover.position, handover.speeds, handover.counters));
  has_state_ = true;
  first_step_ = handover.first_step;
  resume_step_ = handover.resume_step;
  skipped_in_a_row_ = handover.skipped_in_a_row;
  base_fingerprint_ = handover.base_fingerprint;
  base_tensors_ = handover.base_tensors;
  return OkStatus();
}

Status Attempt::EndTogether() {
  if (peers_ == nullptr) return OkStatus();
  constexpr const char* kSaved = "saved";
  if (first_rank()) return peers_->store().Set(kSaved, "all");
  return peers_->store().Get(kSaved, kSavePatience).status();
}

Status Attempt::TakeFirstRank() {
  if (!first_rank() || curve_) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const double seconds, ReadRunSeconds(env_, spec_.run_dir));
  // What the one before has noted is of this attempt, too.
  seconds_before_ = std::max(0.0, seconds - SecondsSince(begin_));
  if (spec_.job.checkpoint.interval == "auto") {
    saves_.emplace(spec_.job, spec_.mean_seconds_between_failures);
    saves_->OnStart(reported_step_, SecondsSince(begin_));
  }
  WEFT_ASSIGN_OR_RETURN(curve_, LossCurve::Open(env_, spec_.run_dir, reported_step_));
  return OkStatus();
}

}  // namespace weft::trainer
