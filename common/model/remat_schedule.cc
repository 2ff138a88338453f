#include "common/model/remat_schedule.h"

#include <algorithm>
#include <charconv>
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

void Append(const RematPlan& plan, std::vector<std::string>& operations) {
  for (const RematStep& step : plan) {
    if (step.kind != Kind::kSegment) {
      operations.push_back(
          Operation(step.kind == Kind::kKeep ? "F_all" : "F_attention", step.first));
      continue;
    }
    operations.push_back(Operation("F_ck", step.first));
    for (int64_t i = step.first + 1; i < step.end(); ++i) {
      operations.push_back(Operation("F_none", i));
    }
  }
  for (auto step = plan.rbegin(); step != plan.rend(); ++step) {
    if (step->kind == Kind::kSegment) {
      Append(step->replay, operations);
    } else {
      operations.push_back(Operation("B", step->first));
    }
  }
}

/// Reads operations one after the other.
class Parser {
 public:
  explicit Parser(const std::vector<std::string>& operations) : operations_(operations) {}

  /// The forward and backward passes over blocks [first, end).
  Result<RematPlan> Pass(int64_t first, int64_t end) {
    RematPlan plan;
    for (int64_t block = first; block < end;) {
      RematStep step{Kind::kKeep, block, 1, {}};
      if (Take("F_attention", block)) {
        step.kind = Kind::kAttention;
      } else if (Take("F_ck", block)) {
        step.kind = Kind::kSegment;
        while (step.end() < end && Take("F_none", step.end())) ++step.count;
      } else if (!Take("F_all", block)) {
        return Unexpected("F_all, F_attention or F_ck of block " + std::to_string(block));
      }
      block = step.end();
      // The segment that a replay repeats whole gets nowhere.
      if (step.kind == Kind::kSegment && step.first == first && block == end && depth_ > 0) {
        return InvalidError("plan.recompute_schedule: block " + std::to_string(first) +
                            " begins a segment that repeats itself");
      }
      plan.push_back(std::move(step));
    }
    for (auto step = plan.rbegin(); step != plan.rend(); ++step) {
      if (step->kind == Kind::kSegment) {
        ++depth_;
        WEFT_ASSIGN_OR_RETURN(step->replay, Pass(step->first, step->end()));
        --depth_;
      } else if (!Take("B", step->first)) {
        return Unexpected("B of block " + std::to_string(step->first));
      }
    }
    return plan;
  }

  Status End() const { return at_ == operations_.size() ? OkStatus() : Unexpected("no more"); }

 private:
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
  int64_t depth_ = 0;
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
  WEFT_ASSIGN_OR_RETURN(RematPlan plan, parser.Pass(0, layers));
  WEFT_RETURN_IF_ERROR(parser.End());
  return plan;
}

Result<RematPlan> RematOf(const Plan& plan, int64_t layers) {
  if (!plan.recompute_schedule.empty()) return ParseRemat(plan.recompute_schedule, layers);
  return RematOfPolicies(plan.block_memory_policy, layers, plan.recompute_segment);
}

int64_t ReplayedBlocks(const RematPlan& plan) {
  int64_t blocks = 0;
  for (const RematStep& step : plan) {
    if (step.kind == Kind::kSegment) blocks += step.count + ReplayedBlocks(step.replay);
  }
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
