#include "kernels/testing/test_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels::testing {
namespace {

// 0xff bytes: a NaN in all float types, -1 in i32.
constexpr uint8_t kPoison = 0xff;
constexpr int64_t kGuardElements = 64;

thread_local const ScopedTestDevice* current_device = nullptr;

}  // namespace

ScopedTestDevice::ScopedTestDevice(Device device, bool exact)
    : outer_(current_device), device_(device), exact_(exact) {
  current_device = this;
}

ScopedTestDevice::~ScopedTestDevice() {
  current_device = outer_;
}

const ScopedTestDevice* ScopedTestDevice::Current() {
  return current_device;
}

TestTensor::TestTensor(DType dtype, Shape shape, int64_t row_padding) {
  int64_t width = shape.rank == 0 ? 1 : shape[-1];
  int64_t row_stride = width + row_padding;
  view_ = TensorView(nullptr, dtype, shape);
  view_.row_stride = row_stride;
  const ScopedTestDevice* where = ScopedTestDevice::Current();
  const bool on_device = where != nullptr && where->device().type == DeviceType::kCuda;
  if (on_device) view_.device = where->device();
  const int64_t elements = shape.Rows() * row_stride + kGuardElements;
  const int64_t kept = KeptElements() < shape.Elements() ? Offset(KeptElements()) : elements;
  memory_.assign(kept * DTypeSize(dtype), kPoison);
  initial_ = memory_;
  view_.data = memory_.data();
  if (!on_device) return;
  const int64_t last_row = shape.Elements() == 0 ? 0 : (shape.Rows() - 1) * row_stride + width;
  auto memory = cuda::DeviceMemory::Allocate(
      where->device().index, (where->exact() ? last_row : elements) * DTypeSize(dtype));
  WEFT_CHECK(memory.ok(), memory.status().message());
  device_memory_ = *std::move(memory);
  view_.data = device_memory_.data();
}

int64_t TestTensor::Offset(int64_t element) const {
  const int64_t width = view_.shape.rank == 0 ? 1 : view_.shape[-1];
  return element / width * view_.row_stride + element % width;
}

// How many elements of a large tensor are drawn, whole rows of a padded one.
int64_t TestTensor::DrawnElements() const {
  const int64_t elements = view_.shape.Elements();
  if (elements <= kMostDrawn) return elements;
  const int64_t width = view_.shape[-1];
  return view_.row_stride == width ? kMostDrawn : std::max<int64_t>(kMostDrawn / width, 1) * width;
}

int64_t TestTensor::KeptElements() const {
  const int64_t elements = view_.shape.Elements();
  return view_.device.type == DeviceType::kCpu || elements <= kMostKept ? elements
                                                                        : DrawnElements();
}

void TestTensor::Reset() {
  memory_ = initial_;
  if (view_.device.type == DeviceType::kCpu) return;
  for (size_t at = 0; at < device_memory_.bytes(); at += memory_.size()) {
    const size_t bytes = std::min(memory_.size(), device_memory_.bytes() - at);
    const Status copied = device_memory_.CopyFrom(memory_.data(), bytes, at);
    WEFT_CHECK(copied.ok(), copied.message());
  }
}

void TestTensor::Fetch() {
  if (view_.device.type == DeviceType::kCpu) return;
  const Status copied =
      device_memory_.CopyTo(memory_.data(), std::min(memory_.size(), device_memory_.bytes()));
  WEFT_CHECK(copied.ok(), copied.message());
}

void TestTensor::Write(int64_t offset, double value) {
  uint8_t* at = memory_.data() + static_cast<size_t>(offset) * DTypeSize(view_.dtype);
  auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  switch (view_.dtype) {
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kBF16:
      return put(ToBFloat16(static_cast<float>(value)));
    case DType::kF16:
      return put(ToHalf(static_cast<float>(value)));
    case DType::kI32:
      return put(static_cast<int32_t>(value));
    case DType::kU16:
      return put(static_cast<uint16_t>(value));
    case DType::kU8:
      return put(static_cast<uint8_t>(value));
    case DType::kF8E4M3:
      return put(ToFloat8E4M3(static_cast<float>(value)));
    case DType::kF8E5M2:
      return put(ToFloat8E5M2(static_cast<float>(value)));
  }
}

TestTensor& TestTensor::Assign(const std::vector<double>& values) {
  WEFT_CHECK(static_cast<int64_t>(values.size()) == view_.shape.Elements(), "test tensor size");
  return AssignRepeated(values);
}

// The first DrawnElements() are given, or all.
TestTensor& TestTensor::AssignRepeated(const std::vector<double>& values) {
  const auto drawn = static_cast<int64_t>(values.size());
  for (int64_t i = 0; i < drawn; ++i) Write(Offset(i), values[i]);
  if (const int64_t kept = KeptElements(); drawn < kept) {
    const size_t period = Offset(drawn) * DTypeSize(view_.dtype);
    const size_t end = Offset(kept) * DTypeSize(view_.dtype);
    for (size_t at = period; at < end; at += period) {
      std::memcpy(memory_.data() + at, memory_.data(), std::min(period, end - at));
    }
  }
  initial_ = memory_;
  return *this;
}

TestTensor& TestTensor::Absolute() {
  std::vector<double> values = Read(memory_);
  values.resize(DrawnElements());
  for (double& value : values) value = std::abs(value);
  return AssignRepeated(values);
}

TestTensor& TestTensor::Random(PhiloxStream& rng, double scale) {
  std::vector<double> values(static_cast<size_t>(DrawnElements()));
  for (double& value : values) {
    double magnitude = 0.1 + 0.9 * UniformFloat(rng.Next());
    value = (rng.Next() & 1u) != 0 ? scale * magnitude : -scale * magnitude;
  }
  return AssignRepeated(values);
}

TestTensor& TestTensor::RandomIntegers(PhiloxStream& rng, int64_t low, int64_t high) {
  std::vector<double> values(static_cast<size_t>(DrawnElements()));
  for (double& value : values) {
    value = static_cast<double>(low) +
            static_cast<double>(rng.Below(static_cast<uint64_t>(high - low)));
  }
  return AssignRepeated(values);
}

std::vector<double> TestTensor::Read(const Bytes& memory) const {
  std::vector<double> values(static_cast<size_t>(KeptElements()));
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t offset = Offset(static_cast<int64_t>(i));
    const uint8_t* at = memory.data() + static_cast<size_t>(offset) * DTypeSize(view_.dtype);
    auto get = [at](auto typed) {
      std::memcpy(&typed, at, sizeof typed);
      return typed;
    };
    switch (view_.dtype) {
      case DType::kF32:
        values[i] = get(float{});
        break;
      case DType::kBF16:
        values[i] = ToFloat(get(BFloat16{}));
        break;
      case DType::kF16:
        values[i] = ToFloat(get(Half{}));
        break;
      case DType::kI32:
        values[i] = get(int32_t{});
        break;
      case DType::kU16:
        values[i] = get(uint16_t{});
        break;
      case DType::kU8:
        values[i] = get(uint8_t{});
        break;
      case DType::kF8E4M3:
        values[i] = ToFloat(get(Float8E4M3{}));
        break;
      case DType::kF8E5M2:
        values[i] = ToFloat(get(Float8E5M2{}));
        break;
    }
  }
  return values;
}

bool TestTensor::GuardsIntact() const {
  size_t element = DTypeSize(view_.dtype);
  int64_t width = view_.shape.rank == 0 ? 1 : view_.shape[-1];
  int64_t total = static_cast<int64_t>(memory_.size() / element);
  int64_t used = view_.shape.Rows() * view_.row_stride;
  for (int64_t i = 0; i < total; ++i) {
    if (i < used && i % view_.row_stride < width) continue;
    for (size_t b = 0; b < element; ++b) {
      if (memory_[static_cast<size_t>(i) * element + b] != kPoison) return false;
    }
  }
  return true;
}

}  // namespace weft::kernels::testing
