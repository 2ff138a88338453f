#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/spec/model_spec.h"

namespace weft {

/// Which rows and which columns of a tensor growth has added: a number is new where either is. A
/// vector has one column; of other tensors all sides but the first are one.
struct AddedPositions {
  std::vector<bool> rows;
  std::vector<bool> columns;
};

/// Those of each parameter of `now` that growth from `before` has given any, by its name. What was
/// there is in the first rows and columns, of queries, keys and values each for itself. Models with
/// vocab_size and classes resolved, and the same blocks.
std::map<std::string, AddedPositions> AddedPositionsOf(const ModelSpec& before,
                                                       const ModelSpec& now);

/// `now` with the sizes that `before` has and growth changes.
ModelSpec WithSizesOf(const ModelSpec& before, ModelSpec now);

}  // namespace weft
