#include "worker/engine/optim/optimizer.h"

#include "worker/engine/optim/adamw.h"

namespace weft::engine {

Result<std::unique_ptr<Optimizer>> NewOptimizer(Context& context, const OptimizerSpec& spec,
                                                const ParameterSet* parameters) {
  if (spec.name == "adamw") return AdamW::New(context, spec, parameters);
  return InvalidError("optimizer.name '" + spec.name + "' is not known; hint: adamw");
}

}  // namespace weft::engine
