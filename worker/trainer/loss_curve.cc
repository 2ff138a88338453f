#include "worker/trainer/loss_curve.h"

#include <cmath>

#include "common/json.h"

namespace weft::trainer {
namespace {

constexpr size_t kRecent = 100;

}  // namespace

// A line that is ours, or nothing.
std::optional<LossCurve::Point> LossCurve::PointOfLine(std::string_view line) {
  Result<Json> json = ParseJson(line);
  if (!json.ok() || !json->is_object()) return std::nullopt;
  auto step = json->find("step");
  auto loss = json->find("loss");
  if (step == json->end() || !step->is_number_integer() || loss == json->end()) {
    return std::nullopt;
  }
  Point point{step->get<int64_t>(), loss->is_number() ? loss->get<double>() : std::nan(""), {}};
  auto accuracy = json->find("accuracy");
  if (accuracy != json->end() && accuracy->is_number()) point.accuracy = accuracy->get<double>();
  return point;
}

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
      curve.Remember(*point);
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

Status LossCurve::Append(int64_t step, double loss, double learning_rate,
                         std::optional<double> accuracy) {
  Json line;
  line["step"] = step;
  line["loss"] = loss;  // null when not finite
  line["learning_rate"] = learning_rate;
  if (accuracy) line["accuracy"] = *accuracy;
  Remember({step, loss, accuracy});
  return file_->Append(std::string_view(line.dump() + "\n"));
}

void LossCurve::Remember(const Point& point) {
  recent_.push_back(point);
  if (recent_.size() > kRecent) recent_.pop_front();
}

double LossCurve::RecentMean() const {
  double sum = 0;
  int64_t count = 0;
  for (const Point& point : recent_) {
    if (!std::isfinite(point.loss)) continue;
    sum += point.loss;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

std::optional<double> LossCurve::RecentAccuracy() const {
  double sum = 0;
  int64_t count = 0;
  for (const Point& point : recent_) {
    if (!point.accuracy) continue;
    sum += *point.accuracy;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / static_cast<double>(count);
}

}  // namespace weft::trainer
