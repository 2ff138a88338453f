#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// Brings parameters from the host memory pool to the device, unit by unit (Rajbhandari et
/// al. 2021, "ZeRO-Infinity", arXiv 2104.07857): while one is computed with, the next is under way.
/// Of a unit what operations read as it is comes, and the copies for products. Memory is taken and
/// given back by whoever computes, so that what is held at a time does not depend on the link. Of
/// values in a file (nn/parameter_file.h) the host memory pool has those of two units meanwhile:
/// the one that is under way, and the one behind it, which is being read; while an update is
/// under way the forward pass has them from that (nn/update_pipeline.h), and waits for it. A rank
/// of a pipeline has stages with a unit without parameters between them: a pass through one brings
/// nothing of others. Units that stay come once a step, in its first forward pass, and stay until
/// the update: those between them come and go as the others do. What is quantised comes as words,
/// which the prefetcher before this one dequantises.
class StreamedParameters : public ParameterPrefetcher {
 public:
  /// Both outlive this, which is the prefetcher of `parameters` (ParameterSet::StreamValues) for as
  /// long as it lives. `context` has a host memory pool. `stay`: units, of values in memory.
  StreamedParameters(Context& context, ParameterSet* parameters,
                     std::span<const int64_t> stay = {});

  /// Waits for what is under way.
  ~StreamedParameters() override;

  Status Fetch(Context& context, int64_t unit, Pass pass) override;
  Status Release(int64_t unit) override;
  Status Forget() override;

 private:
  struct Unit {
    std::vector<DerivedCopies*> copies;
    bool comes = false;         ///< Something of it comes: not between the stages of a rank.
    bool stays = false;         ///< Until the update.
    int64_t job = 0;            ///< Of the lane up, where it comes or is there; 0: it is not.
    std::vector<int64_t> read;  ///< Units whose values are in memory for it, from a file.
  };
  Status Start(Context& context, int64_t unit, Pass pass);
  void Drop(int64_t unit);
  /// The next one in a pass that is not there to stay; `unit` is computed with.
  int64_t Next(int64_t unit, int64_t step) const;
  /// An update in files that is under way lets go of what is before `unit`, or comes to its end.
  Status FollowUpdate(int64_t unit, Pass pass);
  /// Begins to read what comes for `unit`, where that is not done.
  Status StartReading(int64_t unit, Pass pass);
  /// That is no longer wanted, since it has come.
  void DropRead(int64_t unit);

  HostMemoryPool* host_;
  ParameterSet* parameters_;
  ParameterPrefetcher* const dequantizes_;  ///< Or null: nothing is quantised.
  std::vector<Unit> units_;
  int64_t first_differentiated_;  ///< Unit below which no backward pass goes.
};

}  // namespace weft::engine
