#include "common/model/operand_memory.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <vector>

#include "common/model/model_counts.h"
#include "common/model/technique_cost.h"
#include "common/number.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;
constexpr int64_t kFileBlock = 4096;

/// Numbers that fill up the packed copies which products of this kind read.
int64_t PaddingOf(const MemoryInputs& inputs, const PackedPadding& padding) {
  // Operands in a format have no blocks; of dense ones those in tiles are whole blocks.
  const bool in_format = inputs.format() != nullptr;
  switch (inputs.products) {
    case ProductKind::kUnpacked:
    case ProductKind::kWidenedUnpacked:
    case ProductKind::kStored:
      return 0;
    case ProductKind::kSplit:
      return padding.f32_else;
    case ProductKind::kTiles:
      return padding.bf16_else;
    case ProductKind::kNative:
      if (inputs.precision->products != DType::kBF16) break;
      return in_format ? padding.bf16_else : padding.bf16;
    case ProductKind::kWidened:
      break;
  }
  return in_format ? padding.f32_else : padding.f32;
}

/// What of parameters that come unit by unit is on the device, and crosses the link.
class Streaming {
 public:
  explicit Streaming(const MemoryInputs& inputs)
      : inputs_(inputs),
        units_(StreamedUnits(inputs.shape.spec, inputs.shape.tensor, inputs.shape.tensor_rows,
                             inputs.shape.expert_ranks)),
        in_tiles_moves_(inputs.products == ProductKind::kTiles),
        frozen_(ElementBytes(FrozenMatrixType(inputs.shape.spec, *inputs.precision))) {
    if (!inputs.shape.embeds) units_.front() = {};
    if (!inputs.shape.has_head) units_.back() = {};
    stays_.resize(units_.size());
    // Nobody has checked whether an imported model has these units.
    for (const int64_t unit : inputs.resident_units) {
      if (unit >= 0 && unit < std::ssize(stays_)) stays_[static_cast<size_t>(unit)] = true;
    }
  }

  int64_t Peak() const {
    int64_t most = 0, packed = 0, all_staying = 0, staying = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (stays_[u]) all_staying += Read(units_[u]);
    }
    // Those that stay have come by the backward pass, which reads no tables, or the next one.
    std::optional<size_t> before;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (stays_[u]) {
        staying += Read(units_[u]);
        continue;
      }
      const int64_t two = (before ? Read(units_[*before]) : 0) + Read(units_[u]);
      const int64_t tables = before ? Stored() * units_[*before].looked_up : 0;
      const bool later_pass = inputs_.accumulation_steps > 1;
      most = std::max({most, two + staying, two - (later_pass ? 0 : tables) + all_staying});
      before = u;
    }
    int64_t blocks = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      const bool is_block = u > 0 && u + 1 < units_.size();
      if (is_block && !stays_[u] && ++blocks > 2) continue;  // they take turns
      packed += Packed(units_[u]);
    }
    return most + packed;
  }

  int64_t Staying() const {
    int64_t bytes = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (stays_[u]) bytes += Moved(units_[u]);
    }
    return bytes;
  }

  StreamedBytes OverTheLink() const {
    return OfPasses([&](size_t u, bool backward) {
      if (stays_[u]) return int64_t{0};
      return Moved(units_[u]) - (backward ? Stored() * units_[u].looked_up : 0);
    });
  }

  // Units as a whole, where anything of them comes.
  StreamedBytes FromFiles() const {
    const std::vector<int64_t> filed = FiledUnitBytes(inputs_.shape, Stored());
    const auto in_blocks = [&](size_t u) { return (filed[u] + kFileBlock - 1) / kFileBlock; };
    return OfPasses([&](size_t u, bool backward) {
      const StreamedUnit& unit = units_[u];
      if (unit.vectors + unit.matrices + (backward ? 0 : unit.looked_up) == 0) return int64_t{0};
      return kFileBlock * (in_blocks(u) + (unit.of_first > 0 ? in_blocks(0) : 0));
    });
  }

 private:
  /// Sums `bytes(unit, backward)` over the units of the forward and the backward pass.
  template <class Bytes>
  StreamedBytes OfPasses(Bytes&& bytes) const {
    const ModelShape& shape = inputs_.shape;
    StreamedBytes all{.first = bytes(shape.embeds ? 0 : 1, false)};
    // On a rank of a pipeline passes of other micro-batches come in between.
    const bool of_stage = !shape.embeds || !shape.has_head;
    const auto end = of_stage ? units_.size() : units_.size() - 2;
    const auto first_trained = shape.trained_before ? 0 : FirstDifferentiatedUnit(shape.spec);
    for (size_t u = 0; u < units_.size(); ++u) {
      all.forward += bytes(u, false);
      if (u < end && static_cast<int64_t>(u) >= first_trained) all.backward += bytes(u, true);
    }
    return all;
  }
  int64_t Stored() const { return ElementBytes(inputs_.precision->matrices); }
  /// Numbers whose packed copy is all that comes.
  int64_t TilesAlone(const StreamedUnit& unit) const { return in_tiles_moves_ ? unit.in_tiles : 0; }
  /// Bytes of values as operations read them.
  int64_t Read(const StreamedUnit& unit) const {
    const int64_t others = kF32 * unit.vectors + Stored() * (unit.looked_up + unit.direct);
    const int64_t multiplied = unit.matrices - unit.direct;
    // Products on CUDA read what has come, in their type.
    if (inputs_.OnCuda()) return others + ElementBytes(inputs_.precision->products) * multiplied;
    const int64_t frozen = unit.frozen - (in_tiles_moves_ ? unit.frozen_in_tiles : 0);
    return others + frozen_ * frozen + Stored() * (multiplied - TilesAlone(unit) - frozen);
  }
  int64_t Packed(const StreamedUnit& unit) const {
    const int64_t packed = unit.matrices - unit.direct;
    switch (inputs_.products) {
      case ProductKind::kUnpacked:
      case ProductKind::kWidenedUnpacked:
      case ProductKind::kStored:
        return 0;
      case ProductKind::kSplit:
        return kF32 * (packed - unit.in_tiles + PaddingOf(inputs_, unit.padding));
      case ProductKind::kTiles:
      case ProductKind::kNative:
        return ElementBytes(inputs_.precision->products) *
               (packed + PaddingOf(inputs_, unit.padding));
      default:
        return kF32 * (packed + PaddingOf(inputs_, unit.padding));
    }
  }
  int64_t Moved(const StreamedUnit& unit) const {
    return Read(unit) + ElementBytes(inputs_.precision->products) * TilesAlone(unit);
  }

  const MemoryInputs& inputs_;
  std::vector<StreamedUnit> units_;
  std::vector<bool> stays_;  ///< By unit.
  const bool in_tiles_moves_;
  const int64_t frozen_;  ///< Bytes of a number of StreamedUnit::frozen.
};

/// Whether what is frozen stays on the device, where the optimizer is offloaded.
bool KeepsFrozen(const MemoryInputs& inputs) {
  return inputs.offload_optimizer && !inputs.offload_parameters && !inputs.SharesParameters() &&
         TechniquesFreeze(inputs.shape.spec);
}

/// Numbers of the packed matrices of dense products, where products of blocks are in a format: the
/// classifier's, those of dense blocks, of routers and of adapters.
int64_t DensePacked(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const int64_t columns =
      shape.spec.untied_classifier ? shape.spec.width : EmbeddingWidth(shape.spec);
  const int64_t classifier = shape.has_head ? shape.PaddedClasses() * columns : 0;
  const int64_t blocks = DistinctBlocks(shape.spec);
  const int64_t in_format = inputs.format_blocks.Of(blocks);
  const int64_t routers = shape.spec.experts * shape.spec.width * in_format;
  const int64_t adapters = shape.packed_adapters / blocks * in_format;
  return classifier + (shape.packed - classifier) / blocks * (blocks - in_format) + routers +
         adapters;
}

/// Bytes of `packed` numbers of matrices: those in a format are there by rows and by columns, dense
/// ones take `dense_bytes` each.
int64_t PackedInFormat(const MemoryInputs& inputs, int64_t packed, int64_t dense_bytes) {
  const int64_t dense = DensePacked(inputs);
  return dense_bytes * dense + 2 * inputs.format()->element_bytes * (packed - dense);
}

/// Whether frozen matrices are stored in the type of products, which a CUDA device reads as they
/// are.
bool StoresFrozenAsRead(const MemoryInputs& inputs) {
  return FrozenMatrixType(inputs.shape.spec, *inputs.precision) == inputs.precision->products;
}

/// Weights that a technique multiplies by in a form of its own.
int64_t TechniqueWeights(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const ModelSpec& model = shape.spec;
  const int64_t mlp = model.experts > 0 ? 0 : (MlpInputs(model) + 1) * MlpWidth(model);
  const int64_t attention =
      inputs.technique_products.attention ? 2 * (QueryWidth(model) + KvWidth(model)) : 0;
  return DistinctBlocks(model) * model.width * (mlp + attention) / shape.tensor;
}

/// Those of them that are there in that form at a time: ranks that gather weights have one block's.
int64_t WeightsMade(const MemoryInputs& inputs) {
  const int64_t weights = TechniqueWeights(inputs);
  if (!inputs.SharesParameters()) return weights;
  return weights / std::max<int64_t>(DistinctBlocks(inputs.shape.spec), 1);
}

/// Bytes of offloaded weights that a technique brings up besides what dense products read, in the
/// mean over the steps.
int64_t BroughtBytes(const MemoryInputs& inputs) {
  const TechniqueProducts& products = inputs.technique_products;
  if (!products.brings_weights) return 0;
  const int64_t weights = std::max<int64_t>(TechniqueWeights(inputs) - inputs.kept.mlp, 0);
  double bytes = D(weights) * products.brought_bytes;
  if (inputs.products == ProductKind::kTiles && products.dense_share < 1) {
    // As they are held, not in the tiles of dense products.
    const int64_t in_tiles = std::min(weights, inputs.shape.packed_in_tiles - inputs.kept.in_tiles);
    bytes += (1 - products.dense_share) * D(in_tiles) *
             D(ElementBytes(inputs.precision->matrices) - ElementBytes(inputs.precision->products));
  }
  return static_cast<int64_t>(bytes);
}

/// Bytes of offloaded matrices that products read as they are stored in addition to packed copies,
/// as a processor has them: of OperandBytes().
int64_t StoredOperandBytes(const MemoryInputs& inputs) {
  if (inputs.OnCuda()) return 0;
  const ModelShape& shape = inputs.shape;
  const StreamedUnit kept = KeptOnDevice(inputs);
  const int64_t tiles =
      inputs.products == ProductKind::kTiles ? shape.packed_in_tiles - kept.in_tiles : 0;
  const int64_t stored = shape.packed - kept.matrices - tiles;
  return ElementBytes(inputs.precision->matrices) * std::max<int64_t>(stored, 0);
}

}  // namespace

int64_t DenseCopies(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const int64_t dense = DensePacked(inputs);
  if (!StoresFrozenAsRead(inputs)) return dense;
  // What is frozen and in the format has its copies there.
  return dense - std::max<int64_t>(shape.only_multiplied - (shape.packed - dense), 0);
}

int64_t TechniqueOperandBytes(const MemoryInputs& inputs) {
  const TechniqueProducts& products = inputs.technique_products;
  if (products.dense_share >= 1) return 0;
  return static_cast<int64_t>(D(WeightsMade(inputs)) * products.operand_bytes);
}

int64_t TechniqueOperandsBeyondDense(const MemoryInputs& inputs) {
  const TechniqueProducts& products = inputs.technique_products;
  if (!products.any() || products.dense_share >= 1) return 0;
  const ModelShape& shape = inputs.shape;
  // Dense copies of them, of all packed numbers alike.
  const int64_t packed = inputs.SharesParameters() ? inputs.sharded.packed : shape.packed;
  const bool comes_up = products.brings_weights && inputs.offload_optimizer;
  const int64_t copies = PackedBytes(inputs) + (comes_up ? StoredOperandBytes(inputs) : 0);
  const double dense = packed == 0 ? 0 : D(copies) / D(packed);
  const double instead = products.operand_bytes - dense;
  const double more = products.dense_share > 0 ? std::max(instead, 0.0) : instead;
  return static_cast<int64_t>(D(WeightsMade(inputs)) * more);
}

int64_t TechniqueProductBytes(const MemoryInputs& inputs) {
  const double state = inputs.technique_products.state_bytes;
  return static_cast<int64_t>(D(TechniqueWeights(inputs)) * state) +
         TechniqueOperandsBeyondDense(inputs);
}

int64_t DequantizedBytes(const MemoryInputs& inputs) {
  const QuantizedBlock& block = inputs.shape.quantized_block;
  // CPUs pack halves from f32.
  const DType products = inputs.precision->products;
  const bool widened = products == DType::kF16 && !inputs.OnCuda();
  const int64_t element = ElementBytes(widened ? DType::kF32 : products);
  const int64_t values = element * block.numbers;
  const int64_t packed = block.numbers + PaddingOf(inputs, block.padding);
  switch (inputs.products) {
    case ProductKind::kUnpacked:
    case ProductKind::kWidenedUnpacked:
    case ProductKind::kStored:
      return values;
    case ProductKind::kSplit:
      return values + kF32 * (packed - block.in_tiles);
    case ProductKind::kTiles:
      // Products read weights in tiles from the packed copies alone.
      return ElementBytes(products) * packed +
             element * (block.numbers - block.in_tiles + block.largest_in_tiles);
    case ProductKind::kNative:
      return values + ElementBytes(products) * packed;
    case ProductKind::kWidened:
      break;
  }
  return values + kF32 * packed;
}

int64_t FormatStateBytes(const MemoryInputs& inputs) {
  if (inputs.format() == nullptr) return 0;
  const FormatBlocks& blocks = inputs.format_blocks;
  return blocks.Of(DistinctBlocks(inputs.shape.spec)) * blocks.state_bytes;
}

// Where products are of the type that is stored, or gathered, PackedBytes has nothing of these.
// Ranks that shard parameters have those of one block.
int64_t MergedBytes(const MemoryInputs& inputs) {
  const bool shares = inputs.SharesParameters();
  const ModelSpec& model = inputs.shape.spec;
  const int64_t numbers =
      (shares ? LargestMergedBlock(model) : MergedNumbers(model)) / inputs.shape.tensor;
  if (!inputs.OnCuda()) return inputs.products == ProductKind::kTiles ? 0 : kF32 * numbers;
  const DType products = inputs.precision->products;
  const bool stored = products == DType::kF32 || products == inputs.precision->matrices ||
                      (shares && products == DType::kBF16);
  return stored ? ElementBytes(products) * numbers : 0;
}

int64_t PackedBytes(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const bool shares = inputs.SharesParameters();
  const int64_t packed = shares ? inputs.sharded.packed : shape.packed;
  const int64_t in_tiles = shares ? inputs.sharded.packed_in_tiles : shape.packed_in_tiles;
  const int64_t padding =
      PaddingOf(inputs, shares ? inputs.sharded.packed_padding : shape.packed_padding);
  switch (inputs.products) {
    case ProductKind::kUnpacked:
      return 0;
    case ProductKind::kSplit:
      return kF32 * (packed - in_tiles + padding);
    case ProductKind::kTiles:
    case ProductKind::kNative:
      return ElementBytes(inputs.precision->products) * (packed + padding);
    case ProductKind::kStored: {
      // Everything that products read is a copy where the values are stored elsewhere.
      const bool frozen_stored = shape.only_multiplied > 0 && StoresFrozenAsRead(inputs);
      if (inputs.offload_optimizer && !shares) {
        const bool there = frozen_stored && KeepsFrozen(inputs);
        return ElementBytes(inputs.precision->products) *
               (packed - (there ? shape.only_multiplied : 0));
      }
      // Weights that are made of factors are f32, whatever is stored. What is gathered for products
      // in bf16 comes in that type.
      const bool stored = inputs.precision->matrices == inputs.precision->products ||
                          (shares && inputs.precision->products == DType::kBF16);
      if (inputs.precision->products == DType::kF32) return 0;
      const int64_t element = ElementBytes(inputs.precision->products);
      if (inputs.format() != nullptr && !stored) {
        return PackedInFormat(inputs, packed, 0) + element * DenseCopies(inputs);
      }
      if (stored) return element * shape.derived;
      return element * (packed - (frozen_stored ? shape.only_multiplied : 0));
    }
    case ProductKind::kWidenedUnpacked:
      if (inputs.format() == nullptr) return 0;
      break;
    case ProductKind::kWidened:
      break;
  }
  if (inputs.format() == nullptr) return kF32 * (packed + padding);
  // Operands in a format are not widened before they are multiplied.
  return PackedInFormat(inputs, packed, MultipliesStored(inputs.products) ? 0 : kF32) +
         kF32 * padding;
}

StreamedUnit KeptOnDevice(const MemoryInputs& inputs) {
  if (!KeepsFrozen(inputs)) return inputs.kept;
  const FrozenNumbers& frozen = inputs.shape.frozen;
  return {.vectors = frozen.vectors,
          .looked_up = frozen.looked_up,
          .matrices = frozen.matrices,
          .in_tiles = frozen.in_tiles,
          .of_first = frozen.of_first};
}

int64_t OperandBytes(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const StreamedUnit kept = KeptOnDevice(inputs);
  // The last stage of a pipeline multiplies with a table that the first one looks up.
  const bool tied =
      shape.embeds && HeadOf(shape.spec) != "classification" && !shape.spec.untied_classifier;
  const int64_t table =
      tied ? shape.PaddedClasses() * EmbeddingWidth(shape.spec) / shape.tensor_rows : 0;
  const int64_t direct = shape.stored - shape.packed + table;
  const int64_t vectors = shape.stored - shape.stored_matrices;
  const int64_t tiles = inputs.products == ProductKind::kTiles ? shape.packed_in_tiles : 0;
  const int64_t stored = inputs.OnCuda() ? 0 : shape.packed - tiles;
  // On CUDA products read copies, or what is kept.
  const int64_t kept_multiplied =
      inputs.OnCuda()
          ? 0
          : kept.matrices - (inputs.products == ProductKind::kTiles ? kept.in_tiles : 0);
  return kF32 * (vectors - kept.vectors) +
         ElementBytes(inputs.precision->matrices) *
             (direct - vectors - kept.looked_up + stored - kept_multiplied);
}

int64_t UploadedBytes(const MemoryInputs& inputs) {
  const int64_t operands = OperandBytes(inputs) + BroughtBytes(inputs);
  if (inputs.OnCuda()) return operands + PackedBytes(inputs);
  if (inputs.products != ProductKind::kTiles) return operands;
  return operands + ElementBytes(inputs.precision->products) *
                        (inputs.shape.packed_in_tiles - KeptOnDevice(inputs).in_tiles);
}

int64_t StreamedPeakBytes(const MemoryInputs& inputs) {
  return Streaming(inputs).Peak();
}

int64_t ResidentBytes(const MemoryInputs& inputs) {
  return Streaming(inputs).Staying();
}

StreamedBytes StreamedWholeBytes(const MemoryInputs& inputs) {
  return Streaming(inputs).OverTheLink();
}

StreamedBytes FiledWholeBytes(const MemoryInputs& inputs) {
  return Streaming(inputs).FromFiles();
}

}  // namespace weft
