#pragma once

#include <string>

namespace weft::planner {

/// "12.50 USD", "1240 USD", "0.0031": three digits or all before the point.
std::string Money(double amount, const std::string& currency);

}  // namespace weft::planner
