#pragma once

#include "kernels/attention_part/attention_part.h"

namespace weft::kernels {

/// What all back ends demand of the arguments.
Status CheckAttendPart(const Stream& stream, const AttendPartArgs& args);
Status CheckAttendPartBackward(const Stream& stream, const AttendPartBackwardArgs& args);

/// No query has a key.
inline bool SeesNothing(const AttendPartArgs& args) {
  return args.query_begin == args.query_end || args.key_begin == args.key_end;
}

/// On a CUDA device queries and keys are cut into blocks of as many tokens each. One block of
/// queries sees one of keys at a time. Where the memory for that lies in the workspace, in bytes.
struct AttendPartBlocks {
  int64_t tokens = 0;  ///< Of a block.
  /// [2] i32, [heads, tokens] f32, and the results in the type of q.
  int64_t starts = 0, log_sum_exp = 0, out = 0, dk = 0, dv = 0, bytes = 0;
};
AttendPartBlocks BlocksOf(const AttendPartArgs& args);

}  // namespace weft::kernels
