#include "worker/trainer/profile.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string_view>
#include <vector>

#include "common/clock.h"
#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::trainer {
namespace {

using engine::Profiler;
using Track = Profiler::Track;

struct TrackName {
  Track track;
  const char* kind;    ///< In the report.
  const char* thread;  ///< In the trace.
};
constexpr std::array<TrackName, 3> kTracks = {{{Track::kPhases, "phase", "phases"},
                                               {Track::kOperations, "operation", "operations"},
                                               {Track::kCollectives, "collective", "collectives"}}};

/// Groups of ranks work side by side: each has a row of the trace.
class TrackNumbers {
 public:
  int Of(const Profiler::Event& event) {
    const auto track = static_cast<int>(event.track);
    if (event.track != Track::kCollectives) return track;
    return groups_.try_emplace(event.group, track + static_cast<int>(groups_.size())).first->second;
  }
  const std::map<std::string_view, int>& groups() const { return groups_; }

 private:
  std::map<std::string_view, int> groups_;
};

/// A line of the trace's list of events.
void AddLine(const Json& event, std::string& lines) {
  if (!lines.empty()) lines += ",\n";
  lines += event.dump();
}

Json Metadata(const char* what, int rank, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

ProfileRecording::ProfileRecording(engine::Context& context, const CollectiveAccounts& accounts,
                                   int64_t first_step, int64_t steps)
    : context_(context),
      accounts_(accounts),
      before_(accounts.Totals()),
      first_step_(first_step),
      wanted_(steps),
      unix_seconds_(Clock::System().UnixSeconds()),
      steady_begin_(std::chrono::steady_clock::now()) {
  profiler_.StartTrace(context.allocator);
  context_.profiler = &profiler_;
  accounts_.SetProfiler(&profiler_);
}

ProfileRecording::~ProfileRecording() {
  Detach();
}

void ProfileRecording::Detach() {
  if (context_.profiler == &profiler_) context_.profiler = nullptr;
  accounts_.SetProfiler(nullptr);
}

void ProfileRecording::OnStep(double seconds, const TierUse& tiers) {
  profiler_.AddPhase("step", seconds);
  tier_samples_.push_back({std::chrono::steady_clock::now(), tiers});
  tiers_.device_bytes = std::max(tiers_.device_bytes, tiers.device_bytes);
  tiers_.host_bytes = std::max(tiers_.host_bytes, tiers.host_bytes);
  tiers_.file_bytes = std::max(tiers_.file_bytes, tiers.file_bytes);
  tiers_.stall_seconds += tiers.stall_seconds;
  ++steps_;
  seconds_ += seconds;
}

Result<std::vector<std::string>> ProfileRecording::GatherEvents(engine::Collective& group) {
  Detach();
  after_ = accounts_.Totals();
  return group.AllGather(Events(group.rank()));
}

Result<ProfileReport> ProfileRecording::Write(Env& env, const std::string& run_dir,
                                              const std::vector<std::string>& events) const {
  ProfileReport report = Summarize();
  report.ranks = static_cast<int64_t>(events.size());
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (size_t rank = 0; rank < events.size(); ++rank) {
    text += (rank > 0 ? ",\n" : "") + events[rank];
  }
  text += "\n]}\n";
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld.json", static_cast<long long>(first_step_));
  const std::string folder = JoinPath(run_dir, "profiles");
  report.trace_path = JoinPath(folder, name);
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, report.trace_path, text));
  return report;
}

std::string ProfileRecording::Events(int rank) const {
  std::string lines;
  AddLine(Metadata("process_name", rank, 0, "rank " + std::to_string(rank)), lines);
  for (const TrackName& track : kTracks) {
    if (track.track == Track::kCollectives) continue;
    AddLine(Metadata("thread_name", rank, static_cast<int>(track.track), track.thread), lines);
  }
  TrackNumbers tracks;
  const auto microseconds = [this](Profiler::Time time) {
    return (unix_seconds_ + ToSeconds(time - steady_begin_)) * 1e6;
  };
  for (const Profiler::Event& event : profiler_.trace().events) {
    Json line = {{"ph", "X"},
                 {"name", event.name},
                 {"pid", rank},
                 {"tid", tracks.Of(event)},
                 {"ts", microseconds(event.begin)},
                 {"dur", event.seconds * 1e6}};
    if (event.flops > 0) line["args"]["flops"] = event.flops;
    if (event.bytes > 0) line["args"]["bytes"] = event.bytes;
    AddLine(line, lines);
  }
  for (const auto& [group, track] : tracks.groups()) {
    AddLine(Metadata("thread_name", rank, track, "collectives: " + std::string(group)), lines);
  }
  for (const auto& [time, tiers] : tier_samples_) {
    Json line = {{"ph", "C"}, {"name", "tiers"}, {"pid", rank}, {"ts", microseconds(time)}};
    line["args"] = ToJson(tiers);
    AddLine(line, lines);
  }
  for (const Profiler::MemorySample& sample : profiler_.trace().memory) {
    Json line = {{"ph", "C"}, {"name", "memory"}, {"pid", rank}, {"ts", microseconds(sample.time)}};
    line["args"] = ToJson(sample.live);
    AddLine(line, lines);
  }
  return lines;
}

ProfileReport ProfileRecording::Summarize() const {
  ProfileReport report;
  report.first_step = first_step_;
  report.steps = steps_;
  report.dropped_events = profiler_.trace().dropped;
  if (steps_ == 0) return report;
  const auto steps = static_cast<double>(steps_);
  report.seconds_per_step = seconds_ / steps;
  report.collectives = PerStep(Difference(after_, before_), steps);
  report.tiers = tiers_;
  report.tiers.stall_seconds /= steps;
  for (const TrackName& track : kTracks) {
    const auto begin = static_cast<int64_t>(report.operations.size());
    for (const auto& [name, entry] : profiler_.entries(track.track)) {
      ProfileOperation row;
      row.kind = track.kind;
      row.name = name;
      row.calls_per_step = static_cast<double>(entry.calls) / steps;
      row.seconds_per_step = entry.self_seconds / steps;
      row.share = seconds_ > 0 ? entry.self_seconds / seconds_ : 0;
      if (entry.flops > 0 && entry.self_seconds > 0) {
        row.flops_per_second = entry.flops / entry.self_seconds;
      }
      if (entry.bytes > 0 && entry.self_seconds > 0) {
        row.bytes_per_second = entry.bytes / entry.self_seconds;
      }
      report.operations.push_back(std::move(row));
    }
    std::stable_sort(report.operations.begin() + begin, report.operations.end(),
                     [](const ProfileOperation& a, const ProfileOperation& b) {
                       return a.seconds_per_step > b.seconds_per_step;
                     });
  }
  return report;
}

}  // namespace weft::trainer
