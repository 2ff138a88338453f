#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/model/technique_cost.h"
#include "common/spec/model_spec.h"
#include "common/status.h"

namespace weft {

/// Whether products of a layer read a matrix that is computed from its weight and the tensors
/// besides it (loha, lokr, oft, vera). Tokens are not multiplied by these tensors.
bool MergesWeights(const PeftSpec& spec);

/// The factors of vera, [rank, in] and [out, rank] for the largest `in` and `out` of the targets,
/// which all layers share (ParameterInfo::replicated). They are not trained, and the first target
/// has them.
inline constexpr char kVeraA[] = "vera_A";
inline constexpr char kVeraB[] = "vera_B";

/// Sizes of lokr besides a weight [out, in]: it gets scale kron(W1, W2) with W1 [out[0], in[0]] and
/// W2 [out[1], in[1]], each a matrix or a product of two factors of this rank.
struct KroneckerSizes {
  std::array<int64_t, 2> out = {1, 1};
  std::array<int64_t, 2> in = {1, 1};
  int64_t rank = 1;
  std::array<bool, 2> factored = {false, false};
};
KroneckerSizes KroneckerOf(const PeftSpec& spec, const ParameterInfo& weight);

/// AdapterOf for these methods, without what all layers share. As in peft, one tensor of each
/// adapter starts at zero.
std::vector<ParameterInfo> MergedTensors(const ModelSpec& model, const ParameterInfo& weight);

/// vera_A and vera_B, as the layer of `weight` has them besides it.
std::vector<ParameterInfo> SharedFactors(const ModelSpec& model, const ParameterInfo& weight);

/// Whether this weight of block weight.block is the first target of the network.
bool IsFirstTarget(const ModelSpec& model, const ParameterInfo& weight);

/// kInvalid where oft cannot cut the inputs of `weight` into its blocks.
Status CheckMerge(const PeftSpec& spec, const ParameterInfo& weight);

/// kInvalid where tensor-parallel ranks would cut a block of oft.
Status CheckMergeOnRanks(const JobSpec& job);

/// Numbers of f32 that the gradients of an adapter in this sub-layer want at most: that of its
/// weight, and what is on the way to those of its tensors.
int64_t MergedGradientNumbers(const ModelSpec& model, SubLayer sub_layer);

/// The products in f32 that make what an adapter adds to `weight`.
std::vector<Gemm> MergeProducts(const PeftSpec& spec, const ParameterInfo& weight);

/// Adds those of all adapters, and the numbers that they read and write.
void AddWorkOfMerging(const ModelSpec& model, StepWork& work);

/// Numbers of the layers with adapters: of a block all together (TechniqueCost::MergedNumbers), or
/// of the largest one.
int64_t MergedNumbersOf(const ModelSpec& model, int64_t block);
int64_t LargestMerged(const ModelSpec& model);

}  // namespace weft
