#include "worker/engine/optim/optimizer.h"

#include "worker/engine/optim/fused_optimizer.h"

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> NewOptimizer(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet* parameters) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<ParameterRule> rules,
                        ResolveParameterRules(spec, *parameters));
  if (const FusedRule* rule = FindFusedRule(spec); rule != nullptr) {
    return FusedOptimizer::New(context, spec, *rule, *parameters, rules,
                               TrainedParameters(*parameters));
  }
  return InvalidError("optimizer.name '" + spec.name + "' is not known; hint: adamw");
}

}  // namespace weft::engine
