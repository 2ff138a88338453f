#include "worker/engine/data/class_order.h"

#include <algorithm>
#include <string_view>

#include "common/formats/huggingface.h"
#include "common/spec/model_family.h"
#include "common/text.h"

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

/// What the names begin with that transformers gives to classes that have none.
constexpr std::string_view kDefaultName = "LABEL_";

std::vector<std::string> DefaultNames(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(std::string(kDefaultName) + std::to_string(i));
  return names;
}

/// The numbers below `count`, as std::to_string writes them.
std::vector<std::string> Numbers(size_t count) {
  std::vector<std::string> names;
  for (size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

bool Includes(const std::vector<std::string>& all, const std::set<std::string>& names) {
  const std::set<std::string> known(all.begin(), all.end());
  return known.size() == all.size() && !names.empty() &&
         std::includes(known.begin(), known.end(), names.begin(), names.end());
}

}  // namespace

std::vector<std::string> OrderClasses(const std::set<std::string>& names,
                                      const std::vector<std::string>& of_model) {
  if (Includes(of_model, names)) return of_model;
  if (of_model == DefaultNames(of_model.size())) {
    std::vector<std::string> numbers = Numbers(of_model.size());
    if (Includes(numbers, names)) return numbers;
  }
  std::vector<std::string> order(names.begin(), names.end());
  if (std::all_of(order.begin(), order.end(), IsWholeNumber)) {
    std::sort(order.begin(), order.end(), IsLess);
  }
  return order;
}

Status CheckNumbersOfClasses(const std::vector<std::string>& names, int64_t classes) {
  const std::string count = std::to_string(classes);
  for (const std::string& name : names) {
    const bool labelled = name.starts_with(kDefaultName);
    const std::string number = name.substr(labelled ? kDefaultName.size() : 0);
    const bool is_number = IsWholeNumber(number) && WithoutZeros(number) == number;
    if (!is_number || IsLess(number, count)) continue;
    return InvalidError("the class \"" + ClipText(name) + "\" of the data is none of the " + count +
                        " of the model, which are numbered from 0; hint: labels from 0 to " +
                        std::to_string(classes - 1) +
                        ", or another model.classes for a new classifier");
  }
  return OkStatus();
}

Result<std::vector<std::string>> ClassesOfModel(Env& env, const ModelSpec& model) {
  if (model.import_path.empty() || HeadOf(model) != "classification") {
    return std::vector<std::string>();
  }
  WEFT_ASSIGN_OR_RETURN(ImportedHead head, ReadHead(env, model.import_path));
  if (!HasHead(head, model)) return std::vector<std::string>();
  if (head.class_names.empty()) return DefaultNames(static_cast<size_t>(head.classes));
  return std::move(head.class_names);
}

}  // namespace weft::engine
