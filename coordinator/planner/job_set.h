#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/planner/meshes.h"

namespace weft::planner {

/// Jobs that differ in choices that one of them leaves open, and in their meshes. Of meshes there
/// are many: their jobs are made when they are asked for.
class JobSet {
 public:
  JobSet() = default;
  /// Of one job.
  explicit JobSet(JobSpec job) {
    const MeshChoice own(job.resources);
    Add(std::move(job), {own});
  }

  /// `choice` with each of these meshes.
  void Add(JobSpec choice, std::vector<MeshChoice> meshes) {
    members_.reserve(members_.size() + meshes.size());
    for (MeshChoice& mesh : meshes) members_.push_back({choices_.size(), std::move(mesh)});
    choices_.push_back(std::move(choice));
  }

  size_t size() const { return members_.size(); }
  bool empty() const { return members_.empty(); }
  const std::vector<JobSpec>& choices() const { return choices_; }
  /// The job of that number but for its mesh, and its mesh.
  const JobSpec& Choice(size_t i) const { return choices_[members_[i].choice]; }
  const MeshChoice& MeshAt(size_t i) const { return members_[i].mesh; }
  JobSpec At(size_t i) const {
    JobSpec job = Choice(i);
    MeshAt(i).Put(job.resources);
    return job;
  }

  /// visit(i, job) for each of them from `begin` to before `end`. The job is gone afterwards.
  template <class Visit>
  void ForEach(size_t begin, size_t end, const Visit& visit) const {
    JobSpec job;
    for (size_t i = begin; i < end; ++i) {
      if (i == begin || members_[i].choice != members_[i - 1].choice) job = Choice(i);
      MeshAt(i).Put(job.resources);
      visit(i, job);
    }
  }

 private:
  struct Member {
    size_t choice;
    MeshChoice mesh;
  };

  std::vector<JobSpec> choices_;
  std::vector<Member> members_;
};

}  // namespace weft::planner
