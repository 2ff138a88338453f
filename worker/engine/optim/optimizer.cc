#include "worker/engine/optim/optimizer.h"

#include "common/check.h"
#include "worker/engine/optim/adafactor.h"
#include "worker/engine/optim/disk_adamw.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/optim/muon.h"
#include "worker/engine/optim/schedule_free.h"
#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> NewOptimizer(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet* parameters, DType compute,
                                                std::span<const ParameterPart> parts) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<ParameterRule> rules,
                        ResolveParameterRules(spec, *parameters));
  WEFT_CHECK(parts.empty() || UpdatesElementwise(spec),
             "validation refuses parts of tensors that the rule treats as a whole");
  const std::vector<ParameterPart> whole =
      parts.empty() ? TrainedParts(*parameters) : std::vector<ParameterPart>();
  if (parts.empty()) parts = whole;
  if (IsInHostMemoryPool(context) && context.host->optimizer_in_file()) {
    return DiskAdamW::New(context, spec, *parameters, rules, parts);
  }
  if (const FusedRule* rule = FindFusedRule(spec); rule != nullptr) {
    return FusedOptimizer::New(context, spec, *rule, *parameters, rules, parts);
  }
  if (spec.name == "adafactor") return Adafactor::New(context, spec, *parameters, rules);
  if (spec.name == "muon") return Muon::New(context, spec, *parameters, rules, compute);
  if (spec.name == "schedule_free_adamw") {
    return ScheduleFree::New(context, spec, *parameters, rules, parts);
  }
  return InvalidError("optimizer.name '" + spec.name + "' is not known; hint: adamw");
}

}  // namespace weft::engine
