#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Gathers the sharded values (ParameterSet::ShardValues) unit by unit from all ranks: while one
/// unit is computed with, the next is under way. Matrices are sent in the type of products where
/// that is bf16, so that nothing is rounded that products would not round; tables that are looked
/// up, vectors, and matrices of ParameterList::SetGatheredAsHeld as they are held. Of a unit only
/// these are in memory, and the copies for products. What one rank alone has stays where it is
/// held, or gets a copy in that type. All ranks go through the same passes.
///
/// What all blocks compute with (ParameterList::SetOfAllBlocks) is gathered with unit 0, as it is
/// held, and stays until Forget.
///
/// Words of quantised weights (ParameterSet::SetFourBit) are gathered as they are. The prefetcher
/// that was there before makes numbers of them.
///
/// Where the parts are in the host memory pool (Rajbhandari et al. 2021, "ZeRO-Infinity", arXiv
/// 2104.07857) each rank brings its own over the link of its own, a unit before they are gathered;
/// from a file (nn/parameter_file.h) the unit behind that one is read meanwhile.
class ParameterGatherer : public ParameterPrefetcher {
 public:
  /// All outlive this, which is the prefetcher of `parameters` for as long as it lives. `products`:
  /// the type of operands of products; `same_experts`: as BucketReducer has it.
  ParameterGatherer(Context& context, Collective* group, Collective* same_experts,
                    ParameterSet* parameters, DType products);

  /// Waits for what is under way.
  ~ParameterGatherer() override;

  Status Fetch(Context& context, int64_t unit, Pass pass) override;
  Status Release(int64_t unit) override;
  Status Forget() override;

 private:
  struct Gathered {
    Tensor part;      ///< This rank's, from the host memory pool; none: not on the device.
    int64_t job = 0;  ///< Of the lane up, that brings it.
    Tensor values;    ///< None: not in memory.
    Work work;
    bool placed = false;
  };

  Collective* ShardGroupOf(const ParameterSet::FlatParameter& flat) const {
    return flat.of_experts ? same_experts_ : group_;
  }

  /// Flat parameters that `unit` wants.
  std::vector<size_t> Wanted(int64_t unit, Pass pass) const;
  /// The type in which they are sent.
  DType TypeOf(const ParameterSet::FlatParameter& flat, int64_t unit, Pass pass) const;
  /// Begins to read the parts of a unit that are not on the device, where they are in a file.
  Status StartReading(int64_t unit, Pass pass);
  /// One less wants what the file has of `unit` in memory.
  void LeaveImage(int64_t unit);
  /// Begins to bring the parts of a unit from the host memory pool, those that are not on the
  /// device.
  Status BringParts(Context& context, int64_t unit, Pass pass);
  Status Start(Context& context, size_t flat, DType dtype);
  Status Place(size_t flat);
  /// Makes the copies of flat parameters that have been placed for `unit`.
  Status MakeCopies(Context& context, const std::vector<size_t>& flat_parameters,
                    int64_t unit) const;
  Status StartUnit(Context& context, int64_t unit, Pass pass);
  /// Drops what has been placed of a flat parameter.
  void DropPlaced(size_t flat);

  Collective* group_;
  Collective* same_experts_;
  ParameterSet* parameters_;
  HostMemoryPool* const host_;              ///< Where the parts are; none: on the device.
  ParameterPrefetcher* const dequantizes_;  ///< Makes numbers of words; none: there are none.
  const DType products_;
  const Stream stream_;
  int64_t first_differentiated_ = 0;  ///< Unit below which no backward pass goes.
  std::vector<Gathered> gathered_;    ///< By flat parameter.
  std::vector<size_t> flat_parameter_of_copies_;
  std::vector<int64_t>
      wanted_images_;  ///< By unit: flat parameters that are brought, or read ahead.
  std::vector<std::vector<int64_t>> read_ahead_;  ///< By unit: images that wait for it.
};

}  // namespace weft::engine
