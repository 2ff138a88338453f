#pragma once

#include <cstdint>

#include "kernels/stream.h"

namespace weft::kernels {

/// Chooses for each token the `k` experts with the largest probabilities, those of a softmax over
/// all experts; of equal ones the first. Their weights are these probabilities over their sum
/// (Jiang et al. 2024, arXiv 2401.04088, section 2.1), or the probabilities themselves (Fedus et
/// al. 2021, arXiv 2101.03961, section 2.1). Computed in f32. A token of padding goes to no expert:
/// it has chosen -1, and its probabilities and weights are 0, so it has no gradient either.
struct MoeRouteArgs {
  TensorView logits;         ///< [tokens, experts] f32, bf16 or f16
  TensorView probabilities;  ///< [tokens, experts] f32
  TensorView chosen;         ///< [tokens, k] i32, the most probable first; k up to experts
  TensorView weights;        ///< [tokens, k] f32
  /// [sequences] i32: tokens that are not padding, at the begin of each of this many equal parts of
  /// the tokens. None: there is no padding.
  TensorView lengths = {};
  bool normalize = true;  ///< Whether the weights of a token add up to 1.
};

/// Gradient of the logits from that of the weights, and from a loss that has the gradient
/// `balance[e]` in the probability of expert e for every token: of load balancing (Fedus et al.
/// 2021, arXiv 2101.03961, section 2.2). The choice has no gradient.
struct MoeRouteBackwardArgs {
  TensorView probabilities;  ///< As MoeRoute has left them, as the two below.
  TensorView chosen;
  TensorView weights;
  TensorView dweights;    ///< [tokens, k] f32
  TensorView balance;     ///< [experts] f32
  TensorView dlogits;     ///< [tokens, experts] f32, bf16 or f16
  bool normalize = true;  ///< As in MoeRoute.
};

/// Gives each choice of an expert a place in the order by expert and, of the same expert, by token.
/// With a capacity, or one of its own, an expert takes as many of its first ones and drops the
/// others.
struct MoeDispatchArgs {
  /// [tokens, k] i32, each in [0, experts), those of a token distinct; or -1: none, which takes no
  /// place and is not counted.
  TensorView chosen;
  int64_t capacity = 0;        ///< 0: no limit.
  TensorView capacities = {};  ///< [experts] i32: in its place those of the experts, or none.
  TensorView rows;          ///< [tokens * k] i32: the token in each place; behind the last one -1
  TensorView places;        ///< [tokens, k] i32: the place of each choice; -1: dropped, or none
  TensorView wanted_count;  ///< [experts] i32: choices of each expert ...
  TensorView taken_count;   ///< [experts] i32: ... and those that have a place.
};

/// Tensors but logits are contiguous; shapes that do not fit are kInvalid, and so is an expert out
/// of range, which is named; on a CUDA device, which cannot stop, that choice has no place. There
/// are at most 2048 experts there.
WEFT_DEVICE_OP(MoeRoute, MoeRouteArgs)
WEFT_DEVICE_OP(MoeRouteBackward, MoeRouteBackwardArgs)
WEFT_DEVICE_OP(MoeDispatch, MoeDispatchArgs)

}  // namespace weft::kernels
