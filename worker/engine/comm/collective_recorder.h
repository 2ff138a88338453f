#pragma once

#include <memory>

#include "common/status.h"
#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// A group whose operations can be recorded as part of a graph (kernels/cuda/graph.h): they run on
/// the group's stream, overlapped with the others of the graph, again with each launch of it.
/// Whether an operation is part of a graph is the same on all ranks of the group, and so are the
/// launches. Like the group, for one thread at a time.
class CollectiveRecorder {
 public:
  /// The operations of a graph, which is destroyed before them, and they before the group.
  class Recorded {
   public:
    virtual ~Recorded() = default;
  };

  virtual ~CollectiveRecorder() = default;

  /// `group` if it is one, or null.
  static CollectiveRecorder* Of(Collective& group) {
    return dynamic_cast<CollectiveRecorder*>(&group);
  }

  /// The caller records a graph: what is called on its stream from now on is recorded, and not run.
  /// Only that can be waited for, in the graph. An operation that cannot be recorded answers why,
  /// and the group stays whole.
  virtual void StartRecording() = 0;
  /// Ends that.
  virtual std::shared_ptr<Recorded> TakeRecorded() = 0;

  /// A graph with these operations has been launched: they are watched and enter the account as
  /// others do. kUnavailable when the group is broken.
  virtual Status Repeat(const std::shared_ptr<Recorded>& recorded) = 0;
};

}  // namespace weft::engine
