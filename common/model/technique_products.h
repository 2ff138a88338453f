#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "common/model/model_counts.h"
#include "common/spec/train_spec.h"

namespace weft {

/// What multiplies matrices, as far as the products of techniques depend on it.
enum class ComputeUnits : uint8_t {
  kCpuVector,  ///< Vector units of a processor.
  kCpuMatrix,  ///< AMX: dense products run there, also those in f32, and others on vector units.
  kCuda,
};

/// Prefix of the names of the measured products with the kept weights of a pruned matrix alone
/// (GemmRate::precision), and the density of that matrix.
inline constexpr std::string_view kCsrRates = "csr_";
inline constexpr double kCsrRatesDensity = 0.25;

/// How a technique multiplies by the weights of MLPs, or of all of a block, where it does so in a
/// form of its own (WeightProducts of the engine). Not by those of experts.
struct TechniqueProducts {
  double state_bytes = 0;    ///< Of each weight, in every step.
  double operand_bytes = 0;  ///< Of each weight: what its products read instead of dense copies.
  double dense_share = 1;    ///< Of the steps, those whose products are dense after all.
  /// FLOPs of a product in f32 that take as long, for each weight, as listing and packing what
  /// counts of it: in each pass for which ranks gather weights.
  double gathered_flops = 0;
  double gathered_bytes = 0;  ///< Of each weight, read and written for the same.
  /// The same once a step, in the mean, where ranks have whole weights, besides what packing them
  /// for dense products takes. They are listed when what counts of them changes.
  double packed_flops = 0;
  double packed_bytes = 0;
  /// The same of searching what counts, in the mean over all steps, also over the dense ones.
  double searched_flops = 0;
  double searched_bytes = 0;
  bool dense_weight_gradients = false;  ///< The products for gradients of weights are dense.
  bool dense_input_gradients = false;   ///< The products for gradients of inputs are dense.
  bool copies_weights = false;          ///< Packing makes an f32 copy of each.
  /// Where the optimizer is offloaded all weights come up after the update, before the next pass.
  bool uploads_at_once = false;
  /// Then its products are made on the device of weights that come up as they are held: a CUDA
  /// device has an f32 copy of those of one layer at a time.
  bool brings_weights = false;
  /// Bytes of each weight that come up then besides those of dense products, in the mean over the
  /// steps.
  double brought_bytes = 0;
  bool copies_gradients = false;    ///< Gradients of weights read a copy of that of the result.
  bool fuses_gates = false;         ///< No step stores the gradient of a gated activation's result.
  bool attention = false;           ///< Those of attention, too.
  std::string_view rate_name = {};  ///< Of its measured products (GemmRate::precision): a prefix.
  double seconds_share = 1;         ///< Of a dense product's seconds, where none is measured.
  double measured_share = 1;        ///< Of a measured product's seconds, where there is one.

  bool any() const { return state_bytes > 0 || operand_bytes > 0 || uploads_at_once; }
};

/// GemmRate::precision of the measured products of a pass.
std::string TechniqueRateName(std::string_view rate_name, GemmPass pass, DType products);

/// The products of the technique that `train` asks for.
TechniqueProducts TechniqueProductsOf(const TrainSpec& train, ComputeUnits units);

/// Numbers of workspace for each token, of the type of activations, unless it says otherwise.
struct ProductNumbers {
  int64_t forward = 0;   ///< At most, while a product is computed.
  int64_t backward = 0;  ///< Likewise, while it is differentiated.
  int64_t deferred =
      0;                ///< Of all products, until gradients of weights that are deferred are made.
  int64_t weights = 0;  ///< In f32, whatever the tokens, while gradients of weights are made.
  /// Numbers in the operands of one product in a format (ProductFormat), if blocks have one: those
  /// that exist together with `backward`.
  int64_t in_format = 0;
};

/// Workspace of the blocks of a job that follows from how it trains.
struct JobWorkspace {
  /// The workspace by sub-layer, see TechniqueCost::WorkspaceOfProducts.
  ProductNumbers attention, mlp;
  bool changes_branches = false;  ///< As TechniqueCost::ChangesBranches.
  int64_t gradients = 0;  ///< Of the residual stream besides one, while a block is differentiated.
};

}  // namespace weft
