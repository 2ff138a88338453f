#include "cli/cluster_file.h"

#include "common/env.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

template <class T>
Result<T> Load(const std::string& path) {
  constexpr uint64_t kMostBytes = uint64_t{4} << 20;
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, kMostBytes));
  WEFT_ASSIGN_OR_RETURN(Document document, ParseYaml(text, path));
  return FromJson<T>(document);
}

}  // namespace

Result<ClusterFile> LoadClusterFile(const std::string& path) {
  return Load<ClusterFile>(path);
}

Result<ClusterCosts> LoadCostsFile(const std::string& path) {
  return Load<ClusterCosts>(path);
}

}  // namespace weft::cli
