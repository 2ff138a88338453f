#include "worker/engine/techniques/peft/merged_weights_cost.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft {
namespace {

/// Two numbers whose product is `size`, as peft splits the side of a weight: `factor` and the rest
/// where it divides `size`; otherwise the most equal ones, the smaller one first, which is at most
/// `factor` (-1: any).
std::pair<int64_t, int64_t> SplitSide(int64_t size, int64_t factor) {
  if (factor > 0 && size % factor == 0) return {factor, size / factor};
  const int64_t most = factor == -1 ? size : factor;
  std::pair<int64_t, int64_t> best = {1, size};
  for (int64_t small = 2; small <= most && small * small <= size; ++small) {
    if (size % small == 0) best = {small, size / small};
  }
  return best;
}

/// Weights that are one product; some of them are targets.
struct Layer {
  int64_t numbers = 0;  ///< Of all its weights.
  std::vector<ParameterInfo> targets = {};
};

/// Calls fn(layer) for each of those of a block.
template <class Fn>
void ForEachLayerOf(const ModelSpec& model, int64_t block, Fn&& fn) {
  Layer layer;
  const auto end_layer = [&] {
    if (!layer.targets.empty()) fn(layer);
    layer = {};
  };
  for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
    if (!weight.block_matrix()) continue;
    if (!weight.stacked) end_layer();
    layer.numbers += weight.Elements();
    if (IsTarget(model, weight)) layer.targets.push_back(weight);
  }
  end_layer();
}

/// The same of all blocks.
template <class Fn>
void ForEachLayer(const ModelSpec& model, const Fn& fn) {
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) ForEachLayerOf(model, block, fn);
}

/// The most rows and columns of a target.
std::array<int64_t, 2> LargestSides(const ModelSpec& model) {
  std::array<int64_t, 2> most = {0, 0};
  ForEachLayer(model, [&](const Layer& layer) {
    for (const ParameterInfo& weight : layer.targets) {
      for (size_t side = 0; side < 2; ++side) {
        most[side] = std::max(most[side], weight.shape[side]);
      }
    }
  });
  return most;
}

/// A tensor that is read for the matrix that products read in place of `weight`.
ParameterInfo MergedTensor(const ParameterInfo& weight, std::string name,
                           std::vector<int64_t> shape, AdapterSide side, bool of_whole_weight) {
  ParameterInfo info = weight;
  info.name = std::move(name);
  info.shape = std::move(shape);
  info.parts.clear();
  info.adapter = side;
  info.read_directly = true;
  info.merged = true;
  info.of_whole_weight = of_whole_weight;
  return info;
}

/// An operand of f32 products [rows, columns], and its copy in whole blocks of 64 rows.
int64_t OperandNumbers(int64_t rows, int64_t columns) {
  return (rows + (rows + 63) / 64 * 64) * columns;
}

/// Numbers that MergedWeight::Gradients wants at a time.
int64_t NumbersInFlight(const PeftSpec& spec, const ParameterInfo& weight) {
  const int64_t out = weight.shape[0], in = weight.shape[1], rank = RankOf(spec, weight.name);
  if (spec.method == "loha") return weight.Elements() + OperandNumbers(rank, in);
  if (spec.method == "vera") return 2 * out * rank + OperandNumbers(rank, in);
  if (spec.method == "oft") return (in + out) * spec.oft_block_size;
  const KroneckerSizes sizes = KroneckerOf(spec, weight);
  return weight.Elements() + OperandNumbers(1, sizes.out[1] * sizes.in[1]);
}

}  // namespace

bool MergesWeights(const PeftSpec& spec) {
  return spec.method == "loha" || spec.method == "lokr" || spec.method == "oft" ||
         spec.method == "vera";
}

KroneckerSizes KroneckerOf(const PeftSpec& spec, const ParameterInfo& weight) {
  const auto [out_first, out_second] = SplitSide(weight.shape[0], spec.decompose_factor);
  const auto [in_first, in_second] = SplitSide(weight.shape[1], spec.decompose_factor);
  KroneckerSizes sizes{.out = {out_first, out_second},
                       .in = {in_first, in_second},
                       .rank = RankOf(spec, weight.name)};
  for (size_t i = 0; i < 2; ++i) {
    const bool large = 2 * sizes.rank < std::max(sizes.out[i], sizes.in[i]);
    sizes.factored[i] = large && (i == 1 || spec.decompose_both);
  }
  return sizes;
}

std::vector<ParameterInfo> MergedTensors(const ModelSpec& model, const ParameterInfo& weight) {
  using enum AdapterSide;
  const PeftSpec& spec = model.peft;
  const int64_t out = weight.shape[0], in = weight.shape[1];
  const int64_t rank = RankOf(spec, weight.name);
  const std::string layer = LayerOf(weight.name) + ".";
  std::vector<ParameterInfo> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, AdapterSide side,
                       bool of_whole_weight = true) {
    tensors.push_back(MergedTensor(weight, name, std::move(shape), side, of_whole_weight));
  };
  const auto add_zero = [&](const std::string& name, std::vector<int64_t> shape, AdapterSide side,
                            bool of_whole_weight = true) {
    add(name, std::move(shape), side, of_whole_weight);
    tensors.back().starts_at_zero = true;
  };
  if (spec.method == "oft") {
    const int64_t size = spec.oft_block_size;
    const int64_t blocks = std::max<int64_t>(in / size, 1);  // CheckMerge refuses larger ones
    add_zero(layer + "oft_R.weight", {blocks, size * (size - 1) / 2}, kInput);
  } else if (spec.method == "loha") {
    add(layer + "hada_w1_a", {out, rank}, kOutput, false);
    add(layer + "hada_w1_b", {rank, in}, kInput, false);
    add(layer + "hada_w2_a", {out, rank}, kOutput, false);
    add_zero(layer + "hada_w2_b", {rank, in}, kInput, false);
  } else if (spec.method == "vera") {
    add_zero(layer + "vera_lambda_b", {out}, kOutput, false);
    add(layer + "vera_lambda_d", {rank}, kInput);
  } else {
    const KroneckerSizes sizes = KroneckerOf(spec, weight);
    for (size_t i = 0; i < 2; ++i) {
      const std::string name = layer + "lokr_w" + std::to_string(i + 1);
      const bool factored = sizes.factored[i];
      add(name + (factored ? "_a" : ""), {sizes.out[i], factored ? sizes.rank : sizes.in[i]},
          kOutput);
      tensors.back().starts_at_zero = i == 0;
      if (factored) add(name + "_b", {sizes.rank, sizes.in[i]}, kInput);
    }
  }
  return tensors;
}

std::vector<ParameterInfo> SharedFactors(const ModelSpec& model, const ParameterInfo& weight) {
  const int64_t rank = model.peft.rank;
  const std::array<int64_t, 2> most = LargestSides(model);
  std::vector<ParameterInfo> factors = {
      MergedTensor(weight, kVeraA, {rank, most[1]}, AdapterSide::kInput, true),
      MergedTensor(weight, kVeraB, {most[0], rank}, AdapterSide::kOutput, true)};
  for (ParameterInfo& factor : factors) factor.replicated = true;
  return factors;
}

bool IsFirstTarget(const ModelSpec& model, const ParameterInfo& weight) {
  for (int64_t block = 0; block <= weight.block; ++block) {
    for (const ParameterInfo& each : PlainBlockParameters(model, block)) {
      if (IsTarget(model, each)) return each.name == weight.name;
    }
  }
  return false;
}

Status CheckMerge(const PeftSpec& spec, const ParameterInfo& weight) {
  if (spec.method != "oft" || weight.shape[1] % spec.oft_block_size == 0) return OkStatus();
  return InvalidError("model.peft.oft_block_size " + std::to_string(spec.oft_block_size) +
                      " does not divide the " + std::to_string(weight.shape[1]) + " inputs of " +
                      weight.name + "; hint: a divisor, or other target_modules");
}

Status CheckMergeOnRanks(const JobSpec& job) {
  const int64_t ranks = job.resources.tensor_parallel, size = job.model.peft.oft_block_size;
  if (job.model.peft.method != "oft" || ranks <= 1) return OkStatus();
  Status status;
  ForEachLayer(job.model, [&](const Layer& layer) {
    for (const ParameterInfo& weight : layer.targets) {
      if (!status.ok() || !EndsSubLayer(weight.role)) continue;
      if (weight.shape[1] / ranks % size == 0) continue;
      status =
          InvalidError("resources.tensor_parallel " + std::to_string(ranks) + " has ranks with " +
                       std::to_string(weight.shape[1] / ranks) + " inputs of " + weight.name +
                       ", and model.peft.oft_block_size " + std::to_string(size) +
                       " does not divide them; hint: a divisor, or fewer ranks");
    }
  });
  return status;
}

int64_t MergedGradientNumbers(const ModelSpec& model, SubLayer sub_layer) {
  int64_t most = 0;
  ForEachLayer(model, [&](const Layer& layer) {
    for (const ParameterInfo& weight : layer.targets) {
      const bool of_mlp = IsMlp(weight.role);
      if (of_mlp != (sub_layer == SubLayer::kMlp)) continue;
      most = std::max(most, weight.Elements() + NumbersInFlight(model.peft, weight));
    }
  });
  return most;
}

std::vector<Gemm> MergeProducts(const PeftSpec& spec, const ParameterInfo& weight) {
  const auto product = [&](int64_t m, int64_t n, int64_t k, int64_t count) {
    return Gemm{weight.role, GemmPass::kForward, m, n, k, count};
  };
  const int64_t out = weight.shape[0], in = weight.shape[1], rank = RankOf(spec, weight.name);
  if (spec.method == "loha") return {product(out, in, rank, 2)};
  if (spec.method == "vera") return {product(out, in, rank, 1)};
  if (spec.method == "oft") {
    return {product(out, spec.oft_block_size, spec.oft_block_size, in / spec.oft_block_size)};
  }
  const KroneckerSizes sizes = KroneckerOf(spec, weight);
  std::vector<Gemm> products = {
      product(sizes.out[0] * sizes.in[0], sizes.out[1] * sizes.in[1], 1, 1)};
  for (size_t i = 0; i < 2; ++i) {
    if (sizes.factored[i]) products.push_back(product(sizes.out[i], sizes.in[i], rank, 1));
  }
  return products;
}

// W is read once, and W' written, read again and packed. The rest are passes over matrices of its
// size on the way.
void AddWorkOfMerging(const ModelSpec& model, StepWork& work) {
  const std::string& method = model.peft.method;
  const double passes = method == "loha" ? 8 : method == "lokr" ? 6 : method == "oft" ? 4 : 2;
  ForEachLayer(model, [&](const Layer& layer) {
    work.parameter_numbers += static_cast<double>(layer.numbers);
    work.f32_numbers += 2 * static_cast<double>(layer.numbers);
    for (const ParameterInfo& weight : layer.targets) {
      work.f32_numbers += passes * static_cast<double>(weight.Elements());
      const std::vector<Gemm> products = MergeProducts(model.peft, weight);
      work.products.insert(work.products.end(), products.begin(), products.end());
    }
  });
}

int64_t MergedNumbersOf(const ModelSpec& model, int64_t block) {
  int64_t sum = 0;
  ForEachLayerOf(model, block, [&](const Layer& layer) { sum += layer.numbers; });
  return sum;
}

int64_t LargestMerged(const ModelSpec& model) {
  int64_t most = 0;
  ForEachLayer(model, [&](const Layer& layer) { most = std::max(most, layer.numbers); });
  return most;
}

}  // namespace weft
