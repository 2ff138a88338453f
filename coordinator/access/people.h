#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/file_version.h"
#include "common/spec/field.h"
#include "common/status.h"
#include "coordinator/access/role.h"

namespace weft::coordinator {

/// An entry of the file of people.
struct PersonEntry {
  std::string name;
  std::string role;
  std::string token_sha256;
  std::vector<std::string> queues;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Of the person or program.").Required(), self.name);
    visit(
        Field("role", "What it may do.").Required().OneOf({"viewer", "user", "operator", "admin"}),
        self.role);
    visit(Field("token_sha256",
                "SHA-256 of its token, 64 hexadecimal digits; empty: it shows a certificate."),
          self.token_sha256);
    visit(
        Field("queues", "Queues that it may put jobs in and whose jobs it may act on; empty: all."),
        self.queues);
  }
};

/// The file of people: who may do what on a coordinator.
struct PeopleFile {
  std::vector<PersonEntry> people;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("people", "All that are known.").Required(), self.people);
  }
};

struct Person {
  std::string name;
  Role role = Role::kNobody;
  std::vector<std::string> queues;  ///< Empty: all.

  bool operator==(const Person&) const = default;
};

/// The people of a file, which is read again when it has changed. A change that makes no sense is
/// logged and those who were known stay. Thread-safe.
class People {
 public:
  /// Reads the file, YAML or JSON. kInvalid says what is wrong with it.
  static Result<std::unique_ptr<People>> Open(const std::string& path, const Clock& clock);

  std::optional<Person> WithToken(const std::string& token);
  std::optional<Person> WithName(const std::string& name);

 private:
  struct Known {
    std::map<std::string, Person> by_name;
    std::map<std::string, std::string> names_by_hash;  ///< Of the SHA-256 of a token, as hex.
  };
  People(std::string path, const Clock& clock) : path_(std::move(path)), clock_(clock) {}
  static Result<Known> Read(const std::string& path);
  /// Needs mutex_.
  void ReadAgainIfChanged();

  const std::string path_;
  const Clock& clock_;
  std::mutex mutex_;
  Known known_;
  FileVersion version_;
  std::chrono::nanoseconds looked_at_{0};
};

}  // namespace weft::coordinator
