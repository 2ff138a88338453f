#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/plan.h"
#include "common/status.h"

namespace weft {

/// What the forward pass over the blocks of a model does with one of them, or with several that are
/// recomputed at once.
struct RematStep {
  enum class Kind : uint8_t {
    kKeep,       ///< The block keeps what its backward pass needs.
    kAttention,  ///< All but the inside of attention: queries, keys, values and its result.
    kSegment,    ///< The blocks keep the input of the first alone, and are run again.
  };
  Kind kind = Kind::kKeep;
  int64_t first = 0;
  int64_t count = 1;
  /// The pass over the blocks of a segment that its backward pass begins with.
  std::vector<RematStep> replay = {};

  /// Where what the step keeps waits on the host: the step, by its index, after whose forward pass
  /// it has left the device, and the one whose backward pass overlaps with its return. Both are
  /// later ones. -1: it stays on the device.
  int64_t sent = -1;
  int64_t fetched = -1;

  int64_t end() const { return first + count; }
  bool offloaded() const { return sent >= 0; }
  bool operator==(const RematStep&) const = default;
};

/// A forward pass over successive blocks; each block is in one step. Its backward pass takes the
/// steps in reverse. Replays keep all that they keep on the device.
using RematPlan = std::vector<RematStep>;

/// The plan of policies of blocks ("recompute", "attention"; all others keep, as do blocks past
/// their end): neighbours that are recomputed form segments of `segment` blocks, counted from the
/// first of them.
RematPlan RematOfPolicies(const std::vector<std::string>& policies, int64_t layers,
                          int64_t segment);

/// The plan with everything that its steps save on the host in between, except the last step's:
/// sent by the end of the next step's forward pass, and back during its backward pass.
RematPlan AllOnHost(RematPlan plan);

/// Whether something that a step keeps leaves the device.
bool Transfers(const RematPlan& plan);

/// The policy of each block in the forward pass.
std::vector<std::string> PoliciesOf(const RematPlan& plan);

/// Lists the operations on blocks, in order, in the words of Beaumont et al. (arXiv 1911.13214):
/// "F_all 3" runs a block and keeps what its backward pass needs, "F_attention 3" all but the
/// inside of attention, "F_ck 3" its input, "F_none 3" nothing; "B 3" is its backward pass. The
/// loss comes before the first "B". "F_all_host 3", "F_attention_host 3" and "F_ck_host 3" also
/// begin to send what they keep to the host; "sent 3" waits until it has arrived and frees its
/// memory, "fetch 3" allocates memory again and begins to bring it back, and its reader waits.
std::vector<std::string> RematOperations(const RematPlan& plan);

/// The plan with these operations on blocks 0 to `layers` - 1. kInvalid names the first one that is
/// not possible at its place.
Result<RematPlan> ParseRemat(const std::vector<std::string>& operations, int64_t layers);

/// Reads a plan: its recompute_schedule, or else its block_memory_policy and recompute_segment with
/// all on the host where offload_activations says so. kInvalid where a schedule sends and
/// offload_activations is none.
Result<RematPlan> RematOf(const Plan& plan, int64_t layers);

/// Cuts a plan of all blocks for a stage of a pipeline, which has `blocks` of them from block
/// `first` on, as a plan of its blocks alone. kInvalid where a step has blocks of two stages, or
/// sends what it keeps.
Result<RematPlan> StageOf(const RematPlan& plan, int64_t first, int64_t blocks);

/// The plan of all blocks that says so of each stage.
RematPlan OfStages(const std::vector<RematPlan>& stages);

/// Number of forward passes of blocks in the backward pass; those of attention alone do not count.
int64_t ReplayedBlocks(const RematPlan& plan);

/// Blocks of steps that send what they keep to the host.
int64_t SentBlocks(const RematPlan& plan);

/// Number of times that the attention alone of a block is recomputed.
int64_t ReplayedAttentions(const RematPlan& plan);

}  // namespace weft
