#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "worker/engine/growth/axis_map.h"

namespace weft::engine {

/// A model that the tensors of a new one are made of.
enum class GrownFrom : uint8_t {
  kPhaseBefore,
  kLargerModel,  ///< As it was before it was coalesced.
  kAverages,     ///< The averaged weights of the phase before, which else has its last ones.
};

/// A term of the sum that a new tensor is: factor x rows x old tensor x transposed columns.
struct GrownTerm {
  GrownFrom from = GrownFrom::kPhaseBefore;
  std::string parameter;  ///< Name of the old tensor.
  double factor = 1;
  AxisMap rows;     ///< Of the first side of the tensor.
  AxisMap columns;  ///< Of all other sides as one; of vectors one position.
};

/// A tensor of the new model: the sum of its terms, which is zero where none has a place.
struct GrownTensor {
  std::vector<GrownTerm> terms;
  /// There it is instead the random numbers that it would start from without growth.
  bool random = false;
};

/// Which numbers of the parameters are grown.
enum class GrownNumbers : uint8_t {
  kValues,
  kGradients,         ///< As first moments of an optimizer are: sides swap Written and Read.
  kSquaredGradients,  ///< As second moments are: the squares of those factors.
};

/// Reads a whole tensor of an old model, row-major.
using OldTensors =
    std::function<Result<std::vector<double>>(GrownFrom from, const std::string& parameter)>;

/// Makes the parameters of a model from those of another one (JobSpec::phases): sizes change by
/// maps of the sides of tensors, blocks by a map of blocks. It acts between two trainings and not
/// in the steps of one, so that it is no Technique. What a tensor is made of follows from its
/// attributes alone, tensor by tensor: a rank can make those it holds.
///
/// Methods. coalesce and decoalesce: Zou et al. 2024, arXiv 2404.07999, with the factor of logits
/// that a tied classifier needs in the norm before it. stack: Gong et al. 2019; Du et al. 2024,
/// arXiv 2405.15319; identity blocks: Wu et al. 2024, arXiv 2401.02415. fpi and aki: Chen et al.
/// 2022, arXiv 2110.07143. sparkling: Yu et al. 2026, arXiv 2602.02472. msg: Yao et al. 2024, arXiv
/// 2305.02869: what was there stays in the first rows and columns, all else is random; the masks
/// are a technique (structural_growth). averaged blocks: Li et al. 2022, arXiv 2203.14509, as are
/// positions of images of another size, whose table is resized.
class GrowthOperator {
 public:
  /// Takes models and a growth that CheckPhases accepts, with vocab_size and classes resolved; or
  /// method none and fewer blocks, which are those that an elastic network of this depth has
  /// (techniques/layer_sampling/elastic_network.h). `larger`: the model that decoalesce mixes in,
  /// which may have images of another size; none: it has those of `to`.
  GrowthOperator(const ModelSpec& from, const ModelSpec& to, const GrowthSpec& growth,
                 const ModelSpec* larger = nullptr);

  /// The terms of parameter `name` of the new model. kInvalid when it has none of that name.
  Result<GrownTensor> Of(const std::string& name, GrownNumbers numbers) const;

 private:
  /// A tensor within its block, or of those outside of blocks.
  using Place = std::pair<int64_t, size_t>;

  /// The blocks whose mean a block of the new model is, and what else it is.
  struct BlockSource {
    std::vector<int64_t> blocks;
    bool added = false;
    bool random = false;
    bool silent = false;    ///< What ends its sub-layers is zero.
    bool averaged = false;  ///< Averages are copied.
  };

  /// Rows of a tensor that have a place in the old model's, that repeat others, or both.
  enum class RowSet : uint8_t { kAll, kKept, kAdded };

  /// Whether the network hides what is new, which then need not fit what is there.
  bool masked() const { return growth_.method == "msg"; }
  /// Whether numbers stay where they were, and nothing of them is where something was added.
  bool in_place(GrownNumbers numbers) const;
  BlockSource SourceOf(int64_t block) const;
  /// One side of a tensor; that of gradients is made the other way round.
  AxisMap Side(GrownNumbers numbers, bool written, int64_t old_extent, int64_t new_extent) const;
  AxisMap RowsOf(const ParameterInfo& old, const ParameterInfo& parameter, GrownNumbers numbers,
                 RowSet set) const;
  AxisMap ColumnsOf(const ParameterInfo& old, const ParameterInfo& parameter,
                    GrownNumbers numbers) const;
  /// Whether the classifier is the token table and reads what this norm writes.
  bool FeedsTiedClassifier(const ParameterInfo& parameter) const;
  /// Adds what comes from the old tensor at `place`.
  void AddTerm(const ParameterInfo& parameter, GrownFrom from, const Place& place, double factor,
               GrownNumbers numbers, RowSet set, GrownTensor& tensor) const;

  ModelSpec from_;
  ModelSpec to_;
  ModelSpec larger_;
  GrowthSpec growth_;
  std::map<Place, ParameterInfo> old_;
  std::map<std::string, std::pair<Place, ParameterInfo>> new_;
};

/// The numbers of a tensor, row-major. `start`, the random numbers it begins as, is read where
/// tensor.random says so. Errors as `old`; kInvalid when it gives tensors of another size.
Result<std::vector<double>> Evaluate(const GrownTensor& tensor, const OldTensors& old,
                                     std::span<const float> start = {});

}  // namespace weft::engine
