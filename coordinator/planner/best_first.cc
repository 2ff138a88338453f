#include "coordinator/planner/best_first.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "common/spec/shard_ranks.h"
#include "coordinator/planner/search.h"

namespace weft::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// What RankShare depends on of all that differs between meshes and choices of a job.
auto ShareKey(const JobSpec& choice, const MeshChoice& mesh, bool sequence_parallel) {
  return std::tuple(std::string_view(choice.train.precision),
                    std::string_view(choice.resources.offload_optimizer),
                    choice.resources.offload_parameters == "nvme", mesh.tensor_parallel,
                    mesh.tensor_rows, sequence_parallel, mesh.context_parallel,
                    mesh.expert_parallel);
}

using Sharings = std::span<const SharingChoice>;

/// Meshes of a family that have candidates with this many ranks.
struct FamilyMeshes {
  int64_t count = 0;
  /// A mesh among them whose ranks have whole parameters and gradients.
  struct Whole {
    int64_t shard_ranks;  ///< Of the optimizer's state.
    const SharingChoice* sharing;
  };
  std::vector<Whole> whole = {};
};

FamilyMeshes FamilyMeshesOf(JobSpec& job, Sharings sharings, const MeshOptions& options,
                            const ResourceSpec* asked, int64_t ranks) {
  FamilyMeshes meshes;
  const int64_t gradient_ranks = GradientRanks(job.resources, ranks);
  for (const SharingChoice& sharing : sharings) {
    sharing.Put(job.resources);
    if (!options.Has(job.resources, asked, ranks)) continue;
    ++meshes.count;
    if (sharing.zero_stage > 1) continue;
    const int64_t shard_ranks =
        ShardRanks(sharing.zero_stage, sharing.zero_shard_ranks, gradient_ranks);
    meshes.whole.push_back({shard_ranks, &sharing});
  }
  return meshes;
}

/// Counts, for each choice, the candidates of one mesh that has them.
std::vector<int64_t> CandidatesOf(const JobSpec& mesh, const std::vector<RankChoice>& choices) {
  std::vector<int64_t> counts;
  for (const RankChoice& choice : choices) {
    const auto takes = [&](int64_t micro) { return MeshOptions::Takes(mesh, choice.ranks, micro); };
    counts.push_back(std::ssize(choice.spreads) * std::count_if(choice.micro_batches.begin(),
                                                                choice.micro_batches.end(), takes));
  }
  return counts;
}

/// The largest whole number from 1 to `most` for which `holds`, which holds for none above one for
/// which it does not; 0: none.
template <class Holds>
int64_t LargestThat(int64_t most, const Holds& holds) {
  int64_t good = 0;
  for (int64_t bad = most + 1; bad - good > 1;) {
    const int64_t middle = good + (bad - good) / 2;
    (holds(middle) ? good : bad) = middle;
  }
  return good;
}

/// Keeps the first ones, in any order but with the last of them in front.
template <class Item>
void AddToFirst(size_t count, const Item& item, std::vector<Item>& first) {
  if (first.size() == count && (count == 0 || !(item < first.front()))) return;
  first.push_back(item);
  std::push_heap(first.begin(), first.end());
  if (first.size() <= count) return;
  std::pop_heap(first.begin(), first.end());
  first.pop_back();
}

}  // namespace

BestFirst::BestFirst(const JobSet& jobs, const ClusterProfile& cluster, size_t wanted, int threads,
                     std::stop_token stop)
    : jobs_(jobs),
      first_(jobs.At(0)),
      wanted_(wanted),
      stop_(std::move(stop)),
      threads_(threads),
      families_(jobs.families().size()) {
  const bool on_devices = WantsDevices(first_, cluster);
  std::map<std::string_view, std::vector<const JobSpec*>> by_precision;
  for (const JobSpec& choice : jobs.choices()) {
    by_precision[choice.train.precision].push_back(&choice);
  }
  for (const auto& [precision, choices] : by_precision) {
    pools_[precision] = PoolOf(choices, cluster, on_devices);
  }
  jobs.ForEachFamily(0, families_.size(),
                     [&](size_t f, const JobSet::Family& family, JobSpec& job) {
                       const Pool& pool = pools_.at(jobs.choices()[family.choice].train.precision);
                       families_[f].pool = &pool;
                       if (pool.options == nullptr) return;
                       family.sharings().front().Put(job.resources);
                       pool.options->Add(job);
                     });
  MakeShares();
  constexpr size_t kAtOnce = 256;
  std::vector<Counts> counts((families_.size() + kAtOnce - 1) / kAtOnce);
  threads_.Run(counts.size(), [&](size_t i) {
    counts[i] = BoundFamilies(i * kAtOnce, std::min(families_.size(), (i + 1) * kAtOnce));
    return !stop_.stop_requested();
  });
  for (const Counts& each : counts) {
    considered_ += each.considered;
    without_room_ += each.without_room;
    for (const LargeChoice& large : each.large) AddToFirst(wanted_, large, large_);
  }
  for (size_t f = 0; f < families_.size(); ++f) {
    const double least = families_[f].least_seconds;
    if (least < kInfinity) unopened_.emplace_back(least, f);
  }
  std::sort(unopened_.begin(), unopened_.end());
}

BestFirst::Pool BestFirst::PoolOf(const std::vector<const JobSpec*>& choices,
                                  const ClusterProfile& cluster, bool on_devices) {
  const JobSpec& first = *choices.front();
  const PrecisionRecipe& precision = PrecisionOf(first.train.precision);
  Pool pool;
  if (precision.block_products != nullptr) {
    pool.cluster = std::make_shared<const ClusterProfile>(WithoutUnfit(first, cluster));
  }
  pool.workers = std::make_shared<const WorkerGroups>(
      pool.cluster != nullptr ? *pool.cluster : cluster, precision, on_devices);
  if (pool.workers->workers().empty()) return pool;
  pool.options = std::make_unique<MeshOptions>(choices, *pool.workers);
  return pool;
}

void BestFirst::MakeShares() {
  struct Users {
    size_t first;  ///< Of the jobs with it.
    bool pipelines = false;
    std::unique_ptr<RankShare> share = {};
    std::vector<RankShare**> places = {};
  };
  using Key = decltype(ShareKey(first_, jobs_.families().front().meshes.mesh, false));
  std::map<Key, Users> users;
  std::array<std::pair<Key, Users*>, 2> last = {};
  for (size_t f = 0; f < families_.size(); ++f) {
    if (families_[f].pool->options == nullptr) continue;
    const JobSet::Family& family = jobs_.families()[f];
    const MeshChoice& mesh = family.meshes.mesh;
    const Sharings sharings = family.sharings();
    for (const bool sequence : {false, true}) {
      const auto first = std::find_if(
          sharings.begin(), sharings.end(),
          [&](const SharingChoice& sharing) { return sharing.sequence_parallel == sequence; });
      if (first == sharings.end()) continue;
      const size_t number = family.first + static_cast<size_t>(first - sharings.begin());
      // Families that follow one another mostly have the same.
      auto& [key, own] = last[sequence ? 1 : 0];
      const auto wanted = ShareKey(jobs_.choices()[family.choice], mesh, sequence);
      if (own == nullptr || key != wanted) {
        key = wanted;
        own = &users.try_emplace(wanted, Users{number}).first->second;
      }
      own->pipelines |= mesh.pipeline_parallel > 1;
      own->places.push_back(&families_[f].shares[sequence ? 1 : 0]);
    }
  }
  std::vector<Users*> all;
  for (auto& [key, own] : users) all.push_back(&own);
  threads_.Run(all.size(), [&](size_t i) {
    Users& own = *all[i];
    const Pool& pool = PoolAt(own.first);
    own.share =
        std::make_unique<RankShare>(jobs_.At(own.first), *pool.workers, pool.options->threads(),
                                    pool.options->micro_batches(), stop_);
    if (own.pipelines) own.share->AddStages();
    return true;
  });
  for (Users* own : all) {
    for (RankShare** place : own->places) *place = own->share.get();
    shares_.push_back(std::move(own->share));
  }
}

bool BestFirst::has_workers() const {
  return std::any_of(pools_.begin(), pools_.end(),
                     [](const auto& pool) { return !pool.second.workers->workers().empty(); });
}

void BestFirst::ForEachWithoutCores(
    const std::function<void(size_t, const Candidate&)>& visit) const {
  jobs_.ForEachFamily(0, families_.size(),
                      [&](size_t f, const JobSet::Family& family, JobSpec& job) {
                        const MeshOptions* options = families_[f].pool->options.get();
                        if (options == nullptr || !options->MayLackCores(job.resources.ranks))
                          return;
                        for (size_t i = 0; i < family.sharings().size(); ++i) {
                          family.sharings()[i].Put(job.resources);
                          if (const auto candidate = options->WithoutCores(job))
                            visit(family.first + i, *candidate);
                        }
                      });
}

double BestFirst::Room(const JobSpec& job, const Pool& pool) {
  const int64_t asked = job.resources.memory_per_rank_bytes;
  const int64_t offered = pool.workers->LargestLimit();
  return static_cast<double>(asked > 0 ? std::min(asked, offered) : offered);
}

BestFirst::Counts BestFirst::BoundFamilies(size_t begin, size_t end) {
  Counts counts;
  // By sharings and ranks that sum their gradients: many families have the same.
  std::map<std::pair<const SharingChoice*, int64_t>, FamilyMeshes> known;
  // By choices of ranks, ranks of a pipeline and its schedule: candidates of each choice.
  std::map<std::tuple<const std::vector<RankChoice>*, int64_t, std::string>, std::vector<int64_t>>
      counts_of;
  jobs_.ForEachFamily(begin, end, [&](size_t f, const JobSet::Family& family, JobSpec& job) {
    FamilyState& own = families_[f];
    own.least_seconds = kInfinity;
    if (own.pool->options == nullptr) return;
    const MeshOptions& options = *own.pool->options;
    own.cut = &options.CutOf(job);
    const double room = Room(job, *own.pool);
    const Sharings sharings = family.sharings();
    sharings.front().Put(job.resources);
    const std::vector<RankChoice>& choices = options.OfReplica(job);
    const ResourceSpec& resources = job.resources;
    int64_t most_ranks = 1;
    for (const RankChoice& choice : choices) {
      most_ranks = std::max(most_ranks, GradientRanks(resources, choice.ranks));
    }
    const auto bytes_of = [&](size_t sequence, int64_t shard_ranks) {
      SharingChoice{1, 0, false}.Put(job.resources);
      return own.shares[sequence]->LeastBytes(job.resources, own.cut->of_ranks, shard_ranks);
    };
    // With more ranks that shard the optimizer's state each has less of it.
    std::array<int64_t, 2> few = {0, 0};
    double least_bytes = kInfinity;
    for (const size_t sequence : {0, 1}) {
      if (wanted_ == 0 || own.shares[sequence] == nullptr) continue;
      few[sequence] = LargestThat(
          most_ranks, [&](int64_t shard_ranks) { return bytes_of(sequence, shard_ranks) > room; });
      if (few[sequence] > 0) {
        least_bytes = std::min(least_bytes, bytes_of(sequence, few[sequence]));
      }
    }
    std::vector<int64_t>& candidates =
        counts_of[{&choices, resources.pipeline_parallel, resources.pipeline_schedule}];
    if (candidates.empty()) candidates = CandidatesOf(job, choices);
    for (size_t c = 0; c < choices.size(); ++c) {
      const RankChoice& choice = choices[c];
      const int64_t count = candidates[c];
      if (count == 0) continue;
      const auto [at, added] =
          known.try_emplace({sharings.data(), GradientRanks(resources, choice.ranks)});
      FamilyMeshes& meshes = at->second;
      if (added)
        meshes = FamilyMeshesOf(job, sharings, options, AskedFor(family.first), choice.ranks);
      if (meshes.count == 0) continue;
      counts.considered += meshes.count * count;
      int64_t large = 0;
      for (const FamilyMeshes::Whole& whole : meshes.whole) {
        const size_t sequence = whole.sharing->sequence_parallel ? 1 : 0;
        if (whole.shard_ranks > few[sequence]) continue;
        ++large;
        if (counts.large.size() == wanted_ && least_bytes > counts.large.front().bytes) continue;
        const size_t number = family.first + static_cast<size_t>(whole.sharing - sharings.data());
        AddToFirst(wanted_, {bytes_of(sequence, whole.shard_ranks), number, &choice}, counts.large);
      }
      counts.without_room += large * count;
      if (large == meshes.count) continue;
      for (const RankShare* share : own.shares) {
        if (share == nullptr) continue;
        for (const int64_t micro : choice.micro_batches) {
          own.least_seconds = std::min(own.least_seconds,
                                       LeastSecondsOf(job, *share, own.cut->floor, choice, micro));
        }
      }
    }
  });
  return counts;
}

BestFirst::MeshState& BestFirst::StateOf(size_t number) {
  const auto [at, added] = meshes_.try_emplace(number);
  if (added) at->second.family = jobs_.FamilyOf(number);
  return at->second;
}

std::vector<std::unique_ptr<MeshGroup>> BestFirst::GroupsOf(size_t f) const {
  const FamilyState& state = families_[f];
  const Pool& pool = *state.pool;
  const JobSet::Family& family = jobs_.families()[f];
  JobSpec job = jobs_.choices()[family.choice];
  family.meshes.mesh.Put(job.resources);
  std::array<std::vector<MeshGroup::Mesh>, 2> meshes;  // without sequence parallelism, with it
  for (size_t i = 0; i < family.sharings().size(); ++i) {
    const SharingChoice& sharing = family.sharings()[i];
    meshes[sharing.sequence_parallel ? 1 : 0].push_back({family.first + i, &sharing});
  }
  std::vector<std::unique_ptr<MeshGroup>> groups;
  for (size_t sequence = 0; sequence < meshes.size(); ++sequence) {
    auto& own = meshes[sequence];
    if (own.empty()) continue;
    own.front().sharing->Put(job.resources);
    const MeshGroup::Context context{.workers = *pool.workers,
                                     .options = *pool.options,
                                     .cut = *state.cut,
                                     .share = *state.shares[sequence],
                                     .asked = AskedFor(family.first),
                                     .room = wanted_ == 0 ? kInfinity : Room(job, pool)};
    groups.push_back(std::make_unique<MeshGroup>(context, job, std::move(own)));
  }
  return groups;
}

std::vector<Judged> BestFirst::Run() {
  // Opens all that may be nearly as fast as the least, so that the limit is soon known.
  constexpr double kAhead = 1.1;
  while (!stop_.stop_requested()) {
    const double unopened = opened_ < unopened_.size() ? unopened_[opened_].first : kInfinity;
    const double least = std::min(unopened, left_.empty() ? kInfinity : left_.begin()->first.first);
    JudgeUpTo(least);
    if (least > Limit() || least == kInfinity) break;
    Open(wanted_ == 0 ? kInfinity : std::min(Limit(), kAhead * least));
  }
  // What was looked at although it takes longer depends on how many were at once.
  std::erase_if(judged_, [limit = Limit()](const Judged& each) {
    return each.candidate.least_seconds > limit;
  });
  JudgeWithoutRoom();
  std::sort(judged_.begin(), judged_.end(), [](const Judged& a, const Judged& b) {
    return std::tie(a.candidate.least_seconds, a.mesh, a.candidate.number) <
           std::tie(b.candidate.least_seconds, b.mesh, b.candidate.number);
  });
  return std::move(judged_);
}

void BestFirst::Open(double limit) {
  const auto at_once = 32 * static_cast<size_t>(threads_.threads());
  std::vector<MeshGroup*> groups;
  for (; !left_.empty() && left_.begin()->first.first <= limit && groups.size() < at_once;
       left_.erase(left_.begin())) {
    groups.push_back(left_.begin()->second);
  }
  const size_t first = opened_;
  while (opened_ < unopened_.size() && unopened_[opened_].first <= limit &&
         opened_ - first < at_once) {
    ++opened_;
  }
  std::vector<std::vector<std::unique_ptr<MeshGroup>>> made(opened_ - first);
  std::vector<std::vector<Found>> found(groups.size() + made.size());
  threads_.Run(found.size(), [&](size_t i) {
    if (i < groups.size()) {
      found[i].push_back({groups[i], groups[i]->Take(limit)});
      return true;
    }
    auto& own = made[i - groups.size()];
    own = GroupsOf(unopened_[first + i - groups.size()].second);
    for (const auto& group : own) found[i].push_back({group.get(), group->Take(limit)});
    return true;
  });
  for (auto& own : made) std::move(own.begin(), own.end(), std::back_inserter(groups_));
  for (const std::vector<Found>& of_one : found) {
    for (const Found& each : of_one) {
      MeshGroup* const group = each.group;
      for (const Candidate& candidate : each.candidates) {
        waiting_.push({candidate.least_seconds, group->first(), group, candidate});
      }
      if (group->left() < kInfinity) {
        left_.emplace(std::pair(group->left(), group->first()), group);
      }
    }
  }
}

bool BestFirst::TakeWaiting(double most) {
  constexpr size_t kMeshesOfGroup = 2;  // with room, of many
  // Few of very many meshes are asked for again: they would fill the memory.
  constexpr size_t kMostMeshes = 4096;
  if (meshes_.size() > kMostMeshes) meshes_.clear();
  const auto at_once = 64 * static_cast<size_t>(threads_.threads());
  const size_t first = judged_.size();
  std::vector<Waiting> taken;
  std::vector<ScheduleName> schedules;
  size_t count = 0;
  while (!waiting_.empty() && waiting_.top().least_seconds <= most && count < at_once) {
    const Waiting& next = waiting_.top();
    if (next.group == nullptr) {
      judged_.push_back({.mesh = next.mesh, .candidate = next.candidate});
      ++count;
    } else {
      taken.push_back(next);
      count += kMeshesOfGroup;
      if (next.group->pipelined()) {
        schedules.push_back(ScheduleOf(next.group->job(), next.candidate));
      }
    }
    waiting_.pop();
  }
  std::vector<std::vector<MeshGroup::OfMesh>> found(taken.size());
  threads_.Run(taken.size(), [&](size_t i) {
    found[i] = taken[i].group->OfMeshes(taken[i].candidate);
    return true;
  });
  for (size_t i = 0; i < taken.size(); ++i) {
    for (const auto& [mesh, candidate] : found[i]) {
      if (taken[i].group->pipelined()) {
        judged_.push_back({.mesh = mesh, .candidate = candidate});
      } else {
        waiting_.push({candidate.least_seconds, mesh, nullptr, candidate});
      }
    }
  }
  for (size_t i = first; i < judged_.size(); ++i) StateOf(judged_[i].mesh);
  cache_.Add(schedules, threads_);
  return count > 0;
}

void BestFirst::JudgeUpTo(double least_seconds) {
  while (true) {
    const size_t first = judged_.size();
    const double limit = Limit();
    if (stop_.stop_requested() || !TakeWaiting(std::min(least_seconds, limit))) return;
    threads_.Run(judged_.size() - first, [&](size_t i) {
      Judged& own = judged_[first + i];
      StepBound bound{.limit = limit};
      own.fits = Opened(own.mesh, meshes_.at(own.mesh)).Judge(own.candidate, bound, own.costed);
      own.candidate.least_seconds = std::max(own.candidate.least_seconds, bound.least_seconds);
      return !stop_.stop_requested();
    });
    for (size_t i = first; i < judged_.size(); ++i) {
      if (!judged_[i].fits) continue;
      fastest_.push(StepSeconds(judged_[i].costed.time));
      if (fastest_.size() > wanted_ && wanted_ > 0) fastest_.pop();
    }
  }
}

void BestFirst::JudgeWithoutRoom() {
  auto infeasible = static_cast<size_t>(
      std::count_if(judged_.begin(), judged_.end(), [](const Judged& each) { return !each.fits; }));
  std::sort(large_.begin(), large_.end());
  for (auto next = large_.begin();
       next != large_.end() && infeasible < wanted_ && !stop_.stop_requested(); ++next) {
    const RankChoice& choice = *next->choice;
    MeshState& mesh = StateOf(next->mesh);
    MeshSearch& search = Opened(next->mesh, mesh);
    for (const int64_t micro : choice.micro_batches) {
      if (!MeshOptions::Takes(*mesh.job, choice.ranks, micro)) continue;
      // Others differ in what comes and goes.
      Judged own{.mesh = next->mesh,
                 .candidate = {choice.threads, choice.ranks, choice.spreads.front(), micro}};
      if (mesh.job->resources.pipeline_parallel > 1) {
        cache_.Add({ScheduleOf(*mesh.job, own.candidate)}, threads_);
      }
      StepBound none;
      own.fits = search.Judge(own.candidate, none, own.costed);
      --without_room_;
      judged_.push_back(std::move(own));
      ++infeasible;
      break;
    }
  }
}

double BestFirst::Limit() const {
  return wanted_ == 0 || fastest_.size() < wanted_ ? kInfinity : fastest_.top();
}

MeshSearch& BestFirst::Opened(size_t mesh) {
  return Opened(mesh, StateOf(mesh));
}

MeshSearch& BestFirst::Opened(size_t number, MeshState& mesh) {
  std::call_once(mesh.opened, [&] {
    const FamilyState& family = families_[mesh.family];
    mesh.job = std::make_unique<JobSpec>(jobs_.At(number));
    const RankShare& share = *family.shares[mesh.job->resources.sequence_parallel ? 1 : 0];
    mesh.search = std::make_unique<MeshSearch>(*mesh.job, *family.pool->workers, share, cache_,
                                               family.cut->blocks);
  });
  return *mesh.search;
}

bool BestFirst::LargeChoice::operator<(const LargeChoice& other) const {
  return std::tie(bytes, mesh, choice) < std::tie(other.bytes, other.mesh, other.choice);
}

bool BestFirst::Waiting::operator<(const Waiting& other) const {
  return std::tie(least_seconds, mesh, candidate.number) >
         std::tie(other.least_seconds, other.mesh, other.candidate.number);
}

}  // namespace weft::planner
