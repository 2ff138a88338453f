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
///
/// A unit brings what operations read as it is, and the copies for products. The caller that
/// computes takes and frees the memory, so that what is held at a time does not depend on the link.
/// Quantised values come as words, which the prefetcher before this one dequantises.
///
/// The host memory pool holds values in a file (nn/parameter_file.h) for two units: the one under
/// way, and the next one, which is being read. During an update the forward pass waits for it and
/// takes the values from it (nn/update_pipeline.h).
///
/// A rank of a pipeline has stages with a unit without parameters between them: a pass through one
/// brings nothing of others. Units that stay come once a step, in its first forward pass, and stay
/// until the update: those between them come and go as the others do.
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
