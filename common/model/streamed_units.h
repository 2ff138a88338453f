#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_shape.h"
#include "common/spec/model_spec.h"

namespace weft {

/// Numbers in memory of a unit of parameters (ParameterList::StartUnit in worker/engine/nn): the
/// embeddings, a block, or the head.
struct StreamedUnit {
  int64_t vectors = 0;    ///< With the words of weights that are quantised.
  int64_t looked_up = 0;  ///< Tables of the embeddings.
  int64_t matrices = 0;   ///< What products read; a token table that classifies is the head's, too.
  int64_t direct = 0;     ///< Of these, those without packed copies (ParameterInfo::read_directly),
  int64_t frozen = 0;     ///< and those that products alone read (ParameterInfo::only_multiplied),
  int64_t frozen_in_tiles = 0;    ///< and of the latter, those in tiles.
  int64_t in_tiles = 0;           ///< Of these, those in tiles (ParameterInfo::in_tiles) ...
  PackedPadding padding = {};     ///< ... and of the packed copies of all.
  int64_t mlp = 0;                ///< Of the matrices, those of MLPs, but not of experts,
  int64_t trained_of_block = 0;   ///< and those that are trained and of an attention or MLP.
  int64_t of_first = 0;           ///< Of the matrices, a table that unit 0 has,
  int64_t of_first_in_tiles = 0;  ///< and of those in tiles.
  int64_t trained = 0;            ///< Of the unit's own numbers, without what fills them up,
  int64_t stored_trained = 0;     ///< and with it.

  /// Numbers in matrices and tables of this unit.
  int64_t held_matrices() const { return looked_up + matrices - of_first; }
};

/// The units in their order. `model` with vocab_size resolved; for one of `tensor` tensor-parallel
/// ranks, in a grid of `rows`, and of `expert_ranks` expert-parallel ranks.
std::vector<StreamedUnit> StreamedUnits(const ModelSpec& model, int64_t tensor = 1,
                                        int64_t rows = 1, int64_t expert_ranks = 1);

/// The sum of some units; a tied classifier counts with the embeddings. Units that the model does
/// not have, which an imported one shows late, count nothing.
StreamedUnit SumOfUnits(const std::vector<StreamedUnit>& units, const std::vector<int64_t>& chosen);

/// Bytes of values in a file (worker/engine/nn/parameter_file.h).
struct FiledValues {
  int64_t host = 0;  ///< In memory: some units that follow each other.
  int64_t file = 0;
};

/// Units ahead of the one that an update in files has left (worker/engine/nn/update_pipeline.h).
/// Where the update overlaps with a forward pass they are in transfer to the device, updated and
/// read; with a sharded optimizer updated and read.
inline int64_t FiledUnitsAhead(bool shares) {
  return shares ? 2 : 3;
}

/// Values in files for these bytes by unit. In memory are, at most, the unit that is written and
/// those ahead of it. `tied`: the last one reads the first, too. `shares`: as above.
FiledValues FiledUnits(const std::vector<int64_t>& units, bool tied, bool shares);

/// Bytes by unit, for a rank with `shape` and matrices of the given bytes a number; for a pipeline
/// stage its units alone.
std::vector<int64_t> FiledUnitBytes(const ModelShape& shape, int64_t matrix_bytes);

/// FiledUnits of these.
FiledValues FiledValueBytes(const ModelShape& shape, int64_t matrix_bytes, bool shares = false);

/// The unit below which no backward pass goes.
int64_t FirstDifferentiatedUnit(const ModelSpec& model);

}  // namespace weft
