#include "coordinator/planner/best_first.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "coordinator/planner/cluster/on_threads.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Of what RankShare depends on, what differs between meshes and choices of a job.
auto ShareKey(const JobSpec& choice, const MeshChoice& mesh) {
  return std::tuple(std::string_view(choice.train.precision),
                    std::string_view(choice.resources.offload_optimizer),
                    choice.resources.offload_parameters == "nvme", mesh.tensor_parallel,
                    mesh.tensor_rows, mesh.sequence_parallel, mesh.context_parallel,
                    mesh.expert_parallel);
}

}  // namespace

BestFirst::BestFirst(const JobSet& jobs, const ClusterProfile& cluster, size_t wanted, int threads)
    : jobs_(jobs), first_(jobs.At(0)), wanted_(wanted), threads_(threads), meshes_(jobs.size()) {
  const bool on_devices = WantsDevices(first_, cluster);
  std::map<std::string_view, std::vector<const JobSpec*>> by_precision;
  for (const JobSpec& choice : jobs.choices()) {
    by_precision[choice.train.precision].push_back(&choice);
  }
  for (const auto& [precision, choices] : by_precision) {
    pools_[precision] = PoolOf(choices, cluster, on_devices);
  }
  jobs.ForEach(0, jobs.size(), [&](size_t m, const JobSpec& job) {
    const Pool& pool = pools_.at(jobs.Choice(m).train.precision);
    meshes_[m].pool = &pool;
    if (pool.options != nullptr) pool.options->Add(job);
  });
  MakeShares();
  constexpr size_t kAtOnce = 64;
  OnThreads(threads_, (jobs.size() + kAtOnce - 1) / kAtOnce, [&](size_t i) {
    jobs.ForEach(i * kAtOnce, std::min(jobs.size(), (i + 1) * kAtOnce),
                 [&](size_t m, const JobSpec& job) { Bound(job, meshes_[m]); });
    return true;
  });
}

BestFirst::Pool BestFirst::PoolOf(const std::vector<const JobSpec*>& choices,
                                  const ClusterProfile& cluster, bool on_devices) {
  const JobSpec& first = *choices.front();
  const PrecisionRecipe& precision = PrecisionOf(first.train.precision);
  Pool pool;
  if (precision.fp8_blocks) {
    pool.cluster = std::make_shared<const ClusterProfile>(WithoutUnfit(first, cluster));
  }
  pool.workers = std::make_unique<WorkerGroups>(pool.cluster != nullptr ? *pool.cluster : cluster,
                                                precision, on_devices);
  if (pool.workers->workers().empty()) return pool;
  pool.options = std::make_unique<MeshOptions>(choices, *pool.workers);
  return pool;
}

void BestFirst::MakeShares() {
  struct Users {
    size_t first;  ///< Of its meshes.
    bool pipelines = false;
    std::unique_ptr<RankShare> share = {};
    std::vector<size_t> meshes = {};
  };
  std::map<decltype(ShareKey(first_, jobs_.MeshAt(0))), Users> users;
  for (size_t m = 0; m < jobs_.size(); ++m) {
    if (meshes_[m].pool->options == nullptr) continue;
    const MeshChoice& mesh = jobs_.MeshAt(m);
    Users& own = users.try_emplace(ShareKey(jobs_.Choice(m), mesh), Users{m}).first->second;
    own.pipelines |= mesh.pipeline_parallel > 1;
    own.meshes.push_back(m);
  }
  std::vector<Users*> all;
  for (auto& [key, own] : users) all.push_back(&own);
  OnThreads(threads_, all.size(), [&](size_t i) {
    Users& own = *all[i];
    const Pool& pool = *meshes_[own.first].pool;
    own.share = std::make_unique<RankShare>(jobs_.At(own.first), *pool.workers,
                                            pool.options->threads(), pool.options->micro_batches());
    if (own.pipelines) own.share->AddStages();
    return true;
  });
  for (Users* own : all) {
    for (const size_t m : own->meshes) meshes_[m].share = own->share.get();
    shares_.push_back(std::move(own->share));
  }
}

void BestFirst::Bound(const JobSpec& job, MeshState& mesh) const {
  if (mesh.pool->options == nullptr) return;
  const MeshOptions& options = *mesh.pool->options;
  mesh.cut = &options.CutOf(job);
  const int64_t asked = job.resources.memory_per_rank_bytes;
  const int64_t offered = mesh.pool->workers->LargestLimit();
  const auto room = static_cast<double>(asked > 0 ? std::min(asked, offered) : offered);
  const bool is_first = &mesh == &meshes_.front();
  for (const RankChoice* each : options.Of(job, is_first ? nullptr : &first_)) {
    const RankChoice& choice = *each;
    const int64_t micro_batches =
        std::count_if(choice.micro_batches.begin(), choice.micro_batches.end(),
                      [&](int64_t micro) { return MeshOptions::Takes(job, choice.ranks, micro); });
    const int64_t count = micro_batches * std::ssize(choice.spreads);
    mesh.considered += count;
    const double bytes =
        mesh.share->LeastBytes(job, mesh.cut->blocks, GradientRanks(job.resources, choice.ranks));
    if (wanted_ > 0 && bytes > room) {
      mesh.without_room += count;
      mesh.large.push_back({bytes, each});
    } else {
      mesh.choices.push_back(each);
    }
  }
  mesh.least_seconds = LeastSeconds(job, mesh, -kInfinity);
}

double BestFirst::LeastSeconds(const JobSpec& job, const MeshState& mesh, double above) {
  double least = kInfinity;
  for (const RankChoice* choice : mesh.choices) {
    for (const int64_t micro : choice->micro_batches) {
      const double own = LeastSecondsOf(job, *mesh.share, mesh.cut->floor, *choice, micro);
      if (own > above) least = std::min(least, own);
    }
  }
  return least;
}

std::vector<Judged> BestFirst::Run() {
  for (size_t m = 0; m < meshes_.size(); ++m) {
    if (!meshes_[m].choices.empty()) left_.emplace(meshes_[m].least_seconds, m);
  }
  // Some at a time, and of each what is nearly as fast, so that the limit is soon known.
  const auto at_once = 32 * static_cast<size_t>(threads_);
  constexpr double kAhead = 1.1;
  while (true) {
    const double least = left_.empty() ? kInfinity : left_.begin()->first;
    JudgeUpTo(least);
    if (least > Limit() || left_.empty()) break;
    const double limit = wanted_ == 0 ? kInfinity : std::min(Limit(), kAhead * least);
    std::vector<size_t> meshes;
    while (!left_.empty() && left_.begin()->first <= limit && meshes.size() < at_once) {
      meshes.push_back(left_.begin()->second);
      left_.erase(left_.begin());
    }
    Open(meshes, limit);
  }
  // What was looked at although it takes longer depends on how many were at once.
  std::erase_if(judged_, [limit = Limit()](const Judged& each) {
    return each.candidate.least_seconds > limit;
  });
  JudgeWithoutRoom();
  std::sort(judged_.begin(), judged_.end(), [](const Judged& a, const Judged& b) {
    return Waiting{b.mesh, b.candidate} < Waiting{a.mesh, a.candidate};
  });
  return std::move(judged_);
}

void BestFirst::Open(const std::vector<size_t>& meshes, double limit) {
  std::map<RankShare*, std::set<int64_t>> stages;
  for (const size_t m : meshes) stages[meshes_[m].share].insert(jobs_.MeshAt(m).zero_stage);
  const std::vector<std::pair<RankShare*, std::set<int64_t>>> shares(stages.begin(), stages.end());
  OnThreads(threads_, shares.size(), [&](size_t i) {
    for (const int64_t stage : shares[i].second) shares[i].first->AddZeroStage(stage);
    return true;
  });
  std::vector<std::vector<Candidate>> candidates(meshes.size());
  OnThreads(threads_, meshes.size(), [&](size_t i) {
    MeshState& mesh = meshes_[meshes[i]];
    // All up to its own bound were taken before.
    const double above = std::nextafter(mesh.least_seconds, -kInfinity);
    candidates[i] = Opened(meshes[i]).Candidates(mesh.choices, mesh.cut->floor, above, limit);
    mesh.least_seconds = LeastSeconds(*mesh.job, mesh, limit);
    return true;
  });
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (const Candidate& candidate : candidates[i]) waiting_.push({meshes[i], candidate});
    if (const double left = meshes_[meshes[i]].least_seconds; left < kInfinity) {
      left_.emplace(left, meshes[i]);
    }
  }
}

void BestFirst::JudgeUpTo(double least_seconds) {
  const auto at_once = 64 * static_cast<size_t>(threads_);
  while (true) {
    const size_t first = judged_.size();
    const double limit = Limit();
    const double most = std::min(least_seconds, limit);
    while (!waiting_.empty() && waiting_.top().candidate.least_seconds <= most &&
           judged_.size() - first < at_once) {
      judged_.push_back({.mesh = waiting_.top().mesh, .candidate = waiting_.top().candidate});
      waiting_.pop();
    }
    if (judged_.size() == first) return;
    std::vector<ScheduleName> schedules;
    for (size_t i = first; i < judged_.size(); ++i) {
      const auto name = meshes_[judged_[i].mesh].search->ScheduleOf(judged_[i].candidate);
      if (name) schedules.push_back(*name);
    }
    book_.Add(schedules, threads_);
    OnThreads(threads_, judged_.size() - first, [&](size_t i) {
      Judged& own = judged_[first + i];
      StepBound bound{.limit = limit};
      own.fits = meshes_[own.mesh].search->Judge(own.candidate, bound, own.option);
      own.candidate.least_seconds = std::max(own.candidate.least_seconds, bound.least_seconds);
      return true;
    });
    for (size_t i = first; i < judged_.size(); ++i) {
      if (!judged_[i].fits) continue;
      fastest_.push(StepSeconds(judged_[i].option.time));
      if (fastest_.size() > wanted_ && wanted_ > 0) fastest_.pop();
    }
  }
}

void BestFirst::JudgeWithoutRoom() {
  auto misfits = static_cast<size_t>(
      std::count_if(judged_.begin(), judged_.end(), [](const Judged& each) { return !each.fits; }));
  std::vector<std::pair<size_t, const LargeChoice*>> large;
  for (size_t m = 0; m < meshes_.size() && misfits < wanted_; ++m) {
    for (const LargeChoice& each : meshes_[m].large) large.emplace_back(m, &each);
  }
  std::stable_sort(large.begin(), large.end(),
                   [](const auto& a, const auto& b) { return a.second->bytes < b.second->bytes; });
  for (auto next = large.begin(); next != large.end() && misfits < wanted_; ++next) {
    const size_t m = next->first;
    const RankChoice& choice = *next->second->choice;
    MeshSearch& search = Opened(m);
    for (const int64_t& micro : choice.micro_batches) {
      if (!MeshOptions::Takes(*meshes_[m].job, choice.ranks, micro)) continue;
      // Others differ in what comes and goes.
      const RankChoice one{choice.threads, choice.ranks, choice.spreads.first(1), {&micro, 1}};
      Judged own{
          .mesh = m,
          .candidate =
              search.Candidates({&one}, meshes_[m].cut->floor, -kInfinity, kInfinity).front()};
      if (const auto name = search.ScheduleOf(own.candidate)) book_.Add({*name}, 1);
      StepBound none;
      own.fits = search.Judge(own.candidate, none, own.option);
      --meshes_[m].without_room;
      judged_.push_back(std::move(own));
      ++misfits;
      break;
    }
  }
}

double BestFirst::Limit() const {
  return wanted_ == 0 || fastest_.size() < wanted_ ? kInfinity : fastest_.top();
}

MeshSearch& BestFirst::Opened(size_t mesh) {
  MeshState& own = meshes_[mesh];
  if (own.search == nullptr) {
    own.job = std::make_unique<JobSpec>(jobs_.At(mesh));
    own.search = std::make_unique<MeshSearch>(*own.job, *own.pool->workers, *own.share, book_,
                                              own.cut->blocks);
  }
  return *own.search;
}

bool BestFirst::Waiting::operator<(const Waiting& other) const {
  return std::tie(candidate.least_seconds, mesh, candidate.number) >
         std::tie(other.candidate.least_seconds, other.mesh, other.candidate.number);
}

}  // namespace weft::planner
