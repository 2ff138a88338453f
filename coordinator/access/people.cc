#include "coordinator/access/people.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "common/env.h"
#include "common/log.h"
#include "common/sha256.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::coordinator {
namespace {

constexpr uint64_t kLargestFile = 16 << 20;
/// Between looks at the file.
constexpr std::chrono::milliseconds kLookEvery(500);

bool IsHash(const std::string& text) {
  return text.size() == 2 * Sha256::kBytes &&
         text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace

Result<People::Known> People::Read(const std::string& path) {
  struct stat state {};
  if (stat(path.c_str(), &state) != 0) return ErrnoError("read " + path, errno);
  if ((state.st_mode & 022) != 0) {
    return InvalidError("others may change " + path +
                        ", which says who may do what; hint: chmod 600 " + path);
  }
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(Env::Posix(), path, kLargestFile));
  WEFT_ASSIGN_OR_RETURN(const Document document, ParseYaml(text, path));
  WEFT_ASSIGN_OR_RETURN(const PeopleFile file, FromJson<PeopleFile>(document));
  Known known;
  for (const PersonEntry& entry : file.people) {
    if (entry.name.empty()) return InvalidError(path + ": a person has no name");
    const Person person{entry.name, *RoleFromName(entry.role), entry.queues};
    if (!known.by_name.emplace(entry.name, person).second) {
      return InvalidError(path + ": '" + entry.name + "' is there twice");
    }
    if (entry.token_sha256.empty()) continue;
    if (!IsHash(entry.token_sha256)) {
      return InvalidError(path + ": token_sha256 of '" + entry.name +
                          "' is not 64 lower-case hexadecimal digits; hint: weft auth token " +
                          entry.name);
    }
    if (!known.names_by_hash.emplace(entry.token_sha256, entry.name).second) {
      return InvalidError(path + ": '" + entry.name + "' has the token of another person");
    }
  }
  return known;
}

Result<std::unique_ptr<People>> People::Open(const std::string& path, const Clock& clock) {
  std::unique_ptr<People> people(new People(path, clock));
  people->version_ = FileVersion::Of(path);
  people->looked_at_ = clock.Monotonic();
  WEFT_ASSIGN_OR_RETURN(people->known_, Read(path));
  return people;
}

void People::ReadAgainIfChanged() {
  const std::chrono::nanoseconds now = clock_.Monotonic();
  if (now - looked_at_ < kLookEvery) return;
  looked_at_ = now;
  const FileVersion version = FileVersion::Of(path_);
  if (version == version_) return;
  version_ = version;
  Result<Known> read = Read(path_);
  if (!read.ok()) {
    WEFT_LOG_ERROR << "the people who were known stay: " << read.status().message();
    return;
  }
  known_ = *std::move(read);
  WEFT_LOG_INFO << path_ << " has changed: " << known_.by_name.size() << " people are known";
}

std::optional<Person> People::WithToken(const std::string& token) {
  const std::string hash = Sha256Hex(token);
  std::lock_guard lock(mutex_);
  ReadAgainIfChanged();
  // Where the search ends reveals something of a hash, from which nobody finds a token.
  const auto name = known_.names_by_hash.find(hash);
  if (name == known_.names_by_hash.end()) return std::nullopt;
  return known_.by_name.at(name->second);
}

std::optional<Person> People::WithName(const std::string& name) {
  std::lock_guard lock(mutex_);
  ReadAgainIfChanged();
  const auto person = known_.by_name.find(name);
  if (person == known_.by_name.end()) return std::nullopt;
  return person->second;
}

}  // namespace weft::coordinator
