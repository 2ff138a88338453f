#include "common/model/remat_schedule.h"

#include <algorithm>
#include <deque>
#include <string_view>
#include <utility>

namespace weft {
namespace {

using Kind = RematStep::Kind;

RematPlan Kept(int64_t first, int64_t end) {
  RematPlan plan;
  for (int64_t i = first; i < end; ++i) plan.push_back({Kind::kKeep, i, 1, {}});
  return plan;
}

std::string Operation(std::string_view name, int64_t block) {
  return std::string(name) + " " + std::to_string(block);
}

std::string_view ForwardName(Kind kind) {
  switch (kind) {
    case Kind::kKeep:
      return "F_all";
    case Kind::kAttention:
      return "F_attention";
    case Kind::kSegment:
      return "F_ck";
  }
  return "";
}

void Append(const RematPlan& plan, std::vector<std::string>& operations) {
  const auto size = std::ssize(plan);
  for (int64_t index = 0; index < size; ++index) {
    const RematStep& step = plan[static_cast<size_t>(index)];
    const std::string name(ForwardName(step.kind));
    operations.push_back(Operation(name + (step.offloaded() ? "_host" : ""), step.first));
    for (int64_t i = step.first + 1; i < step.end(); ++i) {
      operations.push_back(Operation("F_none", i));
    }
    for (const RematStep& other : plan) {
      if (other.sent == index) operations.push_back(Operation("sent", other.first));
    }
  }
  for (int64_t index = size; index-- > 0;) {
    for (auto other = plan.rbegin(); other != plan.rend(); ++other) {
      if (other->fetched == index) operations.push_back(Operation("fetch", other->first));
    }
    const RematStep& step = plan[static_cast<size_t>(index)];
    if (step.kind == Kind::kSegment) {
      Append(step.replay, operations);
    } else {
      operations.push_back(Operation("B", step.first));
    }
  }
}

/// The steps with blocks that are counted from elsewhere.
void Shift(RematPlan& plan, int64_t blocks) {
  for (RematStep& step : plan) {
    step.first += blocks;
    Shift(step.replay, blocks);
  }
}

/// Reads operations one after the other.
class Parser {
 public:
  explicit Parser(const std::vector<std::string>& operations) : operations_(operations) {}

  /// The forward and backward passes over all blocks.
  Result<RematPlan> All(int64_t layers) {
    RematPlan plan;
    std::deque<size_t> in_transfer;  // in the order in which they leave
    for (int64_t block = 0; block < layers;) {
      WEFT_ASSIGN_OR_RETURN(RematStep step, Forward(block, layers, true));
      block = step.end();
      if (step.offloaded()) {
        if (block == layers) {
          return InvalidError("plan.recompute_schedule: what block " + std::to_string(step.first) +
                              " keeps is read first in the backward pass, and cannot be sent");
        }
        in_transfer.push_back(plan.size());
      }
      plan.push_back(std::move(step));
      while (!in_transfer.empty() && in_transfer.front() + 1 < plan.size() &&
             Take("sent", plan[in_transfer.front()].first)) {
        plan[in_transfer.front()].sent = std::ssize(plan) - 1;
        in_transfer.pop_front();
      }
    }
    if (!in_transfer.empty()) {
      return Unexpected(Operation("sent", plan[in_transfer.front()].first) +
                        " before the backward pass");
    }
    for (size_t index = plan.size(); index-- > 0;) {
      WEFT_RETURN_IF_ERROR(Fetches(plan, index));
      WEFT_RETURN_IF_ERROR(Backward(plan[index]));
    }
    return plan;
  }

  Status End() const { return at_ == operations_.size() ? OkStatus() : Unexpected("no more"); }

 private:
  /// Those that begin with the backward pass of a step: of steps before it, the latest first.
  Status Fetches(RematPlan& plan, size_t index) {
    if (plan[index].offloaded() && plan[index].fetched < 0) {
      return Unexpected(Operation("fetch", plan[index].first) + " with the backward pass of a " +
                        "later block");
    }
    for (size_t i = index; i-- > 0;) {
      RematStep& step = plan[i];
      if (!step.offloaded() || step.fetched >= 0) continue;
      if (!Take("fetch", step.first)) break;
      step.fetched = static_cast<int64_t>(index);
    }
    return OkStatus();
  }

  /// A step from `block` on, of blocks before `end`; one that sends where that `may` be.
  Result<RematStep> Forward(int64_t block, int64_t end, bool may) {
    RematStep step{Kind::kKeep, block, 1, {}};
    for (const Kind kind : {Kind::kKeep, Kind::kAttention, Kind::kSegment}) {
      step.kind = kind;
      const std::string name(ForwardName(kind));
      const bool sends = may && Take(name + "_host", block);
      if (sends) step.sent = block;  // until the list says where
      if (!sends && !Take(name, block)) continue;
      while (kind == Kind::kSegment && step.end() < end && Take("F_none", step.end())) ++step.count;
      return step;
    }
    return Unexpected("F_all, F_attention or F_ck of block " + std::to_string(block));
  }

  Status Backward(RematStep& step) {
    if (step.kind == Kind::kSegment) {
      WEFT_ASSIGN_OR_RETURN(step.replay, Replay(step.first, step.end()));
      return OkStatus();
    }
    return Take("B", step.first) ? OkStatus()
                                 : Unexpected("B of block " + std::to_string(step.first));
  }

  /// The forward and backward passes over blocks [first, end) of a segment.
  Result<RematPlan> Replay(int64_t first, int64_t end) {
    RematPlan plan;
    for (int64_t block = first; block < end;) {
      WEFT_ASSIGN_OR_RETURN(RematStep step, Forward(block, end, false));
      block = step.end();
      // The segment that a replay repeats whole gets nowhere.
      if (step.kind == Kind::kSegment && step.first == first && block == end) {
        return InvalidError("plan.recompute_schedule: block " + std::to_string(first) +
                            " begins a segment that repeats itself");
      }
      plan.push_back(std::move(step));
    }
    for (auto step = plan.rbegin(); step != plan.rend(); ++step) {
      WEFT_RETURN_IF_ERROR(Backward(*step));
    }
    return plan;
  }

  bool Take(std::string_view name, int64_t block) {
    if (at_ == operations_.size() || operations_[at_] != Operation(name, block)) return false;
    ++at_;
    return true;
  }

  Status Unexpected(const std::string& wanted) const {
    return InvalidError("plan.recompute_schedule: operation " + std::to_string(at_) + " is " +
                        (at_ < operations_.size() ? "\"" + operations_[at_] + "\"" : "missing") +
                        ", expected " + wanted);
  }

  const std::vector<std::string>& operations_;
  size_t at_ = 0;
};

}  // namespace

RematPlan RematOfPolicies(const std::vector<std::string>& policies, int64_t layers,
                          int64_t segment) {
  const auto policy = [&](int64_t i) {
    return i < std::ssize(policies) ? std::string_view(policies[static_cast<size_t>(i)]) : "keep";
  };
  RematPlan plan;
  for (int64_t block = 0; block < layers;) {
    RematStep step{policy(block) == "attention" ? Kind::kAttention : Kind::kKeep, block, 1, {}};
    if (policy(block) == "recompute") {
      step.kind = Kind::kSegment;
      while (step.count < segment && step.end() < layers && policy(step.end()) == "recompute") {
        ++step.count;
      }
      step.replay = Kept(step.first, step.end());
    }
    block = step.end();
    plan.push_back(std::move(step));
  }
  return plan;
}

RematPlan AllOnHost(RematPlan plan) {
  for (int64_t i = 0; i + 1 < std::ssize(plan); ++i) {
    RematStep& step = plan[static_cast<size_t>(i)];
    step.sent = step.fetched = i + 1;
  }
  return plan;
}

bool Transfers(const RematPlan& plan) {
  return std::any_of(plan.begin(), plan.end(), [](const RematStep& s) { return s.offloaded(); });
}

std::vector<std::string> PoliciesOf(const RematPlan& plan) {
  std::vector<std::string> policies;
  for (const RematStep& step : plan) {
    const char* policy = step.kind == Kind::kSegment     ? "recompute"
                         : step.kind == Kind::kAttention ? "attention"
                                                         : "keep";
    policies.insert(policies.end(), static_cast<size_t>(step.count), policy);
  }
  return policies;
}

std::vector<std::string> RematOperations(const RematPlan& plan) {
  std::vector<std::string> operations;
  Append(plan, operations);
  return operations;
}

Result<RematPlan> ParseRemat(const std::vector<std::string>& operations, int64_t layers) {
  Parser parser(operations);
  WEFT_ASSIGN_OR_RETURN(RematPlan plan, parser.All(layers));
  WEFT_RETURN_IF_ERROR(parser.End());
  return plan;
}

Result<RematPlan> RematOf(const Plan& plan, int64_t layers) {
  const bool on_host = plan.offload_activations != "none";
  if (plan.recompute_schedule.empty()) {
    RematPlan remat = RematOfPolicies(plan.block_memory_policy, layers, plan.recompute_segment);
    return on_host ? AllOnHost(std::move(remat)) : std::move(remat);
  }
  WEFT_ASSIGN_OR_RETURN(RematPlan remat, ParseRemat(plan.recompute_schedule, layers));
  if (!on_host && Transfers(remat)) {
    return InvalidError(
        "plan.recompute_schedule sends to the host, and plan.offload_activations is none");
  }
  return remat;
}

Result<RematPlan> StageOf(const RematPlan& plan, int64_t first, int64_t blocks) {
  RematPlan stage;
  const int64_t end = first + blocks;
  for (const RematStep& step : plan) {
    if (step.end() <= first || step.first >= end) continue;
    const bool across = step.first < first || step.end() > end;
    if (across || step.offloaded()) {
      return InvalidError("plan.recompute_schedule: block " + std::to_string(step.first) +
                          (across ? " is recomputed with blocks of another stage of the pipeline"
                                  : " is of a pipeline, and sends what it keeps"));
    }
    stage.push_back(step);
  }
  Shift(stage, -first);
  return stage;
}

RematPlan OfStages(const std::vector<RematPlan>& stages) {
  RematPlan plan;
  for (RematPlan stage : stages) {
    Shift(stage, plan.empty() ? 0 : plan.back().end());
    plan.insert(plan.end(), stage.begin(), stage.end());
  }
  return plan;
}

int64_t ReplayedBlocks(const RematPlan& plan) {
  int64_t blocks = 0;
  for (const RematStep& step : plan) {
    if (step.kind == Kind::kSegment) blocks += step.count + ReplayedBlocks(step.replay);
  }
  return blocks;
}

int64_t SentBlocks(const RematPlan& plan) {
  int64_t blocks = 0;
  for (const RematStep& step : plan) blocks += step.offloaded() ? step.count : 0;
  return blocks;
}

int64_t ReplayedAttentions(const RematPlan& plan) {
  int64_t blocks = 0;
  for (const RematStep& step : plan) {
    blocks += step.kind == Kind::kAttention ? 1 : ReplayedAttentions(step.replay);
  }
  return blocks;
}

}  // namespace weft
