#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"
#include "common/spec/phase_spec.h"
#include "common/status.h"
#include "worker/engine/growth/growth_operator.h"

namespace weft::engine {

/// A matrix of f32 numbers on the host, row-major.
struct GrowthMatrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;

  static GrowthMatrix Zero(int64_t rows, int64_t columns) {
    return {rows, columns, std::vector<float>(static_cast<size_t>(rows * columns))};
  }
};

/// A growth operator that is learned (LiGO, Wang et al. 2023, arXiv 2303.00980). Each tensor of the
/// new model is
///   R (sum over old blocks k of d_k W_k) C^T
/// of the same tensor W of the old blocks, with matrices R [new, old] and C [new, old] for its
/// sides and numbers d. Sides that are of the same neurons share a matrix: what writes into the
/// residual stream one, what reads it another, likewise queries, keys, values and what is inside of
/// the MLP. Each kind of tensor of a block has its own d [new blocks, old blocks]. Sides and depths
/// that do not grow stay as they are.
///
/// It starts as GrowthOperator has it for the method ligo: neurons are repeated in turns as fpi
/// does, blocks are copied. Not thread-safe.
class LearnedGrowth {
 public:
  /// Takes models and a growth that CheckPhases accepts. Reads all old tensors. kInvalid for a
  /// tensor whose sides change otherwise. Errors as `old`.
  static Result<LearnedGrowth> New(const ModelSpec& from, const ModelSpec& to,
                                   const GrowthSpec& growth, const OldTensors& old);

  /// The numbers of parameter `name` of the new model, row-major.
  Result<std::vector<float>> ValueOf(const std::string& name);

  /// Adds what the gradient of a loss with respect to this value, row-major, amounts to for what is
  /// learned.
  Status AddGradient(const std::string& name, std::span<const float> gradient);

  /// A step of Adam (beta1 0.9, beta2 0.999) along the gradients that were added, which become
  /// zero.
  Status Update(double learning_rate);

  /// What is learned, and its gradients.
  struct Numbers {
    std::span<float> values;
    std::span<const float> gradients;
  };
  std::vector<Numbers> Learned();

  /// Floating-point operations so far.
  double flops() const { return flops_; }

 private:
  /// The neurons, or positions, that a side of a tensor is of. kFixed: it does not grow.
  enum class Side : uint8_t {
    kFixed,
    kStream,
    kLogits,
    kQueries,
    kKeys,
    kValues,
    kHeads,
    kMlp,
    kPositions
  };

  struct SideKey {
    Side side = Side::kFixed;
    bool written = true;  ///< By the layer, else read.

    auto operator<=>(const SideKey&) const = default;
  };

  struct LearnedMatrix {
    GrowthMatrix value, gradient;
    std::vector<float> first_moment, second_moment;
  };

  /// Successive rows that have a matrix.
  struct Part {
    SideKey key;
    int64_t old_rows = 0;
    int64_t new_rows = 0;
  };

  /// How a tensor of the new model is made.
  struct Recipe {
    std::vector<std::string> sources;  ///< Its tensor of each old block; or that which it is of.
    int64_t depth = -1;                ///< With several: which of depths_ mixes them,
    int64_t block = 0;                 ///< and the row there.
    std::vector<Part> rows;
    SideKey columns;
  };

  /// The products of a tensor.
  struct Forward {
    GrowthMatrix mixed;    ///< Of the old blocks: [old rows, old columns].
    GrowthMatrix widened;  ///< With the new rows.
    GrowthMatrix value;    ///< And with the new columns.
  };

  /// The old tensors by their place: those of the same index within their blocks.
  using OldPlaces = std::map<std::string, std::pair<ParameterInfo, int64_t>>;

  LearnedGrowth(const ModelSpec& from, const ModelSpec& to) : from_(from), to_(to) {}

  Status Add(const ParameterInfo& parameter, const GrownTensor& start, const OldPlaces& places);
  Result<std::vector<Part>> PartsOf(const ParameterInfo& parameter, const GrownTerm& start);
  /// Has the rows of `map` from `first` on begin what is learned of a side, unless it is there.
  /// kFixed where the side does not grow. kInvalid where it is there with other sizes.
  Result<SideKey> StartSide(const SideKey& key, const AxisMap& map, const Part& part, int64_t first,
                            int64_t old_first);
  Result<Forward> Run(const Recipe& recipe);
  /// a^T b.
  Result<GrowthMatrix> Product(const GrowthMatrix& a, const GrowthMatrix& b);
  /// All that is learned, in order.
  std::vector<LearnedMatrix*> All();

  ModelSpec from_;
  ModelSpec to_;
  std::map<std::string, GrowthMatrix> old_;
  std::map<std::string, Recipe> recipes_;
  std::map<SideKey, LearnedMatrix> sides_;
  std::map<int64_t, LearnedMatrix> depths_;  ///< By the index of a tensor within its block.
  int64_t updates_ = 0;
  double flops_ = 0;
};

}  // namespace weft::engine
