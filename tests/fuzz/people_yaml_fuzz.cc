// A coordinator's file of people. Whoever it lets in has the role that the file says, and nobody
// comes in by a token that is not in it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/access/people.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  using namespace weft::coordinator;
  static const std::string kPath =
      std::filesystem::temp_directory_path() / ("weft_people_fuzz_" + std::to_string(getpid()));
  const std::string_view text = fuzz::Text(data, size);
  std::ofstream(kPath) << text;
  std::filesystem::permissions(kPath, std::filesystem::perms(0600));
  const auto people = People::Open(kPath, Clock::System());
  std::filesystem::remove(kPath);
  if (!people.ok()) return 0;
  const Result<Document> document = ParseYaml(text, "people.yaml");
  WEFT_FUZZ_EXPECT(document.ok());
  const Result<PeopleFile> file = FromJson<PeopleFile>(*document);
  WEFT_FUZZ_EXPECT(file.ok());
  for (const PersonEntry& entry : file->people) {
    const std::optional<Person> person = (*people)->WithName(entry.name);
    WEFT_FUZZ_EXPECT(person.has_value());
    WEFT_FUZZ_EXPECT(Name(person->role) == entry.role && person->queues == entry.queues);
  }
  WEFT_FUZZ_EXPECT(!(*people)->WithToken("guess").has_value());
  return 0;
}
