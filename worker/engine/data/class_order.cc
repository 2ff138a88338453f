#include "worker/engine/data/class_order.h"

#include <algorithm>

#include "common/formats/huggingface.h"
#include "common/spec/model_family.h"

namespace weft::engine {
namespace {

bool IsWholeNumber(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

std::string_view WithoutZeros(std::string_view digits) {
  const size_t first = digits.find_first_not_of('0');
  return digits.substr(std::min(first, digits.size() - 1));
}

/// By value, whatever the number of digits; "1" before "01".
bool IsLess(const std::string& a, const std::string& b) {
  const std::string_view x = WithoutZeros(a);
  const std::string_view y = WithoutZeros(b);
  if (x.size() != y.size()) return x.size() < y.size();
  return x != y ? x < y : a.size() < b.size();
}

}  // namespace

std::vector<std::string> OrderClasses(const std::set<std::string>& names,
                                      const std::vector<std::string>& of_model) {
  const std::set<std::string> known(of_model.begin(), of_model.end());
  const bool unique = known.size() == of_model.size();
  if (unique && !names.empty() &&
      std::includes(known.begin(), known.end(), names.begin(), names.end())) {
    return of_model;
  }
  std::vector<std::string> order(names.begin(), names.end());
  if (std::all_of(order.begin(), order.end(), IsWholeNumber)) {
    std::sort(order.begin(), order.end(), IsLess);
  }
  return order;
}

Result<std::vector<std::string>> ClassesOfModel(Env& env, const ModelSpec& model) {
  if (model.import_path.empty() || HeadOf(model) != "classification") {
    return std::vector<std::string>();
  }
  WEFT_ASSIGN_OR_RETURN(ImportedHead head, ReadHead(env, model.import_path));
  if (!HasHead(head, model)) return std::vector<std::string>();
  return std::move(head.class_names);
}

}  // namespace weft::engine
