#pragma once

#include <cstdint>

#include "common/rng.h"

namespace weft::kernels {

/// Dropout of attention's weights, after the softmax and before they sum values: a weight is 0 or
/// itself / (1 - probability). Whether that of a query and a key is dropped follows from `key`, the
/// head, the query's token and the key's index in its sequence alone, so that the backward pass,
/// recomputation, every back end and every split over ranks draw the same, and none keeps a mask.
struct AttentionDropout {
  float probability = 0.0f;  ///< [0, 1), met to 2^-17; 0: nothing is drawn.
  PhiloxKey key;
  const uint32_t* step = nullptr;  ///< Where key.step lies (kernels/step_value.h), or none.
  int64_t first_token = 0;         ///< Index of q's row 0 in the global batch, modulo 2^32.
  int64_t first_head = 0;          ///< Of the model's heads, that of q's first columns.
};

/// Keys whose weights one Philox block decides: key k by the 16 bits k % 8 of the block's 128, the
/// lowest of the first word first. The weight is dropped where they are below the threshold.
inline constexpr int kKeysPerBlock = 8;
/// Bits of the number of a block: the query's token, then k / kKeysPerBlock, then the head.
inline constexpr int kTokenBits = 32, kKeyBlockBits = 20;

/// AttentionDropout as the kernels read it.
struct AttentionDraw {
  PhiloxKey key;
  int32_t threshold = 0;  ///< Of 2^16; 0: nothing is drawn.
  float kept = 1.0f;      ///< 1 - probability
  uint32_t first_token = 0;
  uint32_t first_head = 0;
};

}  // namespace weft::kernels
