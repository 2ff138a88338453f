#include "coordinator/planner/cluster/accelerator.h"

#include "common/check.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/cluster/embedded_data.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {
namespace {

// The built-in tables are part of the program: a fault in them is ours.
template <class T>
std::vector<T> ReadTable(const char* text) {
  std::vector<T> table;
  for (const Json& entry : Json::parse(text)) {
    Result<T> read = FromJson<T>(entry);
    WEFT_CHECK(read.ok(), read.status().message());
    table.push_back(*std::move(read));
  }
  return table;
}

template <class T>
Result<T> FindIn(const std::vector<T>& table, std::string_view name, std::string_view what) {
  std::string known;
  for (const T& entry : table) {
    if (entry.name == name) return entry;
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  return NotFoundError("no " + std::string(what) + " '" + std::string(name) + "'; hint: one of " +
                       known);
}

}  // namespace

const ProductPeak* AcceleratorSpec::Find(std::string_view precision) const {
  for (const ProductPeak& peak : products) {
    if (peak.precision == precision) return &peak;
  }
  return nullptr;
}

const std::vector<AcceleratorSpec>& KnownAccelerators() {
  static const auto* const kTable =
      new std::vector<AcceleratorSpec>(ReadTable<AcceleratorSpec>(kAcceleratorsJson));
  return *kTable;
}

Result<AcceleratorSpec> FindAccelerator(std::string_view name) {
  return FindIn(KnownAccelerators(), name, "accelerator");
}

const std::vector<SoftwareStack>& KnownStacks() {
  static const auto* const kTable =
      new std::vector<SoftwareStack>(ReadTable<SoftwareStack>(kStacksJson));
  return *kTable;
}

Result<SoftwareStack> FindStack(std::string_view name) {
  return FindIn(KnownStacks(), name, "software stack");
}

}  // namespace weft::planner
