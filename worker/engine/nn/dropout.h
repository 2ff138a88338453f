#pragma once

#include <cstdint>
#include <string>

#include "common/rng.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/graft.h"

namespace weft::engine {

/// The key of a site's masks in the current step; `use` is the index of the layer among those that
/// share it, from 0.
PhiloxKey DropoutKey(const Context& context, uint32_t site, int64_t use);

/// Dropout at one site of the network (Srivastava et al. 2014). The mask is drawn by position in
/// the global batch, so micro-batches, ranks and recomputation do not change it. Off in evaluation.
class Dropout : public Graft {
 public:
  Dropout(const std::string& name, double probability)
      : site_(SiteHash(name.c_str())), probability_(static_cast<float>(probability)) {}

  Result<Value> Forward(Context& context, Tape& tape, Value x, const GraftUse& use) const override;

 private:
  uint32_t site_;
  float probability_;
};

}  // namespace weft::engine
