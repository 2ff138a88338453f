// That nothing reads out of a parameter's name what it is: its attributes say it
// (common/model/parameter_info.h).

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

namespace fs = std::filesystem;

/// Where code has parameters. Others import and export files, which know them by name.
constexpr std::string_view kFolders[] = {"common/model", "kernels", "coordinator/planner",
                                         "worker/engine", "worker/trainer"};

/// Files and folders whose names are of something else: of fields of a job, of files with data, of
/// tensors in a checkpoint that is read before there is a model.
constexpr std::string_view kOtherNames[] = {"common/model/job_paths.cc", "worker/engine/data/",
                                            "worker/trainer/ticket.cc"};

bool ReadsName(std::string_view line) {
  return line.find("name.starts_with(") != std::string_view::npos ||
         line.find("name.ends_with(") != std::string_view::npos;
}

bool IsBound(const fs::path& path, const std::string& file) {
  const std::string extension = path.extension();
  if (extension != ".h" && extension != ".cc" && extension != ".cu") return false;
  if (file.ends_with("_test.cc") || file.find("testing") != std::string::npos) return false;
  return std::none_of(std::begin(kOtherNames), std::end(kOtherNames),
                      [&](std::string_view other) { return file.starts_with(other); });
}

/// "file:line" of each place under `root` that asks how a name begins or ends.
std::vector<std::string> PlacesThatReadNames(const fs::path& root, int* files) {
  std::vector<std::string> places;
  for (const std::string_view folder : kFolders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string file = fs::relative(entry.path(), root).generic_string();
      if (!entry.is_regular_file() || !IsBound(entry.path(), file)) continue;
      ++*files;
      std::ifstream stream(entry.path());
      int number = 0;
      for (std::string line; std::getline(stream, line);) {
        ++number;
        if (ReadsName(line)) places.push_back(file + ":" + std::to_string(number));
      }
    }
  }
  std::sort(places.begin(), places.end());
  return places;
}

TEST(Names, OfParametersHaveNoMeaning) {
  int files = 0;
  EXPECT_THAT(PlacesThatReadNames(WEFT_SOURCE_DIR, &files), ::testing::IsEmpty())
      << "hint: an attribute that the maker of the parameter sets (ParameterAttributes)";
  EXPECT_GT(files, 100) << "the sources were not found";
}

TEST(Names, ThatAreReadAreFoundWithFileAndLine) {
  std::string pattern = ::testing::TempDir() + "weft-names-XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const fs::path root = pattern;
  const auto write = [&](const char* file) {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << "// Whether it is a bias.\n"
                               << "return parameter.name.ends_with(\".bias\");\n";
  };
  write("worker/engine/nn/x.cc");
  write("worker/engine/nn/x_test.cc");
  write("worker/engine/data/x.cc");
  write("common/formats/x.cc");
  int files = 0;
  EXPECT_THAT(PlacesThatReadNames(root, &files), ::testing::ElementsAre("worker/engine/nn/x.cc:2"));
  EXPECT_EQ(files, 1);
  fs::remove_all(root);
}

}  // namespace
}  // namespace weft
