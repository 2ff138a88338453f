#include "common/spec/check_profile.h"

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

namespace weft {
namespace {

/// Beyond the fastest and largest of machines by a factor of a thousand and more.
constexpr double kMostPerSecond = 1e20;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr int64_t kMostCores = 65536;
constexpr size_t kMostDevices = 1024;
constexpr size_t kMostRates = 4096;
constexpr size_t kMostText = 1024;

Status Wrong(const std::string& path, const std::string& value, const std::string& rule) {
  return InvalidError("the profile's " + path + " is " + value + ", but must be " + rule +
                      "; hint: weft-worker --reprobe measures the machine again");
}

/// Visits all fields of a profile, and says what is wrong with the first that is.
struct Checker {
  std::string prefix;
  Status status;

  std::string Path(const Field& field) const { return prefix + std::string(field.name); }

  void operator()(const Field& field, double value) {
    if (status.ok() && !(value >= 0 && value <= kMostPerSecond)) {
      status = Wrong(Path(field), std::to_string(value), "a number from 0 to 1e20");
    }
  }
  void operator()(const Field& field, int64_t value) {
    // -1 is a NUMA node that is not known.
    if (status.ok() &&
        (value < -1 || value > kMostBytes || (value < 0 && field.name != "numa_node"))) {
      status = Wrong(Path(field), std::to_string(value), "from 0 to 2^50");
    }
  }
  void operator()(const Field& field, const std::string& value) {
    if (status.ok() && value.size() > kMostText) {
      status = Wrong(Path(field), std::to_string(value.size()) + " characters long",
                     "at most " + std::to_string(kMostText));
    }
  }
  void operator()(const Field&, bool) {}
  void operator()(const Field&, const TimeCalibration&) {}  // the coordinator's own
  template <class T>
  void operator()(const Field& field, const std::vector<T>& list) {
    if (!status.ok()) return;
    const size_t most = std::is_same_v<T, DeviceSpec> ? kMostDevices : kMostRates;
    if (list.size() > most) {
      status = Wrong(Path(field), std::to_string(list.size()) + " entries",
                     "at most " + std::to_string(most));
      return;
    }
    const std::string outer = prefix;
    for (size_t i = 0; status.ok() && i < list.size(); ++i) {
      prefix = outer + std::string(field.name) + "[" + std::to_string(i) + "].";
      T::Fields(list[i], *this);
    }
    prefix = outer;
  }
};

}  // namespace

Status CheckProfile(const WorkerProfile& profile) {
  if (profile.cores < 1 || profile.cores > kMostCores) {
    return Wrong("cores", std::to_string(profile.cores), "from 1 to " + std::to_string(kMostCores));
  }
  Checker checker;
  WorkerProfile::Fields(profile, checker);
  return checker.status;
}

}  // namespace weft
