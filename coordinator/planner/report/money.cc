#include "coordinator/planner/report/money.h"

#include "common/text.h"

namespace weft::planner {

std::string Money(double amount, const std::string& currency) {
  const char* format = "%.2g";
  if (amount >= 0.995) format = "%.2f";
  if (amount >= 999.5) format = "%.0f";
  const std::string text = FormatNumber(format, amount);
  return currency.empty() ? text : text + " " + currency;
}

}  // namespace weft::planner
