#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/parameter_residence.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Brings the values that ranks share out (ParameterSet::ShardValues) by gathering the parts of all
/// of them, unit by unit: while one is computed with, the next is under way. Matrices travel in the
/// type of products where that is bf16, so that nothing is rounded that products would not round;
/// tables that are looked up, and vectors, as they are held. Of a unit only these are in memory,
/// and the copies for products. All ranks go through the same passes.
class ParameterGatherer : public ParameterResidence {
 public:
  /// All outlive this, which is the residence of `parameters` for as long as it lives. `products`:
  /// the type of operands of products.
  ParameterGatherer(Context& context, Collective* group, ParameterSet* parameters, DType products);

  /// Waits for what is under way.
  ~ParameterGatherer() override;

  Status Fetch(Context& context, int64_t unit, Pass pass) override;
  Status Release(int64_t unit) override;

 private:
  struct Gathered {
    Tensor values;  ///< None: not in memory.
    Work work;
    bool placed = false;
  };

  /// Regions that `unit` wants.
  std::vector<size_t> Wanted(int64_t unit, Pass pass) const;
  /// The type in which they travel.
  DType TypeOf(const ParameterSet::Region& region, int64_t unit) const;
  Status Start(Context& context, size_t region, DType dtype);
  Status Place(Context& context, size_t region, int64_t unit);
  Status StartUnit(Context& context, int64_t unit, Pass pass);

  Collective* group_;
  ParameterSet* parameters_;
  const DType products_;
  const Stream stream_;
  int64_t first_differentiated_ = 0;  ///< Unit below which no backward pass goes.
  std::vector<Gathered> gathered_;    ///< By region.
  std::vector<size_t> region_of_copies_;
};

}  // namespace weft::engine
