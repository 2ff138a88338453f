#include "coordinator/planner/report/money.h"

#include <cstdio>

namespace weft::planner {

std::string Money(double amount, const std::string& currency) {
  const char* format = "%.2g";
  if (amount >= 0.995) format = "%.2f";
  if (amount >= 999.5) format = "%.0f";
  char text[64];
  std::snprintf(text, sizeof(text), format, amount);
  return currency.empty() ? text : text + (" " + currency);
}

}  // namespace weft::planner
