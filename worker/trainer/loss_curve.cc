#include "worker/trainer/loss_curve.h"

#include <cmath>
#include <optional>
#include <string_view>

#include "common/json.h"

namespace weft::trainer {
namespace {

constexpr size_t kRecent = 100;

/// A line that is ours, or nothing.
struct Point {
  int64_t step = 0;
  double loss = 0;
};
std::optional<Point> PointOfLine(std::string_view line) {
  Result<Json> json = ParseJson(line);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  auto step = json->find("step");
  auto loss = json->find("loss");
  if (step == json->end() || !step->is_number_integer() || loss == json->end()) {
    return std::nullopt;
  }
  return Point{step->get<int64_t>(), loss->is_number() ? loss->get<double>() : std::nan("")};
}

}  // namespace

Result<LossCurve> LossCurve::Open(Env& env, const std::string& run_dir, int64_t step) {
  const std::string path = JoinPath(run_dir, "loss.jsonl");
  LossCurve curve;
  std::string kept;
  if (step > 0 && env.FileExists(path)) {
    WEFT_ASSIGN_OR_RETURN(kept, ReadFile(env, path, uint64_t{4} << 30));
    size_t begin = 0;
    for (size_t end = 0; (end = kept.find('\n', begin)) != std::string::npos; begin = end + 1) {
      std::optional<Point> point = PointOfLine(std::string_view(kept).substr(begin, end - begin));
      if (!point || point->step < 1 || point->step > step) break;
      curve.Remember(point->loss);
    }
    kept.resize(begin);
  }
  // The new file takes the name of the old one only once it has what is kept; it stays open, so
  // that the steps to come go on behind that.
  const std::string temporary = path + ".tmp";
  WEFT_ASSIGN_OR_RETURN(curve.file_, env.NewWritableFile(temporary));
  WEFT_RETURN_IF_ERROR(curve.file_->Append(std::string_view(kept)));
  WEFT_RETURN_IF_ERROR(curve.file_->Sync());
  WEFT_RETURN_IF_ERROR(env.Rename(temporary, path));
  WEFT_RETURN_IF_ERROR(env.SyncDir(run_dir));
  return curve;
}

Status LossCurve::Append(int64_t step, double loss, double learning_rate) {
  Json line;
  line["step"] = step;
  line["loss"] = loss;  // null when not finite
  line["learning_rate"] = learning_rate;
  Remember(loss);
  return file_->Append(std::string_view(line.dump() + "\n"));
}

void LossCurve::Remember(double loss) {
  recent_.push_back(loss);
  if (recent_.size() > kRecent) recent_.pop_front();
}

double LossCurve::RecentMean() const {
  double sum = 0;
  int64_t count = 0;
  for (double loss : recent_) {
    if (!std::isfinite(loss)) continue;
    sum += loss;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

}  // namespace weft::trainer
