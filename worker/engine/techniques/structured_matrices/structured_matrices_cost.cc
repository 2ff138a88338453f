#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/name_patterns.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"

namespace weft {

const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();

namespace {

using namespace features;

bool Asks(const ModelSpec& model) {
  return model.structured_matrices.kind != "none";
}

/// Which parameters of block `index` are structured, in their order: the same in all blocks.
std::vector<bool> StructuredPlaces(const ModelSpec& model, int64_t index) {
  std::vector<bool> structured;
  for (const ParameterInfo& parameter : PlainBlockParameters(model, index)) {
    structured.push_back(IsStructured(model, parameter));
  }
  return structured;
}

bool BlocksDiffer(const ModelSpec& model) {
  if (!Asks(model) || model.structured_matrices.layers.empty()) return false;
  const std::vector<bool> first = StructuredPlaces(model, 0);
  for (int64_t block = 1; block < DistinctBlocks(model); ++block) {
    if (StructuredPlaces(model, block) != first) return true;
  }
  return false;
}

const Feature kStructuredMatrices = {.name = "structured matrices",
                                     .setting = "model.structured_matrices",
                                     .asked = [](const JobSpec& job) { return Asks(job.model); },
                                     .shown =
                                         [](const JobSpec& job) {
                                           return "model.structured_matrices " +
                                                  job.model.structured_matrices.kind;
                                         }};

const Feature kSettings[] = {
    {.name = "structured matrices in some blocks",
     .setting = "model.structured_matrices.layers that name some blocks",
     .asked = [](const JobSpec& job) { return BlocksDiffer(job.model); },
     .shown = [](const JobSpec&) { return std::string("model.structured_matrices.layers"); }}};
const Feature& kInSomeBlocks = kSettings[0];

Status CheckPixelfly(const StructuredMatricesSpec& spec, const ParameterInfo& weight) {
  const std::string shape = weight.name + " [" + std::to_string(weight.shape[0]) + ", " +
                            std::to_string(weight.shape[1]) + "]";
  if (spec.block_size % 16 != 0 || weight.shape[0] % spec.block_size != 0 ||
      weight.shape[1] % spec.block_size != 0) {
    return InvalidError("model.structured_matrices.block_size " + std::to_string(spec.block_size) +
                        " does not fit " + shape +
                        ": it must be a multiple of 16 that divides both sides; hint: 16 or 32");
  }
  if (PixelflyOf(spec, weight.shape).stride > 0) return OkStatus();
  return InvalidError("model.structured_matrices.density has no room for the diagonal blocks of " +
                      shape + "; hint: a higher one");
}

Status CheckSizes(const ModelSpec& model) {
  const int64_t blocks = model.structured_matrices.blocks;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
      if (!IsStructured(model, weight)) continue;
      if (model.structured_matrices.kind == "pixelfly") {
        WEFT_RETURN_IF_ERROR(CheckPixelfly(model.structured_matrices, weight));
        continue;
      }
      const auto [smaller, larger] = std::minmax(weight.shape[0], weight.shape[1]);
      if (smaller % (blocks * blocks) == 0 && larger % blocks == 0) continue;
      return InvalidError(
          "model.structured_matrices.blocks " + std::to_string(blocks) + " does not fit " +
          weight.name + " [" + std::to_string(weight.shape[0]) + ", " +
          std::to_string(weight.shape[1]) +
          "]: its square must divide the smaller side, and it the larger one; hint: 2 or 4, or "
          "sizes of the model that are multiples");
    }
  }
  return OkStatus();
}

/// Rows of a weight, or columns where it ends a sub-layer, that tensor-parallel ranks cut evenly.
std::vector<int64_t> PartsOfCutSide(const ParameterInfo& weight) {
  const bool rows = !EndsSubLayer(weight.role);
  if (rows && !weight.parts.empty()) return weight.parts;
  return {weight.shape[rows ? 0 : 1]};
}

/// Each of `columns` tensor-parallel ranks has whole blocks of the side of a weight that is cut.
Status CheckMonarchRanks(const StructuredMatricesSpec& spec, const ParameterInfo& weight,
                         int64_t columns) {
  const MonarchSizes size = MonarchOf(spec, weight.shape);
  const bool rows = !EndsSubLayer(weight.role);
  const int64_t of_block = rows ? size.out : size.in;
  for (const int64_t part : PartsOfCutSide(weight)) {
    if (part % (columns * of_block) == 0) continue;
    return InvalidError("model.structured_matrices.blocks " + std::to_string(spec.blocks) +
                        " has " + std::to_string(of_block) + (rows ? " rows" : " columns") +
                        " of " + weight.name + " in a block, and " + std::to_string(columns) +
                        " tensor-parallel ranks would cut blocks; hint: more blocks, fewer "
                        "of these ranks, or model.structured_matrices.layers without this "
                        "weight");
  }
  return OkStatus();
}

/// The same, and as many blocks of the butterfly as each other.
Status CheckPixelflyRanks(const StructuredMatricesSpec& spec, const ParameterInfo& weight,
                          int64_t columns) {
  const PixelflySizes size = PixelflyOf(spec, weight.shape);
  const bool rows = !EndsSubLayer(weight.role);
  const auto refusal = [&](const std::string& what) {
    return InvalidError("model.structured_matrices.block_size " + std::to_string(spec.block_size) +
                        ": " + std::to_string(columns) + " tensor-parallel ranks would " + what +
                        " of " + weight.name +
                        "; hint: sides of weights that are a power of two of blocks, fewer of "
                        "these ranks, or model.structured_matrices.layers without this weight");
  };
  std::vector<int64_t> rank_of;  // by line of the grid
  for (const int64_t part : PartsOfCutSide(weight)) {
    if (part % (columns * size.size) != 0) return refusal("cut blocks");
    const int64_t lines = part / (columns * size.size);
    for (int64_t line = 0; line < columns * lines; ++line) rank_of.push_back(line / lines);
  }
  std::vector<int64_t> blocks(static_cast<size_t>(columns), 0);
  for (const PixelflySizes::Place& place : size.Places()) {
    const int64_t rank = rank_of[static_cast<size_t>(rows ? place.row : place.column)];
    ++blocks[static_cast<size_t>(rank)];
  }
  const bool alike =
      std::adjacent_find(blocks.begin(), blocks.end(), std::not_equal_to<>()) == blocks.end();
  return alike ? OkStatus() : refusal("have different numbers of the blocks");
}

std::vector<Refusal> Rows() {
  std::vector<Refusal> rows = {
      {&kStructuredMatrices, &kTensorParallel2d,
       "blocks would have to be cut along both sides of a weight", "resources.tensor_rows 1"},
      {&kStructuredMatrices, &kExperts, kDenseLayersAlone, kOneOfTwo},
      {&kStructuredMatrices, &kOffloadParameters, kOnDeviceAlone,
       "resources.offload_parameters none"},
      {&kStructuredMatrices, &OverParameterizationTechniqueCost().feature(),
       "one makes a weight of more numbers, the other of fewer", kOneOfTwo},
      {&kStructuredMatrices, &Sparse24TechniqueCost().feature(), kOneProducts, kOneOfTwo},
  };
  // Formats of products that are techniques themselves.
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() == nullptr) continue;
    rows.push_back(
        {&kStructuredMatrices, &technique->feature(), kOneProducts, "train.precision bf16"});
  }
  rows.push_back({&kInSomeBlocks, &kPipelineParallel, "all stages have equal blocks",
                  "patterns that name the same weights of all blocks"});
  return rows;
}

class StructuredMatricesCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "structured_matrices"; }
  const Feature& feature() const override { return kStructuredMatrices; }
  std::span<const Feature> settings() const override { return kSettings; }

  std::span<const Refusal> refusals() const override {
    static const std::vector<Refusal> rows = Rows();
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const StructuredMatricesSpec& spec = job.model.structured_matrices;
    const StructuredMatricesSpec unset;
    if (spec.kind == "none") {
      const bool sets = !spec.layers.empty() || spec.blocks != unset.blocks ||
                        spec.block_size != unset.block_size || spec.density != unset.density ||
                        spec.low_rank_share != unset.low_rank_share;
      if (!sets) return OkStatus();
      return InvalidError(
          "model.structured_matrices has settings and no kind; hint: "
          "model.structured_matrices.kind monarch or pixelfly");
    }
    if (!job.model.import_path.empty()) return OkStatus();  // its sizes are not known yet
    WEFT_RETURN_IF_ERROR(CheckMatrixPatterns("model.structured_matrices.layers", spec.layers,
                                             job.model, /*trained=*/false));
    return CheckSizes(job.model);
  }

  std::vector<ParameterInfo> ReplacementsOf(const ModelSpec& model,
                                            const ParameterInfo& weight) const override {
    if (!IsStructured(model, weight)) return {};
    return StructuredTensors(model.structured_matrices, weight);
  }

  Status CheckTensorParallel(const ModelSpec& model, int64_t columns) const override {
    const StructuredMatricesSpec& spec = model.structured_matrices;
    if (!Asks(model)) return OkStatus();
    for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
      for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
        if (!IsStructured(model, weight)) continue;
        WEFT_RETURN_IF_ERROR(spec.kind == "monarch" ? CheckMonarchRanks(spec, weight, columns)
                                                    : CheckPixelflyRanks(spec, weight, columns));
      }
      if (!BlocksDiffer(model)) break;
    }
    return OkStatus();
  }

  // Monarch has two tensors between the factors at a time, and in the backward pass the gradient of
  // one more; pixelfly has one, and its gradient.
  ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer,
                                     int64_t columns) const override {
    const StructuredMatricesSpec& spec = model.structured_matrices;
    if (!Asks(model)) return {};
    const bool monarch = spec.kind == "monarch";
    ProductNumbers most;
    for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
      int64_t largest = 0, all = 0;
      for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
        const bool here =
            sub_layer == SubLayer::kMlp ? IsMlp(weight.role) : IsAttention(weight.role);
        if (!here || !IsStructured(model, weight)) continue;
        const int64_t middle = monarch ? MonarchOf(spec, weight.shape).Middle() / columns
                                       : PixelflyOf(spec, weight.shape).rank;
        largest = std::max(largest, middle);
        all += middle;
      }
      most.forward = std::max(most.forward, (monarch ? 2 : 1) * largest);
      most.backward = std::max(most.backward, (monarch ? 3 : 2) * largest);
      most.deferred = std::max(most.deferred, all);
      if (!BlocksDiffer(model)) break;
    }
    return most;
  }

  bool DiffersByBlock(const ModelSpec& model) const override { return BlocksDiffer(model); }
};

}  // namespace

const TechniqueCost& StructuredMatricesTechniqueCost() {
  static const StructuredMatricesCost cost;
  return cost;
}

MonarchSizes MonarchOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape) {
  return {.blocks = spec.blocks,
          .in = shape[1] / spec.blocks,
          .out = shape[0] / spec.blocks,
          .rank = std::min(shape[0], shape[1]) / (spec.blocks * spec.blocks)};
}

bool IsStructured(const ModelSpec& model, const ParameterInfo& weight) {
  const StructuredMatricesSpec& spec = model.structured_matrices;
  if (spec.kind == "none" || !weight.block_matrix()) return false;
  if (spec.layers.empty()) return IsMlp(weight.role);
  return MatchesAny(spec.layers, weight.name);
}

namespace {

/// N of PixelflySizes.
int64_t SideOfButterfly(const PixelflySizes& size) {
  int64_t side = 1;
  while (2 * side <= std::min(size.rows, size.columns)) side *= 2;
  return side;
}

/// Lines of a side of the grid that come to line `of` of N.
int64_t StretchedTo(int64_t of, int64_t side, int64_t lines) {
  const auto first = [&](int64_t line) { return (line * lines + side - 1) / side; };
  return first(of + 1) - first(of);
}

}  // namespace

std::vector<PixelflySizes::Place> PixelflySizes::Places() const {
  const int64_t side = SideOfButterfly(*this);
  std::vector<Place> places;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t bits = i * side / rows ^ j * side / columns;
      if ((bits & (bits - 1)) == 0 && bits < stride) places.push_back({i, j});
    }
  }
  return places;
}

PixelflySizes PixelflyOf(const StructuredMatricesSpec& spec, const std::vector<int64_t>& shape) {
  PixelflySizes result{.size = spec.block_size,
                       .rows = shape[0] / spec.block_size,
                       .columns = shape[1] / spec.block_size};
  const auto budget = static_cast<int64_t>(spec.density * static_cast<double>(shape[0]) *
                                           static_cast<double>(shape[1]));
  const int64_t sides = shape[0] + shape[1];
  const auto rank = static_cast<int64_t>(spec.low_rank_share * static_cast<double>(budget)) / sides;
  result.rank = rank / spec.block_size * spec.block_size;
  const int64_t side = SideOfButterfly(result);
  // Blocks whose places differ in the bits of `bits`.
  const auto apart = [&](int64_t bits) {
    int64_t blocks = 0;
    for (int64_t i = 0; i < side; ++i) {
      blocks += StretchedTo(i, side, result.rows) * StretchedTo(i ^ bits, side, result.columns);
    }
    return blocks;
  };
  int64_t blocks = apart(0);
  for (int64_t stride = 1; stride <= side; stride *= 2) {
    if (blocks * result.size * result.size + result.rank * sides > budget) break;
    result.stride = stride;
    result.blocks = blocks;
    blocks += apart(stride);
  }
  return result;
}

namespace {

std::vector<ParameterInfo> PixelflyTensors(const StructuredMatricesSpec& spec,
                                           const ParameterInfo& weight) {
  const PixelflySizes size = PixelflyOf(spec, weight.shape);
  const auto tensor = [&](const std::string& name, int64_t rows, int64_t columns) {
    ParameterInfo info = weight;
    info.name += "." + name;
    info.shape = {rows, columns};
    info.parts.clear();
    return info;
  };
  std::vector<ParameterInfo> tensors = {
      tensor("pixelfly_blocks", size.blocks * size.size, size.size)};
  tensors[0].parts.assign(static_cast<size_t>(size.blocks), size.size);
  tensors[0].products = size.blocks;
  tensors[0].read_directly = true;
  // Tensor-parallel ranks have blocks in the lines of the side of the weight that is cut,
  const bool ends = EndsSubLayer(weight.role);
  tensors[0].factor = ends ? FactorSide::kInput : FactorSide::kOutput;
  if (size.rank == 0) return tensors;
  tensors.push_back(tensor("pixelfly_in", size.rank, weight.shape[1]));
  tensors.push_back(tensor("pixelfly_out", weight.shape[0], size.rank));
  tensors[1].more_products = 1;
  // a part of the factor with that side, and all of the other one.
  tensors[ends ? 2 : 1].of_whole_weight = true;
  return tensors;
}

}  // namespace

std::vector<ParameterInfo> StructuredTensors(const StructuredMatricesSpec& spec,
                                             const ParameterInfo& weight) {
  if (spec.kind == "pixelfly") return PixelflyTensors(spec, weight);
  const MonarchSizes size = MonarchOf(spec, weight.shape);
  const auto factor = [&](const std::string& name, int64_t rows, int64_t columns) {
    ParameterInfo info = weight;
    info.name += "." + name;
    info.shape = {size.blocks * rows, columns};
    info.parts.assign(static_cast<size_t>(size.blocks), rows);
    info.products = size.blocks;
    return info;
  };
  std::vector<ParameterInfo> factors = {
      factor("monarch_first", size.blocks * size.rank, size.in),
      factor("monarch_second", size.out, size.blocks * size.rank)};
  factors[0].more_products = 1;
  factors[0].factor = FactorSide::kInput;
  factors[1].factor = FactorSide::kOutput;
  return factors;
}

}  // namespace weft
