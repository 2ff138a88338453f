#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/planner/meshes.h"

namespace weft::planner {

/// Jobs that differ in choices that one of them leaves open, and in their meshes. Of meshes there
/// are many: they and their jobs are made when they are asked for.
class JobSet {
 public:
  JobSet() = default;
  /// Holds one job.
  explicit JobSet(JobSpec job) { Add(std::move(job)); }

  /// `choice` as it is.
  void Add(JobSpec choice) {
    const ResourceSpec& own = choice.resources;
    const SharingChoice sharing{own.zero_stage, own.zero_shard_ranks, own.sequence_parallel};
    MeshFamily alone{MeshChoice(own),
                     std::make_shared<const std::vector<SharingChoice>>(1, sharing)};
    Add(std::move(choice), {std::move(alone)});
  }
  /// `choice` with each of these meshes.
  void Add(JobSpec choice, std::vector<MeshFamily> meshes) {
    families_.reserve(families_.size() + meshes.size());
    for (MeshFamily& family : meshes) {
      const size_t count = family.sharings->size();
      families_.push_back({choices_.size(), size_, std::move(family)});
      size_ += count;
    }
    choices_.push_back(std::move(choice));
  }

  /// Jobs.
  size_t size() const { return size_; }
  bool empty() const { return families_.empty(); }
  const std::vector<JobSpec>& choices() const { return choices_; }

  /// Jobs that differ in SharingChoice alone, with numbers one after the other.
  struct Family {
    size_t choice = 0;  ///< Of choices(): the jobs without their meshes.
    size_t first = 0;   ///< Number of the first.
    MeshFamily meshes;

    const std::vector<SharingChoice>& sharings() const { return *meshes.sharings; }
  };
  const std::vector<Family>& families() const { return families_; }
  /// Index of the family of the job of that number.
  size_t FamilyOf(size_t i) const {
    const auto after =
        std::upper_bound(families_.begin(), families_.end(), i,
                         [](size_t number, const Family& family) { return number < family.first; });
    return static_cast<size_t>(after - families_.begin()) - 1;
  }
  /// The job of that number without its mesh.
  const JobSpec& Choice(size_t i) const { return choices_[families_[FamilyOf(i)].choice]; }
  JobSpec At(size_t i) const {
    const Family& family = families_[FamilyOf(i)];
    JobSpec job = choices_[family.choice];
    family.meshes.mesh.Put(job.resources);
    family.sharings()[i - family.first].Put(job.resources);
    return job;
  }

  /// visit(index, family, job) for each family from `begin` to before `end`, with a job that has
  /// its mesh, may be changed and is gone afterwards.
  template <class Visit>
  void ForEachFamily(size_t begin, size_t end, const Visit& visit) const {
    JobSpec job;
    for (size_t i = begin; i < end; ++i) {
      const Family& family = families_[i];
      if (i == begin || family.choice != families_[i - 1].choice) job = choices_[family.choice];
      family.meshes.mesh.Put(job.resources);
      visit(i, family, job);
    }
  }

 private:
  std::vector<JobSpec> choices_;
  std::vector<Family> families_;
  size_t size_ = 0;
};

}  // namespace weft::planner
