#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/model_spec.h"

namespace weft {

/// Numbers in memory of a unit of parameters (ParameterSet::StartUnit in worker/engine/nn): the
/// embeddings, a block, or the head.
struct StreamedUnit {
  int64_t vectors = 0;
  int64_t looked_up = 0;  ///< Tables of the embeddings.
  int64_t matrices = 0;   ///< What products read; a token table that classifies is the head's, too.
  int64_t in_tiles = 0;   ///< Of these, those in tiles (ParameterInfo::in_tiles) ...
  int64_t padding = 0;    ///< ... and what fills up the copies of the others.
};

/// In their order. `model` with vocab_size resolved.
std::vector<StreamedUnit> StreamedUnits(const ModelSpec& model);

/// The unit below which no backward pass goes.
int64_t FirstDifferentiatedUnit(const ModelSpec& model);

}  // namespace weft
