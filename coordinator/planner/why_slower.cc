#include "coordinator/planner/why_slower.h"

#include "common/text.h"
#include "coordinator/planner/units.h"

namespace weft::planner {

std::string Factor(double value) {
  return FormatNumber(value < 1.0995 ? "%.3fx" : "%.2fx", value);
}

std::string WhySlower(const TimeBreakdown& own, const TimeBreakdown& best) {
  const double factor = StepSeconds(own) / StepSeconds(best);
  if (factor < 1.0005) return "as fast as the chosen plan, which is simpler";
  const auto parts = Components(own), others = Components(best);
  size_t worst = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].seconds - others[i].seconds > parts[worst].seconds - others[worst].seconds) {
      worst = i;
    }
  }
  return Factor(factor) + " the step time; " + std::string(parts[worst].name) + " takes " +
         HumanSeconds(parts[worst].seconds - others[worst].seconds) + " more";
}

}  // namespace weft::planner
